"""`clusterrun lab`: options to a lab's verbs and their answers to text; decides nothing."""

from __future__ import annotations

import os
import sys

import click

from clusterrun.lab.lab import Lab, command
from clusterrun.lab.spec import LOGIN, LabSpec, Preempt, Proctrack
from clusterrun.model.errors import ClusterrunError

NAME = click.option("--name", default="lab", show_default=True, help="Which lab: several may be up at once.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def lab() -> None:
    """A real Slurm cluster on this one machine, with faults on demand.

    \b
    Examples:
      clusterrun lab up --nodes 4 --gpus 8
      clusterrun lab exec -- sinfo
      clusterrun lab exec -- clusterrun submit --nodes 4 --gpus 8 train.py
      clusterrun lab fault kill n0002
      clusterrun lab down
    """


def _say(line: str) -> None:
    click.echo(line, err=True)


@lab.command()
@NAME
@click.option("--nodes", default=4, show_default=True, help="How many nodes.")
@click.option("--gpus", default=8, show_default=True, help="GPUs of each node.")
@click.option("--cpus", default=16, show_default=True, help="CPUs each node claims to have.")
@click.option(
    "--proctrack", default="linuxproc", show_default=True, type=click.Choice([p.value for p in Proctrack])
)
@click.option("--preempt", default="off", show_default=True, type=click.Choice([p.value for p in Preempt]))
def up(name: str, nodes: int, gpus: int, cpus: int, proctrack: str, preempt: str) -> None:
    """Start a lab; returns when every node is idle."""
    spec = LabSpec(name, nodes, gpus, cpus, Proctrack(proctrack), Preempt(preempt))
    Lab(name, _say).up(spec)
    _say(f"{nodes} nodes with {gpus} GPUs each are idle. Next:\n  {command(name, 'exec')} -- sinfo")


@lab.command()
@NAME
def down(name: str) -> None:
    """End a lab, or what is left of one."""
    Lab(name, _say).down()


@lab.command()
@NAME
def status(name: str) -> None:
    """Show a lab."""
    click.echo(str(Lab(name, _say).state))


@lab.command("exec", context_settings={"ignore_unknown_options": True})
@NAME
@click.option("--host", default=LOGIN, show_default=True, help="login, ctl or a node.")
@click.option("--user", default="", help="Run as this user (every lab has alice and bob).")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(name: str, host: str, user: str, argv: tuple[str, ...]) -> None:
    """Run a program on a host of the lab, here and now, in this directory."""
    words, environment = Lab(name, _say).entering(host, {}, os.getcwd(), user)
    os.execvpe(words[0], [*words, *argv], environment)
