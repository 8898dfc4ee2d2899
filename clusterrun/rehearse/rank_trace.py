"""Read the traces that the ranks of a rehearsed run wrote about each of their steps."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from clusterrun.model.frozen import frozen

# Events that may occur more than once. Of every other event the last one counts.
MANY = ("before", "step", "save", "lost", "load", "remove", "call", "moved")
# Checksums, or indices, of samples.
Rows = tuple[int, ...]
NO_ERROR = {"line": "", "what": "", "text": "", "at": 0.0}
NO_PART = {"line": "", "missing": 0, "unknown": 0, "name": ""}


@frozen
class Step:
    """One optimizer step of one rank: checksums of the visible state after it."""

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
    rows: Rows  # samples that the model received
    batches: tuple[tuple[str, Rows, Rows], ...]  # output of the DataLoader since: (loader, rows, indices)
    loss: float | None
    hears: bool
    at: float


@frozen
class SavedFile:
    """A file that a rank wrote."""

    step: int  # steps before the write
    rank: int
    path: str
    temp: str  # its name before it was renamed
    size: int
    seconds: float
    line: str
    nth: int = 1  # its place among all files that this rank began after that step, temporary ones too
    # Whether its name, its content or its writer shows that it is a checkpoint. Else it is a binary file.
    sure: bool = True
    is_removed: bool = False  # whether its writer removed it in the end
    text: bool = False  # whether it is a text file, which is no checkpoint by itself
    by_thread: bool = False  # whether another thread than the main one wrote it


@frozen
class RankTrace:
    """One rank in one start of the ranks."""

    rank: int
    before: Mapping[int, tuple[int, int]]  # parameters and state of each optimizer before its first step
    steps: tuple[Step, ...]
    saves: tuple[SavedFile, ...] = ()
    loads: tuple[tuple[str, str], ...] = ()
    removes: tuple[str, ...] = ()
    calls: tuple[tuple[str, str, str], ...] = ()
    error: tuple[str, str, str] = ("", "", "")  # line, kind and text of the exception that ended it
    failed_at: float = 0.0
    end: str = ""  # "limit", "exit", or '' if it was ended from outside
    struck: bool = False
    blind: str = ""
    shared: tuple[int, ...] = ()  # optimizers that train weights of an earlier optimizer
    stepped_at: Mapping[int, str] = {}  # the line of each optimizer's step
    # The last incomplete loading of a model: line, count of missing and of unknown names, one unknown name.
    partial: tuple[str, int, int, str] = ("", 0, 0, "")
    # Changes of the weights by the script itself after a step: the step, the optimizer, the new weights.
    moved: tuple[tuple[int, int, int], ...] = ()
    # Files that another process moved or removed before this rank had finished them.
    lost: tuple[SavedFile, ...] = ()

    def set_anew(self, name: str) -> str:
        """Return the line that set a generator's state ("python", "numpy", "torch"); '' if no line did."""
        return next(
            (line for generator, method, line in self.calls if (generator, method) == (name, "set")), ""
        )

    @property
    def leads(self) -> int:
        return next(iter(self.before), 0)

    @property
    def last(self) -> int:
        """Return the number of steps that it took."""
        return self.steps[-1].n if self.steps else 0

    @property
    def drawn_by_hand(self) -> bool:
        """Return whether the model's samples come from no DataLoader."""
        return bool(self.steps and self.steps[0].rows) and not any(step.batches for step in self.steps)


@frozen
class Start:
    """The traces of all ranks from one start to their end."""

    ranks: Mapping[int, RankTrace]

    @property
    def last(self) -> int:
        """Return the step that every rank has finished."""
        return min((rank.last for rank in self.ranks.values()), default=0)

    @property
    def struck(self) -> bool:
        """Return whether a rank injected the fault that it was ordered to."""
        return any(trace.struck for trace in self.ranks.values())

    @property
    def saves(self) -> tuple[SavedFile, ...]:
        """Return the files that all ranks wrote from the first step on, in the order of steps."""
        saves = [save for save in self._written if save.sure]
        saves = saves or [save for save in self._written if not save.text]
        return tuple(sorted(saves, key=lambda save: (save.step, save.rank)))

    @property
    def companions(self) -> tuple[SavedFile, ...]:
        """Return the other files, such as `meta.json`, that ranks wrote. A restart may read them."""
        saves = set(self.saves)
        others = (save for save in self._written if save not in saves and not save.is_removed)
        return tuple(sorted(others, key=lambda save: (save.step, save.rank)))

    @property
    def _written(self) -> list[SavedFile]:
        return [save for rank in self.ranks.values() for save in rank.saves if save.step > 0]

    @property
    def errors(self) -> tuple[tuple[str, str, str], ...]:
        """Return the exceptions that ended ranks, the first in time first: line, kind, text.

        Later ones may only report that a peer has gone.
        """
        failed = sorted(self.ranks.values(), key=lambda rank: rank.failed_at)
        return tuple(rank.error for rank in failed if rank.error[1])

    @property
    def loaded(self) -> tuple[tuple[str, str], ...]:
        return tuple(dict.fromkeys(load for rank in self.ranks.values() for load in rank.loads))

    def dropped(self, path: str) -> bool:
        removed = [place for rank in self.ranks.values() for place in rank.removes]
        return any(is_below(path, place) for place in removed)

    def called(self, what: str, name: str) -> str:
        """Return the line that took or loaded the state of ``what``; '' if no line did."""
        calls = [call for rank in self.ranks.values() for call in rank.calls]
        return next((line for kind, method, line in calls if (kind, method) == (what, name)), "")


