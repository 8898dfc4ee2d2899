"""Gather the inputs of a step: the model's inputs, the batches that were loaded, the losses."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from .checksums import TensorDigest, tensors_in
from .trace_file import TraceFile

# Most of one step. The rest is ignored.
MOST_INPUTS = 64


class StepInputs:
    """Gathers the inputs from torch's own hooks between two steps."""

    def __init__(self, torch: Any, digest: TensorDigest, trace: TraceFile) -> None:
        self._torch, self._digest, self._trace = torch, digest, trace
        self._inputs: list[str] = []
        self._batches: list[str] = []
        self._losses: list[float] = []
        self._outermost: dict[int, Any] = {}
        self._depth = 0
        modules = sys.modules["torch.nn.modules.module"]
        self._global_hooks = [
            modules.register_module_forward_pre_hook(trace.guarded(self._enter)),
            modules.register_module_forward_hook(trace.guarded(self._leave), always_call=True),
        ]
        autograd: Any = sys.modules["torch.autograd"]
        backward, note = autograd.backward, trace.guarded(self._note_loss)

        def watched(tensors: Any, *args: Any, **more: Any) -> Any:
            note(tensors)
            return backward(tensors, *args, **more)

        autograd.backward = watched
        self._wrap_loader(sys.modules.get("torch.utils.data.dataloader"))

    def drain(self) -> str:
        """Return the inputs since the last call, as the fields of a line."""
        inputs, self._inputs = self._inputs, []
        batches, self._batches = self._batches, []
        losses, self._losses = self._losses, []
        loss = sum(losses) / len(losses) if losses else None
        texts = str(inputs).replace("'", '"')  # they hold nothing that JSON writes otherwise
        return f'"x": {texts}, "d": [{", ".join(batches)}], "loss": {json_number(loss)}'

    def _enter(self, module: Any, args: Any) -> None:
        self._depth += 1
        if self._depth == 1 and self._trace.is_ours() and self._record_input(module, args):
            self._outermost[id(module)] = module

    def _leave(self, module: Any, args: Any, output: Any) -> None:
        self._depth = max(0, self._depth - 1)

    def hook_outermost(self) -> None:
        """Hook only the outermost modules, which are known after the first step."""
        for hook in self._global_hooks:
            hook.remove()
        self._global_hooks = []
        self._depth = 0
        for module in self._outermost.values():
            own_hook = module.register_forward_pre_hook(
                self._trace.guarded(self._record_input), prepend=True
            ).id
            pickle_without(type(module), own_hook)

    def _record_input(self, module: Any, args: Any) -> bool:
        first = None
        if module.training and self._torch.is_grad_enabled() and len(self._inputs) < MOST_INPUTS:
            first = next(iter(tensors_in(args)), None)
        self._inputs += [self._digest.rows(first)] if first is not None else []
        return first is not None

    def _note_loss(self, tensors: Any) -> None:
        loss = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if self._trace.is_ours() and hasattr(loss, "numel") and loss.numel() == 1:
            self._losses.append(loss.item())

    def _wrap_loader(self, loaders: Any) -> None:
        if loaders is None:
            return
        base = loaders._BaseDataLoaderIter
        following, index = base.__next__, base._next_index

        def record_indices(iterator: Any) -> Any:
            indices = index(iterator)
            is_list_of_numbers = isinstance(indices, (list, tuple)) and all(
                isinstance(item, int) for item in indices
            )
            iterator.__dict__.setdefault("_rehearsed", []).append(
                [*map(int, indices)] if is_list_of_numbers else "null"
            )
            return indices

        note = self._trace.guarded(self._note_batch)

        def watched(iterator: Any) -> Any:
            batch = following(iterator)
            note(iterator, batch)
            return batch

        base.__next__, base._next_index = watched, record_indices

    def _note_batch(self, iterator: Any, batch: Any) -> None:
        if not self._trace.is_ours() or len(self._batches) >= MOST_INPUTS:
            return
        seen_by_model = self._trace.step and self._outermost
        first = None if seen_by_model else next(iter(tensors_in(batch)), None)
        data = getattr(iterator, "_dataset", None)
        size = len(data) if data is not None and hasattr(data, "__len__") else 0
        order = iterator.__dict__.get("_rehearsed") or ["null"]
        rows = self._digest.rows(first) if first is not None else ""
        name = json.dumps(f"{type(data).__name__}:{size}")
        self._batches.append(f'[{name}, "{rows}", {order.pop(0)}]')


def pickle_without(kind: Any, hook: int) -> None:
    """Let modules of this class be pickled and copied without our hook: a script may save them whole."""
    state_of = getattr(kind, "__getstate__", None)

    def clean(module: Any) -> Any:
        state = state_of(module) if state_of else module.__dict__
        hooks = state.get("_forward_pre_hooks") if isinstance(state, dict) else None
        if hooks and hook in hooks:
            state = {
                **state,
                "_forward_pre_hooks": type(hooks)(
                    (key, function) for key, function in hooks.items() if key != hook
                ),
            }
        return state

    kind.__getstate__ = clean


def json_number(number: float | None) -> str:
    return repr(number) if number is not None and math.isfinite(number) else json.dumps(number)
