"""Steps per second after the warm-up, and the line that says it; knows no model and no data."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch


@dataclass
class Pace:
    """The clock of a run; a step counts when the device has done it."""

    device: torch.device
    warm_up: int
    """Steps that do not count: they fill caches, compile, and build DDP's buckets."""
    steps: int = 0
    samples: int = 0
    began: float = field(default_factory=time.perf_counter)
    """When the counting began."""
    first: float = field(default_factory=time.perf_counter)
    """When the run began, warm-up and all."""
    ended: float = 0.0

    def stepped(self, samples: int) -> None:
        """A step over so many samples, of all ranks, was taken."""
        if self.warm_up:
            self.warm_up -= 1
            if not self.warm_up:
                self.began = self.now()
            return
        self.steps += 1
        self.samples += samples

    def now(self) -> float:
        """Seconds, once all that was asked of the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def stop(self) -> None:
        """No step follows."""
        self.ended = self.now()

    @property
    def whole(self) -> float:
        """Seconds that the run took, warm-up and all."""
        return self.ended - self.first

    def line(self, unit: str, per_sample: int, **facts: object) -> str:
        """``throughput`` and ``name=value`` pairs, for programs and readers alike."""
        seconds = self.ended - self.began
        samples = self.samples / seconds
        pairs = {
            "steps_per_second": f"{self.steps / seconds:.4f}",
            "samples_per_second": f"{samples:.2f}",
            f"{unit}_per_second": f"{samples * per_sample:.2f}",
            "steps": self.steps,
            "seconds": f"{seconds:.4f}",
            **facts,
        }
        return " ".join(["throughput", *(f"{name}={value}" for name, value in pairs.items())])
