"""The watchdog lines of torch 2.3 to 2.13 show the ranks that did not join a collective, in any world."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterrun.diagnosis.decide import decide_end as explain
from clusterrun.diagnosis.decide import ended_by_timeout
from clusterrun.diagnosis.evidence import Group
from clusterrun.diagnosis.printed_errors import Error, ErrorListener
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.verdict import Diagnosis, Verdict
from clusterrun.model.frozen import replace
from clusterrun.model.record import Failure
from clusterrun.model.states import State
from tests.diagnosis.ranks import bare

FILE = Path(__file__).resolve().parents[1] / "recorded/nccl-watchdog/lines.json"
FORMATS = {name: form for name, form in json.loads(FILE.read_text()).items() if name != "what"}
RELEASES = sorted(FORMATS)
WITH_STATUS = [name for name in RELEASES if "status" in FORMATS[name]]
WITH_SIGNAL = [name for name in RELEASES if "signal" in FORMATS[name]]
FEW = settings(max_examples=25, deadline=None)
GLOO = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] "
    "Timed out waiting 30000ms for recv operation to complete"
)
CLOSED = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"


def heard(rank: int, lines: list[str], at: float = 100.0) -> list[Error]:
    listener = ErrorListener(rank)
    for number, line in enumerate(lines):
        listener.hear(at + number * 1e-3, line)
    return listener.errors


def watchdog(
    release: str, rank: int, number: int = 78, call: str = "ALLREDUCE", size: int = 80, group: int = 0
) -> list[str]:
    """Return the lines of a rank whose collective ``number`` timed out."""
    form = FORMATS[release]
    values = {"rank": rank, "number": number, "call": call, "size": size, "group": group}
    lines = [form["caught"].format(**values)]
    if "status" in form:
        lines.append(form["status"].format(**values, begun=number + 1, done=number - 1))
    return lines


def signal(release: str, rank: int, begun: int) -> list[str]:
    """Return the lines of a rank that began ``begun`` collectives and received another rank's time-out."""
    return [FORMATS[release]["signal"].format(rank=rank, begun=begun, done=begun)]


def explained(size: int, lines: dict[int, list[str]], failed: int = 0) -> Diagnosis:
    """Return the post-mortem of ``size`` ranks, which printed ``lines``."""
    errors = sorted(
        (error for rank, message in lines.items() for error in heard(rank, message, 100.0 + 0.01 * rank)),
        key=lambda entry: (entry.at, entry.rank),
    )
    nodes = tuple(f"n{rank // 8}" for rank in range(size))
    failure = Failure(failed, nodes[failed], -6, 161.0, f"rank {failed} was killed by signal 6")
    return explain(Remains(State.FAILED, "", failure, tuple(errors), nodes))


def named(diagnosis: Diagnosis) -> tuple[Verdict, list[int]]:
    return diagnosis.verdict, [culprit.rank for culprit in diagnosis.culprits]


@pytest.mark.parametrize("release", RELEASES)
@FEW
@given(size=st.integers(2, 64), data=st.data())
def test_the_one_silent_rank_is_named_and_no_victim(release: str, size: int, data: st.DataObject) -> None:
    silent = data.draw(st.integers(0, size - 1))
    failed = data.draw(st.sampled_from([rank for rank in range(size) if rank != silent]))
    lines = {rank: watchdog(release, rank) for rank in range(size) if rank != silent}
    result = explained(size, lines, failed)
    assert named(result) == (Verdict.NEVER_ARRIVED, [silent])
    assert result.culprits[0].node == f"n{silent // 8}"
    assert f"--rank {silent}" in result.remedy


@pytest.mark.parametrize("release", WITH_SIGNAL)
@FEW
@given(size=st.integers(3, 64), data=st.data())
def test_ranks_that_have_begun_fewer_collectives_are_named_however_many(
    release: str, size: int, data: st.DataObject
) -> None:
    behind = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size - 1))
    lines = {
        rank: signal(release, rank, 77) if rank in behind else watchdog(release, rank) for rank in range(size)
    }
    assert named(explained(size, lines)) == (Verdict.NEVER_ARRIVED, sorted(behind))


@pytest.mark.parametrize("release", WITH_STATUS)
@FEW
@given(size=st.integers(3, 64), data=st.data())
def test_the_rank_with_the_lowest_number_is_named(release: str, size: int, data: st.DataObject) -> None:
    low = data.draw(st.integers(0, size - 1))
    lines = {rank: watchdog(release, rank, 70 if rank == low else 78) for rank in range(size)}
    assert named(explained(size, lines)) == (Verdict.NEVER_ARRIVED, [low])


