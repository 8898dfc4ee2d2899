"""Checkpoints of a whole training: rank 0 writes, all ranks agree."""

from __future__ import annotations

import enum
import errno
import os
import sys
from typing import Any

from . import agreement, files
from .script import here

LASTING = (
    *(errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP),
)
"""What waiting does not mend: a first checkpoint that fails so would have failed in a week too."""


class CheckpointRefused(RuntimeError):
    """A checkpoint that cannot be written here, now or later."""


class OldAttempt(CheckpointRefused):
    """A newer attempt of this run has begun: what this one would write is not wanted any more."""


class WriteOutcome(enum.IntEnum):
    """How writing went, as rank 0 tells the others."""

    WRITTEN = 0
    MISSED = 1
    REFUSED = 2
    OUTDATED = 3


class Checkpoints:
    """The checkpoints of one training in one folder, of which the last ``keep`` whole ones stay.

    Every rank makes one, and calls its methods in the same order. ``trusted``: let reading unpickle
    anything (which can run code) and not tensors, numbers, strings, lists and dicts alone.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 2, trusted: bool = False) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep}: at least the newest checkpoint must stay")
        self.folder = os.path.abspath(os.fspath(folder))
        self._keep = keep
        self._trusted = trusted
        self._damaged: set[files.CheckpointFile] = set()
        self._written: list[files.CheckpointFile] = []

    def save(self, state: Any, step: int) -> bool:
        """Write ``state`` after ``step`` steps; only rank 0's is looked at. Every rank must call it.

        True once it is on the disk. False if the disk refused (full, away): the last good checkpoint
        is as it was, stderr says why, and training may continue. Raises CheckpointRefused on every rank where
        the first checkpoint of this process cannot be written for a reason that lasts, and OldAttempt.
        """
        outcome, why, error = WriteOutcome.WRITTEN, "", None
        if here().leads:
            outcome, why, error = self._attempt(state, step)
        (agreed,) = agreement.max_over_ranks(outcome)
        if agreed == WriteOutcome.WRITTEN:
            here().progress(None, step)
        if error is not None:
            raise error
        if agreed >= WriteOutcome.REFUSED:
            kind = OldAttempt if agreed == WriteOutcome.OUTDATED else CheckpointRefused
            raise kind(why or f"rank 0 could not write the checkpoint of step {step}: see what it says")
        return agreed == WriteOutcome.WRITTEN

    def latest(self) -> Any:
        """The newest state that is whole, on the CPU, or None; a damaged one is named and passed over.

        Every rank must call it. Ranks that do not see the file get the state from rank 0. Raises what
        `torch.load` raises where a whole file holds what only ``trusted`` may read.
        """
        path = self.latest_path()
        if not path:
            return None
        (missing,) = agreement.max_over_ranks(int(not os.path.isfile(path)))
        if not missing:
            return self._load(path)
        return agreement.from_rank_zero(self._load(path) if here().leads else None)

    def latest_path(self) -> str:
        """Where the newest whole checkpoint is, empty if there is none. Every rank must call it."""
        return str(agreement.from_rank_zero(self._newest_whole() if here().leads else ""))

    def _attempt(self, state: Any, step: int) -> tuple[WriteOutcome, str, BaseException | None]:
        """Write on rank 0. Whatever happens comes back, and is not raised: the others wait for the answer."""
        try:
            self._write(state, step)
        except OldAttempt as error:
            return WriteOutcome.OUTDATED, str(error), None
        except OSError as error:
            why = f"checkpoint of step {step} cannot be written to {self.folder}: {error.strerror or error}"
            if not self._written and error.errno in LASTING:
                return WriteOutcome.REFUSED, why, None
            last = f"the last good one is of step {self._written[-1].step}" if self._written else "none yet"
            say(f"{why}; {last}, training goes on")
            return WriteOutcome.MISSED, why, None
        except BaseException as error:  # noqa: BLE001 - raised by the caller, once the others know
            return WriteOutcome.REFUSED, "", error
        return WriteOutcome.WRITTEN, "", None

    def _write(self, state: Any, step: int) -> None:
        self._permit()
        files.make_folder(self.folder)
        attempt = here().place.attempt
        files.drop_parts(self.folder, attempt)
        found = files.write(self.folder, step, attempt, dumping(state), self._permit)
        self._look_for_others()
        files.drop_old(self.folder, found, self._keep, self._damaged)
        self._written = [*self._written, found][-self._keep :]

    def _permit(self) -> None:
        place = here().place
        newest = place.newest_attempt()
        if newest > place.attempt:
            raise OldAttempt(
                f"attempt {newest} of this run has begun, this process is of attempt {place.attempt}: "
                "it writes no checkpoint, and should end"
            )

    def _look_for_others(self) -> None:
        gone = [one for one in self._written if not os.path.exists(os.path.join(self.folder, one.name))]
        if gone:
            say(
                f"{gone[-1].name} is gone from {self.folder}: does another run write there? give each its own"
            )

    def _newest_whole(self) -> str:
        for found in files.newest_first(self.folder):
            path = os.path.join(self.folder, found.name)
            try:
                objection = files.objection(self.folder, found)
            except FileNotFoundError:
                continue  # its writer has just written a newer one
            if not objection:
                return path
            self._damaged.add(found)
            say(f"checkpoint {path} {objection} and is passed over")
        return ""

    def _load(self, path: str) -> Any:
        import torch

        return torch.load(path, map_location="cpu", weights_only=not self._trusted)


def dumping(state: Any) -> files.Dump:

    def dump(file: files.ChecksummedFile) -> object:
        import torch

        return torch.save(state, file)

    return dump


def latest_checkpoint(folder: str | os.PathLike[str]) -> str:
    """Where the newest whole checkpoint in ``folder`` is, empty if there is none; needs no torch.

    Every rank must call it, and gets the same answer; a damaged one is named on stderr and passed over.
    """
    return Checkpoints(folder).latest_path()


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
