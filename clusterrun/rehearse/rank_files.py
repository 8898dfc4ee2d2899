"""Find ranks that write one file together, and ranks that read a file of another rank; pure."""

from __future__ import annotations

import os

from clusterrun.rehearse.discoveries import Cause, Discovery, FaultRun
from clusterrun.rehearse.rank_trace import SavedFile, Start

ONE_WRITER = "let rank 0 alone write (if rank == 0: torch.save(…); barrier), or give each rank a file"
OWN_FILE = (
    "name the file by the same number when writing and when reading: RANK, which no other rank has."
    " LOCAL_RANK is the same on every node"
)


def two_writers(life: Start) -> Discovery | None:
    """Report the first file that several ranks wrote after the same step, by its final or temporary name."""
    lost = [file for trace in life.ranks.values() for file in trace.lost if file.step > 0]
    # A file that another rank has just opened again is empty when it gets its name.
    files = sorted([*life.saves, *lost], key=lambda file: file.step)
    ranks_by_file: dict[tuple[str, int], set[int]] = {}
    for file in files:
        ranks_by_file.setdefault(_written_as(file), set()).add(file.rank)
    for file in files:
        ranks = ranks_by_file[_written_as(file)]
        if len(ranks) < 2:
            continue
        name = os.path.basename(file.path)
        under = f" as {os.path.basename(file.temp)}" if file.temp else ""
        writers = " and ".join(map(str, sorted(ranks)))
        message = f"ranks {writers} write the same file {name}{under} at step {file.step}"
        message += ": what is in it is a matter of luck"
        losers = sorted({other.rank for other in lost if _written_as(other) == _written_as(file)})
        if losers:
            message += f", and rank {losers[0]} found it moved by the other"
        return Discovery(Cause.TWO_WRITERS, message, ONE_WRITER, (file.line,) if file.line else (), file.step)
    return None


def _written_as(file: SavedFile) -> tuple[str, int]:
    return (file.temp or file.path, file.step)


def file_of_another_rank(fault_run: FaultRun, head: str) -> Discovery | None:
    """Report ranks that read a file of another rank, and no file that they wrote themselves.

    ``head`` says what differs after that. A file of a kind that only one rank writes is for all ranks.
    """
    saves = fault_run.lives[0].saves
    writers: dict[str, set[int]] = {}
    for save in saves:
        writers.setdefault(save.path, set()).add(save.rank)
    facts, lines = [], []
    for rank, trace in sorted(fault_run.restarted.ranks.items()):
        own_by_kind = {fault_run.kind(save.path): save.path for save in saves if save.rank == rank}
        reads = [
            read for read in trace.loads if read[0] in writers and fault_run.kind(read[0]) in own_by_kind
        ]
        if not reads or any(rank in writers[path] for path, _ in reads):
            continue
        path, line = reads[-1]
        own_name = os.path.basename(own_by_kind[fault_run.kind(path)])
        writer = min(writers[path])
        facts.append(
            f"rank {rank} read {os.path.basename(path)}, which rank {writer} wrote, not its own {own_name}"
        )
        lines.append(f"{line} reads it")
    if not facts:
        return None
    places = tuple(dict.fromkeys((*lines, *fault_run.writes())))
    return Discovery(Cause.OTHER_RANK, f"{head}; {'; '.join(facts)}", OWN_FILE, places)