@pytest.mark.parametrize("release", RELEASES)
@FEW
@given(size=st.integers(3, 64), data=st.data())
def test_a_rank_that_called_something_else_is_named(release: str, size: int, data: st.DataObject) -> None:
    odd = data.draw(st.integers(0, size - 1))
    call, numbers = data.draw(st.sampled_from([("BROADCAST", 80), ("ALLREDUCE", 81)]))
    lines = {rank: watchdog(release, rank) for rank in range(size) if rank != odd}
    lines[odd] = watchdog(release, odd, 78, call, numbers)
    assert named(explained(size, lines)) == (Verdict.MISMATCH, [odd])


@pytest.mark.parametrize("release", RELEASES)
def test_nobody_is_named_if_all_began_the_collective(release: str) -> None:
    result = explained(4, {rank: watchdog(release, rank) for rank in range(4)})
    assert named(result) == (Verdict.LINK, [])


@pytest.mark.parametrize("release", WITH_STATUS)
@FEW
@given(size=st.integers(6, 64), data=st.data())
def test_nobody_else_is_named_for_a_group_with_unknown_members(
    release: str, size: int, data: st.DataObject
) -> None:
    """Group 3 is not the group of all ranks. A rank that prints nothing may be no member."""
    printed = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size - 2))
    result = explained(size, {rank: watchdog(release, rank, group=3) for rank in printed}, min(printed))
    assert named(result) == (Verdict.NEVER_ARRIVED, [])


@pytest.mark.parametrize("release", ["2.3", "2.4"])
def test_nobody_is_named_if_several_may_have_ended_before_they_printed(release: str) -> None:
    result = explained(8, {rank: watchdog(release, rank) for rank in range(5)})
    assert named(result) == (Verdict.NEVER_ARRIVED, [])
    assert "does not show which rank did not come" in result.message


def test_a_rank_that_raised_before_the_others_timed_out_is_named() -> None:
    lines = {rank: watchdog("2.5", rank) for rank in (0, 2, 3)}
    lines[1] = [
        "Traceback (most recent call last):",
        '  File "/home/me/t.py", line 3, in f',
        "ValueError: no",
    ]
    result = explained(4, lines)
    assert named(result) == (Verdict.NEVER_ARRIVED, [1])
    assert result.evidence[-1] == "rank 1 has printed: ValueError: no, at t.py:3 (f)"


@pytest.mark.parametrize(
    ("lines", "verdict", "ranks"),
    [
        ({0: [GLOO], 2: [CLOSED], 3: [GLOO]}, Verdict.NEVER_ARRIVED, [1]),
        ({0: [GLOO], 3: [GLOO]}, Verdict.NEVER_ARRIVED, []),
        ({0: [GLOO], 1: [CLOSED], 2: [CLOSED], 3: [GLOO]}, Verdict.NEVER_ARRIVED, []),
        (
            {
                0: ["RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 5000 ms"],
                2: [CLOSED],
            },
            Verdict.NEVER_ARRIVED,
            [1, 3],
        ),
        (
            {
                2: [
                    "[rank2]:[E429 13:55:49.38 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) "
                    "Rank 2] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress"
                ]
            },
            Verdict.NEVER_ARRIVED,
            [2],
        ),
        (
            {
                rank: [
                    "[F ProcessGroupNCCL.cpp:1169] [PG 0 Rank 1] watchdog got stuck for 600seconds without"
                ]
                for rank in (1, 2)
            },
            Verdict.UNDETERMINED,
            [],
        ),
    ],
)
def test_other_timeout_messages_are_recognised(
    lines: dict[int, list[str]], verdict: Verdict, ranks: list[int]
) -> None:
    traced = {rank: ["Traceback (most recent call last):", *message] for rank, message in lines.items()}
    assert named(explained(4, traced if 2 not in lines or len(lines) > 2 else lines)) == (verdict, ranks)


