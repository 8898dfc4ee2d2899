"""What the ranks of a rehearsed run said about each of their steps, read from their traces."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from clusterrun.model.frozen import frozen

MANY = ("before", "step", "save", "lost", "load", "remove", "call", "moved")
"""What a trace may tell more than once; of all else the last counts."""
Rows = tuple[int, ...]
"""Checksums, or indices, of samples."""
NO_ERROR = {"line": "", "what": "", "text": "", "at": 0.0}
NO_PART = {"line": "", "missing": 0, "unknown": 0, "name": ""}


@frozen
class Step:
    """One optimizer step of one rank: checksums of all that can be seen after it.

    ``rows`` are the samples that the model was given, ``batches`` what left the DataLoader meanwhile, each as
    (loader, rows, indices).
    """

    n: int
    optimizer: int
    parameters: int
    state: int
    buffers: int
    averages: tuple[int, ...]
    rates: Any
    schedulers: Any
    scalers: Any
    random: Mapping[str, int]
    rows: Rows
    batches: tuple[tuple[str, Rows, Rows], ...]
    loss: float | None
    hears: bool
    at: float


@frozen
class SavedFile:
    """A file that was written after ``step`` steps; ``temp`` is the name it was written under before.

    ``nth``: its place among the files that this rank began after that step, temporary ones too.
    """

    step: int
    rank: int
    path: str
    temp: str
    size: int
    seconds: float
    line: str
    nth: int = 1
    sure: bool = True
    """A checkpoint by its name or by what wrote it; else a file of bytes, which may be one."""
    gone: bool = False
    """Whether the rank that wrote it has removed it, and not written it again."""


@frozen
class RankTrace:
    """One rank in one start of the ranks.

    ``before``: parameters and state of each optimizer before its first step, in the order of these;
    ``stepped_at`` are their lines, ``shared`` those that train what another one has trained before.
    ``end`` is "limit", "exit" or '' where it was ended from outside; ``error`` is (line, kind, text) of the
    exception that ended it.
    """

    rank: int
    before: Mapping[int, tuple[int, int]]
    steps: tuple[Step, ...]
    saves: tuple[SavedFile, ...] = ()
    loads: tuple[tuple[str, str], ...] = ()
    removes: tuple[str, ...] = ()
    calls: tuple[tuple[str, str, str], ...] = ()
    error: tuple[str, str, str] = ("", "", "")
    failed_at: float = 0.0
    end: str = ""
    struck: bool = False
    blind: str = ""
    shared: tuple[int, ...] = ()
    stepped_at: Mapping[int, str] = {}
    partial: tuple[str, int, int, str] = ("", 0, 0, "")
    """The last loading of a model that left something out: line, names missing and unknown, one of them."""
    moved: tuple[tuple[int, int, int], ...] = ()
    """Where the script changed weights by itself after a step: the step, the optimizer, the weights then."""
    lost: tuple[SavedFile, ...] = ()
    """Files that another process moved or removed before this rank had finished them."""

    def set_anew(self, name: str) -> str:
        """The line that set the state of a generator ("python", "numpy", "torch"); '' where nobody did."""
        return next((line for what, method, line in self.calls if (what, method) == (name, "set")), "")

    @property
    def leads(self) -> int:
        return next(iter(self.before), 0)

    @property
    def last(self) -> int:
        """How many steps it took."""
        return self.steps[-1].n if self.steps else 0

    @property
    def drawn_by_hand(self) -> bool:
        """Whether the model was given samples that came out of no DataLoader."""
        return bool(self.steps and self.steps[0].rows) and not any(step.batches for step in self.steps)


@frozen
class Start:
    """The traces of all ranks from one start to their end."""

    ranks: Mapping[int, RankTrace]

    @property
    def last(self) -> int:
        """The step that every rank has finished."""
        return min((rank.last for rank in self.ranks.values()), default=0)

    @property
    def struck(self) -> bool:
        """Whether a rank injected the fault that it was ordered to."""
        return any(trace.struck for trace in self.ranks.values())

    @property
    def saves(self) -> tuple[SavedFile, ...]:
        """What all ranks wrote from the first step on, in the order of steps."""
        found = [save for rank in self.ranks.values() for save in rank.saves if save.step > 0]
        found = [save for save in found if save.sure] or found
        return tuple(sorted(found, key=lambda save: (save.step, save.rank)))

    @property
    def errors(self) -> tuple[tuple[str, str, str], ...]:
        """The exceptions that ended ranks, the first in time first: line, kind, text.

        Those after it may only say that a peer has gone.
        """
        failed = sorted(self.ranks.values(), key=lambda rank: rank.failed_at)
        return tuple(rank.error for rank in failed if rank.error[1])

    @property
    def loaded(self) -> tuple[tuple[str, str], ...]:
        return tuple(dict.fromkeys(load for rank in self.ranks.values() for load in rank.loads))

    def dropped(self, path: str) -> bool:
        gone = [one for rank in self.ranks.values() for one in rank.removes]
        return any(is_below(path, one) for one in gone)

    def called(self, what: str, name: str) -> str:
        """The line that took, or loaded, the state of ``what``; '' where nobody did."""
        calls = [call for rank in self.ranks.values() for call in rank.calls]
        return next((line for one, method, line in calls if (one, method) == (what, name)), "")


def is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(place + os.sep)


def kind_of(path: str, root: str = "") -> str:
    """The `pattern` of a path below the folder ``root``: equal in every copy of a working directory."""
    return pattern(path[len(root) + 1 :] if root and path.startswith(root + os.sep) else path)


def pattern(path: str) -> str:
    """A path without its numbers and checksums: what all checkpoints of one kind have in common."""
    folder, name = os.path.split(path)
    return os.path.join(re.sub(r"\d+", "#", folder), re.sub(r"[0-9a-f]{8,}|\d+", "#", name))


def parsed(rank: int, lines: Iterable[str]) -> RankTrace:
    """One rank's trace; a line that was cut off by its end is left out."""
    found: dict[str, list[Any]] = {kind: [] for kind in MANY}
    last: dict[str, Any] = {"error": NO_ERROR, "partial": NO_PART}
    for line in lines:
        try:
            said = json.loads(line)
        except ValueError:
            continue
        kind = said["t"]
        if kind in found:
            found[kind].append(said)
            for save in found["save"] if kind == "remove" else ():
                save["gone"] = save.get("gone") or is_below(save["path"], said["path"])
        else:
            last[kind] = said
    end, error, partial, before = last.get("end"), last["error"], last["partial"], found["before"]
    return RankTrace(
        rank,
        {said["o"]: (said["p"], said["s"]) for said in before},
        tuple(map(_step, found["step"])),
        tuple(_save(rank, said) for said in found["save"]),
        tuple((said["path"], said["line"]) for said in found["load"]),
        tuple(said["path"] for said in found["remove"]),
        tuple((said["what"], said["name"], said["line"]) for said in found["call"]),
        (error["line"], error["what"], error["text"]),
        error["at"],
        "" if end is None else "limit" if end["limit"] else "exit",
        "strike" in last,
        last.get("blind", {}).get("why", ""),
        tuple(said["o"] for said in before if said.get("shared")),
        {said["o"]: said["line"] for said in before},
        (partial["line"], partial["missing"], partial["unknown"], partial["name"]),
        tuple((said["n"], said["o"], said["p"]) for said in found["moved"]),
        tuple(_lost(rank, said) for said in found["lost"]),
    )


