"""One rank under watch, from its start to its end."""

from __future__ import annotations

import os
import sys
import time

from .checkpoint_files import FILE_EVENTS, CheckpointWatch, hearing
from .rank_plan import RankPlan
from .script_stack import is_library
from .step_watch import StepWatch
from .trace_file import TraceFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class RankWatch:
    """What is watched from the first line of the script on; its steps are from when torch is there."""

    def __init__(self, plan: Any, folder: str, rank: int, run_dir: str) -> None:
        self._plan = RankPlan(plan, folder, rank)
        self.trace = TraceFile(self._plan.trace)
        self.files = CheckpointWatch(self.trace, self._plan.strike("torn", "full"), run_dir)
        self.audit = hearing(FILE_EVENTS, self.files.hear)
        self._steps: StepWatch | None = None

    def install(self, torch: Any) -> None:
        """torch has just been imported: hook what it offers, and wrap what it does not."""
        self._steps = StepWatch(torch, self._plan, self.trace, self.files)
        self.files.wrap_save(torch)

    def at_exit(self) -> None:
        """The script ends by itself."""
        if self.trace.is_ours():
            self.files.settle(end=True)
            if self._steps is not None:
                self._steps.look_at_all()
            self.trace.tell("end", limit=False)

    def failed(self, kind: Any, error: Any, trace: Any) -> None:
        """The script ends by an exception."""
        line, inner = "", trace
        while inner is not None:
            name = inner.tb_frame.f_code.co_filename
            if not is_library(name):
                line = f"{os.path.basename(name)}:{inner.tb_lineno}"
            inner = inner.tb_next
        self.trace.tell("error", what=kind.__name__, text=str(error)[:500], line=line, at=time.time())
        sys.__excepthook__(kind, error, trace)