@pytest.mark.parametrize(("odd", "ranks"), [(78, []), (70, [5])])
def test_launchers_per_node_are_never_named_for_their_ranks(odd: int, ranks: list[int]) -> None:
    """Two nodes of four ranks: what is silent cannot be known, what stands lower can."""
    errors = [
        replace(error, rank=rank // 4, inner=rank)
        for rank in range(7)
        for error in heard(rank, watchdog("2.5", rank, odd if rank == 5 else 78))
    ]
    remaining = Remains(State.FAILED, "", None, tuple(errors), ("n0", "n1"), per_node=True)
    assert named(explain(remaining)) == (Verdict.NEVER_ARRIVED, ranks)


def test_a_timeout_differs_from_other_ends() -> None:
    def remains(*lines: str) -> Remains:
        return Remains(State.FAILED, "", None, tuple(heard(0, list(lines))), ("n0", "n1"))

    assert ended_by_timeout(remains(*watchdog("2.5", 0)))
    assert not ended_by_timeout(remains("Traceback (most recent call last):", "ValueError: no"))
    assert not ended_by_timeout(remains())


TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
SLEEPS = ("/home/me/train.py:4 wait_for_license", "/home/me/train.py:9 <module>")
WAITS = (f"{TORCH}:3252 all_reduce", "/home/me/train.py:12 <module>")


CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:5011."


def stopped(
    size: int, spoke: set[int], stuck: set[int], inner: int = 0, mute: tuple[int, ...] = (), line: str = GLOO
) -> Diagnosis:
    """Return the post-mortem of ``size`` ranks. ``spoke`` failed with ``line``; the rest got SIGTERM.

    stuck: ranks outside of collectives
    inner: size of another group
    mute: ranks without a stack
    """
    errors = [
        error for rank in sorted(spoke) for error in heard(rank, ["Traceback (most recent call last):", line])
    ]
    nodes = tuple(f"n{rank // 8}" for rank in range(size))
    groups = (Group("0", size), *((Group("1", inner),) if inner else ()))
    last = tuple(bare(rank, nodes[rank], "", groups=groups) for rank in sorted(spoke))
    stood = tuple(
        bare(rank, nodes[rank], "S", stack=SLEEPS if rank in stuck else WAITS)
        for rank in range(size)
        if rank not in spoke and rank not in mute
    )
    failed = min(spoke)
    why = f"rank {failed} exited with code 1"
    failure = Failure(failed, nodes[failed], 1, 161.0, why, last_lines=(line,))
    return explain(Remains(State.FAILED, "", failure, tuple(errors), nodes, last=last, stood=stood))


@FEW
@given(size=st.integers(3, 64), data=st.data())
def test_the_silent_rank_is_named_with_its_line_at_the_term(size: int, data: st.DataObject) -> None:
    silent = data.draw(st.integers(0, size - 1))
    result = stopped(size, set(range(size)) - {silent}, {silent})
    assert named(result) == (Verdict.NEVER_ARRIVED, [silent])
    where = "when it was asked to end, it was at train.py:4 (wait_for_license)"
    assert result.culprits[0].why.endswith(where)
    assert result.message.endswith(where)
    assert result.remedy.startswith("what does that line wait for")


@FEW
@given(size=st.integers(4, 64), data=st.data())
def test_the_silent_ranks_outside_collectives_are_named(size: int, data: st.DataObject) -> None:
    spoke = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size - 2))
    silent = sorted(set(range(size)) - spoke)
    stuck = data.draw(st.sets(st.sampled_from(silent), min_size=1))
    assert named(stopped(size, spoke, stuck)) == (Verdict.NEVER_ARRIVED, sorted(stuck))


@FEW
@given(size=st.integers(4, 64), data=st.data())
def test_nobody_is_named_if_a_smaller_group_may_have_timed_out_or_a_stack_is_missing(
    size: int, data: st.DataObject
) -> None:
    spoke = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size - 2))
    silent = sorted(set(range(size)) - spoke)
    stuck = data.draw(st.sets(st.sampled_from(silent), min_size=1))
    assert stopped(size, spoke, stuck, inner=2).culprits == ()
    assert stopped(size, spoke, stuck, mute=(silent[0],)).culprits == ()


@FEW
@given(size=st.integers(2, 64), data=st.data())
def test_the_rank_that_left_the_group_is_named_and_not_the_first_that_lost_its_connection(
    size: int, data: st.DataObject
) -> None:
    remaining = data.draw(st.integers(0, size - 1))
    others = set(range(size)) - {remaining}
    result = stopped(size, others, {remaining}, line=CLOSED)
    assert named(result) == (Verdict.CRASHED, [remaining])
    assert "train.py:4 (wait_for_license)" in result.culprits[0].why


@FEW
@given(size=st.integers(3, 64), data=st.data())
def test_a_rank_that_lived_on_is_not_named_where_it_may_have_waited_or_a_network_cut_the_connection(
    size: int, data: st.DataObject
) -> None:
    remaining = data.draw(st.integers(0, size - 1))
    others = set(range(size)) - {remaining}
    reset = CLOSED.replace("closed", "reset")
    assert remaining not in named(stopped(size, others, {remaining}, line=reset))[1]
    assert remaining not in named(stopped(size, others, set(), line=CLOSED))[1]
    assert remaining not in named(stopped(size, others, {remaining}, inner=2, line=CLOSED))[1]
    assert remaining not in named(stopped(size, others, {remaining}, mute=(remaining,), line=CLOSED))[1]
