"""Record traces of chosen ranks, and print a summary of each."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, schedule

from ranks import World

# Steps that are skipped at the start, and steps that are recorded after them.
SKIPPED, STEPS = 5, 10
MOST = 5
# Names of communication on CPU and GPU begin with these.
COMMUNICATION = ("gloo:", "nccl:", "ncclDevKernel", "ncclKernel")
Span = tuple[float, float]


@dataclass
class Profile:
    """The recording of a rank. A rank that is not chosen records nothing."""

    summary: list[str] = field(default_factory=list)
    recorder: Any = None

    def stepped(self) -> None:
        """Count a step."""
        if self.recorder:
            self.recorder.step()


@contextlib.contextmanager
def profiled(ranks: Container[int], folder: Path, world: World, steps: int) -> Iterator[Profile]:
    """Record some steps if this rank is chosen. Write the trace and print its summary at the end."""
    if world.rank not in ranks or steps < 1:
        yield Profile()
        return
    recording = Profile()
    skipped = min(SKIPPED, max(0, steps - 2) // 2)
    recorded = max(1, min(STEPS, steps - skipped - 1))
    plan = schedule(wait=skipped, warmup=min(1, steps - 1), active=recorded, repeat=1)
    on_gpu = world.device.type == "cuda"
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]

    def finished(recorder: Any) -> None:
        path = written(recorder, folder, world.rank)
        recording.summary = [f"profile of rank {world.rank}: {path}", *summary(recorder, recorded, on_gpu)]

    with profile(activities=kinds, schedule=plan, on_trace_ready=finished) as recording.recorder:
        yield recording
    print("\n".join(recording.summary), flush=True)


def written(recorder: Any, folder: Path, rank: int) -> Path:
    """Write the trace for chrome://tracing or Perfetto, whole or not at all. Return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"trace-rank{rank}.json.gz"
    # PyTorch compresses the file because of its suffix.
    unfinished = folder / f".{os.getpid()}.{path.name}"
    recorder.export_chrome_trace(str(unfinished))
    os.replace(unfinished, path)
    return path


def summary(recorder: Any, steps: int, on_gpu: bool) -> list[str]:
    """Return lines with the most expensive operations and the share of time in communication."""
    own = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    rows = [row for row in recorder.key_averages() if not row.key.startswith("ProfilerStep")]
    whole = sum(getattr(row, own) for row in rows) or 1.0
    rows.sort(key=lambda row: getattr(row, own), reverse=True)
    lines = [
        f"  {getattr(row, own) / whole:6.1%}  {getattr(row, own) / steps / 1e3:9.3f} ms/step  "
        f"{row.count / steps:7.1f} calls/step  {row.key}"
        for row in rows[:MOST]
    ]
    events = recorder.events()
    talking = share(
        (span(event) for event in events if carries(event.name)),
        [span(event) for event in events if event.name.startswith("ProfilerStep")],
    )
    where = "GPU" if on_gpu else "CPU"
    return [
        f"  the {MOST} most expensive operations over {steps} steps, by their own {where} time:",
        *lines,
        f"  communication under way during {talking:.1%} of the steps' time",
    ]


def span(event: Any) -> Span:
    """Return start and end of an event in microseconds."""
    return event.time_range.start, event.time_range.end


def carries(name: str) -> bool:
    """Return whether an event of this name is communication."""
    return name.startswith(COMMUNICATION)


def share(spans: Iterable[Span], windows: list[Span]) -> float:
    """Return the share of the windows that spans cover. Spans may overlap, windows may not."""
    covered, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        begin = max(begin, reached)
        covered += sum(max(0.0, min(end, last) - max(begin, first)) for first, last in windows)
        reached = max(reached, end)
    whole = sum(last - first for first, last in windows)
    return covered / whole if whole else 0.0


def ranks_named(text: str) -> Container[int]:
    """Return the rank numbers of ``0,4-7`` or ``all``. Raise ValueError for other text."""
    if text == "all":
        return range(sys.maxsize)
    numbers: set[int] = set()
    for piece in text.split(","):
        first, stretch, last = piece.partition("-")
        numbers |= set(range(int(first), int(last if stretch else first) + 1))
    return frozenset(numbers)


def folder(requested: Path | None) -> Path:
    """Return the folder of traces: the requested one, or one in the run directory or working directory."""
    run = os.environ.get("CLUSTERRUN_RUN_DIR")
    return requested or (Path(run) / "traces" if run else Path("traces"))
