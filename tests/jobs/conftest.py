"""All runs that the tests of the training script look at, made once: on no launcher, 2 ranks and 4 ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

CURVE = ("--steps", "40", "--batch-size", "100", "--lr", "0.1")
EXACT = ("--steps", "1", "--dtype", "float64", "--checkpoint-dir")
DRAWN = ("--steps", "9", "--augment", "--batch-size", "400", "--checkpoint-dir")
INTERRUPTED = {"alone": (), "ddp": ("--strategy", "ddp"), "fsdp": ("--strategy", "fsdp")}
"""Each takes as many starts as steps: room is wanted from the first moment on."""
STARTS = 5
"""An epoch of such batches has four steps."""
ALL_FIT, NONE_FIT = "100G", "1M"

WAYS = {
    "on 4 ranks": ("64", ()),
    "that cannot be divided evenly": ("61", ()),
    "of fewer samples than ranks": ("3", ()),
    "in 3 micro-batches": ("64", ("--accumulate", "3")),
    "in 3 micro-batches under fsdp": ("64", ("--accumulate", "3", "--strategy", "fsdp")),
    "under fsdp": ("61", ("--strategy", "fsdp")),
    "in small buckets, unused parameters looked for": ("64", ("--bucket-mb", "0.01", "--find-unused")),
    "loaded by workers": ("64", ("--workers", "1")),
}
"""Each takes the step of the global batch of that size; its gradient is kept in a checkpoint of its name."""


@dataclass(frozen=True)
class Runs:
    """How each rank ended in each run, by name, and where its files are."""

    folder: Path
    ended: dict

    def out(self, name: str, rank: int = 0) -> str:
        """Return the output of a rank in a run that succeeded."""
        result = self.ended[name][rank]
        assert result.code == 0, result.err
        return result.out

    def refused(self, name: str) -> list[str]:
        """Return the errors of all ranks in a run that failed on every rank."""
        assert [entry.code for entry in self.ended[name]] == [1] * len(self.ended[name])
        return [entry.err for entry in self.ended[name]]


def interrupted(at: Path, how: str) -> dict[str, tuple[str, ...]]:
    """Return an undisturbed run, and one that must end after each of its steps."""
    run = at / f"run {how}"
    (run / "attempts" / "000").mkdir(parents=True)
    (run / "attempts" / "000" / "notice.json").write_text('{"why": "time-limit"}')
    steps = (
        *INTERRUPTED[how],
        "--steps",
        str(STARTS),
        "--augment",
        "--batch-size",
        "400",
        "--checkpoint-dir",
    )
    start, whole = (
        (*steps, str(at / f"kept {how}"), "--resume", f"RUN_DIR={run}"),
        (*steps, str(at / "whole")),
    )
    return {f"whole {how}": whole, **{f"start {number} {how}": start for number in range(STARTS)}}


def of_one_process(at: Path) -> dict[str, tuple[str, ...]]:
    remote = ("--checkpoint-dir", str(at / "order"))
    return {
        **interrupted(at, "alone"),
        **{batch: ("--batch-size", batch, *EXACT, str(at / batch)) for batch in ("64", "61", "3")},
        "single": CURVE,
        "dp": ("--strategy", "dp", *CURVE),
        "ddp of one": ("--strategy", "ddp", "--steps", "2"),
        "deterministic": ("--deterministic", *CURVE),
        "first": ("--steps", "1", "--bucket-mb", "1", *remote),
        "another order": ("--steps", "2", "--resume", "--batch-size", "32", *remote),
        "no room": ("--batch-size", "auto", "--memory-limit", NONE_FIT),
    }


def of_two_ranks(at: Path) -> dict[str, tuple[str, ...]]:
    fsdp = ("--strategy", "fsdp")
    resume = ("--resume", *DRAWN)
    few = ("--steps", "3", "--batch-size", "6")
    return {
        "ddp": ("--strategy", "ddp", *CURVE),
        "fsdp": (*fsdp, *CURVE),
        "whole": (*DRAWN, str(at / "whole")),
        "whole, by workers": (*DRAWN, str(at / "workers"), "--workers", "1"),
        "half": (*DRAWN, str(at / "ddp"), "--steps", "5"),
        "other half": (*resume, str(at / "ddp")),
        "half of fsdp": (*DRAWN, str(at / "fsdp"), "--steps", "5", *fsdp),
        "other half of fsdp": (*resume, str(at / "fsdp"), *fsdp),
        "fsdp after ddp": (*resume, str(at / "ddp"), "--steps", "11", "--batch-size", "auto", *fsdp),
        "learnt": ("--epochs", "8"),
        "bf16": ("--amp", "bf16", *CURVE),
        "fp16": ("--amp", "fp16", *CURVE),
        "fp16 under fsdp": ("--amp", "fp16", *CURVE, *fsdp),
        "resnet": ("--model", "resnet", *few, "--profile", "1", "--profile-dir", str(at / "traces")),
        "gpt": ("--model", "gpt", *few, *fsdp),
        "auto": ("--batch-size", "auto", "--memory-limit", ALL_FIT, "--accumulate", "3", "--steps", "1"),
        "no room on rank 0": ("--batch-size", "auto", "--memory-limit", "{rank}.000001T"),
        "several singles": ("--strategy", "single"),
        "several dps": ("--strategy", "dp"),
        "spawn in ranks": ("--strategy", "ddp-spawn"),
    }


@pytest.fixture(scope="session")
def single(tmp_path_factory):
    """Run one process without a launcher."""
    from tests.jobs.launch import runs

    folder = tmp_path_factory.mktemp("single")
    return Runs(folder, runs(0, of_one_process(folder)))


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """Run the cases on two ranks."""
    from tests.jobs.launch import runs

    folder = tmp_path_factory.mktemp("pair")
    return Runs(folder, runs(2, of_two_ranks(folder)))


@pytest.fixture(scope="session")
def interrupted_pair(tmp_path_factory):
    """Return the runs on two ranks that must end early."""
    from tests.jobs.launch import runs

    folder = tmp_path_factory.mktemp("interrupted")
    return Runs(folder, runs(2, {**interrupted(folder, "ddp"), **interrupted(folder, "fsdp")}))


@pytest.fixture(scope="session")
def four(tmp_path_factory):
    """Run one step on four ranks, in each of the ways."""
    from tests.jobs.launch import runs

    folder = tmp_path_factory.mktemp("four")
    steps = {
        name: ("--batch-size", batch, *options, *EXACT, str(folder / name))
        for name, (batch, options) in WAYS.items()
    }
    return Runs(folder, runs(4, steps))
