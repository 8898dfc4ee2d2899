"""Say in words what several explanations share: calls, places, reasons; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from clusterrun.diagnosis.calls import HALF, KEY, LOCK, Call, CallTable, with_tag
from clusterrun.diagnosis.evidence import MainCall, PostedOp
from clusterrun.diagnosis.explain_rank import reason
from clusterrun.diagnosis.first_error import failure_of
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words
from clusterrun.model.hostlist import fold

# Ranks with a line of their own.
MOST_LINES = 4
# Characters of a message of a rank.
MOST_CHARACTERS = 180
MOST_CULPRITS = 16
MORE_IS_SEEN = "clusterrun submit starts it so that flight records show each rank's calls"
MEMORY_REMEDY = "ask for more with --mem, use fewer data-loader workers, or a smaller batch"


def verb_s(ranks: Collection[object]) -> str:
    """Return the ending of a verb: ``rank 1 waits``, ``ranks 1-2 wait``."""
    return "s" if len(ranks) == 1 else ""


def more_is_seen(table: CallTable) -> str:
    """Return how to see more than stacks; '' for calls of MPI, which torch does not record."""
    is_mpi = any(rank.location.operation.startswith("MPI_") for rank in table.ranks)
    return MORE_IS_SEEN if table.by_stacks and not is_mpi else ""


def at_place(table: CallTable, *ranks: int) -> str:
    """Return `` at train.py:33 (step)`` if all ``ranks`` are in one line."""
    line = table.line(*ranks)
    return f" at {line}" if line else ""


def blame(
    table: CallTable,
    verdict: Verdict,
    sentence: str,
    whys: Mapping[int, str],
    remedy: str,
    evidence: Sequence[str] | None = None,
) -> Diagnosis:
    """Return a diagnosis that blames the ranks of ``whys``.

    The default evidence is which ranks wait for which.
    """
    lines = waited(table, with_nodes=not whys) if evidence is None else tuple(evidence)
    culprits = tuple(Culprit(rank, table.of(rank).node, why) for rank, why in whys.items())
    return Diagnosis(verdict, sentence, culprits, (), lines, remedy)


def first_culprit(table: CallTable, whys: Mapping[int, str]) -> tuple[str, str]:
    """Return ``rank 3 on n1`` and the reason of the first culprit."""
    rank = next(iter(whys))
    return f"rank {rank} on {table.of(rank).node}", whys[rank]


def waited(table: CallTable, with_nodes: bool = False) -> tuple[str, ...]:
    """Return a line per call: which ranks wait in it, how long, and for which ranks. () for an ended run.

    ``with_nodes``: no culprit shows on which nodes they are.
    """
    if table.end:
        return ()
    calls: dict[tuple[str, int, str], list[Call]] = {}
    for wait in table.waits:
        calls.setdefault(wait.key, []).append(wait)
    lines = []
    for _, together in sorted(calls.items()):
        members = [wait.rank for wait in together]
        doing = f"wait{verb_s(members)}"
        seconds = [max(0.0, table.of(wait.rank).clock - wait.at) for wait in together if wait.at]
        if seconds:
            has = "has" if len(members) == 1 else "have"
            # A look wakes a thread, and the time since it last ran begins anew.
            least = "at least " if table.by_stacks else ""
            doing = f"{has} waited {least}{max(seconds):.0f} s"
        places = {wait.line for wait in together} - {""}
        at = f" at {places.pop()}" if len(places) == 1 else ""
        subject = ranks_in_words(members)
        nodes = dict.fromkeys(table.of(rank).node for rank in members) if with_nodes else {}
        if any(nodes):
            subject += f" on {fold(list(nodes))}"
        line = f"{subject} {doing} in {together[0].title}{at}"
        missing = {rank for wait in together for rank in wait.missing}
        lines.append(line + (f", for {ranks_in_words(missing)}" if missing else ""))
    return tuple(lines)


def reasons(table: CallTable, ranks: Iterable[int], most: int = MOST_LINES) -> list[str]:
    """Return a line per rank: why it does not join the others."""
    snapshots = [table.of(rank) for rank in ranks][:most]
    return [f"rank {rank.rank} on {rank.node}: {reason(rank).why}" for rank in snapshots]


def to_peer(post: PostedOp | MainCall, call: str) -> str:
    direction = "to" if call == "send" else "from"
    return f"{direction} rank {post.peer}"


def other_half(wait: Call) -> str:
    """Return the call that the missing rank should have made."""
    halves = {
        HALF: f"the other half of {HALF}",
        KEY: "set for a key of the store",
        LOCK: "the release of that lock",
        "send": f"recv from rank {wait.rank}{with_tag(wait.tag)}",
        "recv": f"send to rank {wait.rank}{with_tag(wait.tag)}",
    }
    verb = wait.operation.partition(" ")[0]
    return halves.get(wait.operation) or halves.get(verb) or wait.named


def cut(text: str) -> str:
    """Return ``text`` with at most ``MOST_CHARACTERS`` characters."""
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS].rpartition(' ')[0]} …"


def mismatch(
    table: CallTable,
    sentence: str,
    whys: Mapping[int, str] | None = None,
    remedy: str = "",
    evidence: Sequence[str] = (),
) -> Diagnosis:
    """Return a diagnosis of calls that do not fit.

    The default evidence and remedy are those of the first error.
    """
    run, root = failure_of(table)
    lines = tuple(evidence) or (run.quoted(root),)
    remedy = remedy or (root.row.remedy if root.row else "")
    return Diagnosis(Verdict.MISMATCH, sentence, run.culprits(whys or {}), (), lines, remedy)