def is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(place + os.sep)


def kind_of(path: str, root: str = "") -> str:
    """Return a path below ``root`` without its numbers and checksums: equal for checkpoints of one kind.

    It is equal in every copy of a working directory.
    """
    folder, name = os.path.split(path[len(root) + 1 :] if root and path.startswith(root + os.sep) else path)
    return os.path.join(re.sub(r"\d+", "#", folder), re.sub(r"[0-9a-f]{8,}|\d+", "#", name))


def parsed(rank: int, lines: Iterable[str]) -> RankTrace:
    """Parse one rank's trace. An incomplete last line is skipped."""
    events_by_kind: dict[str, list[Any]] = {kind: [] for kind in MANY}
    last: dict[str, Any] = {"error": NO_ERROR, "partial": NO_PART}
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        kind = event["t"]
        if kind in events_by_kind:
            events_by_kind[kind].append(event)
            for save in events_by_kind["save"] if kind == "remove" else ():
                save["is_removed"] = save.get("is_removed") or is_below(save["path"], event["path"])
        else:
            last[kind] = event
    end, error, partial, before = last.get("end"), last["error"], last["partial"], events_by_kind["before"]
    return RankTrace(
        rank,
        {event["o"]: (event["p"], event["s"]) for event in before},
        tuple(map(_step, events_by_kind["step"])),
        tuple(_save(rank, event) for event in events_by_kind["save"]),
        tuple((event["path"], event["line"]) for event in events_by_kind["load"]),
        tuple(event["path"] for event in events_by_kind["remove"]),
        tuple((event["what"], event["name"], event["line"]) for event in events_by_kind["call"]),
        (error["line"], error["what"], error["text"]),
        error["at"],
        "" if end is None else "limit" if end["limit"] else "exit",
        "strike" in last,
        last.get("blind", {}).get("why", ""),
        tuple(event["o"] for event in before if event.get("shared")),
        {event["o"]: event["line"] for event in before},
        (partial["line"], partial["missing"], partial["unknown"], partial["name"]),
        tuple((event["n"], event["o"], event["p"]) for event in events_by_kind["moved"]),
        tuple(
            SavedFile(event["n"], rank, event["path"], event["temp"], 0, 0.0, event["line"])
            for event in events_by_kind["lost"]
        ),
    )


def _step(event: Mapping[str, Any]) -> Step:
    fields = [
        *(event[key] for key in ("n", "o", "p", "s", "b")),
        tuple(event["ema"]),
        *(event[key] for key in ("lr", "sched", "scale", "rng")),
        tuple(row for rows in event["x"] for row in _rows(rows)),
        tuple((name, _rows(rows), tuple(order or ())) for name, rows, order in event["d"]),
        *(event[key] for key in ("loss", "hears", "at")),
    ]
    return Step(*fields)


def _rows(text: str) -> Rows:
    """Return the checksums of samples, of eight digits each."""
    return tuple(memoryview(bytes.fromhex(text)).cast("I"))


def _save(rank: int, event: Mapping[str, Any]) -> SavedFile:
    named = (event[key] for key in ("path", "temp", "size", "secs", "line", "nth", "sure"))
    fields = [event["n"], rank, *named, *(bool(event.get(key)) for key in ("is_removed", "text", "thread"))]
    return SavedFile(*fields)


def traces(attempt: str) -> list[str]:
    return sorted(glob.glob(os.path.join(glob.escape(attempt), "*.rehearsal.jsonl")))


def read(attempt: str) -> Start:
    ranks = {}
    for path in traces(attempt):
        number = int(os.path.basename(path).split(".")[0])
        with open(path, encoding="utf-8", errors="replace") as file:
            ranks[number] = parsed(number, file)
    return Start(ranks)
