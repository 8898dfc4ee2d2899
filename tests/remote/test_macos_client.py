"""The client on a stand-in for macOS: a Python without what only Linux has (``macos_stand_in``)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterrun.cli.main import COMMANDS

STAND_IN = Path(__file__).parent / "macos_stand_in"
LIMIT = 120.0


def on_stand_in(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python without any program on PATH but those of the test."""
    environment = {"PATH": "/nonexistent", "PYTHONPATH": str(STAND_IN), **variables}
    return subprocess.run(
        [sys.executable, *argv], env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def test_the_stand_in_for_macos_lacks_linux_interfaces() -> None:
    code = """
import ctypes, os, select, subprocess, sys, urllib.request
assert sys.platform == "darwin" and os.uname().sysname == "Darwin"
assert not hasattr(os, "memfd_create") and not hasattr(select, "epoll")
assert not os.path.exists("/proc/self/stat")
opens, lists = lambda: open("/proc/self/stat"), lambda: os.listdir("/proc")
for attempt in (opens, lists, lambda: ctypes.CDLL(None).prctl):
    try:
        attempt()
    except (FileNotFoundError, AttributeError):
        continue
    raise SystemExit("it has something of Linux")
print("ok")
"""
    result = on_stand_in("-c", code)
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr


def test_every_command_can_be_loaded_on_a_stand_in_for_macos(tmp_path: Path) -> None:
    code = """
from clusterrun.cli.main import COMMANDS, main
for verb in COMMANDS:
    assert main([verb, "--help"]) == 0, verb
"""
    result = on_stand_in("-c", code, HOME=str(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")
    assert all(f"Usage: clusterrun {verb}" in result.stdout for verb in COMMANDS)


@pytest.mark.parametrize("verb", ["submit", "check", "sweep", "rehearse"])
def test_the_stand_in_for_macos_starts_nothing_and_prints_a_remedy(verb: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    words = {"check": (), "sweep": ("--set", "a=1", "train.py", "{a}")}.get(verb, ("train.py",))
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHONPATH": str(STAND_IN)}
    result = subprocess.run(
        [sys.executable, "-m", "clusterrun", verb, *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert result.returncode == 2, result
    assert "ranks run on Linux, and this machine has Darwin" in result.stderr
    assert "clusterrun --host NAME" in result.stderr
