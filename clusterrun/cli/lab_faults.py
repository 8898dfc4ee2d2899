"""`clusterrun lab fault`: one command per kind of fault, and `heal`; decides nothing."""

from __future__ import annotations

from typing import Any

import click

from clusterrun.cli.lab_options import HELP, NAME, Command, say
from clusterrun.lab.lab import Lab
from clusterrun.model.errors import BadInput
from clusterrun.model.hostlist import expand

HOST = click.argument("host")
PROCESS = click.option(
    "--process", default="", help="One process only: its id there, its name, or a part of its command line."
)


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


def _apply(name: str, kind: str, host: str = "", **details: Any) -> None:
    """Put a fault in force; between groups of hosts, one between each two of them."""
    for one in expand(host) or ("",):
        for other in expand(details.get("to") or "") or ("",):
            _apply_one(name, kind, one, **{**details, "to": other})


def _apply_one(name: str, kind: str, host: str, **details: Any) -> None:
    told = {
        key: value
        for key, value in details.items()
        if value is not None and value is not False and value != ""
    }
    say(f"in force: {Lab(name, say).fault(kind, host, **told)}")


def _heal(name: str, host: str, kind: str) -> None:
    healed = Lab(name, say).heal(host, kind)
    for one in healed:
        say(f"healed: {one}")
    if not healed:
        say("there was nothing to heal")


def _command(name: str) -> Command:
    return fault.command(name, context_settings=HELP)


@_command("cut")
@HOST
@click.option("--to", default="", help="Only packets to this host (one way, unless --both).")
@click.option("--port", default="", help="Only TCP connections to this port, or to these: 40000-60000.")
@click.option("--both", is_flag=True, help="With --to: both ways.")
@NAME
def cut(host: str, to: str, port: str, both: bool, name: str) -> None:
    """Let packets of a host vanish: all of them, or those to one host or to some ports.

    Between two groups of hosts the network is partitioned.

    \b
    Examples:
      clusterrun lab fault cut n0002
      clusterrun lab fault cut n0002 --to n0005 --port 29500
      clusterrun lab fault cut n0002 --port 40000-60000
      clusterrun lab fault cut n[0001-0004] --to n[0005-0008] --both
    """
    if both and not to:
        raise BadInput("--both needs --to HOST", "without --to both directions are cut anyway")
    _apply(name, "cut", host, to=to, port=port, both=both)


@_command("slow")
@HOST
@click.option("--to", default="", help="Only what goes between it and this host, both ways.")
@click.option("--rate", required=True, help="For instance 50mbit.")
@NAME
def slow(host: str, to: str, rate: str, name: str) -> None:
    """Limit what a host may send and get, with all others or with one.

    \b
    Examples:
      clusterrun lab fault slow n0003 --rate 50mbit
      clusterrun lab fault slow n0003 --to n0005 --rate 5mbit
      clusterrun lab fault slow n[0001-0002] --to n[0003-0006] --rate 5mbit
    """
    _apply(name, "slow-link" if to else "slow", host, to=to, rate=rate)


@_command("lose")
@HOST
@click.option("--to", default="", help="Only of what it sends to this host.")
@click.option("--share", required=True, help="Of the packets, in percent.")
@NAME
def lose(host: str, to: str, share: str, name: str) -> None:
    """Lose packets that a host sends, at random; those to it arrive.

    \b
    Examples:
      clusterrun lab fault lose n0003 --share 20
      clusterrun lab fault lose n0003 --to n0005 --share 10
    """
    _apply(name, "lose", host, to=to, share=share)


@_command("firewall")
@HOST
@click.option("--to", default="", help="Only of those to this host.")
@NAME
def firewall(host: str, to: str, name: str) -> None:
    """Drop the connections that a host begins; those that others begin work.

    \b
    Examples:
      clusterrun lab fault firewall n0003
      clusterrun lab fault firewall n0003 --to n0001
    """
    _apply(name, "firewall", host, to=to)


@_command("flap")
@HOST
@click.option("--down", default="4", show_default=True, help="Seconds for which it is cut off.")
@click.option("--every", default="10", show_default=True, help="Seconds from one cut to the next.")
@NAME
def flap(host: str, down: str, every: str, name: str) -> None:
    """Cut a host off for some seconds, again and again.

    \b
    Examples:
      clusterrun lab fault flap n0003 --down 4 --every 10
    """
    _apply(name, "flap", host, down=down, every=every)


@_command("freeze")
@HOST
@PROCESS
@NAME
def freeze(host: str, process: str, name: str) -> None:
    """Stop every process of a host (its kernel still accepts connections), or one.

    \b
    Examples:
      clusterrun lab fault freeze n0003
      clusterrun lab fault freeze n0003 --process train.py
    """
    _apply(name, "freeze", host, process=process)


