"""A rank during a look: when its thread last ran, and where it may wait."""

from __future__ import annotations

import os

import pytest

from clusterrun import proc
from clusterrun.diagnosis.job_looks import RankName
from clusterrun.diagnosis.spied_process import SpiedProcess
from clusterrun.diagnosis.stacks import ENDED_PYTHON
from clusterrun.monitor import rank_look
from clusterrun.monitor.job_processes import RankProcess


def test_the_time_of_a_thread_that_was_moved_to_another_processor_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert 0 < rank_look.last_ran(os.getpid()) <= rank_look.kernel_time()
    monkeypatch.setattr(proc, "content", lambda path: b"python (7, #threads: 1)\nse.exec_start : 0.000000\n")
    assert rank_look.last_ran(os.getpid()) == -1.0


@pytest.mark.parametrize(("frame", "expected"), [("/home/me/train.py:9 step", True), (ENDED_PYTHON, False)])
def test_a_rank_whose_python_has_ended_is_in_no_native_code_of_the_user(frame: str, expected: bool) -> None:
    look = rank_look.RankLook(RankProcess(RankName("RANK", 0, 2), os.getpid(), {}))
    look.first = SpiedProcess(main=(frame,))
    assert look.may_be_in_torch is expected
