"""Steps per second after the warm-up, and the line that says it; knows no model and no data."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Moment:
    """A point in time, on two clocks, in seconds."""

    wall: float
    cpu: float
    """What this process has computed so far: less than the other where it waited, or others had the cores."""

    @staticmethod
    def now(device: torch.device) -> Moment:
        """The moment when all that was asked of the device is done."""
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return Moment(time.perf_counter(), time.process_time())


@dataclass
class Pace:
    """The clock of a run; a step counts when the device has done it."""

    device: torch.device
    warm_up: int
    """Steps that do not count: they fill caches, compile, and build DDP's buckets."""
    steps: int = 0
    samples: int = 0

    def __post_init__(self) -> None:
        self.first = self.began = self.ended = Moment.now(self.device)

    def stepped(self, samples: int) -> None:
        """A step over so many samples, of all ranks, was taken."""
        if self.warm_up:
            self.warm_up -= 1
            if not self.warm_up:
                self.began = Moment.now(self.device)
            return
        self.steps += 1
        self.samples += samples

    def stop(self) -> None:
        """No step follows."""
        self.ended = Moment.now(self.device)

    @property
    def whole(self) -> float:
        """Seconds that the run took, warm-up and all."""
        return self.ended.wall - self.first.wall

    def line(self, unit: str, per_sample: int, **facts: object) -> str:
        """``throughput`` and ``name=value`` pairs, for programs and readers alike."""
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
