"""`clusterrun lab`: starts and ends labs, and prints their state."""

from __future__ import annotations

import enum
import os
import shlex
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from clusterrun.cli.error_output import say
from clusterrun.cli.shell_complete import files, json_option
from clusterrun.lab import needs, roots
from clusterrun.lab.lab import Lab, command, lab_around, labs_up, outside_of
from clusterrun.lab.place import LabState
from clusterrun.lab.spec import LOGIN, LabSpec, Preempt, Proctrack
from clusterrun.model.errors import BadInput, ClusterrunError
from clusterrun.model.hostlist import expand
from clusterrun.reports.view import INTEGER, TEXT, Kind, View, ViewField, by_name, many

NAME = click.Option(
    ["--name"], default="lab", show_default=True, help="Name of the lab. Several labs may be up."
)
HOST, PATH = click.Argument(["host"]), click.Argument(["path"])


def choice(option: str, members: type[enum.Enum], text: str) -> Callable[[Any], Any]:
    """Return an option with the values of an enum. The first value is the default."""
    values = [member.value for member in members]
    chosen = {"default": values[0], "callback": lambda context, parameter, value: members(value)}
    return click.option(option, type=click.Choice(values), show_default=True, help=text, **chosen)


_FAULT = View(
    "A fault; further fields are its details.", ViewField("kind", "The fault."), ViewField("host", "Where.")
)
FAULT = Kind({**_FAULT.schema, "additionalProperties": True}, dict)
LAB_STATUS = View(
    "The output of `lab status --json`.",
    ViewField(
        "labs",
        "All that are up, or the one named.",
        many(
            View(
                "A lab.",
                ViewField("name", "Its name."),
                ViewField("slurm", "The release of Slurm."),
                ViewField("slurm_conf", "For SLURM_CONF."),
                ViewField("hosts", "Addresses by host.", by_name(TEXT)),
                ViewField("nodes", "Slurm's state by node.", by_name(TEXT)),
                ViewField("gpus_per_node", "GPUs that Slurm hands out on each.", INTEGER),
                ViewField("faults", "Those in force.", many(FAULT)),
            )
        ),
    ),
)


@click.group()
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