def _step(said: Mapping[str, Any]) -> Step:
    fields = [
        *(said[key] for key in ("n", "o", "p", "s", "b")),
        tuple(said["ema"]),
        *(said[key] for key in ("lr", "sched", "scale", "rng")),
        tuple(row for rows in said["x"] for row in _rows(rows)),
        tuple((name, _rows(rows), tuple(order or ())) for name, rows, order in said["d"]),
        *(said[key] for key in ("loss", "hears", "at")),
    ]
    return Step(*fields)


def _rows(text: str) -> Rows:
    """The checksums of samples, of eight digits each."""
    return tuple(memoryview(bytes.fromhex(text)).cast("I"))


def _save(rank: int, said: Mapping[str, Any]) -> SavedFile:
    named = (said[key] for key in ("path", "temp", "size", "secs", "line", "nth", "sure"))
    fields = [said["n"], rank, *named, bool(said.get("gone"))]
    return SavedFile(*fields)


def _lost(rank: int, event: Mapping[str, Any]) -> SavedFile:
    return SavedFile(event["n"], rank, event["path"], event["temp"], 0, 0.0, event["line"])


def traces(attempt: str) -> list[str]:
    return sorted(glob.glob(os.path.join(glob.escape(attempt), "*.rehearsal.jsonl")))


def read(attempt: str) -> Start:
    ranks = {}
    for path in traces(attempt):
        number = int(os.path.basename(path).split(".")[0])
        with open(path, encoding="utf-8", errors="replace") as file:
            ranks[number] = parsed(number, file)
    return Start(ranks)
