"""`clusterrun config`: prints each option's value and its origin."""

from __future__ import annotations

import os

import click

from clusterrun.cli.error_output import say
from clusterrun.cli.shell_complete import json_option
from clusterrun.cli.submit_options import profile_option, settled
from clusterrun.cli.terminal import show as show_table
from clusterrun.config import profiles, settings
from clusterrun.config.settings import Setting
from clusterrun.model import option_table
from clusterrun.model.contract import HOME_VARIABLE
from clusterrun.notify.notify_address import shortened
from clusterrun.reports.view import TEXT, View, ViewField, any_of, many


@click.group()
def config() -> None:
    """Show the configuration.

    It is read from clusterrun.toml (the nearest one from here upwards) and
    ~/.config/clusterrun/config.toml: a table [defaults] and tables [profile.NAME], whose keys are
    the options of submit, and slurm-every. CLUSTERRUN_* variables come before files, the command
    line before all.

    \b
    Examples:
      clusterrun config show
    """


@config.command()
@profile_option
@json_option
def show(profile: str | None, as_json: bool) -> None:
    """Print each option's value and where it came from; "default" where nobody gave one.

    \b
    Examples:
      clusterrun config show
      clusterrun config show --json
    """
    origin = HOME_VARIABLE if os.environ.get(HOME_VARIABLE) else settings.DEFAULT
    home = Setting("home", settings.home(os.environ), origin)
    values = settled({}, profile, quiet=True)
    urls = values["notify"].value
    if isinstance(urls, tuple):  # they hold secrets
        values["notify"] = Setting("notify", tuple(map(shortened, urls)), values["notify"].origin)
    options = [*values.values(), home]
    files = profiles.files(os.getcwd(), os.environ)
    if as_json:
        print(CONFIGURATION.json({"options": options, "files": files}))
        return
    show_table(OPTION, options)
    say("files read: " + (", ".join(files) or "none"))
    say(*settings.misspelt(os.environ))


def _shown(setting: Setting) -> str:
    option = option_table.CONFIGURABLE.get(setting.name)
    if option and setting.origin == settings.DEFAULT and option.otherwise:
        return option.otherwise
    if setting.value in ("", ()):
        return "none"
    if isinstance(setting.value, bool):
        return str(setting.value).lower()
    return ", ".join(setting.value) if isinstance(setting.value, tuple) else str(setting.value)


OPTION = View(
    "An option.",
    ViewField("name", "Its name.", header="OPTION"),
    ViewField(
        "value",
        "Its value.",
        any_of("string", "integer", "boolean", "array"),
        header="VALUE",
        cell=lambda setting, now: _shown(setting),
    ),
    ViewField("origin", "Where the value comes from.", header="FROM"),
)
CONFIGURATION = View(
    "The output of `config show --json`.",
    ViewField("options", "Every option.", many(OPTION)),
    ViewField("files", "The configuration files that were read.", many(TEXT, "A path.")),
)
