"""`clusterrun mcp`: tools of the Model Context Protocol, each a command in a process of its own."""

from __future__ import annotations

import functools
import json
import os
import secrets
import sys
from collections.abc import Callable
from typing import Any

import click

from clusterrun import system
from clusterrun.cli.error_output import say
from clusterrun.model.contract import VERSION
from clusterrun.model.errors import BadInput, ClusterrunError
from clusterrun.model.nearest import did_you_mean

# Seconds for a command that reads. A diagnosis of a live run takes up to 40.
LIMIT = 120.0
SUBMIT_LIMIT = 600.0
# Limit for the output of ranks. An assistant cannot use more.
MOST_CHARACTERS = 60_000
READ_ONLY = "this server only reads: clusterrun mcp --allow-changes lets it submit and cancel"
ABOUT = """clusterrun runs PyTorch training on many nodes, on Slurm or on this machine.
A run is meant by its run id, its job id, its name (the newest) or "last". UNKNOWN never means ended.
Before you submit, call submit without confirm and show what it says. Only cancel ends a run.
An error says what was seen and what to do about it. The resource clusterrun://skill has more."""


@click.command("mcp")
@click.option("--allow-changes", is_flag=True, help="Also submit and cancel. Without this it only reads.")
def serve(allow_changes: bool) -> None:
    """Serve the commands as tools of the Model Context Protocol, over standard input and output.

    A program that assists you starts it: submit (shown first), status, logs, diagnose, report, cancel.
    With --host the server runs here, and its tools work on that cluster.

    \b
    Examples:
      clusterrun mcp
      clusterrun mcp --allow-changes
      clusterrun --host cluster mcp
    """
    from clusterrun.cli.help import skill

    try:
        from mcp.server.mcpserver import MCPServer
    except ImportError as error:
        message = f"clusterrun mcp needs the package mcp, version 2 or newer ({error})"
        raise BadInput(message, "pip install 'clusterrun[mcp]', with Python 3.10 or newer") from error
    tools = _served(Tools(allow_changes))
    server = MCPServer("clusterrun", instructions=ABOUT, version=VERSION, log_level="WARNING", tools=tools)
    server.resource("clusterrun://skill", name="skill", mime_type="text/markdown")(skill)
    if sys.stdin.isatty():
        say("this waits for a program that speaks the protocol on standard input; Ctrl-C ends it")
    server.run("stdio")


