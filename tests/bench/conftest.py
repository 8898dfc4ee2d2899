"""A context with training scripts that only say how fast they were: real runs, on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine, make_context  # noqa: F401  a fixture

PACED = """
import os, signal, sys
world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
told = dict(word.split("=") for word in sys.argv[1:])
if told.get("fails") == str(world):
    sys.exit("no such layer")
if told.get("hangs") == str(world) and not os.path.exists("let-go"):
    open("hanging", "w").close()
    signal.pause()
if rank == 0 and told.get("silent") != str(world) and "mute" not in told:
    print("notice: batch", told.get("batch", "-"))
    print(f"throughput steps_per_second={10.0 * world} samples_per_second={640.0 * world} steps=20")
"""


@pytest.fixture
def context(tmp_path: Path, make_context: Callable[[Path], CommandLine]) -> Iterator[CommandLine]:  # noqa: F811
    """Yield a fresh context with ``paced.py``, whose ranks each report 10 steps per second."""
    created = make_context(tmp_path)
    (created.folder / "paced.py").write_text(PACED)
    yield created
    live = tmp_path / "home/live"
    if live.is_dir() and (alive := [path.name for path in live.iterdir()]):
        created("cancel", *alive)
