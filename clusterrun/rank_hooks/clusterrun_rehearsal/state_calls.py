"""Report the states that the script takes and loads, and those of its schedulers and scalers."""

from __future__ import annotations

import sys
from typing import Any

from .checkpoint_files import CheckpointWatch
from .trace_file import TraceFile, script_line

# Counters that decide what a scheduler does; all but the first belong to ReduceLROnPlateau.
COUNTS = ("last_epoch", "best", "num_bad_epochs", "cooldown_counter")


class StateCalls:
    """Wraps what torch offers no hook for."""

    def __init__(self, torch: Any, trace: TraceFile, files: CheckpointWatch) -> None:
        self._trace, self._files = trace, files
        self._told: set[tuple[str, str]] = set()
        self._schedulers: list[Any] = []
        self._scalers: list[Any] = []
        schedulers = sys.modules.get("torch.optim.lr_scheduler")
        if schedulers is not None:
            base = schedulers.LRScheduler
            self._collect(base, self._schedulers)
            self._collect(schedulers.ReduceLROnPlateau, self._schedulers)  # it does without its base's
            for kind in (base, *base.__subclasses__()):
                self._note_calls(kind, "scheduler")
        scalers = sys.modules.get("torch.amp.grad_scaler")
        if scalers is not None:
            self._collect(scalers.GradScaler, self._scalers)
            self._note_calls(scalers.GradScaler, "scaler")
        self._note_calls(torch.nn.Module, "model")
        self._note_calls(torch.optim.Optimizer, "optimizer")
        for generator, name, method in (
            ("python", "random", "setstate"),
            ("numpy", "numpy.random", "set_state"),
            ("torch", "torch", "set_rng_state"),
            ("torch", "torch.random", "set_rng_state"),
        ):
            if name in sys.modules:
                real = getattr(sys.modules[name], method)
                setattr(sys.modules[name], method, self._noting(real, generator, "set"))

    def settings(self) -> dict[str, Any]:
        return {
            "sched": [scheduler_state(instance) for instance in self._schedulers],
            "scale": [scaler_state(instance) for instance in self._scalers],
        }

    def _collect(self, kind: Any, into: list[Any]) -> None:
        initialize = kind.__init__

        def watched(instance: Any, *args: Any, **more: Any) -> None:
            initialize(instance, *args, **more)
            if not any(other is instance for other in into):
                into.append(instance)

        kind.__init__ = watched

    def _note_calls(self, kind: Any, what: str) -> None:
        """Report once per line of the script which state is taken or loaded there."""
        for name in {"state_dict", "load_state_dict"} & vars(kind).keys():
            setattr(kind, name, self._noting(getattr(kind, name), what, name))

    def _noting(self, real: Any, what: str, name: str) -> Any:
        def watched(*args: Any, **more: Any) -> Any:
            if name == "state_dict" and what != "scaler":
                self._files.taken = self._trace.step
            own = name == "set" and sys._getframe(1).f_globals.get("__name__", "").startswith("torch.")
            if not own and ((what, name) not in self._told or name == "load_state_dict"):
                self._told.add((what, name))
                self._trace.tell("call", what=what, name=name, line=script_line())
            result = real(*args, **more)
            missing, unknown = getattr(result, "missing_keys", ()), getattr(result, "unexpected_keys", ())
            if missing and unknown and self._trace.step == 0:
                counts = {"missing": len(missing), "unknown": len(unknown), "name": unknown[0]}
                self._trace.tell("partial", line=script_line(), **counts)
            return result

        watched.__name__ = getattr(real, "__name__", name)
        watched.__wrapped__ = real  # type: ignore[attr-defined]
        return watched


def scheduler_state(scheduler: Any) -> Any:
    values = [getattr(scheduler, name, None) for name in COUNTS]
    return values[0] if values[1:] == [None, None, None] else values


def scaler_state(scaler: Any) -> Any:
    """Return scale and growth counter of a GradScaler; None if it is off."""
    if not getattr(scaler, "_enabled", False):
        return None
    scale = getattr(scaler, "_scale", None)
    tracker = getattr(scaler, "_growth_tracker", None)
    return [float(value) if value is not None else None for value in (scale, tracker)]
