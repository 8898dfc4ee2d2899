"""From a laptop to a real Slurm: an sshd on the lab's login host that takes each code once."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterrun.lab.spec import LOGIN
from tests.sshd_fixture import LIMIT, Far, free_port

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAM = """auth requisite pam_exec.so quiet expose_authtok {check}
auth required pam_permit.so
account required pam_permit.so
session required pam_permit.so
"""
CHECK = """#!/bin/sh
code=$(tr -d '\\0')
[ -n "$code" ] && [ -e {codes}/"$code" ] && rm {codes}/"$code"
"""
ASKS = (
    "UsePAM yes",
    "PubkeyAuthentication no",
    "PasswordAuthentication no",
    "KbdInteractiveAuthentication yes",
    "MaxSessions 1",
)


@pytest.fixture
def cluster(lab, make_far, tmp_path_factory) -> Iterator[Far]:
    """Yield the lab behind an sshd that asks for a one-time code and allows one session at a time."""
    if lab.state.root and not Path(lab.state.root, "usr/sbin/sshd").exists():
        pytest.skip("the login host stands on another distribution's files, which have no sshd")
    place = tmp_path_factory.mktemp("codes")
    check, codes, project = place / "check", place / "codes", place / "project"
    codes.mkdir()
    project.mkdir()
    check.write_text(CHECK.format(codes=codes))
    check.chmod(0o755)
    written = lab.exec(["tee", "/etc/pam.d/sshd"], stdin=PAM.format(check=check))
    assert written.code == 0, written.err
    front, environment = lab.entering(LOGIN, {}, str(project))
    remote = {name: environment[name] for name in ("PATH", "SLURM_CONF") if name in environment}
    far = make_far(*ASKS, front=front, variables={**remote, "CLUSTERRUN_CLUSTER": "slurm"})
    far.codes = codes
    yield far
    far.end()


def test_a_one_time_code_is_typed_once_for_all_commands(cluster) -> None:
    (cluster.codes / "246810").touch()
    before = cluster.logins
    code, observed = cluster.terminal(
        *("--host", "cluster", "status", "--json"), answers=[(r"[Pp]assword:", "246810\n")]
    )
    assert code == 0, observed + (cluster.folder / "sshd.log").read_text()
    created = cluster.there("submit", "--nodes", "2", "--wait", "--json", "sh", "-c", "echo on $(hostname)")
    assert created.returncode == 0, created.stderr
    (run,) = json.loads(cluster.there("status", "--json", "last").stdout)["runs"]
    assert (run["cluster"], run["state"], run["world_size"]) == ("slurm", "COMPLETED", 2)
    assert cluster.there("logs", "--raw").stdout.count("on n0") == 2
    assert cluster.logins == before + 1
    assert list(cluster.codes.iterdir()) == []


STAND_IN = Path(__file__).parents[1] / "remote" / "macos_stand_in"
FAILS = """import os, sys, time
print("rank", os.environ["RANK"], flush=True)
if "stay" in sys.argv:
    time.sleep(600)
if os.environ["RANK"] == "1":
    raise RuntimeError("shapes differ")
"""


def test_the_commands_of_a_laptop_work_on_a_stand_in_for_macos(cluster) -> None:
    """The laptop's Python lacks what only Linux has, and finds no programs but ssh and git."""
    programs = cluster.folder / "programs"
    programs.mkdir()
    into_the_lab = [word for word in cluster.front if "/" not in word and shutil.which(word)]
    for name in {"git", "env", "sh", *into_the_lab}:
        (programs / name).symlink_to(shutil.which(name))
    project = cluster.codes.parent / "project"
    (project / "train.py").write_text(FAILS)
    mac = {"PATH": f"{cluster.folder}/bin:{programs}", "PYTHONPATH": str(STAND_IN)}
    (cluster.codes / "112358").touch()
    answers = [(r"[Pp]assword:", "112358\n")]
    code, observed = cluster.terminal("--host", "cluster", answers=answers, **mac)
    assert (code, "the connection to cluster is open" in observed) == (0, True), observed

    def typed(*arguments: str, code: int = 0) -> str:
        result = cluster.there(*arguments, **mac)
        assert result.returncode == code, (arguments, result)
        return result.stdout

    options = ("--nodes", "2", "--preflight", "off")
    failed = json.loads(typed("submit", *options, "--json", "train.py"))["run_id"]
    typed("wait", failed, code=1)
    assert "rank 1" in typed("logs", "--raw", failed) and "FAILED" in typed("status", failed)
    diagnosis = json.loads(typed("diagnose", "--json", failed))
    assert [culprit["rank"] for culprit in diagnosis["culprits"]] == [1]
    stays = typed("submit", *options, "train.py", "stay").strip()
    with cluster.started("logs", "-f", "--raw", stays, variables=mac) as logs:
        assert logs.stdout.readline().startswith("rank ")
    assert '"run_id"' in typed("top", "--once", "--json", stays)
    assert typed("exec", stays, "--", "echo", "beside").strip() == "beside"
    typed("cancel", stays)
    typed("check", "--nodes", "2", "--level", "quick", "--html", "report.html", "--preflight-budget", "30s")
    assert "<html" in (project / "report.html").read_text()
    sweep = ("--set", "word=stay,go", "--dry-run", "--preflight", "off", "train.py", "{word}")
    assert typed("sweep", *sweep).count("word=") == 2
    assert "GPU" in typed("gpus")


PAGE = (Path(__file__).parents[2] / "docs" / "assistants.md").read_text(encoding="utf-8")


