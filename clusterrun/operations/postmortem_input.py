"""Read the traces of a run that has ended: its errors, its last records, and reports of full memory."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from clusterrun.atomic_file import end_of
from clusterrun.diagnosis.evidence import (
    Group,
    MainCall,
    ProcessSample,
    PythonStacks,
    RankSnapshot,
    record_of_entry,
)
from clusterrun.diagnosis.known_errors import meaning
from clusterrun.diagnosis.printed_errors import Error, heard, last_complaint
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.stacks import ThreadPlace
from clusterrun.diagnosis.verdict import Verdict, ranks_in_words
from clusterrun.logs.attempt_logs import LogSelection, attempts, read_at
from clusterrun.logs.log_reader import so_far
from clusterrun.model.paths import AttemptPaths, RunPaths
from clusterrun.model.record import Attempt, RunState, RunStatus
from clusterrun.model.states import State
from clusterrun.operations.context import Context

# Lines of each stream of each rank. An error is near the end, and there may be ten thousand ranks.
TAIL_LINES = 150
# Lines of the rank that failed first, which may print much after the error.
TAIL_OF_THE_FIRST = 5000
MOST_FINAL_RECORDS = 512
# Ranks that are not blamed, and whose lines show what all ranks print.
MOST_OTHERS = 2
MOST_BYTES = 1 << 20
MOST_OF_A_NODE = 8 << 20
_FAREWELL = re.compile(r"(\d{5,})\.farewell\.json")
_STACKS = re.compile(r"node-\d{4,}\.stacks")
_HALF_A_FILE = (OSError, ValueError, TypeError, LookupError, AttributeError)
_MEMORY = re.compile(r"(?i:oom[-_ ]kill|out of memory)")


def remains(context: Context, status: RunStatus) -> Remains:
    """Return the traces of an ended run. Raise ``ClusterrunError`` if a file cannot be read."""
    paths, state = context.store.paths(status.run_id), context.store.state(status.run_id)
    failed = status.state is not State.COMPLETED
    attempt = _attempt(paths, state, failed)
    spec = context.store.read(status.run_id).spec
    ranks_per_node = 1 if spec.per_node else spec.local_size
    names = attempt.nodes if attempt else ()
    nodes = tuple(name for name in names for _ in range(ranks_per_node))
    files = paths.attempt(attempt.epoch) if attempt else None
    printed = errors(paths, attempt.epoch, per_node=spec.per_node) if attempt else ()
    failure = attempt.failure if attempt else None
    if attempt and failure and failure.rank >= 0 and all(error.rank != failure.rank for error in printed):
        # Read more lines of the rank that failed first. The agent may have found its error above a longer
        # message.
        errors_of_first = errors(
            paths, attempt.epoch, frozenset({failure.rank}), spec.per_node, TAIL_OF_THE_FIRST
        )
        if not errors_of_first and failure.error:
            errors_of_first = (
                Error(failure.at, failure.rank, failure.error, failure.place, meaning(failure.error)),
            )
        printed = tuple(sorted((*printed, *errors_of_first), key=lambda error: (error.at, error.rank)))
    farewells = list(final_records(files, nodes)) if files else []
    stacks = tuple(last_stacks(files, nodes)) if files else ()
    warned = state.warnings if state else ()
    separate = [warning for warning in warned if warning.startswith(Verdict.ALONE.value)]
    failed_ranks = {snapshot.rank for snapshot, _, has_failed in farewells if has_failed}
    left_early = []
    early = [error for error in printed if error.row and error.row.verdict is Verdict.ALONE]
    if early:
        leavers = ranks_in_words(tuple(sorted({error.rank for error in early})))
        left_early.append(f"{Verdict.ALONE.value}: {leavers} left early: {early[0].text}")
    # Only one note about separate training is shown. The most exact note is first.
    alone = [*left_early, *separate, *_alone(farewells, failed)][:1]
    notes = (*alone, *(warning for warning in warned if warning not in separate), *_memory(paths))
    return Remains(
        state=status.state,
        reason=status.reason,
        failure=attempt.failure if attempt else None,
        printed=printed if failed else tuple(error for error in printed if error.rank in failed_ranks),
        nodes=nodes,
        notes=notes,
        last=last_records([snapshot for snapshot, is_alone, _ in farewells if not is_alone], stacks),
        stood=stacks,
        per_node=spec.per_node,
    )


def left_alone(paths: RunPaths, state: RunState) -> tuple[str, ...]:
    """Return the warning that ranks of a completed run trained separately, unless the state has it."""
    if not state.attempts or any(warning.startswith(Verdict.ALONE.value) for warning in state.warnings):
        return ()
    files = paths.attempt(state.attempts[-1].epoch)
    return tuple(_alone(list(final_records(files, ())), failed=False))


def _attempt(paths: RunPaths, state: RunState | None, failed: bool) -> Attempt | None:
    """Return the newest attempt with logs. For a failed run, prefer the newest attempt that failed."""
    readable = [
        attempt for attempt in (state.attempts if state else ()) if attempt.epoch in attempts(paths.attempts)
    ]
    newest = readable[-1] if readable else None
    return next((attempt for attempt in reversed(readable) if attempt.failure), newest) if failed else newest


def errors(
    paths: RunPaths,
    epoch: int,
    ranks: frozenset[int] | None = None,
    per_node: bool = False,
    tail: int = TAIL_LINES,
) -> tuple[Error, ...]:
    """Return the errors near the end of the output of every rank (or of ``ranks``), by time."""
    pieces = so_far(paths, epoch, LogSelection(ranks, tail=tail))
    texts = (
        (piece.rank, piece.stream, piece.at, piece.data.decode("utf-8", "surrogateescape"))
        for piece in pieces
    )
    return heard(texts, per_node)


def complaints(paths: RunPaths, epoch: int, ranks: frozenset[int]) -> dict[int, str]:
    """Return the last line of each rank that mentions a problem and that two other ranks do not have."""
    others = sorted(set(range(len(ranks) + MOST_OTHERS)) - ranks)[:MOST_OTHERS]
    lines: dict[int, list[str]] = {}
    for piece in so_far(paths, epoch, LogSelection(ranks.union(others), tail=TAIL_LINES)):
        lines.setdefault(piece.rank, []).extend(piece.data.decode("utf-8", "replace").splitlines())
    of_others = [line for rank in others for line in lines.get(rank, ())]
    last_lines = {rank: last_complaint(lines.get(rank, ()), of_others) for rank in ranks}
    return {rank: line for rank, line in last_lines.items() if line}


def final_records(paths: AttemptPaths, nodes: tuple[str, ...]) -> Iterator[tuple[RankSnapshot, bool, bool]]:
    """Yield for each rank its last records, whether it trained alone, and whether it failed."""
    for match in _files(paths, _FAREWELL):
        try:
            document = json.loads(read_at(paths.beside(match[0]), 0, MOST_BYTES))
            yield (
                _snapshot(int(match[1]), "", document, nodes),
                bool(document["alone"]),
                bool(document.get("failed")),
            )
        except _HALF_A_FILE:
            continue  # cut short, or written by another program


def last_stacks(paths: AttemptPaths, nodes: tuple[str, ...]) -> Iterator[RankSnapshot]:
    """Yield the stacks of ranks at the time when they were asked to end."""
    for match in _files(paths, _STACKS):
        try:
            document = json.loads(read_at(paths.beside(match[0]), 0, MOST_OF_A_NODE))
            for rank, content in sorted((int(rank), content) for rank, content in document.items()):
                yield _snapshot(rank, "S", content, nodes, tuple(map(str, content["stack"])))
        except _HALF_A_FILE:
            continue


def _files(paths: AttemptPaths, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    try:
        names = sorted(os.listdir(paths.folder))
    except OSError:
        return []
    return [match for match in map(pattern.fullmatch, names) if match][:MOST_FINAL_RECORDS]


def _snapshot(
    rank: int, state: str, content: dict[str, Any], nodes: tuple[str, ...], stack: tuple[str, ...] = ()
) -> RankSnapshot:
    """Return the snapshot of a rank from its last file. It may lack its call and its threads."""
    call = content.get("call") or {}
    return RankSnapshot(
        rank=rank,
        node=nodes[rank] if rank < len(nodes) else "",
        process=ProcessSample(0, state),
        stacks=PythonStacks(
            stack,
            threads=tuple(
                ThreadPlace(str(entry), str(frame), str(operation))
                for entry, frame, operation in content.get("threads", ())
            ),
        ),
        groups=tuple(
            Group(str(group["name"]), int(str(group["size"])), ranks=str(group.get("ranks", "")))
            for group in content.get("groups", ())
        ),
        records=tuple(record_of_entry(entry, str(entry["group"])) for entry in content.get("records", ())),
        call=MainCall(
            function=str(call.get("function", "")),
            rooted=str(call.get("rooted", "")),
            root=int(call.get("root", -1)),
            counts=tuple(map(int, call.get("counts") or ())),
        ),
    )


def last_records(final: Iterable[RankSnapshot], still: Iterable[RankSnapshot]) -> tuple[RankSnapshot, ...]:
    """Return the snapshots with records, by rank.

    A record from a failure replaces one from before the end.
    """
    snapshots = {snapshot.rank: snapshot for snapshot in still if snapshot.records}
    snapshots.update((snapshot.rank, snapshot) for snapshot in final)
    return tuple(snapshot for _, snapshot in sorted(snapshots.items()))


def _alone(farewells: list[tuple[RankSnapshot, bool, bool]], failed: bool) -> Iterator[str]:
    """Yield a note about ranks that trained without the others, in a run that completed."""
    ranks = tuple(snapshot.rank for snapshot, alone, _ in farewells if alone)
    if ranks and not failed:
        subject = f"{Verdict.ALONE.value}: {ranks_in_words(ranks)}"
        yield f"{subject} never joined the others: each trained a copy of its own"


def _memory(paths: RunPaths) -> Iterator[str]:
    """Yield the lines about full memory that slurmstepd wrote to the output of the batch step."""
    text = end_of(paths.job_output, 8192)[0].decode("utf-8", "replace")
    yield from [line.strip()[:300] for line in text.splitlines() if _MEMORY.search(line)][:2]
