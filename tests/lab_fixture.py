"""The lab as pytest fixtures: one shared by the session, and a factory for tests that need their own."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from clusterrun.lab.lab import Lab, labs_up
from clusterrun.lab.namespaces import started_at, wait_for
from clusterrun.lab.needs import OF_A_ROOT, PACKAGES, program
from clusterrun.lab.place import labs_home
from clusterrun.lab.processes import LabProcess
from clusterrun.lab.spec import CONTROLLER, USERS, LabSpec, Preempt, Proctrack
from clusterrun.model.contract import MARKER_VARIABLE
from clusterrun.model.errors import ClusterrunError

MakeLab = Callable[..., Lab]
DAEMONS = frozenset({"slurmd", "slurmctld", "slurmscriptd", "slurmdbd", "munged", "mariadbd"})
MADE: list[Lab] = []
"""Every lab of this session."""
SLURM_VARIABLE = "CLUSTERRUN_TEST_SLURM"
"""Which release of Slurm the labs of this session run (as in 24.11); the machine's own if not set."""


def _missing() -> str:
    if os.geteuid() != 0:
        return "the lab's tests run as root"
    expected = OF_A_ROOT if os.environ.get(SLURM_VARIABLE) else PACKAGES
    absent = [name for name in expected if program(name) is None]
    return f"the lab needs {', '.join(absent)}: clusterrun lab install" if absent else ""


@pytest.fixture(scope="session")
def make_lab() -> Iterator[MakeLab]:
    """Yield ``make_lab(nodes=4, gpus=8, proctrack=…, settings={}, …)``, which makes a lab for the session."""
    if reason := _missing():
        pytest.skip(reason)
    _clean_up_after_killed_sessions()
    numbers = itertools.count(1)

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
            **{"slurm": os.environ.get(SLURM_VARIABLE, ""), **options},  # type: ignore[arg-type]
        )
        lab = Lab(name)
        MADE.append(lab)
        lab.up(spec)
        return lab

    yield make
    while MADE:
        MADE.pop().down()


@pytest.fixture(scope="session")
def lab(make_lab: MakeLab) -> Lab:
    """Return the shared lab of the session: 4 nodes × 8 GPUs. A test leaves it unchanged."""
    return make_lab()


def _clean_up_after_killed_sessions() -> None:
    home = labs_home()
    for folder in sorted(home.iterdir()) if home.is_dir() else ():
        owner = re.fullmatch(r"t(\d+)-\d+", folder.name)
        if owner and not started_at(int(owner[1])):
            Lab(folder.name).down()


def standing() -> list[Lab]:
    """Return the labs of this session that are up."""
    names = {lab.name for lab in labs_up()} if MADE else set()
    return [lab for lab in MADE if lab.name in names]


def leftovers(lab: Lab, seconds: float = 30.0) -> list[str]:
    """Return the processes that a test left on the lab's hosts, and kill them.

    Processes may take up to ``seconds`` to end.
    """
    result: list[LabProcess] = []

    def gone() -> bool:  # what begins after a moment with nothing, as a site's epilog, was left by nobody
        result[:] = strangers(lab)
        return not result

    wait_for(gone, seconds)
    for process in result:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself meanwhile
            os.kill(process.process, signal.SIGKILL)
    return [f"{p.host}: {p.command or p.name} [{marker(p.process)}]" for p in result]


def mend(lab: Lab, seconds: float = 90.0) -> None:
    """Restore every node to idle after a failed test, if need be in a lab that is made anew."""
    with contextlib.suppress(ClusterrunError, OSError):
        lab.heal()
        for user in ("root", *USERS):
            lab.exec(["scancel", "--quiet", f"--user={user}"])
        leftovers(lab)
        if lab.wait_idle(seconds):
            return
    with contextlib.suppress(ClusterrunError, OSError):
        make_anew(lab)


def make_anew(lab: Lab) -> None:
    """Make the same lab anew with every node idle.

    Slurm learns a minute late of a step whose end it missed.
    """
    spec = lab.state.spec
    lab.down()
    lab.up(spec)


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Mend a lab that a failed test left in disorder, before the next tests."""
    report = yield
    if report.when == "setup":
        item.stash[_FAILED] = False
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    if report.when == "teardown" and item.stash[_FAILED] and "make_lab" in getattr(item, "fixturenames", ()):
        for lab in standing():
            mend(lab)
    return report


def strangers(lab: Lab) -> list[LabProcess]:
    """Return the processes on the lab's hosts, except its own: processes 1, their sleeps, and daemons."""
    guests = [p for p in lab.processes() if p.host != CONTROLLER and p.name not in DAEMONS]
    return [p for p in guests if p.inner != 1 and p.command != "sleep 86400"]


def marker(process: int) -> str:
    """Return the run of a process, by its environment; '' for none."""
    try:
        pairs = Path(f"/proc/{process}/environ").read_text(errors="replace").split("\0")
    except OSError:
        return ""
    return next((pair.partition("=")[2] for pair in pairs if pair.startswith(f"{MARKER_VARIABLE}=")), "")
