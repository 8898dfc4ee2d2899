"""`clusterrun --host NAME COMMAND`: runs a command on a cluster over SSH, as if typed there."""

from __future__ import annotations

import base64
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence

import click

from clusterrun.cli.error_output import say
from clusterrun.config import profiles
from clusterrun.model import contract
from clusterrun.model.contract import ExitCode
from clusterrun.model.errors import BadInput
from clusterrun.remote.client_there import forget, prefix
from clusterrun.remote.connection import NotConnected, SharedConnection, connect
from clusterrun.remote.login_shell import GONE, HOME, command, place, runs
from clusterrun.runs.private_files import write_whole
from clusterrun.script.interpreter_calls import reads_input

CommandOf = Callable[[str], "click.Command | None"]
# Options that name a file that the command writes. The file is copied to this machine.
FETCHED = {
    "report": ("--html", "--prometheus"),
    "check": ("--html", "--prometheus", "--selftest-file"),
    "rehearse": ("--html", "--junit"),
    "bench scaling": ("--plot",),
    "sweep results": ("--plot",),
}
INPUT_COMMANDS = ("alloc", "exec", "run", "shell")
READABLE = 0o644
FETCH_SECONDS, LOOK_SECONDS = 600.0, 15.0
NOT_FOUND = 127
PASSED_ON = ("NO_COLOR",)


def run_on_cluster(name: str, command_line: list[str], command_of: CommandOf) -> int:
    """Run ``command_line`` on the cluster ``name`` and return its exit code. Raise ``ClusterrunError``.

    An empty command line only opens the connection, for the commands that follow.
    """
    if command_line[:1] == ["mcp"]:
        # The server runs here, and each tool on the cluster. A submission sends the code of a folder on this
        # machine, and the cluster needs no package for the protocol.
        serve = command_of("mcp")
        assert serve
        os.environ[contract.HOST_VARIABLE] = name
        return serve.main(command_line[1:], "clusterrun mcp", standalone_mode=False) or ExitCode.DONE
    first, rest = (command_line[:1] or [""])[0], command_line[1:]
    chosen_command = command_of(first) if first in ("submit", "sweep", "bench") else None
    if isinstance(chosen_command, click.Group):
        if first == "sweep" and rest and rest[0].startswith("-") and rest[0] not in ("-h", "--help"):
            rest = ["start", *rest]
        chosen = rest[0] if rest and rest[0] in ("start", "scaling") else ""
        chosen_command, rest = chosen_command.commands.get(chosen), rest[1:]
    sent: dict[str, object] = {}  # the options of a command that takes our code along
    if chosen_command is not None and not {"-h", "--help", "--help-all"} & set(rest[:1]):
        # A wrong command line is refused before ssh asks for a password.
        sent = {"snapshot": None, **chosen_command.make_context(first, rest).params}
    read = profiles.load(os.getcwd(), os.environ)
    terminal = sys.stdin.isatty() and sys.stderr.isatty()
    submitted = sent.get("command")
    needs_input = sent.get("input") == "-" or bool(set(command_line[:1]) & set(INPUT_COMMANDS))
    if isinstance(submitted, tuple) and submitted:
        needs_input = needs_input or reads_input(submitted)
    if not (sys.stdin.isatty() or needs_input):
        # ssh would take the lines of a ``while read`` loop around it.
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    connection = connect(profiles.host(read, name), os.environ, terminal)
    if not command_line:
        say(f"the connection to {name} is open")
        return ExitCode.DONE
    if command_line[0] == "forward" and not {"-h", "--help"} & set(command_line):
        return _forward(connection, command_line, command_of)
    folder = place(connection.host.folder)
    if sent and sent.get("snapshot") is not False:
        from clusterrun.remote.carried_code import send

        include = sent.get("snapshot_include")
        folder = send(connection, os.getcwd(), include if isinstance(include, tuple) else (), say)
        if command_line[0] != "bench":
            # The run makes the sent code its own.
            verb_length = 2 if command_line[:2] == ["sweep", "start"] else 1
            command_line = [*command_line[:verb_length], "--snapshot", *command_line[verb_length:]]
    fetched = FETCHED.get(command_line[0]) or FETCHED.get(" ".join(command_line[:2]), ())
    if fetched:
        return _fetching(connection, command_line, folder, fetched, _own(command_line, command_of))
    return _session(connection, shlex.join(command_line), folder)


def _session(connection: SharedConnection, command_line: str, folder: str, before: str = "") -> int:
    """Run a command line of sh on the cluster with our streams and terminal. Return its exit code."""
    terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    code = connection.foreground(command(before + _script(connection, command_line, folder)), terminal)
    if code in (GONE, NOT_FOUND):
        forget(connection)
    if code == GONE:
        say(f"the client on {connection.name} is gone, nothing ran; type it again: that puts it there")
    return code


