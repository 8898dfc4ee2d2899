"""Reads what a run has left: its errors, its last records, words about its memory."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from clusterrun.atomic_file import end_of
from clusterrun.diagnosis.evidence import Group, MainCall, ProcessSample, PythonStacks, RankSnapshot, Record
from clusterrun.diagnosis.printed_errors import Error, heard, last_complaint
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.stacks import ThreadPlace
from clusterrun.diagnosis.verdict import Verdict, ranks_in_words
from clusterrun.logs.attempt_logs import STREAMS, LogSelection, attempts, read_at
from clusterrun.logs.log_reader import so_far
from clusterrun.model.paths import AttemptPaths, RunPaths
from clusterrun.model.record import Attempt, RunState, RunStatus
from clusterrun.model.states import State
from clusterrun.operations.context import Context

TAIL_LINES = 150
"""Of each stream of each rank: an error stands near its end, and there may be ten thousand ranks."""
TAIL_OF_THE_FIRST = 5000
"""Of the rank that failed first: much may be printed after the error."""
MOST_FINAL_RECORDS = 512
MOST_BYTES = 1 << 20
MOST_OF_A_NODE = 8 << 20
_FAREWELL = re.compile(r"(\d{5,})\.farewell\.json")
_STACKS = re.compile(r"node-\d{4,}\.stacks")
_HALF_A_FILE = (OSError, ValueError, TypeError, LookupError, AttributeError)
_MEMORY = re.compile(r"(?i:oom[-_ ]kill|out of memory)")


def remains(context: Context, status: RunStatus) -> Remains:
    """What there is of an ended run. Raises ``ClusterrunError`` for what cannot be read."""
    paths, state = context.store.paths(status.run_id), context.store.state(status.run_id)
    failed = status.state is not State.COMPLETED
    attempt = _attempt(paths, state, failed)
    spec = context.store.read(status.run_id).spec
    each = 1 if spec.per_node else spec.local_size
    names = attempt.nodes if attempt else ()
    nodes = tuple(name for name in names for _ in range(each))
    files = paths.attempt(attempt.epoch) if attempt else None
    printed = _of_attempt(paths, attempt, spec.per_node) if attempt else ()
    said = list(final_records(files, nodes)) if files else []
    still = tuple(last_stacks(files, nodes)) if files else ()
    warned = state.warnings if state else ()
    told = [one for one in warned if one.startswith(Verdict.ALONE.value)]
    thrown = {one.rank for one, _, thrown in said if thrown}
    alone = [*_left_early(printed), *told, *_alone(said, failed)][:1]  # the most exact one comes first
    notes = (*alone, *(one for one in warned if one not in told), *_memory(paths))
    return Remains(
        state=status.state,
        reason=status.reason,
        failure=attempt.failure if attempt else None,
        printed=printed if failed else tuple(one for one in printed if one.rank in thrown),
        nodes=nodes,
        notes=notes,
        last=last_records([one for one, alone, _ in said if not alone], still),
        stood=still,
        per_node=spec.per_node,
    )


def left_alone(paths: RunPaths, state: RunState) -> tuple[str, ...]:
    """The warning that ranks of a successful run trained separately, unless it was given already."""
    if not state.attempts or any(one.startswith(Verdict.ALONE.value) for one in state.warnings):
        return ()
    files = paths.attempt(state.attempts[-1].epoch)
    return tuple(_alone(list(final_records(files, ())), failed=False))


def _attempt(paths: RunPaths, state: RunState | None, failed: bool) -> Attempt | None:
    """The newest one; of a run that failed the newest that did."""
    known = [one for one in (state.attempts if state else ()) if one.epoch in attempts(paths.attempts)]
    newest = known[-1] if known else None
    return next((one for one in reversed(known) if one.failure), newest) if failed else newest


def _of_attempt(paths: RunPaths, attempt: Attempt, per_node: bool) -> tuple[Error, ...]:
    """The errors of all ranks; for the one that failed first it is looked for further back."""
    found = errors(paths, attempt.epoch, per_node=per_node)
    first = attempt.failure.rank if attempt.failure else -1
    if first < 0 or any(one.rank == first for one in found):
        return found
    more = errors(paths, attempt.epoch, frozenset({first}), per_node, TAIL_OF_THE_FIRST)
    return tuple(sorted((*found, *more), key=lambda one: (one.at, one.rank)))


def errors(
    paths: RunPaths,
    epoch: int,
    ranks: frozenset[int] | None = None,
    per_node: bool = False,
    tail: int = TAIL_LINES,
) -> tuple[Error, ...]:
    """The errors near the end of what every rank (or ``ranks``) of an attempt printed, by time."""
    pieces = so_far(paths, epoch, LogSelection(ranks, STREAMS), tail)
    texts = ((one.rank, one.stream, one.at, one.data.decode("utf-8", "surrogateescape")) for one in pieces)
    return heard(texts, per_node)


def complaints(paths: RunPaths, epoch: int, ranks: frozenset[int]) -> dict[int, str]:
    """The last line of each rank that mentions something that went wrong."""
    lines: dict[int, list[str]] = {}
    for piece in so_far(paths, epoch, LogSelection(ranks, STREAMS), TAIL_LINES):
        lines.setdefault(piece.rank, []).extend(piece.data.decode("utf-8", "replace").splitlines())
    found = {rank: last_complaint(its_lines) for rank, its_lines in lines.items()}
    return {rank: line for rank, line in found.items() if line}


def final_records(paths: AttemptPaths, nodes: tuple[str, ...]) -> Iterator[tuple[RankSnapshot, bool, bool]]:
    """What ranks left at their end: their last records, whether they trained alone, whether they failed."""
    for match in _files(paths, _FAREWELL):
        try:
            said = json.loads(read_at(paths.beside(match[0]), 0, MOST_BYTES))
            yield _seen(int(match[1]), "", said, nodes), bool(said["alone"]), bool(said.get("failed"))
        except _HALF_A_FILE:
            continue  # or not ours: the rest tells enough


def last_stacks(paths: AttemptPaths, nodes: tuple[str, ...]) -> Iterator[RankSnapshot]:
    """The stacks of ranks when they were asked to end."""
    for match in _files(paths, _STACKS):
        try:
            told = json.loads(read_at(paths.beside(match[0]), 0, MOST_OF_A_NODE))
            for rank, said in sorted((int(rank), said) for rank, said in told.items()):
                said = {"stack": said} if isinstance(said, list) else said  # as older releases left it
                yield _seen(rank, "S", said, nodes, tuple(map(str, said["stack"])))
        except _HALF_A_FILE:
            continue


def _files(paths: AttemptPaths, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    try:
        names = sorted(os.listdir(paths.folder))
    except OSError:
        return []
    return [match for match in map(pattern.fullmatch, names) if match][:MOST_FINAL_RECORDS]


def _seen(
    rank: int, state: str, left: dict[str, Any], nodes: tuple[str, ...], stack: tuple[str, ...] = ()
) -> RankSnapshot:
    """A rank from what it left. Older runs left neither its call nor its threads."""
    call = left.get("call") or {}
    return RankSnapshot(
        rank=rank,
        node=nodes[rank] if rank < len(nodes) else "",
        process=ProcessSample(0, state),
        stacks=PythonStacks(
            stack, threads=tuple(ThreadPlace(*map(str, one)) for one in left.get("threads", ()))
        ),
        groups=tuple(
            Group(str(group["name"]), int(str(group["size"])), ranks=str(group.get("ranks", "")))
            for group in left.get("groups", ())
        ),
        records=tuple(_record(record) for record in left.get("records", ())),
        call=MainCall(
            function=str(call.get("function", "")),
            rooted=str(call.get("rooted", "")),
            root=int(call.get("root", -1)),
            counts=tuple(map(int, call.get("counts") or ())),
        ),
    )


def last_records(left: Iterable[RankSnapshot], still: Iterable[RankSnapshot]) -> tuple[RankSnapshot, ...]:
    """The records of ranks that left them as they failed, and of those that were asked before their end."""
    found = {one.rank: one for one in still if one.records}
    found.update((one.rank, one) for one in left)
    return tuple(one for _, one in sorted(found.items()))


def _record(one: dict[str, object]) -> Record:
    sizes, types = one.get("input_sizes") or (), one.get("input_dtypes") or ()
    return Record(
        str(one["group"]),
        int(str(one["collective_seq_id"])),
        str(one["profiling_name"]).partition(":")[2],
        ", ".join(map(str, sizes)) if isinstance(sizes, list) else "",
        ", ".join(map(str, types)) if isinstance(types, list) else "",
        bool(one.get("retired")),
        int(str(one.get("at") or 0)) / 1e9,
        by_thread=bool(one.get("by_thread")),
    )


def _left_early(heard: tuple[Error, ...]) -> Iterator[str]:
    """Ranks that left for want of GPUs."""
    left = [one for one in heard if one.row and one.row.verdict is Verdict.ALONE]
    if left:
        who = ranks_in_words(tuple(sorted({one.rank for one in left})))
        yield f"{Verdict.ALONE.value}: {who} left early: {left[0].text}"


def _alone(said: list[tuple[RankSnapshot, bool, bool]], failed: bool) -> Iterator[str]:
    """Ranks that trained without the others, in a run that ended well."""
    ranks = tuple(one.rank for one, alone, _ in said if alone)
    if ranks and not failed:
        who = f"{Verdict.ALONE.value}: {ranks_in_words(ranks)}"
        yield f"{who} never joined the others: each trained a copy of its own"


def _memory(paths: RunPaths) -> Iterator[str]:
    """What the batch step's own output says of memory that ran out: slurmstepd writes it there."""
    text = end_of(paths.job_output, 8192)[0].decode("utf-8", "replace")
    yield from [line.strip()[:300] for line in text.splitlines() if _MEMORY.search(line)][:2]