def configured_servers(page: str) -> list[tuple[str, list[str]]]:
    """Return command and arguments of every server that the page's examples configure."""
    tables = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", page, re.DOTALL)]
    tables += [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)]
    servers = [server for table in tables for entries in table.values() for server in entries.values()]
    return [(server["command"], server["args"]) for server in servers]


def test_the_examples_of_the_page_configure_the_server_here_and_on_a_cluster() -> None:
    local, remote = ("clusterrun", ["mcp"]), ("clusterrun", ["--host", "cluster", "mcp"])
    servers = configured_servers(PAGE)
    assert len(servers) == 4 and all(server in (local, remote) for server in servers)
    assert remote in servers


def test_an_assistant_on_a_laptop_works_on_the_cluster(cluster) -> None:
    """The server runs on the laptop, as the page configures it; only the laptop needs the package mcp."""
    pytest.importorskip("mcp.server.mcpserver", reason="mcp 2 is not installed", exc_type=ImportError)
    import mcp

    (cluster.codes.parent / "project" / "train.py").write_text(FAILS)
    arguments = next(words for _, words in configured_servers(PAGE) if "--host" in words)
    command, *front = (*cluster.front, sys.executable, "-m", "clusterrun", *arguments, "--allow-changes")
    server = mcp.StdioServerParameters(command=command, args=front, env=cluster.environment)

    async def talk() -> None:
        async with mcp.Client(server) as client:

            async def call(name: str, **arguments: object) -> Any:
                result = await client.call_tool(name, arguments)
                return result.content[0].text if result.is_error else result.structured_content

            assert "clusterrun --host cluster" in await call("status")  # nobody has logged in
            (cluster.codes / "314159").touch()
            answers = [(r"[Pp]assword:", "314159\n")]
            code, observed = await asyncio.to_thread(cluster.terminal, "--host", "cluster", answers=answers)
            assert code == 0, observed
            assert "there is no argument 'rank'" in await call("logs", rank="1")
            words = ["--nodes", "2", "--preflight", "off", "train.py"]
            shown = await call("submit", arguments=words)
            assert "coordinate" in shown["output"]["script"], shown
            sent = await call("submit", confirm=shown["confirm"])
            run_id = sent["output"]["run_id"]
            waited = await asyncio.to_thread(cluster.there, "wait", run_id)
            assert waited.returncode == 1, waited
            (run,) = (await call("status", runs=[run_id]))["output"]["runs"]
            assert (run["cluster"], run["state"]) == ("slurm", "FAILED")
            diagnosis = (await call("diagnose", run=run_id))["output"]
            assert [culprit["rank"] for culprit in diagnosis["culprits"]] == [1]
            assert "shapes differ" in (await call("logs", run=run_id, ranks="1"))["output"]
            assert "there is no run 'nobody'" in await call("cancel", runs=["nobody"])

    asyncio.run(asyncio.wait_for(talk(), 3 * LIMIT))


def test_a_used_code_is_refused_with_a_plain_message(cluster, tmp_path) -> None:
    code, observed = cluster.terminal(
        *("--host", "cluster", "status"),
        answers=[(r"[Pp]assword:", "246810\n")] * 3,
        CLUSTERRUN_HOME=str(tmp_path),
    )
    assert code == 1
    assert "cluster refused the login" in observed


SERVER = """import os, socket, time
if os.environ["RANK"] == "1":
    server = socket.create_server(("127.0.0.1", 0))
    print("port", server.getsockname()[1], flush=True)
    while True:
        found = server.accept()[0]
        if asked := found.recv(1):
            found.sendall(b"x" * 10)
            while asked == b"!":
                found.sendall(b"x" * 65536)
                time.sleep(0.01)
        found.close()
time.sleep(600)
"""


ASK = """import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 60) as server:
    server.sendall(sys.argv[2].encode())
    found = 0
    while more := server.recv(1 << 20):
        found += len(more)
        print(found, flush=True)
"""


def test_forward_reaches_a_server_on_the_loopback_until_its_node_dies(lab, cluster) -> None:
    (cluster.codes / "135790").touch()
    (cluster.codes.parent / "project" / "server.py").write_text(SERVER)
    code, observed = cluster.terminal("--host", "cluster", answers=[(r"[Pp]assword:", "135790\n")])
    assert code == 0, observed
    created = cluster.there("submit", "--nodes", "2", "--json", "server.py")
    assert created.returncode == 0, created.stderr
    with cluster.started("logs", "-f", "--raw") as logs:
        port = logs.stdout.readline().split()[-1]
    local = str(free_port())

    def asking(word: str) -> subprocess.Popen[str]:
        arguments = (*cluster.front, sys.executable, "-c", ASK, local, word)
        return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    try:
        with cluster.started("forward", "last", port, "--rank", "1", "--local", local) as forward:
            assert forward.stdout.readline() == f"127.0.0.1:{local}\n", forward.stderr.read()
            for _ in range(2):
                assert asking("?").communicate(timeout=LIMIT)[0].splitlines()[-1] == "10"
            many = asking("!")
            assert int(many.stdout.readline())
            lab.fault("kill", "n0002")
            assert forward.wait(3 * LIMIT) == 1
            assert many.wait(LIMIT) == 0
            assert f"what carried port {port} of n0002 here has ended" in forward.stderr.read()
    finally:
        lab.heal()
        cluster.there("cancel", "last")
        assert lab.wait_idle(LIMIT)
