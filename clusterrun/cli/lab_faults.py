"""`clusterrun lab fault`: one command per kind of fault, and `heal`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from clusterrun.cli.error_output import say
from clusterrun.lab.lab import Lab
from clusterrun.model.errors import BadInput
from clusterrun.model.hostlist import expand

HELP = {"help_option_names": ["-h", "--help"]}
NAME = click.Option(
    ["--name"], default="lab", show_default=True, help="Name of the lab; several may be up at once."
)
HOST, PATH = click.Argument(["host"]), click.Argument(["path"])


@click.group(context_settings=HELP)
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
    """Put a fault in force; between groups of hosts, one between each two of them."""
    given = {key: value for key, value in details.items() if value not in (None, "") and value is not False}
    others = expand(given.pop("to", "")) or ("",)
    for one in expand(host) or ("",):
        for other in others:
            told = {**given, "to": other} if other else given
            say(f"in force: {Lab(name, say).fault(kind, one, **told)}")


def _cut(name: str, host: str, **details: Any) -> None:
    if details["both"] and not details["to"]:
        raise BadInput("--both needs --to HOST", "without --to both directions are cut anyway")
    _apply("cut", name, host, **details)


def _slow(name: str, host: str, **details: Any) -> None:
    _apply("slow-link" if details["to"] else "slow", name, host, **details)


def _controller(name: str, action: str) -> None:
    _apply("controller", name) if action == "stop" else _heal("controller", name)


def _wrong_name(name: str, line: str, host: str) -> None:
    wrong, equals, address = line.partition("=")
    if not equals:
        raise BadInput(f"{line!r} is not NAME=ADDRESS", "write it as in n0002=10.9.9.9")
    Lab(name, say).fault("name", host, name=wrong, address=address)
    say(f"in force: {line}")


def _heal(kind: str, name: str, host: str = "") -> None:
    healed = Lab(name, say).heal(host, kind)
    for one in healed:
        say(f"healed: {one}")
    if not healed:
        say("there was nothing to heal")


def _option(name: str, text: str, **more: Any) -> click.Option:
    return click.Option([name], help=text, **(more or {"default": ""}))


def _add(
    name: str,
    about: str,
    examples: tuple[str, ...],
    *options: click.Parameter,
    of: click.Argument = HOST,
    does: Callable[..., None] | None = None,
) -> None:
    """A command ``of`` one argument; unless it ``does`` something else, it puts its fault in force."""
    lines = "".join(f"  clusterrun lab fault {name} {one}".rstrip() + "\n" for one in examples)
    about += f"\n\n\b\nExamples:\n{lines}"
    does = does or partial(_apply, name)
    fault.add_command(click.Command(name, HELP, does, params=[of, *options, NAME], help=about))


_PROCESS = _option("--process", "One process only: its id there, its name, or a part of its command line.")

_add(
    "cut",
    "Let packets of a host vanish: all of them, or those to one host or to some ports.\n\n"
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
    "Limit what a host may send and get, with all others or with one.",
    ("n0003 --rate 50mbit", "n0003 --to n0005 --rate 5mbit", "n[0001-0002] --to n[0003-0006] --rate 5mbit"),
    _option("--to", "Only what goes between it and this host, both ways."),
    _option("--rate", "For instance 50mbit.", required=True),
    does=_slow,
)
_add(
    "lose",
    "Lose packets that a host sends, at random; those to it arrive.",
    ("n0003 --share 20", "n0003 --to n0005 --share 10"),
    _option("--to", "Only of what it sends to this host."),
    _option("--share", "Of the packets, in percent.", required=True),
)
_add(
    "firewall",
    "Drop the connections that a host begins; those that others begin work.",
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
    "Stop every process of a host (its kernel still accepts connections), or one.",
    ("n0003", "n0003 --process train.py"),
    _PROCESS,
)
_add("thaw", "Let a frozen host, or its frozen processes, go on.", ("n0003",), does=partial(_heal, "freeze"))
_add(
    "kill",
    "Cut a host's power: every process on it is gone at once; or kill one process.",
    ("n0004", "n0004 --process slurmd"),
    _PROCESS,
)
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
    does=_controller,
)
_add(
    "gpu",
    "Let the GPUs of a node look ill to nvidia-smi and dmesg.",
    ("n0001 --count 7", "n0001 --xid 79 --index 3"),
    _option("--count", "So many GPUs are left.", type=int),
    _option("--hang", "nvidia-smi never answers.", is_flag=True),
    _option("--driver", "nvidia-smi cannot reach the driver.", is_flag=True),
    _option("--xid", "This error is in the kernel log; 79: the GPU is lost.", type=int),
    _option("--ecc", "So many uncorrected memory errors.", type=int),
    _option("--remap", "So many memory rows wait for a reset.", type=int),
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
    "Let a host's clock be wrong.",
    ("n0003 --offset -10m",),
    _option("--offset", "For instance 90s, -10m, 1h: for programs started from now on.", required=True),
)
_add(
    "disk-full",
    "Let a folder be on a full disk, as one host sees it: readable, but nothing more fits.",
    ("n0001 /scratch",),
    PATH,
)
_add("read-only", "Let a folder be read-only, as one host sees it.", ("n0003 /scratch",), PATH)
_add(
    "heal",
    "End every fault, or those on one host.",
    ("", "n0004"),
    of=click.Argument(["host"], default=""),
    does=partial(_heal, ""),
)
