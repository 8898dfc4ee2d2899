"""Write and read checkpoints of a whole training: rank 0 writes, all ranks agree."""

from __future__ import annotations

import enum
import errno
import os
import sys
from typing import Any

from . import agreement, files
from .script import current_script

# Errors that waiting does not repair. A first checkpoint that fails with one would fail later too.
LASTING = (
    *(errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP),
)


class CheckpointRefused(RuntimeError):
    """A checkpoint cannot be written to this folder, now or later."""


class OldAttempt(CheckpointRefused):
    """A newer attempt of this run has begun. Its checkpoints replace those of this attempt."""


class WriteOutcome(enum.IntEnum):
    """The result of writing, as rank 0 sends it to the others. The highest value is the worst."""

    WRITTEN = 0
    MISSED = 1
    REFUSED = 2
    OUTDATED = 3


class Checkpoints:
    """The checkpoints of one training in one folder. The last ``keep`` complete ones are kept.

    Every rank creates one, and calls its methods in the same order. ``trusted``: allow reading to unpickle
    anything, which can run code. Otherwise only tensors, numbers, strings, lists and dicts are read.
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
        """Write rank 0's ``state`` after ``step`` steps. Every rank must call it.

        True once it is on the disk. False if the disk refused (full, unreachable): the last good checkpoint
        is unchanged, stderr gives the reason, and training may continue. Raises CheckpointRefused on every
        rank if the first checkpoint of this process fails for a lasting reason, and OldAttempt.
        """
        outcome, why, error = WriteOutcome.WRITTEN, "", None
        if current_script().leads:
            outcome, why, error = self._attempt(state, step)
        (agreed,) = agreement.max_over_ranks(outcome)
        if agreed == WriteOutcome.WRITTEN:
            current_script().progress(None, step)
        if error is not None:
            raise error
        if agreed >= WriteOutcome.REFUSED:
            kind = OldAttempt if agreed == WriteOutcome.OUTDATED else CheckpointRefused
            raise kind(why or f"rank 0 could not write the checkpoint of step {step}: see what it says")
        return agreed == WriteOutcome.WRITTEN

    def latest(self) -> Any:
        """Return the newest undamaged state, on the CPU, or None. A damaged one is reported and skipped.

        Every rank must call it. Ranks that do not see the file get the state from rank 0. Raises the error
        of `torch.load` if an undamaged file holds objects that only ``trusted`` may read.
        """
        path = self.latest_path()
        if not path:
            return None
        (missing,) = agreement.max_over_ranks(int(not os.path.isfile(path)))
        if not missing:
            return self._load(path)
        return agreement.from_rank_zero(self._load(path) if current_script().leads else None)

    def latest_path(self) -> str:
        """Return the path of the newest undamaged checkpoint, '' if there is none.

        Every rank must call it.
        """
        newest = ""
        for checkpoint in files.newest_first(self.folder) if current_script().leads else ():
            path = os.path.join(self.folder, checkpoint.name)
            try:
                objection = files.objection(self.folder, checkpoint)
            except FileNotFoundError:
                continue  # its writer has just written a newer one
            if not objection:
                newest = path
                break
            self._damaged.add(checkpoint)
            say(f"checkpoint {path} {objection} and is skipped")
        return str(agreement.from_rank_zero(newest))

    def _attempt(self, state: Any, step: int) -> tuple[WriteOutcome, str, BaseException | None]:
        """Write on rank 0.

        Errors are returned and not raised, because the other ranks wait for the answer.
        """
        try:
            self._write(state, step)
        except OldAttempt as error:
            return WriteOutcome.OUTDATED, str(error), None
        except OSError as error:
            why = f"checkpoint of step {step} cannot be written to {self.folder}: {error.strerror or error}"
            if not self._written and error.errno in LASTING:
                return WriteOutcome.REFUSED, why, None
            last = f"the last good one is of step {self._written[-1].step}" if self._written else "none yet"
            say(f"{why}; {last}, training continues")
            return WriteOutcome.MISSED, why, None
        except BaseException as error:  # noqa: BLE001 - raised by the caller, once the others know
            return WriteOutcome.REFUSED, "", error
        return WriteOutcome.WRITTEN, "", None

    def _write(self, state: Any, step: int) -> None:
        self._permit()
        files.make_folder(self.folder)
        attempt = current_script().place.attempt
        files.drop_parts(self.folder, attempt)
        written = files.write(self.folder, step, attempt, dumping(state), self._permit)
        missing = [
            checkpoint
            for checkpoint in self._written
            if not os.path.exists(os.path.join(self.folder, checkpoint.name))
        ]
        if missing:
            say(
                f"{missing[-1].name} is missing in {self.folder}: does another run write to it? "
                "Give each run its own folder"
            )
        files.drop_old(self.folder, written, self._keep, self._damaged)
        self._written = [*self._written, written][-self._keep :]

    def _permit(self) -> None:
        place = current_script().place
        newest = place.newest_attempt()
        if newest > place.attempt:
            raise OldAttempt(
                f"attempt {newest} of this run has begun, this process is of attempt {place.attempt}: "
                "it writes no checkpoint, and should end"
            )

    def _load(self, path: str) -> Any:
        import torch

        return torch.load(path, map_location="cpu", weights_only=not self._trusted)


def dumping(state: Any) -> files.Dump:

    def dump(file: files.ChecksummedFile) -> object:
        import torch

        return torch.save(state, file)

    return dump


def latest_checkpoint(folder: str | os.PathLike[str]) -> str:
    """Return the path of the newest undamaged checkpoint in ``folder``; '' if there is none.

    It needs no torch.

    Every rank must call it, and gets the same answer. A damaged one is reported on stderr and skipped.
    """
    return Checkpoints(folder).latest_path()


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
