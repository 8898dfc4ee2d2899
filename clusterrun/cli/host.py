"""`clusterrun --host NAME COMMAND`: a command that runs on a cluster over SSH, as if typed there."""

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
from clusterrun.script.input_readers import reads_input

CommandOf = Callable[[str], "click.Command | None"]
FETCHED = {
    "report": ("--html", "--prometheus"),
    "check": ("--html", "--prometheus", "--selftest-file"),
    "rehearse": ("--html", "--junit"),
    "bench scaling": ("--plot",),
    "sweep results": ("--plot",),
}
"""Options that name a file to be written: it comes here."""
INPUT_COMMANDS = ("alloc", "exec", "mcp", "run", "shell")
READABLE = 0o644
FETCH_SECONDS, LOOK_SECONDS = 600.0, 15.0
NOT_FOUND = 127
PASSED_ON = ("NO_COLOR",)


def run_on_cluster(name: str, words: list[str], command_of: CommandOf) -> int:
    """Run ``words`` on the cluster ``name``; the exit code is that of the command there.

    Without words the connection is opened, for the commands that follow. Raises ``ClusterrunError``.
    """
    sent = _parsed(words, command_of)  # what cannot be meant is said before a password is asked for
    read = profiles.load(os.getcwd(), os.environ)
    terminal = sys.stdin.isatty() and sys.stderr.isatty()
    if not (sys.stdin.isatty() or _reads_input(words, sent)):
        # ssh would take the lines of a ``while read`` loop around it.
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    connection = connect(profiles.host(read, name), os.environ, terminal)
    if not words:
        say(f"the connection to {name} is open")
        return ExitCode.DONE
    if words[0] == "forward" and not {"-h", "--help"} & set(words):
        return _forward(connection, words, command_of)
    folder = place(connection.host.folder)
    if sent and sent.get("snapshot") is not False:
        from clusterrun.remote.carried_code import send

        include = sent.get("snapshot_include")
        folder = send(connection, os.getcwd(), include if isinstance(include, tuple) else (), say)
        words = _with_snapshot(words)
    fetched = FETCHED.get(words[0]) or FETCHED.get(" ".join(words[:2]), ())
    if fetched:
        return _fetching(connection, words, folder, fetched, _own(words, command_of))
    return _session(connection, shlex.join(words), folder)


def _reads_input(words: list[str], parsed: dict[str, object]) -> bool:
    """Return whether the command there may read standard input; ``parsed``: options of a submission."""
    submitted = parsed.get("command")
    if isinstance(submitted, tuple) and submitted and reads_input(submitted):
        return True
    return parsed.get("input") == "-" or bool(words and words[0] in INPUT_COMMANDS)


def _parsed(words: list[str], command_of: CommandOf) -> dict[str, object]:
    """The options of a command that takes our code along; nothing of another one. Raises ``UsageError``."""
    first, rest = (words[:1] or [""])[0], words[1:]
    chosen_command = command_of(first) if first in ("submit", "sweep", "bench") else None
    if isinstance(chosen_command, click.Group):
        if first == "sweep" and rest and rest[0].startswith("-") and rest[0] not in ("-h", "--help"):
            rest = ["start", *rest]
        chosen = rest[0] if rest and rest[0] in ("start", "scaling") else ""
        chosen_command, rest = chosen_command.commands.get(chosen), rest[1:]
    if chosen_command is None or {"-h", "--help", "--help-all"} & set(rest[:1]):
        return {}
    return {"snapshot": None, **chosen_command.make_context(first, rest).params}


def _with_snapshot(words: list[str]) -> list[str]:
    """``words``, whose run makes the sent code its own."""
    if words[0] == "bench":
        return words
    head = 2 if words[:2] == ["sweep", "start"] else 1
    return [*words[:head], "--snapshot", *words[head:]]


def _session(connection: SharedConnection, words: str, folder: str, before: str = "") -> int:
    """The exit code of ``words`` (of sh) there, with our own streams, and a terminal where we have one."""
    terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    code = connection.foreground(command(before + _script(connection, words, folder)), terminal)
    if code in (GONE, NOT_FOUND):
        forget(connection)
    if code == GONE:
        say(f"the client on {connection.name} is gone, nothing ran; type it again: that puts it there")
    return code