@lab.command(params=[NAME])
@click.option("--nodes", default=4, show_default=True, help="Number of nodes.")
@click.option("--gpus", default=8, show_default=True, help="GPUs per node.")
@click.option("--cpus", default=16, show_default=True, help="CPUs per node in slurm.conf.")
@choice("--proctrack", Proctrack, "How Slurm tracks a job's processes; each way misses others.")
@choice("--preempt", Preempt, "What a job in partition `urgent` does to one in `debug`.")
@click.option("--accounting", is_flag=True, help="Start slurmdbd and MariaDB, which sacct needs.")
@click.option(
    "--slurm", default="", metavar="VERSION", help="Another release of Slurm, such as 24.11; see `lab root`."
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A line of slurm.conf.")
def up(name: str, settings: tuple[str, ...], **sizes: Any) -> None:
    """Start a lab; returns when every node is idle.

    \b
    Examples:
      clusterrun lab up
      clusterrun lab up --nodes 64 --name big
      clusterrun lab up --preempt requeue --set KillWait=30
    """
    spec = LabSpec(name, settings=tuple(map(_pair, settings)), **sizes)
    Lab(name, say).up(spec)
    say(f"the lab {name!r} is up: {spec.nodes} nodes with {spec.gpus} GPUs each are idle. Next:")
    submit = f"-- clusterrun submit --nodes {spec.nodes} --gpus {spec.gpus} train.py"
    for line in ("-- sinfo", submit, "-- bash"):
        say(f"  {command(name, 'exec')} {line}")


def _pair(setting: str) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not equals:
        raise BadInput(f"--set {setting!r} is not a setting", "write it as in KillWait=30")
    return key, value


@lab.command(params=[NAME])
def down(name: str) -> None:
    """End a lab, also after a crash or a reboot. Safe at any time.

    \b
    Examples:
      clusterrun lab down
      clusterrun lab down --name big
    """
    say(f"the lab {name!r} is gone" if Lab(name, say).down(collected=True) else f"there was no lab {name!r}")


@lab.command()
@click.option("--name", default="", help="Only this lab.  [default: all that are up]")
@json_option
def status(name: str, as_json: bool) -> None:
    """Show labs: the states of their nodes, and the faults in force.

    \b
    Examples:
      clusterrun lab status
      clusterrun lab status --json
    """
    labs = [Lab(name, say)] if name else labs_up()
    rows = []
    for lab in labs:
        try:
            rows.append((lab, lab.state, lab.node_states()))
        except (ClusterrunError, OSError) as error:
            if name:
                raise
            reason = error.seen if isinstance(error, ClusterrunError) else str(error)
            say(f"the lab {lab.name!r} is broken: {reason}; end it: {command(lab.name, 'down')}")
    if as_json:
        click.echo(LAB_STATUS.json({"labs": [_document(*row) for row in rows]}))
        return
    if not labs and (around := lab_around()):
        raise BadInput(*outside_of(around))
    if not labs:
        say(f"no lab is up; start one: {command('lab', 'up')}")
    for lab, state, states in rows:
        click.echo("\n".join(_text(lab, state, states)))


def _document(lab: Lab, state: LabState, states: dict[str, str]) -> dict[str, object]:
    return {
        "name": lab.name,
        "slurm": state.slurm_version,
        "slurm_conf": str(lab.slurm_conf),
        "hosts": {host.name: host.address for host in state.layout.hosts.values()},
        "nodes": states,
        "gpus_per_node": state.spec.gpus,
        "faults": [{"kind": f.kind, "host": f.host, **dict(f.details)} for f in state.faults],
    }


def _text(lab: Lab, state: LabState, states: dict[str, str]) -> list[str]:
    counts = {word: list(states.values()).count(word) for word in sorted(set(states.values()))}
    counted = ", ".join(f"{count} {word}" for word, count in counts.items()) or "slurmctld does not answer"
    size = f"{state.spec.nodes} nodes × {state.spec.gpus} GPUs"
    head = f"{lab.name}: {size}, Slurm {state.slurm_version}: {counted}"
    odd = [f"  {node} {word}" for node, word in states.items() if word != "idle"]
    faults = [f"  fault: {fault}" for fault in state.faults] or ["  no fault in force"]
    return [head, *odd[:20], *faults, f"  SLURM_CONF={lab.slurm_conf}"]


@lab.command("exec", context_settings={"ignore_unknown_options": True}, params=[NAME])
@click.option("--host", default=LOGIN, show_default=True, help="login, ctl or a node.")
@click.option("--user", default="", help="Run as this user. Every lab has alice and bob.")
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
    prefix, environment = Lab(name, say).entering(host, {}, os.getcwd(), user)
    if user:
        from clusterrun.lab.apart import run_in_own_session

        click.get_current_context().exit(run_in_own_session([*prefix, *argv], environment))
    os.execvpe(prefix[0], [*prefix, *argv], environment)


@lab.command()
@click.option("--accounting", is_flag=True, help="Also the packages for `lab up --accounting`.")
@click.option("--roots", "with_roots", is_flag=True, help="Also the packages for `lab root make`.")
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


@lab.group()
def root() -> None:
    """Other releases of Slurm, each in a folder with its own distribution.

    \b
    Examples:
      sudo clusterrun lab root make trixie
      clusterrun lab up --slurm 24.11
    """


@root.command("make")
@click.argument("suite", type=click.Choice(tuple(roots.SUITES)))
@click.option("--mirror", default="", help="Mirror of the packages (default: that of debootstrap).")
def make_root(suite: str, mirror: str) -> None:
    """Fetch a Debian suite with its Slurm into the cache (about 300 MB, under a minute).

    \b
    Examples:
      sudo clusterrun lab root make trixie
    """
    say(f"{suite} with Slurm {roots.make(suite, mirror, say)} is ready")


@root.command("list")
def list_roots() -> None:
    """Show the releases that `lab up --slurm` can start.

    \b
    Examples:
      clusterrun lab root list
    """
    for version, path in roots.fetched_roots().items():
        click.echo(f"{version}\t{path}")


@root.command("remove")
@click.argument("suite", type=click.Choice(tuple(roots.SUITES)))
def remove_root(suite: str) -> None:
    """Delete a fetched suite.

    \b
    Examples:
      sudo clusterrun lab root remove trixie
    """
    roots.remove(suite)


# --- faults: a command for each kind, and heal ---


@lab.group()
def fault() -> None:
    """Break something in a lab, or heal it.

    \b
    Examples:
      clusterrun lab fault cut n0002 --to n0005
      clusterrun lab fault slow n0003 --rate 50mbit
      clusterrun lab fault kill n0004
      clusterrun lab fault gpu n0001 --xid 79 --index 3
      clusterrun lab fault heal n0004
      clusterrun lab fault heal
    """


def _apply(kind: str, name: str, host: str = "", **details: Any) -> None:
    """Put a fault in force for each host, or for each pair if there are two groups of hosts."""
    settings = {
        key: value for key, value in details.items() if value not in (None, "") and value is not False
    }
    others = expand(settings.pop("to", "")) or ("",)
    for target in expand(host) or ("",):
        for other in others:
            arguments = {**settings, "to": other} if other else settings
            say(f"in force: {Lab(name, say).fault(kind, target, **arguments)}")


def _cut(name: str, host: str, **details: Any) -> None:
    if details["both"] and not details["to"]:
        raise BadInput("--both needs --to HOST", "without --to both directions are cut anyway")
    _apply("cut", name, host, **details)


def _slow(name: str, host: str, **details: Any) -> None:
    _apply("slow-link" if details["to"] else "slow", name, host, **details)


def _wrong_name(name: str, line: str, host: str) -> None:
    wrong, equals, address = line.partition("=")
    if not equals:
        raise BadInput(f"{line!r} is not NAME=ADDRESS", "write it as in n0002=10.9.9.9")
    Lab(name, say).fault("name", host, name=wrong, address=address)
    say(f"in force: {line}")


def _heal(kind: str, name: str, host: str = "") -> None:
    healed_faults = Lab(name, say).heal(host, kind)
    for healed_fault in healed_faults:
        say(f"healed: {healed_fault}")
    if not healed_faults:
        say("there was nothing to heal")


def _option(name: str, text: str, **more: Any) -> click.Option:
    return click.Option([name], help=text, **(more or {"default": ""}))


def _add(
    name: str,
    description: str,
    examples: tuple[str, ...],
    *options: click.Parameter,
    of: click.Argument = HOST,
    does: Callable[..., None] | None = None,
) -> None:
    """Add a command with the argument ``of``. It puts its fault in force, or calls ``does``."""
    lines = "".join(f"  clusterrun lab fault {name} {lab}".rstrip() + "\n" for lab in examples)
    description += f"\n\n\b\nExamples:\n{lines}"
    does = does or partial(_apply, name)
    fault.add_command(click.Command(name, callback=does, params=[of, *options, NAME], help=description))


_PROCESS = _option("--process", "One process only: its id there, its name, or a part of its command line.")

_add(
    "cut",
    "Drop packets of a host: all, or those to one host or to some ports.\n\n"
    "Between two groups of hosts the network is partitioned.",
    (
        "n0002",
        "n0002 --to n0005 --port 29500",
        "n0002 --port 40000-60000",
        "n[0001-0004] --to n[0005-0008] --both",
    ),
    _option("--to", "Only packets to this host (one way, unless --both)."),
    _option("--port", "Only TCP connections to this port, or to these: 40000-60000."),
    _option("--both", "With --to: both ways.", is_flag=True),
    does=_cut,
)
_add(
    "slow",
    "Limit a host's traffic, with all others or with one.",
    ("n0003 --rate 50mbit", "n0003 --to n0005 --rate 5mbit", "n[0001-0002] --to n[0003-0006] --rate 5mbit"),
    _option("--to", "Only traffic with this host, both ways."),
    _option("--rate", "For instance 50mbit.", required=True),
    does=_slow,
)
_add(
    "lose",
    "Lose packets that a host sends, at random.",
    ("n0003 --share 20", "n0003 --to n0005 --share 10"),
    _option("--to", "Only of what it sends to this host."),
    _option("--share", "Of the packets, in percent.", required=True),
)
_add(
    "firewall",
    "Drop the connections that a host begins.",
    ("n0003", "n0003 --to n0001"),
    _option("--to", "Only of those to this host."),
)
_add(
    "flap",
    "Cut a host off for some seconds, again and again.",
    ("n0003 --down 4 --every 10",),
    _option("--down", "Seconds for which it is cut off.", default="4", show_default=True),
    _option("--every", "Seconds from one cut to the next.", default="10", show_default=True),
)
_add(
    "freeze",
    "Stop every process of a host (SIGSTOP), or one.",
    ("n0003", "n0003 --process train.py"),
    _PROCESS,
)
_add("thaw", "Resume a frozen host, or its frozen processes.", ("n0003",), does=partial(_heal, "freeze"))
_add("kill", "Cut a host's power, or kill one process.", ("n0004", "n0004 --process slurmd"), _PROCESS)
_add(
    "drain",
    "Drain a node, as an administrator would.",
    ("n0001 --reason 'a fan'",),
    _option("--reason", "As an administrator would give it."),
)
_add("resume", "Give a drained node back.", ("n0001",), does=partial(_heal, "drain"))
_add(
    "controller",
    "Stop slurmctld, or start it again.",
    ("stop",),
    of=click.Argument(["action"], type=click.Choice(("stop", "start"))),
    does=lambda name, action: (_apply if action == "stop" else _heal)("controller", name),
)
_add(
    "gpu",
    "Simulate faulty GPUs of a node in nvidia-smi and dmesg.",
    ("n0001 --count 7", "n0001 --xid 79 --index 3"),
    _option("--count", "Number of GPUs that remain.", type=int),
    _option("--hang", "nvidia-smi never answers.", is_flag=True),
    _option("--driver", "nvidia-smi cannot reach the driver.", is_flag=True),
    _option("--xid", "This error is in the kernel log; 79: the GPU is lost.", type=int),
    _option("--ecc", "Number of uncorrected memory errors.", type=int),
    _option("--remap", "Number of memory rows that wait for a reset.", type=int),
    _option("--throttle", "The GPU is too hot and runs slowly.", is_flag=True),
    _option("--index", "Which GPU (0).", type=int),
)
_add(
    "name",
    "Give a name the wrong address.",
    ("n0002=10.9.9.9 --host n0001",),
    _option("--host", "In this host's hosts file only; otherwise in all."),
    of=click.Argument(["line"], metavar="NAME=ADDRESS"),
    does=_wrong_name,
)
_add(
    "clock",
    "Set a wrong clock on a host.",
    ("n0003 --offset -10m",),
    _option("--offset", "For instance 90s, -10m, 1h: for programs started from now on.", required=True),
)
_add("disk-full", "Make a folder full, for one host only.", ("n0001 /scratch",), PATH)
_add("read-only", "Make a folder read-only, for one host only.", ("n0003 /scratch",), PATH)
_add(
    "heal",
    "End every fault, or those on one host.",
    ("", "n0004"),
    of=click.Argument(["host"], default=""),
    does=partial(_heal, ""),
)
