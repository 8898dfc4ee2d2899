"""1,000 races between shapes of a run, under a controller that stops at random: begun twice, or never?"""

from __future__ import annotations

import sys
import tempfile

from benchmarks.shape_races import races, tally

COUNT = 1000


def main() -> None:
    """In virtual time; the claim, the client and what the coordinator asks of Slurm are the real ones."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    with tempfile.TemporaryDirectory() as home:
        for shapes in (2, 3):
            found = tally(races(count, shapes, home, shapes))
            print(f"{shapes} shapes: " + ", ".join(f"{name} {number}" for name, number in found.items()))


if __name__ == "__main__":
    main()