def _script(connection: SharedConnection, command_line: str, folder: str) -> str:
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    variables = {**passed_on, contract.TYPED_AT_VARIABLE: connection.name}
    return runs(prefix(connection), command_line, folder, variables)


def _own(command_line: Sequence[str], command_of: CommandOf) -> int:
    """Return how many leading arguments belong to the command itself, and not to a script."""
    current, at = command_of(command_line[0]), 1
    while isinstance(current, click.Group) and at < len(command_line):
        current, at = current.commands.get(command_line[at]), at + 1
    if current is None or current.context_settings.get("allow_interspersed_args", True):
        return len(command_line)
    last = [
        parameter.name
        for parameter in current.params
        if isinstance(parameter, click.Argument) and parameter.nargs < 0
    ]
    values = current.make_context(command_line[0], list(command_line[at:]), resilient_parsing=True).params
    return len(command_line) - sum(len(values.get(name or "") or ()) for name in last)


def _fetching(
    connection: SharedConnection, command_line: list[str], folder: str, options: Sequence[str], own: int
) -> int:
    """Run as ``_session``, and copy the files that ``options`` among the first ``own`` arguments name."""
    paths: list[str] = []
    for place_of, word in enumerate(command_line[:own]):
        option, equals, value = word.partition("=")
        if option in options and (equals or place_of + 1 < own):
            paths.append(value if equals else command_line[place_of + 1])
    if not paths:
        return _session(connection, shlex.join(command_line), folder)
    for path in paths:
        if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
            raise BadInput(f"{path}: there is no such folder here", "make it first")
    box = f"{HOME}/outbox/{os.urandom(8).hex()}"
    names = {
        path: f'"$o"/{number}-{shlex.quote(os.path.basename(path))}' for number, path in enumerate(paths)
    }
    changed = " ".join(
        (*(_moved(word, names) for word in command_line[:own]), *map(shlex.quote, command_line[own:]))
    )
    try:
        return _session(connection, changed, folder, f'o={box}; (umask 077; mkdir -p "$o") || exit 4; ')
    finally:
        for path, inside in names.items():
            answer = connection.ask(command(f"o={box}; base64 < {inside}"), FETCH_SECONDS)
            if answer.code == 0:
                write_whole(os.path.abspath(path), base64.b64decode(answer.out), READABLE)
                say(f"copied to {path}")
        connection.ask(command(f"rm -rf {box}"), FETCH_SECONDS)


def _moved(word: str, names: dict[str, str]) -> str:
    """Return ``word`` for sh, with the name of a fetched file replaced by its name on the cluster."""
    if word in names:
        return names[word]
    option, equals, value = word.partition("=")
    if equals and option.startswith("--") and value in names:
        return f"{option}={names[value]}"
    return shlex.quote(word)


def _forward(connection: SharedConnection, command_line: Sequence[str], command_of: CommandOf) -> int:
    """Forward a port of a rank's node to this machine until Ctrl-C."""
    forward = command_of("forward")
    assert forward
    options = forward.make_context("forward", list(command_line[1:])).params
    line_there = shlex.join([*command_line, "--json"])
    answer = connection.ask(
        command(_script(connection, line_there, place(connection.host.folder))), FETCH_SECONDS
    )
    if answer.err:
        say(answer.err.rstrip())
    if answer.code != 0:
        return answer.code
    reply = json.loads(answer.out)
    if not reply["answers"]:
        from clusterrun.remote.relayed_port import RemotePort, forward_port

        port = RemotePort(*(reply[name] for name in ("run_id", "node", "port", "local")))
        node = (
            ("--rank", str(options["rank"])) if options["rank"] is not None else ("--node", options["node"])
        )
        relay = shlex.join(("forward", "--relay", *node, port.run_id, str(port.port)))
        relayed = command(_script(connection, relay, place(connection.host.folder)))
        forward_port(connection, relayed, port, say)
        return ExitCode.DONE
    local_address = f"127.0.0.1:{reply['local']}"
    line = f"{local_address}:{reply['node']}:{reply['port']}"
    opened = connection.control("-O", "forward", "-L", line)
    if opened.code != 0:
        remedy = "the port may be in use here (--local PORT takes another one), or the cluster forwards none"
        raise NotConnected(f"{local_address} could not be opened: {opened.err.strip()}", remedy)
    try:
        print(local_address, flush=True)
        say(f"http://{local_address} is port {reply['port']} of {reply['node']}; Ctrl-C ends it")
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        while connection.alive():
            time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        return ExitCode.DONE
    finally:
        connection.control("-O", "cancel", "-L", line)
    raise NotConnected(f"the connection to {connection.name} was lost", f"open it again: {connection.typed}")
