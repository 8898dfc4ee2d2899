"""Why the stacks of a process cannot be read, and for how long a reason counts."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from clusterrun.monitor import stack_reader
from clusterrun.monitor.stack_reader import refusal


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="it takes another user")
def test_a_rank_of_another_user_is_called_so() -> None:
    argv = ["setpriv", "--reuid=65534", "--clear-groups", "cat"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as rank:
        until = time.monotonic() + 60
        while os.stat(f"/proc/{rank.pid}/environ").st_uid == 0 and time.monotonic() < until:
            time.sleep(0.01)
        text = refusal(rank.pid)
        rank.kill()
    assert "belong to another user" in text


@pytest.mark.parametrize(("scope", "who"), [("1", "root only"), ("2", "root only"), ("3", "no process")])
def test_the_kernels_setting_is_named_with_those_that_it_permits(
    scope: str, who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scope").write_text(f"{scope}\n")
    monkeypatch.setattr(stack_reader, "_SCOPE", str(tmp_path / "scope"))
    text = refusal(os.getpid())
    assert f"kernel.yama.ptrace_scope is {scope}" in text and who in text


def test_a_problem_counts_until_a_later_read_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [("", "py-spy gave no answer"), ("[]", ""), ("", "no answer"), ("[]", ""), ("", "no answer")]
    monkeypatch.setattr(stack_reader, "spy_program", lambda pid, path: "/bin/py-spy")
    monkeypatch.setattr(stack_reader, "spy_dump", lambda *arguments: answers.pop(0))
    reader = stack_reader.StackReader("/bin")
    problems = []
    for is_native in (False, False, False, False, True):
        reader.read([os.getpid()], is_native)
        problems.append([problem.partition(",")[0] for problem in reader.problems])
    assert problems == [["py-spy: gave no answer"], [], ["py-spy: no answer"], [], []]