@_command("thaw")
@HOST
@NAME
def thaw(host: str, name: str) -> None:
    """Let a frozen host, or its frozen processes, go on.

    \b
    Examples:
      clusterrun lab fault thaw n0003
    """
    _heal(name, host, "freeze")


@_command("kill")
@HOST
@PROCESS
@NAME
def kill(host: str, process: str, name: str) -> None:
    """Cut a host's power: every process on it is gone at once; or kill one process.

    \b
    Examples:
      clusterrun lab fault kill n0004
      clusterrun lab fault kill n0004 --process slurmd
    """
    _apply(name, "kill", host, process=process)


@_command("drain")
@HOST
@click.option("--reason", default="", help="As an administrator would give it.")
@NAME
def drain(host: str, reason: str, name: str) -> None:
    """Drain a node, as an administrator would.

    \b
    Examples:
      clusterrun lab fault drain n0001 --reason 'a fan'
    """
    _apply(name, "drain", host, reason=reason)


@_command("resume")
@HOST
@NAME
def resume(host: str, name: str) -> None:
    """Give a drained node back.

    \b
    Examples:
      clusterrun lab fault resume n0001
    """
    _heal(name, host, "drain")


@_command("controller")
@click.argument("action", type=click.Choice(("stop", "start")))
@NAME
def controller(action: str, name: str) -> None:
    """Stop slurmctld, or start it again.

    \b
    Examples:
      clusterrun lab fault controller stop
    """
    if action == "stop":
        _apply(name, "controller")
    else:
        _heal(name, "", "controller")


@_command("gpu")
@HOST
@click.option("--count", type=int, help="So many GPUs are left.")
@click.option("--hang", is_flag=True, help="nvidia-smi never answers.")
@click.option("--driver", is_flag=True, help="nvidia-smi cannot reach the driver.")
@click.option("--xid", type=int, help="This error is in the kernel log; 79: the GPU is lost.")
@click.option("--ecc", type=int, help="So many uncorrected memory errors.")
@click.option("--remap", type=int, help="So many memory rows wait for a reset.")
@click.option("--throttle", is_flag=True, help="The GPU is too hot and runs slowly.")
@click.option("--index", type=int, help="Which GPU (0).")
@NAME
def gpu(host: str, name: str, **details: Any) -> None:
    """Let the GPUs of a node look ill to nvidia-smi and dmesg.

    \b
    Examples:
      clusterrun lab fault gpu n0001 --count 7
      clusterrun lab fault gpu n0001 --xid 79 --index 3
    """
    _apply(name, "gpu", host, **details)


@_command("name")
@click.argument("line", metavar="NAME=ADDRESS")
@click.option("--host", default="", help="In this host's hosts file only; otherwise in all.")
@NAME
def name_(line: str, host: str, name: str) -> None:
    """Give a name the wrong address.

    \b
    Examples:
      clusterrun lab fault name n0002=10.9.9.9 --host n0001
    """
    wrong, equals, address = line.partition("=")
    if not equals:
        raise BadInput(f"{line!r} is not NAME=ADDRESS", "write it as in n0002=10.9.9.9")
    Lab(name, say).fault("name", host, name=wrong, address=address)
    say(f"in force: {line}")


@_command("clock")
@HOST
@click.option("--offset", required=True, help="For instance 90s, -10m, 1h: for programs started from now on.")
@NAME
def clock(host: str, offset: str, name: str) -> None:
    """Let a host's clock be wrong.

    \b
    Examples:
      clusterrun lab fault clock n0003 --offset -10m
    """
    _apply(name, "clock", host, offset=offset)


@_command("disk-full")
@HOST
@click.argument("path")
@NAME
def disk_full(host: str, path: str, name: str) -> None:
    """Let a folder be on a full disk, as one host sees it: readable, but nothing more fits.

    \b
    Examples:
      clusterrun lab fault disk-full n0001 /scratch
    """
    _apply(name, "disk-full", host, path=path)


@_command("read-only")
@HOST
@click.argument("path")
@NAME
def read_only(host: str, path: str, name: str) -> None:
    """Let a folder be read-only, as one host sees it.

    \b
    Examples:
      clusterrun lab fault read-only n0003 /scratch
    """
    _apply(name, "read-only", host, path=path)


@_command("heal")
@click.argument("host", default="")
@NAME
def heal(host: str, name: str) -> None:
    """End every fault, or those on one host.

    \b
    Examples:
      clusterrun lab fault heal
      clusterrun lab fault heal n0004
    """
    _heal(name, host, "")