def _script(connection: SharedConnection, words: str, folder: str) -> str:
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    variables = {**passed_on, contract.TYPED_AT_VARIABLE: connection.name}
    return runs(prefix(connection), words, folder, variables)


def _own(words: Sequence[str], command_of: CommandOf) -> int:
    """How many of the words are the command's own, and not those of a script."""
    current, at = command_of(words[0]), 1
    while isinstance(current, click.Group) and at < len(words):
        current, at = current.commands.get(words[at]), at + 1
    if current is None or current.context_settings.get("allow_interspersed_args", True):
        return len(words)
    last = [
        parameter.name
        for parameter in current.params
        if isinstance(parameter, click.Argument) and parameter.nargs < 0
    ]
    values = current.make_context(words[0], list(words[at:]), resilient_parsing=True).params
    return len(words) - sum(len(values.get(name or "") or ()) for name in last)


def _fetching(
    connection: SharedConnection, words: list[str], folder: str, options: Sequence[str], own: int
) -> int:
    """As ``_session``; files that ``options`` among the ``own`` words name are written here."""
    wanted: list[str] = []
    for place_of, word in enumerate(words[:own]):
        option, equals, value = word.partition("=")
        if option in options and (equals or place_of + 1 < own):
            wanted.append(value if equals else words[place_of + 1])
    if not wanted:
        return _session(connection, shlex.join(words), folder)
    for path in wanted:
        if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
            raise BadInput(f"{path}: there is no such folder here", "make it first")
    box = f"{HOME}/outbox/{os.urandom(8).hex()}"
    names = {
        path: f'"$o"/{number}-{shlex.quote(os.path.basename(path))}' for number, path in enumerate(wanted)
    }
    changed = " ".join((*(_moved(word, names) for word in words[:own]), *map(shlex.quote, words[own:])))
    try:
        return _session(connection, changed, folder, f'o={box}; (umask 077; mkdir -p "$o") || exit 4; ')
    finally:
        _fetch(connection, box, names)


def _moved(word: str, names: dict[str, str]) -> str:
    """``word`` for sh, with the name of a file that is wanted here replaced by one there."""
    if word in names:
        return names[word]
    option, equals, value = word.partition("=")
    if equals and option.startswith("--") and value in names:
        return f"{option}={names[value]}"
    return shlex.quote(word)


def _fetch(connection: SharedConnection, box: str, names: dict[str, str]) -> None:
    for path, inside in names.items():
        done = connection.ask(command(f"o={box}; base64 < {inside}"), FETCH_SECONDS)
        if done.code == 0:
            write_whole(os.path.abspath(path), base64.b64decode(done.out), READABLE)
            say(f"copied to {path}")
    connection.ask(command(f"rm -rf {box}"), FETCH_SECONDS)


def _forward(connection: SharedConnection, words: Sequence[str], command_of: CommandOf) -> int:
    """Bring a port of a rank's node here, until Ctrl-C."""
    forward = command_of("forward")
    assert forward
    options = forward.make_context("forward", list(words[1:])).params
    line_there = shlex.join([*words, "--json"])
    done = connection.ask(
        command(_script(connection, line_there, place(connection.host.folder))), FETCH_SECONDS
    )
    if done.err:
        say(done.err.rstrip())
    if done.code != 0:
        return done.code
    reply = json.loads(done.out)
    if not reply["answers"]:
        from clusterrun.remote.relayed_port import RemotePort, forward_port

        wanted = RemotePort(*(reply[name] for name in ("run_id", "node", "port", "local")))
        node = (
            ("--rank", str(options["rank"])) if options["rank"] is not None else ("--node", options["node"])
        )
        relay = shlex.join(("forward", "--relay", *node, wanted.run_id, str(wanted.port)))
        relayed = command(_script(connection, relay, place(connection.host.folder)))
        forward_port(connection, relayed, wanted, say)
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
