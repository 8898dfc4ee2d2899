"""Measure `status --host` over an open connection to a local sshd, beside `status` itself."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import in_turn, process, table
from tests.sshd_fixture import CLUSTERRUN, Far, sshd_program

ROUNDS = 25


def main() -> None:
    """Compare the whole processes, and a bare session of ssh on the same connection."""
    if not sshd_program():
        raise SystemExit("no sshd here: as root on Debian or Ubuntu, apt-get install openssh-server")
    with tempfile.TemporaryDirectory() as folder:
        far = Far(Path(folder))
        try:
            far.start()
            far.open()
            for _ in range(3):
                far.there("submit", "--no-snapshot", "--wait", "true")
            (master,) = (
                path for path in (far.folder / "laptop/.clusterrun/ssh").iterdir() if path.is_socket()
            )
            environment = {**os.environ, **far.there_set}
            sides = {
                "clusterrun --host cluster status": process(
                    [*CLUSTERRUN, "--host", "cluster", "status"], env=far.environment
                ),
                "clusterrun status": process([*CLUSTERRUN, "status"], env=environment),
                "ssh cluster true": process(
                    ["ssh", "-S", str(master), "-T", "cluster", "true"], env=far.environment
                ),
                "python -c pass": process([sys.executable, "-c", "pass"], env=environment),
            }
            print(table("status over an open connection", in_turn(sides, ROUNDS), "≤ + 150 ms"))
        finally:
            far.end()


if __name__ == "__main__":
    main()
