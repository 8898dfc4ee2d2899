"""Find the configuration files, and read the options in their tables.

They are ``clusterrun.toml`` (the nearest one from the working directory upwards) and
``~/.config/clusterrun/config.toml``, each with ``[defaults]``, ``[profile.NAME]`` and ``[host.NAME]``. A
file that another user may have written is refused, unless ``trust`` in the user's own file or environment
names it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clusterrun.config import ownership
from clusterrun.config.settings import Source, read_value
from clusterrun.model.errors import BadInput, system_reason
from clusterrun.model.frozen import frozen
from clusterrun.model.nearest import did_you_mean
from clusterrun.model.option_table import CONFIGURABLE, TRUST

TEXTS = ("host", "python", "folder")
KEYS = (*TEXTS, "options")


@frozen
class HostEntry:
    """A cluster that `--host` names."""

    name: str
    host: str  # address for ssh
    python: str = ""  # Python of the client on that cluster
    folder: str = ""  # folder of the client on that cluster
    options: tuple[str, ...] = ()  # for ``ssh -o``


def _host(table: Mapping[str, Any], name: str, origin: str) -> HostEntry:
    _refuse_unknown(table, KEYS, origin, "key")
    for key, value in table.items():
        if key in TEXTS and not (isinstance(value, str) and value):
            raise BadInput(f"{origin} {key}: {value!r} is not a string")
        is_list_of_options = isinstance(value, list) and all(
            isinstance(option, str) and "=" in option for option in value
        )
        if key == "options" and not is_list_of_options:
            raise BadInput(f"{origin} {key}: {value!r} is not a list of KEY=VALUE, as ssh -o takes them")
    texts = {key: str(table.get(key, "")) for key in TEXTS}
    texts["host"] = texts["host"] or name
    return checked(HostEntry(name, **texts, options=tuple(table.get("options", ()))))


def checked(entry: HostEntry) -> HostEntry:
    """Return the entry. Raises ``BadInput`` if its host is not a name that ssh can take."""
    if entry.host.startswith("-") or not entry.host.isprintable() or " " in entry.host or not entry.host:
        problem = f"{entry.host!r} is not a host name for ssh"
        raise BadInput(problem, "clusterrun --host NAME, as you type it after ssh")
    return entry


PROJECT_FILE = "clusterrun.toml"


@frozen
class Configuration:
    """One checked file: its defaults, its profiles by name, and its hosts."""

    path: str
    defaults: Source
    profiles: tuple[tuple[str, Source], ...]  # by name
    hosts: tuple[HostEntry, ...] = ()


def files(cwd: str, environ: Mapping[str, str]) -> list[str]:
    """Return the existing configuration files, strongest first: the project's, then the user's."""
    return [path for path in (_upwards(cwd), _user_file(environ)) if path and os.path.isfile(path)]


def load(cwd: str, environ: Mapping[str, str]) -> list[Configuration]:
    """Return the content of all configuration files, strongest first.

    Raises ``BadInput`` as ``read`` does.
    """
    variable = read_value(TRUST, environ.get(TRUST.variable, ""), TRUST.variable)
    trusted = variable if isinstance(variable, tuple) else ()
    project, user = _upwards(cwd), _user_file(environ)
    configurations = []
    if os.path.isfile(user):
        configurations.append(read(user, trusted))
        trusted += tuple(dict(configurations[0].defaults.values).get(TRUST.name, ()))  # type: ignore[arg-type]
    for configuration in configurations:
        _refuse_trust([source for _, source in configuration.profiles], user)
    if project and project != user:
        configurations.insert(0, read(project, trusted))
        _refuse_trust(
            [configurations[0].defaults, *(source for _, source in configurations[0].profiles)], user
        )
    return configurations


def _refuse_trust(sources: Iterable[Source], user: str) -> None:
    """Refuse ``trust`` in a file that needs trust itself, and in a profile, which is chosen after reading."""
    for source in sources:
        if TRUST.name in dict(source.values):
            problem = f"{source.origin}: trust does not count here"
            raise BadInput(problem, f"put it in {user}, below [defaults]")


def _user_file(environ: Mapping[str, str]) -> str:
    folder = environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(folder, "clusterrun", "config.toml")


def _upwards(folder: str) -> str:
    while not os.path.isfile(os.path.join(folder, PROJECT_FILE)):
        above = os.path.dirname(folder)
        if above == folder:
            return ""
        folder = above
    return os.path.join(folder, PROJECT_FILE)


def read(path: str, trusted: Sequence[str] = ()) -> Configuration:
    """Return the configuration in ``path``.

    Only this user may have written it, unless it is below ``trusted``.
    """
    try:
        with open(path, "rb") as file:
            places = [os.path.realpath(os.path.expanduser(folder)) for folder in trusted]
            if not any(os.path.commonpath((place, os.path.realpath(path))) == place for place in places):
                ownership.check(path, file.fileno())
            data = toml(file.read(), path)
    except OSError as error:
        raise ownership.refusal(path, system_reason(error)) from error
    _refuse_unknown(data, ("defaults", "profile", "host"), path, "table")
    profiles, reached = _table(data, "profile", path), _table(data, "host", path)
    return Configuration(
        path,
        _source(_table(data, "defaults", path), f"{path} [defaults]"),
        tuple((name, _source(_table(profiles, name, path), f"{path} [profile.{name}]")) for name in profiles),
        tuple(_host(_table(reached, name, path), name, f"{path} [host.{name}]") for name in reached),
    )


def host(configurations: Iterable[Configuration], name: str) -> HostEntry:
    """Return the host of that name from the strongest file that has it; else ``name`` as ssh resolves it."""
    matches = [
        entry for configuration in configurations for entry in configuration.hosts if entry.name == name
    ]
    return matches[0] if matches else checked(HostEntry(name, name))


def toml(content: bytes, where: str) -> dict[str, Any]:
    """Return the tables in ``content``. Raises ``BadInput``."""
    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib
    try:
        data: dict[str, Any] = tomllib.loads(content.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{where} is not TOML: {error}") from error
    return data


def _table(data: dict[str, Any], name: str, path: str) -> dict[str, Any]:
    table = data.get(name, {})
    if not isinstance(table, dict):
        problem = f"{path}: {name} is not a table"
        raise BadInput(problem, f"write [{name}] on a line of its own, its keys below it")
    return table


def _source(table: dict[str, Any], origin: str) -> Source:
    named = {key.replace("_", "-"): value for key, value in table.items()}
    _refuse_unknown(named, tuple(CONFIGURABLE), origin, "key")
    values = ((key, read_value(CONFIGURABLE[key], value, f"{origin} {key}")) for key, value in named.items())
    return Source(origin, tuple(values))


def _refuse_unknown(names: Iterable[str], allowed: tuple[str, ...], where: str, kind: str) -> None:
    for name in names:
        if name not in allowed:
            hint = did_you_mean(name, allowed, f"known are {', '.join(allowed)}")
            raise BadInput(f"{where}: unknown {kind} {name!r}", hint)


def sources(configurations: Iterable[Configuration], profile: str) -> list[Source]:
    """Return the sources of values: the profile, then the defaults of each file. Raises ``BadInput``."""
    configured = list(configurations)
    chosen = [
        source for configuration in configured for name, source in configuration.profiles if name == profile
    ]
    if profile and not chosen:
        names = tuple(
            dict.fromkeys(name for configuration in configured for name, _ in configuration.profiles)
        )
        remedy = f"known are {', '.join(names)}" if names else "no configuration file has a profile"
        raise BadInput(f"there is no profile {profile!r}", did_you_mean(profile, names, remedy))
    return chosen + [configuration.defaults for configuration in configured]
