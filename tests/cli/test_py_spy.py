"""py-spy reads the stacks of ranks without the prelude, which Python's isolated mode does not load."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from clusterrun.diagnosis.stacks import of_py_spy
from clusterrun.monitor.external_tools import spy
from tests.cli.conftest import CommandLine
from tests.cli.test_diagnose import await_rest
from tests.monitor.stage import until
from tests.rank_hooks.test_rank_hooks import Start, start  # noqa: F401  a fixture

PY_SPY = shutil.which("py-spy", path=os.path.dirname(sys.executable)) or shutil.which("py-spy")
WAITS = """
import threading, time

def turn():
    while True:
        time.sleep(0.02)

def wait_for_data():
    while True:
        time.sleep(0.02)

threading.Thread(target=turn, daemon=True).start()
print("up", flush=True)
wait_for_data()
"""

pytestmark = [
    pytest.mark.skipif(PY_SPY is None, reason="py-spy is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="py-spy may look at others' memory as root only"),
]


def test_the_main_thread_is_recognized_in_recorded_output_of_py_spy(
    start: Start,  # noqa: F811
    tmp_path: Path,
) -> None:
    assert PY_SPY
    (tmp_path / "wait.py").write_text(WAITS)
    process = start([sys.executable, "-I", str(tmp_path / "wait.py")], {"PATH": os.defpath})
    assert process.stdout and process.stdout.readline() == "up\n"
    result = spy(process.pid, os.path.dirname(PY_SPY))
    assert result == (f"{tmp_path}/wait.py:10 wait_for_data", f"{tmp_path}/wait.py:14 <module>")


def test_a_missing_process_has_no_stack() -> None:
    assert PY_SPY
    assert (spy(2**22 + 5, os.path.dirname(PY_SPY)), of_py_spy("Error: No such file")) == ((), ())


def test_isolated_ranks_of_a_live_run_still_show_their_lines(clusterrun: CommandLine) -> None:
    assert PY_SPY
    clusterrun.environment["PATH"] += os.pathsep + os.path.dirname(PY_SPY)
    (clusterrun.folder / "train.py").write_text(WAITS)
    arguments = ("--nodes", "1", "--ranks-per-node", "2", "--", sys.executable, "-u", "-I", "train.py")
    result = clusterrun("submit", *arguments)
    assert result.code == 0, result.err
    until(lambda: clusterrun("logs", "last").out.count("up") == 2, "both ranks")
    trains = '"phase": "training"'
    until(lambda: trains in clusterrun("status", "last", "--json").out, "the run's own word")
    await_rest(clusterrun)
    document = json.loads(clusterrun("diagnose", "--json").out)
    assert document["groups"], document
    (group,) = document["groups"]
    assert group["ranks"] == [0, 1]
    assert group["stack"][0] == f"{clusterrun.folder}/train.py:10 wait_for_data"
    assert document["verdict"] == "all wait"
