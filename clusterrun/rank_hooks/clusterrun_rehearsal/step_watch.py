"""Report the steps of a rank's optimizers, and carry out the strikes between two of them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from .checkpoint_files import CheckpointWatch
from .checksums import RandomStates, TensorDigest
from .optimizers import Optimizers, WeightAverages
from .state_calls import StateCalls
from .step_inputs import StepInputs
from .trace_file import TraceFile, is_called_by, lines_of, script_line

# Seconds to wait for the other ranks at the limit of steps.
WAIT_SECONDS = 30.0
# Seconds that all ranks wait for a fault from outside. Through Slurm it takes a step on a busy node.
HOLD_SECONDS = 300.0
FIRST_STEPS = 5
RATES = ("lr", "momentum", "betas", "weight_decay")
# Functions of torch's distributed checkpoints and of DeepSpeed that step only to create a state to load into.
MAKE_STATE = ("_init_optim_state", "initialize_optimizer_states")


class RankPlan:
    """The strikes of this start, and the step at which it ends; 0 if it ends by itself."""

    def __init__(self, plan: Any, folder: str, rank: int) -> None:
        self.folder, self._rank = folder, rank
        self._attempt = int(os.environ.get("CLUSTERRUN_ATTEMPT", "0"))
        self._past = plan.get("past", ())
        self.limit = int(plan.get("steps", 0))
        mine = [strike for strike in plan.get("strikes", ()) if strike["attempt"] == self._attempt]
        self._strikes = [strike for strike in mine if strike.get("rank", rank) == rank]
        self.trace = f"{folder}/{rank:05d}.rehearsal.jsonl"
        self.done = f"{folder}/{rank:05d}.rehearsal.done"

    def strike(self, *kinds: str) -> Any:
        return next((strike for strike in self._strikes if strike["kind"] in kinds), None)

    def begins_with(self, parameters: int) -> None:
        """Convert the plan's steps, which count from the start of the run, to those of this start."""
        # The traces of earlier starts show the step of the run by the parameters after it.
        starts = [os.path.join(run, name) for run in self._past for name in sorted(os.listdir(run))]
        attempts = os.path.dirname(self.folder)
        starts += [os.path.join(attempts, f"{number:03d}") for number in range(self._attempt)]
        step_by_parameters: dict[int, int] = {}
        for start in starts:
            mine = f"{start}/{self._rank:05d}.rehearsal.jsonl"
            begin = 0
            for line in lines_of(mine if os.path.exists(mine) else f"{start}/00000.rehearsal.jsonl"):
                if line["t"] == "before" and not begin:
                    begin = step_by_parameters.get(line["p"], 0)
                elif line["t"] in ("step", "moved"):
                    step_by_parameters[line["p"]] = begin + line["n"]
        steps_done = step_by_parameters.get(parameters, 0)
        if self.limit:
            self.limit = max(1, self.limit - steps_done)
        for strike in self._strikes:
            strike["step"] -= steps_done


