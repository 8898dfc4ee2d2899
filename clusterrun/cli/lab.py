"""`clusterrun lab`: options to a lab's verbs and their answers to text."""

from __future__ import annotations

import enum
import json
import os
import shlex
import sys
from collections.abc import Callable
from typing import Any

import click

from clusterrun.cli.error_output import say
from clusterrun.cli.lab_faults import HELP, NAME, fault
from clusterrun.cli.shell_complete import files
from clusterrun.lab import needs, roots
from clusterrun.lab.lab import Lab, command, lab_around, labs_up, outside_of
from clusterrun.lab.place import LabState
from clusterrun.lab.spec import LOGIN, LabSpec, Preempt, Proctrack
from clusterrun.model.errors import BadInput


def choice(option: str, words: type[enum.Enum], text: str) -> Callable[[Any], Any]:
    """An option whose values are those of an enum, the first being the default."""
    values = [word.value for word in words]
    return click.option(option, default=values[0], show_default=True, type=click.Choice(values), help=text)


@click.group(context_settings=HELP)
def lab() -> None:
    """A real Slurm cluster on this one machine, with faults on demand.

    \b
    Examples:
      clusterrun lab up --nodes 4 --gpus 8
      clusterrun lab exec -- sinfo
      clusterrun lab exec -- clusterrun submit --nodes 4 --gpus 8 train.py
      clusterrun lab fault kill n0002
      clusterrun lab fault heal
      clusterrun lab down
    """


lab.add_command(fault)


@lab.command(context_settings=HELP, params=[NAME])
@click.option("--nodes", default=4, show_default=True, help="How many nodes.")
@click.option("--gpus", default=8, show_default=True, help="GPUs of each node.")
@click.option("--cpus", default=16, show_default=True, help="CPUs of each node, as Slurm is told.")
@choice("--proctrack", Proctrack, "How Slurm tracks a job's processes; each way misses others.")
@choice("--preempt", Preempt, "What a job in partition `urgent` does to one in `debug`.")
@click.option("--accounting", is_flag=True, help="With slurmdbd and MariaDB, so that sacct answers.")
@click.option("--slurm", default="", metavar="VERSION", help="Another release, as in 24.11: see `lab root`.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any line of slurm.conf.")
def up(
    name: str,
    nodes: int,
    gpus: int,
    cpus: int,
    proctrack: str,
    preempt: str,
    accounting: bool,
    slurm: str,
    settings: tuple[str, ...],
) -> None:
    """Start a lab; returns when every node is idle.

    \b
    Examples:
      clusterrun lab up
      clusterrun lab up --nodes 64 --name big
      clusterrun lab up --preempt requeue --set KillWait=30
    """
    pairs = tuple(_pair(setting) for setting in settings)
    spec = LabSpec(name, nodes, gpus, cpus, Proctrack(proctrack), Preempt(preempt), accounting, slurm, pairs)
    Lab(name, say).up(spec)
    say(f"the lab {name!r} is up: {nodes} nodes with {gpus} GPUs each are idle. Next:")
    for line in ("-- sinfo", f"-- clusterrun submit --nodes {nodes} --gpus {gpus} train.py", "-- bash"):
        say(f"  {command(name, 'exec')} {line}")


def _pair(setting: str) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not equals:
        raise BadInput(f"--set {setting!r} is not a setting", "write it as in KillWait=30")
    return key, value


@lab.command(context_settings=HELP, params=[NAME])
def down(name: str) -> None:
    """End a lab, or what a crash or a reboot left of one. Safe at any time.

    \b
    Examples:
      clusterrun lab down
      clusterrun lab down --name big
    """
    say(f"the lab {name!r} is gone" if Lab(name, say).down(collected=True) else f"there was no lab {name!r}")


