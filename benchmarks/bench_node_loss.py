"""A node is killed, cut off, frozen: until `state.json` names it, and until ranks train again on a spare.

python -m benchmarks.bench_node_loss [ROUNDS]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LabSpec
from tests.survive.site import Run, Site, Training, until

FAULTS = ("kill", "cut", "freeze")
NODES = 4
NAMED, AGAIN = 15.0, 60.0
ROUNDS = 3
LONG = Training(ranks=NODES, steps=1000)


def main() -> None:
    """Print the medians beside their goals. Exit code 1 if one is missed."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    lab = Lab(f"node-loss-{os.getpid()}")
    lab.up(LabSpec(name=lab.name, nodes=NODES + 1, gpus=0, settings=(("SlurmdTimeout", "120"),)))
    site = Site(lab, Path(tempfile.mkdtemp(prefix="node-loss-")))
    missed = False
    try:
        for fault in FAULTS:
            seconds = [struck(site, fault, turn) for turn in range(rounds)]
            named, again = (statistics.median(column) for column in zip(*seconds, strict=True))
            missed |= named > NAMED or again > AGAIN
            figure = f"named after {named:.1f} s, training again after {again:.1f} s"
            print(f"{fault:8} {figure}    goals {NAMED:g}, {AGAIN:g} s; all: {seconds}", flush=True)
    finally:
        site.patrol.stop()
        lab.down()
    raise SystemExit(missed)


def struck(site: Site, fault: str, turn: int) -> tuple[float, float]:
    """Return the seconds until the loss of the last node is reported, and until the training continues."""
    run = site.submit("--nodes", str(NODES), "--gpus", "0", "--spares", "1", "--max-restarts", "3",
                      name=f"{fault}{turn}", training=LONG)  # fmt: skip
    run.trains()
    node = run.nodes()[-1]
    with site.fault(fault, node):
        began = time.monotonic()
        until(lambda: names(run, node), f"{node} is named", 4 * NAMED)
        named = time.monotonic() - began
        until(lambda: trains_again(run), "another attempt that trains", 4 * AGAIN)
        again = time.monotonic() - began
    site.types("cancel", run.folder.name)
    run.ends()
    until(lambda: set(site.lab.node_states().values()) == {"idle"}, "idle nodes", 120)
    return round(named, 1), round(again, 1)


def names(run: Run, node: str) -> bool:
    """Return whether the state names the node as lost."""
    state = run.state
    reasons = (state.reason, *(a.failure.why for a in state.attempts if a.failure)) if state else ()
    return any(f"{node} (node" in reason and "lost" in reason for reason in reasons)


def trains_again(run: Run) -> bool:
    """Return whether a rank of the next attempt has taken a step."""
    return any(path.stat().st_size for path in run.folder.glob("attempts/001/progress.json"))


if __name__ == "__main__":
    main()