class StepWatch:
    """Uses torch's hooks before and after each step of an optimizer."""

    def __init__(self, torch: Any, plan: RankPlan, trace: TraceFile, files: CheckpointWatch) -> None:
        self._torch, self._plan, self._trace, self._files = torch, plan, trace, files
        self._hold, self._kill = plan.strike("hold"), plan.strike("kill", "kill-before")
        self._digest = TensorDigest(torch)
        self._optimizers = Optimizers(torch, self._digest)
        self._inputs = StepInputs(torch, self._digest, trace)
        self._random = RandomStates(torch, self._digest)
        self._calls = StateCalls(torch, trace, files)
        self._averages: WeightAverages | None = None
        self._inside: Any = None
        self._parameters: dict[int, int] = {}
        self._settings: Any = None
        self._settings_text = ""
        hooks = sys.modules["torch.optim.optimizer"]
        hooks.register_optimizer_step_pre_hook(trace.guarded(self._before_step))
        hooks.register_optimizer_step_post_hook(trace.guarded(self._after_step))

    def look_at_all(self) -> None:
        """Report at the end whether the script has changed weights since the last step."""
        for optimizer in self._optimizers.all:
            self._trace.guarded(self._look_again)(optimizer)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._trace.is_ours() or (self._inside is not None and self._inside is not optimizer):
            return
        is_known = self._optimizers.knows(optimizer)
        if not is_known and is_called_by(MAKE_STATE):
            return
        is_known = is_known or self._optimizers.takes_over(optimizer)
        self._inside = optimizer
        self._files.settle()
        if is_known:
            self._look_again(optimizer)
        # Carry out the plan between two steps, after most of a step's time.
        step, hold, kill = self._trace.step, self._hold, self._kill
        if hold and step == hold["step"]:
            self._files.rest()
            self._wait_for(lambda: os.path.exists(f"{self._plan.folder}/rehearsal.go"), "hold", HOLD_SECONDS)
        if kill and kill["kind"] == "kill-before" and step == kill["step"]:
            self._die()
        if self._plan.limit and step >= self._plan.limit:
            # All ranks end together at the limit of steps, so that none sees another one end.
            with open(self._plan.done, "w"):
                pass
            size = int(os.environ.get("WORLD_SIZE", "1"))
            names = [f"{self._plan.folder}/{rank:05d}.rehearsal.done" for rank in range(size)]
            self._wait_for(lambda: all(map(os.path.exists, names)), "limit")
            self._trace.tell("end", limit=True)
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(0)
        if is_known:
            return
        is_first = not self._optimizers.all
        key = self._optimizers.add(optimizer)
        parameters, state = self._optimizers.checksums(optimizer)
        self._parameters[key] = parameters
        shared = self._optimizers.shares(optimizer)
        self._trace.tell("before", o=key, p=parameters, s=state, shared=shared, line=script_line())
        if is_first:
            self._plan.begins_with(parameters)

    def _look_again(self, optimizer: Any) -> None:
        """Report whether the script itself has changed weights since a step, as for a mean over ranks."""
        step, files = self._trace.step, self._files
        # Look in the first steps, and at steps whose weights a checkpoint may hold.
        if step > FIRST_STEPS and step not in (files.taken, *files.begun_at):
            return
        parameters = self._optimizers.checksums(optimizer, with_state=False)[0]
        key = self._optimizers.key(optimizer)
        if parameters != self._parameters[key]:
            self._parameters[key] = parameters
            self._trace.tell("moved", o=key, p=parameters)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._trace.is_ours() or self._inside is not optimizer:
            return
        self._inside = None
        self._trace.step += 1
        if self._trace.step == 1:
            self._inputs.hook_outermost()
            self._averages = WeightAverages(self._torch, self._digest, self._optimizers.all)
        self._trace.write(self._told(optimizer))
        if self._kill and self._kill["kind"] == "kill" and self._trace.step == self._kill["step"]:
            self._die()

    def _told(self, optimizer: Any) -> str:
        """Return the line of this step. It is formatted by hand, because json slows every step noticeably."""
        parameters, state = self._optimizers.checksums(optimizer)
        key = self._optimizers.key(optimizer)
        self._parameters[key] = parameters
        buffers, averages = self._averages.checksums() if self._averages else (0, [])
        random = ", ".join([f'"{name}": {state}' for name, state in self._random.checksums().items()])
        # Settings rarely change from one step to the next.
        settings = {
            "lr": [
                [fixed(group[name]) for name in RATES if name in group] for group in optimizer.param_groups
            ],
            **self._calls.settings(),
            "hears": callable(signal.getsignal(signal.SIGUSR2)) or self._files.heard_notice,
        }
        if settings != self._settings:
            self._settings, self._settings_text = settings, json.dumps(settings)[1:]
        return (
            f'{{"t": "step", "n": {self._trace.step}, "o": {key}, "p": {parameters}, "s": {state}, '
            f'"b": {buffers}, "ema": {averages}, "rng": {{{random}}}, {self._inputs.drain()}, '
            f'"at": {time.time()!r}, {self._settings_text}'
        )

    def _die(self) -> None:
        self._trace.tell("strike", what="kill")
        os.kill(self._trace.pid, signal.SIGKILL)

    def _wait_for(self, condition: Callable[[], bool], why: str, seconds: float = WAIT_SECONDS) -> None:
        self._trace.tell(why)
        until = time.monotonic() + seconds
        while not condition() and time.monotonic() < until:
            time.sleep(0.02)


def fixed(value: Any) -> Any:
    """Return a setting as plain values: some settings are tensors, which change in place."""
    if isinstance(value, (list, tuple)):
        return [fixed(item) for item in value]
    return value.item() if hasattr(value, "item") else value
