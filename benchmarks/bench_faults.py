"""Every fault of the list, once, on labs: what became of the training, and how long it took in all.

python -m benchmarks.bench_faults [NAME …]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LabSpec, Preempt
from tests.survive import faults
from tests.survive.faults import FAULTS, Fault, Ground, Grounds
from tests.survive.site import PATIENT, Site

AT_ONCE, SIZE = 3, 6


def controller_away_for_a_minute(ground: Ground) -> None:
    """Stop the controller for a minute while one run starts, one trains and one ends."""
    faults.controller_away(ground, 60.0)


ALONE: tuple[tuple[Fault, Preempt, int], ...] = (
    (controller_away_for_a_minute, Preempt.OFF, 6),
    (faults.preempted, Preempt.REQUEUE, 4),
    (faults.preempted_and_chained, Preempt.CANCEL, 4),
    (faults.time_limit_twice, Preempt.OFF, 4),
    (faults.time_limit_twice_chained, Preempt.OFF, 4),
)
"""Faults that need a lab of their own: its kind of preemption, and its number of nodes."""


def main() -> None:
    """Run all faults or the named ones. Exit code 1 if any run ended wrongly."""
    names = sys.argv[1:]
    shared = {name: fault for name, fault in FAULTS.items() if not names or name in names}
    broken = 0
    if shared:
        broken += on_lab(shared, Preempt.OFF, AT_ONCE * SIZE, SIZE)
    for fault, preempt, nodes in ALONE:
        if not names or fault.__name__ in names:
            broken += on_lab({fault.__name__: fault}, preempt, nodes, nodes)
    print(f"{broken} ended as they must not    goal: 0", flush=True)
    raise SystemExit(1 if broken else 0)


def on_lab(chosen: dict[str, Fault], preempt: Preempt, nodes: int, size: int) -> int:
    """Run them on one lab; how many were broken."""
    lab = Lab(f"faults-{os.getpid()}")
    lab.up(LabSpec(name=lab.name, nodes=nodes, gpus=1, preempt=preempt, settings=PATIENT))
    site = Site(lab, Path(tempfile.mkdtemp(prefix="faults-")))
    try:
        with ThreadPoolExecutor(nodes // size) as people:
            tell = told(Grounds(site, size, nodes // size))
            return sum(people.map(tell, chosen, chosen.values()))
    finally:
        site.patrol.stop()
        lab.down()


def told(grounds: Grounds) -> Callable[[str, Fault], bool]:
    """Return a function that runs a fault, prints its outcome, and returns whether it failed."""

    def run(name: str, fault: Fault) -> bool:
        began = time.monotonic()
        wrong = grounds.run(fault)
        print(f"{time.monotonic() - began:6.1f} s  {name}: {wrong[:1500] or 'ok'}", flush=True)
        return bool(wrong)

    return run


if __name__ == "__main__":
    main()
