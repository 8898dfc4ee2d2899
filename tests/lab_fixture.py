"""The lab as pytest fixtures: one shared by the session, and a factory for tests that need their own."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator

import pytest

from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LabSpec, Preempt, Proctrack

MakeLab = Callable[..., Lab]


def _missing() -> str:
    if os.geteuid() != 0:
        return "the lab's tests run as root"
    absent = [
        name for name in ("slurmctld", "slurmd", "munged", "ip", "nsenter") if shutil.which(name) is None
    ]
    return f"the lab needs {', '.join(absent)}: clusterrun lab install" if absent else ""


@pytest.fixture(scope="session")
def make_lab() -> Iterator[MakeLab]:
    """``make_lab(nodes=4, gpus=8, proctrack="linuxproc", preempt="off", settings={}, …) -> Lab``, up; ended with the session."""
    if reason := _missing():
        pytest.skip(reason)
    numbers = itertools.count(1)
    made: list[Lab] = []

    def make(
        proctrack: str = "linuxproc",
        preempt: str = "off",
        settings: dict[str, str] | None = None,
        **options: object,
    ) -> Lab:
        name = f"t{os.getpid()}-{next(numbers)}"
        spec = LabSpec(
            name=name,
            proctrack=Proctrack(proctrack),
            preempt=Preempt(preempt),
            settings=tuple((settings or {}).items()),
            **options,  # type: ignore[arg-type]
        )
        lab = Lab(name)
        made.append(lab)
        lab.up(spec)
        return lab

    yield make
    for lab in made:
        lab.down()


@pytest.fixture(scope="session")
def lab(make_lab: MakeLab) -> Lab:
    """The lab that the session shares: 4 nodes × 8 GPUs. A test leaves it as it found it."""
    return make_lab()
