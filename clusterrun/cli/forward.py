"""`clusterrun forward`: prints the address of a port of a run, or forwards it to the user's machine."""

from __future__ import annotations

import socket
from functools import partial

import click

from clusterrun import system
from clusterrun.cli.error_output import say
from clusterrun.cli.exec import target
from clusterrun.cli.shell_complete import json_option, runs
from clusterrun.model.contract import ExitCode
from clusterrun.model.frozen import fields
from clusterrun.operations.context import Context
from clusterrun.operations.find_run import find_run
from clusterrun.operations.forward import carries_on, node_port, relay_argv
from clusterrun.reports.view import BOOLEAN, INTEGER, View, ViewField
from clusterrun.script.environment import scrubbed

LOOK_SECONDS = 10.0
_PORT = click.IntRange(1, 65535)


FORWARD = View(
    "The output of `forward --json`.",
    ViewField("run_id", "the run"),
    ViewField("node", "its node, as the login node reaches it"),
    ViewField("port", "the port there", INTEGER),
    ViewField("answers", "whether something listens there for other machines", BOOLEAN),
    ViewField("local", "the port wanted on the user's own machine", INTEGER),
)


@click.command()
@click.option("--node", default="", metavar="N", help="A port of this node (name or number).")
@click.option("--rank", type=click.IntRange(min=0), metavar="R", help="A port of the node of rank R.")
@click.option(
    "--local", type=_PORT, metavar="PORT", help="The port on your own machine.  [default: the same]"
)
@click.option("--relay", is_flag=True, hidden=True)
@json_option
@click.argument("run", shell_complete=runs)
@click.argument("port", type=_PORT)
def forward(
    run: str, port: int, node: str, rank: int | None, local: int | None, relay: bool, as_json: bool
) -> int:
    """Open PORT of a node of RUN on your own machine: TensorBoard, Jupyter, a server of a rank.

    `clusterrun --host NAME forward` opens the port on your machine until Ctrl-C. It also reaches a server
    that listens only on 127.0.0.1 of its node. On the cluster itself, forward prints the address of the
    port. Without --node and --rank it takes the first node.

    \b
    Examples:
      clusterrun --host cluster forward last 6006
      clusterrun --host cluster forward last 8888 --rank 3 --local 9999
      clusterrun forward last 6006
    """
    context, place = Context(), target(node, rank)
    chosen = find_run(context, run)
    if relay:
        argv, attempt = relay_argv(context, chosen, place, port, say)
        still_runs = partial(carries_on, context, chosen, attempt)
        return system.attended(argv, scrubbed(context.environ), still_runs, LOOK_SECONDS)
    address = node_port(context, chosen, place, port, say)
    if as_json:
        print(FORWARD.json({**fields(address), "local": local or port}))
        return ExitCode.DONE
    print(f"{address.node}:{port}")
    hint = f"on your own machine: clusterrun --host NAME forward {address.run_id} {port}"
    if address.answers:
        say(f"{hint}, or ssh -N -L {local or port}:{address.node}:{port} {socket.gethostname()}")
        return ExitCode.DONE
    say(
        f"nothing answers at {address.node}:{port} for other machines:"
        f" a server there listens for itself alone or not yet\n{hint}"
    )
    return ExitCode.DONE
