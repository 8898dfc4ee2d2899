"""How many planted resume bugs `clusterrun rehearse` names rightly, and how many correct scripts it accuses.

python -m benchmarks.bench_rehearse_bugs            all of them; the ranks are started directly
python -m benchmarks.bench_rehearse_bugs scaler     those with this word in their name
python -m benchmarks.bench_rehearse_bugs --whole …  as real runs of clusterrun: about a minute each
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.rehearse_direct import DirectRuns
from clusterrun.config.spec_fields import spec_of
from clusterrun.rehearse.discoveries import Cause, Severity
from clusterrun.rehearse.rehearsal import Rehearsal, Result
from clusterrun.rehearse.rehearsed_runs import RehearsedRuns
from tests.rehearse.planted import BUGS, CORRECT, NOISY_BUGS, Patch


def rehearsed(patch: Patch, whole: bool = False) -> list[Result]:
    """Rehearse a patched script."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        work = Path(folder, "work")
        work.mkdir()
        (work / "train.py").write_text(patch.text)
        options = {
            "nodes": 1,
            "gpus": 0,
            "ranks_per_node": patch.ranks,
            "preflight": "off",
            "cluster": "local",
        }
        spec = spec_of(("train.py",), str(work), options, no_progress=0)
        kind = RehearsedRuns if whole else DirectRuns
        runs = kind(spec, str(Path(folder, "out")), dict(os.environ), 900.0)
        return list(Rehearsal(runs, print, notice=60.0).rehearse(patch.faults, False))


def named(results: Sequence[Result]) -> list[str]:
    """Return every cause that was found, with UNKNOWN."""
    return [
        finding.cause.value
        for result in results
        for finding in result.findings
        if finding.level is not Severity.OK
    ]


def right(patch: Patch, causes: Sequence[str]) -> bool:
    """Return whether only the planted cause was found; for a correct script, whether nothing was."""
    if patch.noisy:
        causes = [cause for cause in causes if cause != Cause.NOT_DETERMINISTIC.value]
    if not patch.causes:
        return not causes
    return bool(causes) and causes[0] in patch.causes


def main() -> None:
    """Print each script with what was found, then the two figures."""
    names = [word for word in sys.argv[1:] if word != "--whole"]
    is_right = {}
    for patch in (*BUGS, *NOISY_BUGS, *CORRECT):
        if names and not any(word in patch.name for word in names):
            continue
        began = time.monotonic()
        results = rehearsed(patch, "--whole" in sys.argv)
        causes = named(results)
        is_right[patch] = right(patch, causes)
        mark = "right" if is_right[patch] else "WRONG"
        print(
            f"{mark}  {patch.name}: {', '.join(causes) or 'nothing'} ({time.monotonic() - began:.0f} s)",
            flush=True,
        )
        if not is_right[patch]:
            for result in results:
                for finding in result.findings:
                    print(f"       {result.title}: {finding.message}", flush=True)
    for name, group in (
        ("bugs rightly named", (*BUGS, *NOISY_BUGS)),
        ("correct scripts not accused", CORRECT),
    ):
        selected = [patch for patch in group if patch in is_right]
        print(f"{name}: {sum(is_right[patch] for patch in selected)} of {len(selected)}")


if __name__ == "__main__":
    main()
