"""Report what a rank does while `clusterrun rehearse` runs it: a line of JSON per optimizer step.

The prelude loads it where ``CLUSTERRUN_REHEARSAL`` holds a plan (JSON); it writes to
``attempts/NNN/00003.rehearsal.jsonl``. No tensor is copied: each is reduced to a
checksum in place. Lines, by their ``t``:

    step    one outermost ``Optimizer.step()``: checksums of parameters, state, buffers, averages; learning
            rates; random states; rows of the model's inputs and of batches; the loss
    save    a checkpoint file that was written: by which name, size, seconds, line of the script
    lost    a file that another process moved or removed before its writer did
    load    a file that was read    remove    one that was deleted    call    a state_dict, or its loading
    error   the exception that ended the rank    end    its end, and whether the limit of steps ended it

The plan's ``strikes`` are carried out here where only the rank knows the moment: it kills itself between two
steps, lets the kernel end it in the middle of a write (RLIMIT_FSIZE), or lets a write be refused.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from .checkpoint_files import FILE_EVENTS, CheckpointWatch, hearing
from .step_watch import RankPlan, StepWatch
from .trace_file import TraceFile, is_library

COMPILER = "torch._dynamo"


def begin(folder: str, rank: int, run_dir: str) -> None:
    """Watch this rank; torch is hooked as soon as the script has imported it."""
    watch = RankWatch(json.loads(os.environ["CLUSTERRUN_REHEARSAL"]), folder, rank, run_dir)
    sys.addaudithook(watch.audit)
    sys.excepthook = watch.failed
    atexit.register(watch.at_exit)
    after = {"torch": watch.install, "safetensors": watch.files.wrap_safetensors}
    sys.meta_path.insert(0, TorchImport(after, watch.trace.is_blind))


class RankWatch:
    """Watches the script from its first line on, and its steps once torch is imported."""

    def __init__(self, plan: Any, folder: str, rank: int, run_dir: str) -> None:
        self._plan = RankPlan(plan, folder, rank)
        self.trace = TraceFile(self._plan.trace)
        self.files = CheckpointWatch(self.trace, self._plan.strike("torn", "full"), run_dir)
        self.audit = hearing(FILE_EVENTS, self.files.hear)
        self._steps: StepWatch | None = None

    def install(self, torch: Any) -> None:
        """Hook torch, which has just been imported, and wrap functions that have no hook."""
        self._steps = StepWatch(torch, self._plan, self.trace, self.files)
        self.files.wrap_save(torch)

    def at_exit(self) -> None:
        if self.trace.is_ours():
            self.files.settle(end=True)
            if self._steps is not None:
                self._steps.look_at_all()
            self.trace.tell("end", limit=False)

    def failed(self, kind: Any, error: Any, trace: Any) -> None:
        line, inner = "", trace
        while inner is not None:
            name = inner.tb_frame.f_code.co_filename
            if not is_library(name):
                line = f"{os.path.basename(name)}:{inner.tb_lineno}"
            inner = inner.tb_next
        text = message_of(error)[:500]
        self.trace.tell("error", what=kind.__name__, text=text, line=line, at=time.time())
        sys.__excepthook__(kind, error, trace)


def message_of(error: BaseException) -> str:
    """Return the text of an exception; of one that quotes the traceback of another, the quoted exception."""
    text = str(error)
    quoted = text.partition("Traceback (most recent call last)")[2].splitlines()[1:]
    return next((line for line in quoted if line.strip() and not line.startswith(" ")), text)


class TorchImport:
    """Handles the imports of torch, of its compiler and of safetensors.

    Garbage collection is off meanwhile, since these modules make no garbage: they load in four fifths of the
    time. These imports are most of the cost of a start of many ranks. Torch's objects are never examined.
    """

    def __init__(self, after: dict[str, Callable[[Any], None]], failed: Callable[[Exception], None]) -> None:
        self._after, self._failed = after, failed
        self._waits_for = {*after, COMPILER}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the real spec of such a module, which is hooked once it has run."""
        if name not in self._waits_for:
            return None
        self._waits_for.discard(name)
        if not self._waits_for:
            sys.meta_path.remove(self)
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((found_spec for found_spec in specs if found_spec is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = self._hooking(loader.exec_module, name)
        return spec

    def _hooking(self, run: Callable[[Any], None], name: str) -> Callable[[Any], None]:
        def loaded(module: Any) -> None:
            collects = gc.isenabled()
            gc.disable()
            try:
                run(module)
            finally:
                if name == "torch":
                    gc.freeze()
                if collects:
                    gc.enable()
            try:
                if name in self._after:
                    self._after[name](module)
            except Exception as error:  # noqa: BLE001 (a torch that we do not know)
                self._failed(error)

        return loaded
