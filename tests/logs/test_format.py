"""Rank output as text: every line headed, foreign bytes harmless, equal lines folded."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from clusterrun.logs.attempt_logs import numbers
from clusterrun.logs.dedupe import folding
from clusterrun.logs.format import Headings, headed, lines, raw
from clusterrun.logs.merge import Piece

HEADINGS = Headings(lambda: ("n1", "node2"), 2, 12)


def test_every_line_is_headed_by_node_rank_and_stream() -> None:
    output = headed([Piece(1.0, 0, "out", b"a\nb\n"), Piece(2.0, 3, "err", b"\xffc\n")], HEADINGS)
    assert b"".join(output).decode().splitlines() == ["n1    r0  | a", "n1    r0  | b", "node2 r3  ! \\xffc"]


def test_a_node_without_a_name_is_shown_by_its_number() -> None:
    node_names: list[str] = []
    headings = Headings(lambda: tuple(node_names), 1, 2)
    before = headings.of(1, "out")
    node_names += ["a", "b"]
    until = time.monotonic() + 40  # it asks again, but not for every line
    while (after := headings.of(1, "out")) == before and time.monotonic() < until:
        time.sleep(0.005)
    assert [before, after] == [b"node1 r1 | ", b"b r1 | "]


def test_a_rank_keeps_one_colour_on_a_terminal() -> None:
    headings = Headings(lambda: ("n",), 1, 1, colours=True)
    assert headings.of(0, "out") == b"\x1b[36mn r0\x1b[0m | "


def test_the_last_state_of_a_progress_bar_is_shown() -> None:
    assert lines(b" 10%|#   \r 50%|##  \r100%|####\r\nnext\r\n") == ["100%|####", "next"]


@given(st.binary(max_size=200))
def test_no_output_can_forge_a_line_or_drive_the_terminal(data: bytes) -> None:
    text = b"".join(headed([Piece(0.0, 1, "out", data + b"\n")], HEADINGS)).decode()
    assert text.endswith("\n") and all(line.startswith("n1    r1  | ") for line in text[:-1].split("\n"))
    assert [
        c for c in text.replace("\n", "") if not c.isprintable() and c in "\x00\x1b\r\x0b\x0c\x85\u2028\u202e"
    ] == []


@given(st.lists(st.binary(max_size=20)))
def test_raw_is_the_very_bytes(parts: list[bytes]) -> None:
    assert b"".join(raw(Piece(0.0, 0, "out", part) for part in parts)) == b"".join(parts)


def test_equal_lines_of_many_ranks_are_shown_once_with_the_ranks() -> None:
    given_ = [
        Piece(1.0, 0, "out", b"start\nstep 1\n"),
        Piece(1.1, 1, "out", b"start\n"),
        Piece(1.2, 3, "out", b"start\nstep 1\nstep 1\n"),
        Piece(1.3, 0, "err", b"start\n"),
        Piece(5.0, 1, "out", b"step 1\n"),
    ]
    assert b"".join(folding(given_, HEADINGS)).decode().splitlines() == [
        "[0-1,3] | start",
        "[0,3] | step 1",
        "node2 r3  | step 1",
        "n1    r0  ! start",
        "n1    r1  | step 1",
    ]


def test_folded_lines_are_printed_after_a_pause() -> None:
    output = folding([Piece(1.0, 0, "out", b"a\n"), Piece(9.0, 0, "out", b"")], HEADINGS)
    assert next(output) == b"n1    r0  | a\n"


def test_a_piece_without_data_shows_nothing() -> None:
    empty = [Piece(1.0, 0, "out", b"")]
    assert [list(headed(empty, HEADINGS)), list(folding(empty, HEADINGS))] == [[], []]


def test_a_line_waits_for_other_ranks_after_any_other_line() -> None:
    given_ = [
        Piece(1.0, 0, "out", b"step 1\n"),
        Piece(1.9, 0, "out", b"step 2\n"),
        Piece(2.1, 0, "out", b""),
        Piece(2.5, 1, "out", b"step 2\nstep 1\n"),
        Piece(2.6, 0, "out", b"step 1\n"),
    ]
    assert b"".join(folding(given_, HEADINGS)).decode().splitlines() == [
        "n1    r0  | step 1",
        "[0-1] | step 2",
        "[0-1] | step 1",
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([b"a\n", b"b\n"])), max_size=30))
def test_folding_loses_no_line_of_any_rank(written: list[tuple[int, bytes]]) -> None:
    given_ = [Piece(0.3 * number, rank, "out", line) for number, (rank, line) in enumerate(written)]
    result: list[tuple[int, bytes]] = []
    for line in b"".join(folding(given_, HEADINGS)).decode().splitlines():
        head, _, text = line.partition(" | ")
        ranks = numbers(head[1:-1], 12, "rank") if head.startswith("[") else {int(head.split("r")[-1])}
        result += [(rank, text.encode() + b"\n") for rank in ranks]
    assert sorted(result) == sorted(written)