def _served(tools: Tools) -> list[Any]:
    """Return the tools that the server offers. Each refuses an argument that it does not have."""
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.server.mcpserver.tools import Tool
    from mcp.types import ToolAnnotations

    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    changes = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False)

    def telling(tool: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        @functools.wraps(tool)
        def call(*arguments: Any, **named: Any) -> dict[str, Any]:
            try:
                return tool(*arguments, **named)
            except ClusterrunError as error:
                raise ToolError(str(error)) from error

        return call

    reading: list[Callable[..., Any]] = [tools.status, tools.logs, tools.diagnose, tools.report]
    offered = [(tool, reads) for tool in reading]
    offered.append((tools.submit, changes if tools.allowed else reads))
    if tools.allowed:
        offered.append((tools.cancel, changes))
    served = [Tool.from_function(telling(tool), annotations=annotations) for tool, annotations in offered]
    for served_tool in served:
        _refuse_unknown_arguments(served_tool)
    return served


def _refuse_unknown_arguments(tool: Any) -> None:
    """Make the tool refuse unknown arguments with a suggestion. The package would drop them."""
    from pydantic import create_model, model_validator

    model = tool.fn_metadata.arg_model
    names = list(model.model_fields)

    def check(cls: Any, arguments: Any) -> Any:
        for name in arguments:
            if name not in names:
                has = f"it has {', '.join(names)}"
                raise ValueError(f"there is no argument {name!r}; {did_you_mean(name, names, has)}")
        return arguments

    before: Any = model_validator(mode="before")
    strict = create_model(
        model.__name__, __base__=model, __validators__={"check": before(classmethod(check))}
    )
    tool.fn_metadata.arg_model = strict
    tool.parameters = {**strict.model_json_schema(by_alias=True), "additionalProperties": False}


class Tools:
    """The tools of the server. It keeps previewed submissions until they are confirmed."""

    def __init__(self, allowed: bool, call: Callable[..., dict[str, Any]] | None = None) -> None:
        """Create the tools. ``call`` runs a command, and tests replace it."""
        self.allowed = allowed
        self._call = call or command
        self._shown: dict[str, tuple[list[str], str]] = {}

    def submit(
        self, arguments: list[str] | None = None, directory: str = "", confirm: str = ""
    ) -> dict[str, Any]:
        """Show what a submission would do, and touch nothing; with confirm, submit what was shown.

        arguments: the words after `clusterrun submit`, options first, then the script and its own words:
        ["--nodes", "2", "--gpus", "8", "--time", "2h", "train.py", "--lr", "0.1"]. directory: where the
        command is typed. confirm: the token that the preview returned; it submits exactly that, once.
        """
        if confirm:
            if not self.allowed:
                raise BadInput(READ_ONLY)
            submission = self._shown.pop(confirm, None)
            if submission is None:
                message = (
                    f"no shown submission has the token {confirm!r}: it was submitted already, or never shown"
                )
                raise BadInput(
                    message, "status tells what was submitted; submit with arguments shows it anew"
                )
            try:
                return self._call(["submit", "--json", *submission[0]], submission[1], SUBMIT_LIMIT)
            except system.ProgramTimeout as error:
                raise ClusterrunError(error.seen, "it may be queued anyway: status tells") from error
        command_line = list(arguments or ())
        # With --host it may send much code first.
        preview = self._call(["submit", "--dry-run", "--json", *command_line], directory, SUBMIT_LIMIT)
        if self.allowed and not preview["exit_code"]:
            token = secrets.token_hex(8)
            self._shown[token] = (command_line, directory)
            return {**preview, "confirm": token}
        return {**preview, "notices": [*preview["notices"], READ_ONLY]} if not self.allowed else preview

    def status(self, runs: list[str] | None = None) -> dict[str, Any]:
        """Return the state of live and recent runs. Named runs also have their attempts and reasons."""
        return self._call(["status", "--json", "--", *(runs or ())])

    def logs(
        self, run: str = "last", ranks: str = "", stream: str = "both", tail: int = 100, grep: str = ""
    ) -> dict[str, Any]:
        """Return the output of the ranks of a run in time order. A line that many ranks printed appears once.

        ranks: "0,3-5". stream: out, err or both. tail: the last lines of each rank. grep: a regular
        expression.
        """
        selection = [f"--rank={ranks}"] if ranks else []
        pattern = [f"--grep={grep}"] if grep else []
        command_line = ["logs", "--fold", f"--stream={stream}", f"--tail={tail}", *selection, *pattern]
        return self._call([*command_line, "--", run])

    def diagnose(self, run: str = "last") -> dict[str, Any]:
        """Return why a run hangs or has failed: verdict, culprit rank and node, evidence, remedy.

        Takes up to a minute for a live run.
        """
        return self._call(["diagnose", "--json", "--", run])

    def report(self, run: str = "last") -> dict[str, Any]:
        """Return the report of a run's pre-flight check: nodes, links, findings with their remedies."""
        return self._call(["report", "--json", "--", run])

    def cancel(self, runs: list[str]) -> dict[str, Any]:
        """End runs, queued or running. It cannot be undone: only runs that the person named."""
        return self._call(["cancel", "--", *runs])


def command(arguments: list[str], directory: str = "", limit: float = LIMIT) -> dict[str, Any]:
    """Return the output of a command. Raise ``ClusterrunError`` with its message if it failed."""
    if directory and not os.path.isdir(directory):
        raise BadInput(f"there is no folder {directory!r}", "give the folder where the script lies")
    environment = {**os.environ, "NO_COLOR": "1"}
    argv = [sys.executable, "-m", "clusterrun", *arguments]
    result = system.run(argv, limit, env=environment, cwd=directory or None)
    notices = result.err.splitlines()
    if result.code and not result.out.strip():
        raise ClusterrunError("\n".join(notices) or f"clusterrun {arguments[0]} ended with {result.code}")
    return {"output": _read(result.out), "notices": notices, "exit_code": result.code}


def _read(text: str) -> Any:
    """Return a decoded JSON document, or the end of a text with a note on the omitted part."""
    try:
        return json.loads(text)
    except ValueError:
        omitted = len(text) - MOST_CHARACTERS
        head = f"({omitted} characters before this are left out)\n" if omitted > 0 else ""
        return head + text[-MOST_CHARACTERS:]
