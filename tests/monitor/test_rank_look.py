"""When a thread last ran."""

from __future__ import annotations

import os

import pytest

from clusterrun import proc
from clusterrun.monitor import rank_look


def test_the_time_of_a_thread_that_was_moved_to_another_processor_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert 0 < rank_look.last_ran(os.getpid()) <= rank_look.kernel_time()
    monkeypatch.setattr(proc, "content", lambda path: b"python (7, #threads: 1)\nse.exec_start : 0.000000\n")
    assert rank_look.last_ran(os.getpid()) == -1.0
