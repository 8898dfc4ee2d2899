"""Measure the steps per second after the warm-up, and write the line that reports them."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Moment:
    """A point in time, on two clocks, in seconds."""

    wall: float
    cpu: float  # CPU time of this process

    @staticmethod
    def now(device: torch.device) -> Moment:
        """Wait for the device. Return the present moment."""
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return Moment(time.perf_counter(), time.process_time())


@dataclass
class Pace:
    """The clock of a run. A step counts when the device has finished it."""

    device: torch.device
    warm_up: int  # steps that do not count: they fill caches, compile and build the buckets of DDP
    steps: int = 0
    samples: int = 0

    def __post_init__(self) -> None:
        self.first = self.began = self.ended = Moment.now(self.device)

    def stepped(self, samples: int) -> None:
        """Count a step with ``samples`` samples over all ranks."""
        if self.warm_up:
            self.warm_up -= 1
            if not self.warm_up:
                self.began = Moment.now(self.device)
            return
        self.steps += 1
        self.samples += samples

    def stop(self) -> None:
        """Stop the clock after the last step."""
        self.ended = Moment.now(self.device)

    @property
    def whole(self) -> float:
        """Return the seconds of the run, including the warm-up."""
        return self.ended.wall - self.first.wall

    def line(self, unit: str, per_sample: int, **facts: object) -> str:
        """Return ``throughput`` and ``name=value`` pairs, for programs and people."""
        seconds = self.ended.wall - self.began.wall
        samples = self.samples / seconds
        pairs = {
            "steps_per_second": f"{self.steps / seconds:.4f}",
            "samples_per_second": f"{samples:.2f}",
            f"{unit}_per_second": f"{samples * per_sample:.2f}",
            "steps": self.steps,
            "seconds": f"{seconds:.4f}",
            "cpu_seconds": f"{self.ended.cpu - self.began.cpu:.4f}",
            **facts,
        }
        return " ".join(["throughput", *(f"{name}={value}" for name, value in pairs.items())])
