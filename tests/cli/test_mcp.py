"""`clusterrun mcp` as a program that assists somebody uses it: a session of the same SDK over stdio."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterrun import system
from clusterrun.cli.mcp import MOST_CHARACTERS, Tools, _read
from clusterrun.model.errors import BadInput, ClusterrunError
from tests.cli.conftest import CommandLine

Call = Callable[..., Any]
LIMIT = 480.0


def session(clusterrun: CommandLine, *options: str) -> dict[str, Any]:
    """Return all calls of a session, from the first look of an assistant to the diagnosis."""
    why = "mcp 2 is not installed: pip install 'clusterrun[mcp]'"
    pytest.importorskip("mcp.server.mcpserver", reason=why, exc_type=ImportError)
    import mcp

    messages: dict[str, Any] = {}

    async def talk() -> None:
        server = mcp.StdioServerParameters(
            command=sys.executable, args=["-m", "clusterrun", "mcp", *options],
            env=dict(clusterrun.environment), cwd=str(clusterrun.folder),
        )  # fmt: skip
        async with mcp.Client(server) as client:
            listed = (await client.list_tools()).tools
            messages["open"] = [
                entry.name for entry in listed if entry.input_schema.get("additionalProperties", True)
            ]
            messages["tools"] = {entry.name: entry.annotations.read_only_hint for entry in listed}
            messages["skill"] = (await client.read_resource("clusterrun://skill")).contents[0].text

            async def call(name: str, **arguments: Any) -> Any:
                result = await client.call_tool(name, arguments)
                return result.content[0].text if result.is_error else result.structured_content

            arguments = ["--preflight", "off", "--ranks-per-node", "2", "train.py", "fail"]
            messages["shown"] = await call("submit", arguments=arguments, directory=str(clusterrun.folder))
            messages["unknown"] = [
                await call("logs", run="last", rank="3"),
                await call("status", filter="all"),
                await call("submit", arguments=arguments, dryrun=True),
            ]
            messages["wrong"] = await call("submit", arguments=["--nods", "2", "train.py"])
            messages["sent"] = await call("submit", confirm=messages["shown"].get("confirm", "x"))
            messages["cancel"] = await call("cancel", runs=["-f"])
            messages["status"] = await call("status")
            if options:
                messages["again"] = await call("submit", confirm=messages["shown"]["confirm"])
                await asyncio.to_thread(clusterrun, "wait")
                for name in ("status", "diagnose", "logs", "report"):
                    messages[name] = await call(name)

    asyncio.run(asyncio.wait_for(talk(), LIMIT))
    return messages


def test_an_assistant_with_write_access_shows_submits_once_and_diagnoses(clusterrun: CommandLine) -> None:
    message = session(clusterrun, "--allow-changes")
    reads = dict.fromkeys(("status", "logs", "diagnose", "report"), True)
    assert message["tools"] == {**reads, "submit": False, "cancel": False}
    assert message["open"] == []
    logs, status, submit = message["unknown"]
    assert "there is no argument 'rank'; did you mean 'ranks'?" in logs
    assert "there is no argument 'filter'; it has runs" in status
    assert "there is no argument 'dryrun'" in submit
    assert message["skill"].startswith("---\nname: clusterrun\n")
    assert "coordinate" in message["shown"]["output"]["script"] and message["shown"]["confirm"]
    assert "there is no option --nods. Did you mean --nodes" in message["wrong"]
    assert "was submitted already, or never shown" in message["again"]
    (run,) = message["status"]["output"]["runs"]
    assert (run["run_id"], run["state"]) == (message["sent"]["output"]["run_id"], "FAILED")
    assert [culprit["rank"] for culprit in message["diagnose"]["output"]["culprits"]] == [1]
    assert "about to fail" in message["logs"]["output"]
    assert "its nodes were not checked" in message["report"]
    assert "there is no run '-f'" in message["cancel"]


def test_a_read_only_server_submits_nothing(clusterrun: CommandLine) -> None:
    message = session(clusterrun)
    assert message["tools"] == dict.fromkeys(("status", "logs", "diagnose", "report", "submit"), True)
    assert "confirm" not in message["shown"] and "--allow-changes" in message["shown"]["notices"][-1]
    assert "--allow-changes" in message["sent"] and "Unknown tool" in message["cancel"]
    assert message["status"]["output"] == {"runs": []}


def test_a_submission_without_an_answer_is_not_repeated() -> None:
    requested: list[list[str]] = []

    def call(words: list[str], directory: str = "", limit: float = 0) -> dict[str, Any]:
        requested.append(words)
        if "--dry-run" not in words:
            raise system.ProgramTimeout("no answer")
        return {"output": {}, "notices": [], "exit_code": 0}

    tools = Tools(allowed=True, call=call)
    word = tools.submit(["train.py"])["confirm"]
    with pytest.raises(ClusterrunError, match="may be queued anyway"):
        tools.submit(confirm=word)
    with pytest.raises(BadInput, match="submitted already"):
        tools.submit(confirm=word)
    assert requested == [["submit", "--dry-run", "--json", "train.py"], ["submit", "--json", "train.py"]]


def test_a_long_text_is_cut_at_its_beginning_and_the_cut_is_reported() -> None:
    text = _read("x" * 10 + "y" * MOST_CHARACTERS)
    assert text == "(10 characters before this are left out)\n" + "y" * MOST_CHARACTERS


def test_the_command_names_the_package_that_it_lacks(clusterrun: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "mcp.py").write_text("raise ImportError('no mcp')")
    clusterrun.environment["PYTHONPATH"] = f"{tmp_path / 'absent'}:{clusterrun.environment['PYTHONPATH']}"
    result = clusterrun("mcp")
    assert (result.code, "pip install 'clusterrun[mcp]'" in result.err) == (2, True), result
