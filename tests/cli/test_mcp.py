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
    """All calls of one session: what an assistant does from the first look to the diagnosis."""
    why = "mcp 2 is not installed: pip install 'clusterrun[mcp]'"
    pytest.importorskip("mcp.server.mcpserver", reason=why, exc_type=ImportError)
    import mcp

    said: dict[str, Any] = {}

    async def talk() -> None:
        server = mcp.StdioServerParameters(
            command=sys.executable, args=["-m", "clusterrun", "mcp", *options],
            env=dict(clusterrun.environment), cwd=str(clusterrun.folder),
        )  # fmt: skip
        async with mcp.Client(server) as client:
            listed = (await client.list_tools()).tools
            said["open"] = [one.name for one in listed if one.input_schema.get("additionalProperties", True)]
            said["tools"] = {one.name: one.annotations.read_only_hint for one in listed}
            said["skill"] = (await client.read_resource("clusterrun://skill")).contents[0].text

            async def call(name: str, **given: Any) -> Any:
                done = await client.call_tool(name, given)
                return done.content[0].text if done.is_error else done.structured_content

            words = ["--preflight", "off", "--ranks-per-node", "2", "train.py", "fail"]
            said["shown"] = await call("submit", arguments=words, directory=str(clusterrun.folder))
            said["unknown"] = [
                await call("logs", run="last", rank="3"),
                await call("status", filter="all"),
                await call("submit", arguments=words, dryrun=True),
            ]
            said["wrong"] = await call("submit", arguments=["--nods", "2", "train.py"])
            said["sent"] = await call("submit", confirm=said["shown"].get("confirm", "x"))
            said["cancel"] = await call("cancel", runs=["-f"])
            said["status"] = await call("status")
            if options:
                said["again"] = await call("submit", confirm=said["shown"]["confirm"])
                await asyncio.to_thread(clusterrun, "wait")
                for name in ("status", "diagnose", "logs", "report"):
                    said[name] = await call(name)

    asyncio.run(asyncio.wait_for(talk(), LIMIT))
    return said


def test_an_assistant_that_may_change_shows_submits_once_and_diagnoses(clusterrun: CommandLine) -> None:
    said = session(clusterrun, "--allow-changes")
    reads = dict.fromkeys(("status", "logs", "diagnose", "report"), True)
    assert said["tools"] == {**reads, "submit": False, "cancel": False}
    assert said["open"] == []
    logs, status, submit = said["unknown"]
    assert "there is no argument 'rank'; did you mean 'ranks'?" in logs
    assert "there is no argument 'filter'; it has runs" in status
    assert "there is no argument 'dryrun'" in submit
    assert said["skill"].startswith("---\nname: clusterrun\n")
    assert "coordinate" in said["shown"]["output"]["script"] and said["shown"]["confirm"]
    assert "there is no option --nods. Did you mean --nodes" in said["wrong"]
    assert "was submitted already, or never shown" in said["again"]
    (run,) = said["status"]["output"]["runs"]
    assert (run["run_id"], run["state"]) == (said["sent"]["output"]["run_id"], "FAILED")
    assert [one["rank"] for one in said["diagnose"]["output"]["culprits"]] == [1]
    assert "about to fail" in said["logs"]["output"]
    assert "its nodes were not checked" in said["report"]
    assert "there is no run '-f'" in said["cancel"]


def test_one_that_only_reads_shows_and_changes_nothing(clusterrun: CommandLine) -> None:
    said = session(clusterrun)
    assert said["tools"] == dict.fromkeys(("status", "logs", "diagnose", "report", "submit"), True)
    assert "confirm" not in said["shown"] and "--allow-changes" in said["shown"]["notices"][-1]
    assert "--allow-changes" in said["sent"] and "Unknown tool" in said["cancel"]
    assert said["status"]["output"] == {"runs": []}


def test_a_submission_without_an_answer_is_not_made_again() -> None:
    asked: list[list[str]] = []

    def call(words: list[str], directory: str = "", limit: float = 0) -> dict[str, Any]:
        asked.append(words)
        if "--dry-run" not in words:
            raise system.ProgramTimeout("no answer")
        return {"output": {}, "notices": [], "exit_code": 0}

    tools = Tools(allowed=True, call=call)
    word = tools.submit(["train.py"])["confirm"]
    with pytest.raises(ClusterrunError, match="may be queued anyway"):
        tools.submit(confirm=word)
    with pytest.raises(BadInput, match="submitted already"):
        tools.submit(confirm=word)
    assert asked == [["submit", "--dry-run", "--json", "train.py"], ["submit", "--json", "train.py"]]


def test_of_a_long_text_the_end_is_given_and_what_is_left_out_is_said() -> None:
    text = _read("x" * 10 + "y" * MOST_CHARACTERS)
    assert text == "(10 characters before this are left out)\n" + "y" * MOST_CHARACTERS


def test_without_the_package_the_command_says_what_to_install(
    clusterrun: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "mcp.py").write_text("raise ImportError('no mcp')")
    clusterrun.environment["PYTHONPATH"] = f"{tmp_path / 'absent'}:{clusterrun.environment['PYTHONPATH']}"
    done = clusterrun("mcp")
    assert (done.code, "pip install 'clusterrun[mcp]'" in done.err) == (2, True), done