@lab.command(context_settings=HELP)
@click.option("--name", default="", help="One lab only; otherwise all that are up.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def status(name: str, as_json: bool) -> None:
    """Show labs: their nodes as Slurm sees them, and the faults in force.

    \b
    Examples:
      clusterrun lab status
      clusterrun lab status --json
    """
    labs = [Lab(name, say)] if name else labs_up()
    shown = [(one, one.state, one.node_states()) for one in labs]
    if as_json:
        click.echo(json.dumps({"labs": [_document(*one) for one in shown]}))
        return
    if not shown and (around := lab_around()):
        raise BadInput(*outside_of(around))
    if not shown:
        say(f"no lab is up; start one: {command('lab', 'up')}")
    for one, state, states in shown:
        click.echo("\n".join(_text(one, state, states)))


def _document(one: Lab, state: LabState, states: dict[str, str]) -> dict[str, object]:
    return {
        "name": one.name,
        "slurm": state.slurm_version,
        "slurm_conf": str(one.slurm_conf),
        "hosts": {host.name: host.address for host in state.layout.hosts.values()},
        "nodes": states,
        "gpus_per_node": state.spec.gpus,
        "faults": [{"kind": f.kind, "host": f.host, **dict(f.details)} for f in state.faults],
    }


def _text(one: Lab, state: LabState, states: dict[str, str]) -> list[str]:
    counts = {word: list(states.values()).count(word) for word in sorted(set(states.values()))}
    told = ", ".join(f"{count} {word}" for word, count in counts.items()) or "slurmctld does not answer"
    head = (
        f"{one.name}: {state.spec.nodes} nodes × {state.spec.gpus} GPUs, Slurm {state.slurm_version}: {told}"
    )
    odd = [f"  {node} {word}" for node, word in states.items() if word != "idle"]
    faults = [f"  fault: {fault}" for fault in state.faults] or ["  no fault in force"]
    return [head, *odd[:20], *faults, f"  SLURM_CONF={one.slurm_conf}"]


@lab.command("exec", context_settings={**HELP, "ignore_unknown_options": True}, params=[NAME])
@click.option("--host", default=LOGIN, show_default=True, help="login, ctl or a node.")
@click.option("--user", default="", help="Run as this user: every lab has alice and bob.")
@click.argument(
    "argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD...", shell_complete=files
)
def exec_(name: str, host: str, user: str, argv: tuple[str, ...]) -> None:
    """Run a program on a host of the lab, in this directory, with this environment.

    \b
    Examples:
      clusterrun lab exec -- squeue
      clusterrun lab exec --host n0002 -- nvidia-smi
      clusterrun lab exec --user alice -- sbatch job.sh
    """
    words, environment = Lab(name, say).entering(host, {}, os.getcwd(), user)
    if user:
        from clusterrun.lab.apart import run_in_own_session

        sys.exit(run_in_own_session([*words, *argv], environment))
    os.execvpe(words[0], [*words, *argv], environment)


@lab.command(context_settings=HELP)
@click.option("--accounting", is_flag=True, help="Also what `lab up --accounting` needs.")
@click.option("--roots", "with_roots", is_flag=True, help="Also what `lab root make` needs.")
@click.option("--dry-run", is_flag=True, help="Only print the commands.")
def install(accounting: bool, with_roots: bool, dry_run: bool) -> None:
    """Install the distribution's packages that a lab needs (Debian and Ubuntu).

    \b
    Examples:
      sudo clusterrun lab install
      clusterrun lab install --dry-run
    """
    commands = needs.install_commands(accounting, with_roots)
    if not dry_run:
        needs.install(commands)
        return
    for argv in commands:
        click.echo(shlex.join(argv))


@lab.group(context_settings=HELP)
def root() -> None:
    """Other releases of Slurm, each in a folder of its own with the distribution it came in.

    \b
    Examples:
      sudo clusterrun lab root make trixie
      clusterrun lab up --slurm 24.11
    """


@root.command("make", context_settings=HELP)
@click.argument("suite", type=click.Choice(tuple(roots.SUITES)))
@click.option("--mirror", default="", help="Where its packages are fetched (default: as debootstrap has it).")
def make_root(suite: str, mirror: str) -> None:
    """Fetch a Debian suite with its Slurm into the cache (about 300 MB, under a minute).

    \b
    Examples:
      sudo clusterrun lab root make trixie
    """
    say(f"{suite} with Slurm {roots.make(suite, mirror, say)} is ready")


@root.command("list", context_settings=HELP)
def list_roots() -> None:
    """Show the releases that `lab up --slurm` can start.

    \b
    Examples:
      clusterrun lab root list
    """
    for version, path in roots.found().items():
        click.echo(f"{version}\t{path}")


@root.command("remove", context_settings=HELP)
@click.argument("suite", type=click.Choice(tuple(roots.SUITES)))
def remove_root(suite: str) -> None:
    """Delete a fetched suite.

    \b
    Examples:
      sudo clusterrun lab root remove trixie
    """
    roots.remove(suite)
