"""Many ranks' lines become one stream in time order, whatever they write."""

from __future__ import annotations

import heapq
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.diagnosis.verdict import folded
from clusterrun.logs import attempt_logs
from clusterrun.logs.attempt_logs import (
    LogReading,
    LogSelection,
    end_of_lines,
    in_order,
    log_files,
    numbers,
    tail_start,
)
from clusterrun.logs.merge import LINE_LIMIT, Piece, began, looks, order, spread
from clusterrun.model.errors import BadInput


def test_a_read_has_all_growth_that_an_agent_saw_at_one_time() -> None:
    lines = ["10.000 0 o 3\n", "10.000 1 e 9\n", "11.5 0 o 6\n", "11.5 0 o 8\n"]
    assert list(looks(lines)) == [(10.0, {(0, "out"): 3, (1, "err"): 9}), (11.5, {(0, "out"): 8})]


def test_damaged_index_lines_are_skipped_and_time_never_decreases() -> None:
    lines = ["10 0 o 3", "nonsense", "12 0 o", "12 0 o x", "12 0 z 1", "9 0 o 4", "12 1 o 6", "13.0 0"]
    assert list(looks(lines)) == [(10.0, {(0, "out"): 4}), (12.0, {(1, "out"): 6})]


def test_lines_between_two_looks_are_spread_evenly() -> None:
    result, rest = spread(b"1234\n" * 10 + b"half", 4, 10.0, 11.0)
    assert [(round(at, 3), len(data)) for at, data in result] == [
        (round(10 + n / 10, 1), 5) for n in range(1, 11)
    ]
    assert rest == b"half"


def test_a_line_has_the_time_of_its_end() -> None:
    assert spread(b"begun" + b" here\n", 5, 10.0, 10.1) == ([(10.1, b"begun here\n")], b"")


@pytest.mark.parametrize("before, since", [(None, 199.0), (100.0, 199.0), (199.2, 199.2), (199.8, 199.8)])
def test_output_after_a_silence_was_written_within_the_last_second(
    before: float | None, since: float
) -> None:
    assert began(200.0, before) == since


def test_pieces_merge_by_time_and_then_by_rank_and_with_errors_behind_output() -> None:
    entry = [Piece(1.0, 1, "out", b"b"), Piece(2.0, 0, "err", b"d")]
    two = [Piece(1.0, 0, "out", b"a"), Piece(2.0, 0, "out", b"c")]
    assert b"".join(piece.data for piece in heapq.merge(entry, two, key=order)) == b"abcd"


LINES = st.lists(
    st.sampled_from([b"a\n", b"bb\n", b"\n", b"c" * 40 + b"\n", b"bar\r", b"\xff\n"]), max_size=40
).map(b"".join)
KNOTS = st.lists(st.tuples(st.floats(0, 50), st.integers(0, 250)), max_size=8).map(sorted)


@given(LINES, LINES, KNOTS, KNOTS, st.integers(1, 300))
def test_no_byte_is_lost_or_moved_for_any_index(
    output: bytes, errors: bytes, first: list[tuple[float, int]], second: list[tuple[float, int]], share: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "00000.out").write_bytes(output)
        Path(folder, "00001.err").write_bytes(errors)
        Path(folder, "node-0000.index").write_text("".join(f"{wall} 0 o {size}\n" for wall, size in first))
        Path(folder, "node-0001.index").write_text("".join(f"{wall} 1 e {size}\n" for wall, size in second))
        logs = log_files(folder, LogSelection())
        result = list(in_order(folder, logs, [(0, len(output)), (0, len(errors))]))
    assert [b"".join(p.data for p in result if p.rank == rank) for rank in (0, 1)] == [output, errors]
    covered = [piece.at for piece in result if piece.at]
    assert covered == sorted(covered)
    assert all(p.data.endswith(b"\n") or not p.at for p in result)


@pytest.mark.parametrize("part", [b"x" * 8192, b"\r50% of a bar" * 600])
def test_a_line_without_end_is_shown_in_parts_of_bounded_size(tmp_path: Path, part: bytes) -> None:
    (tmp_path / "00000.out").write_bytes(part * 100)
    result = in_order(str(tmp_path), log_files(str(tmp_path), LogSelection()), [(0, len(part) * 100)])
    sizes = [len(piece.data) for piece in result]
    assert max(sizes) <= LINE_LIMIT + attempt_logs.CHUNK_BYTES
    assert (sum(sizes) == 100 * len(part)) is (b"\r" not in part)
    exact = in_order(
        str(tmp_path), log_files(str(tmp_path), LogSelection()), [(0, len(part) * 100)], exact=True
    )
    assert sum(len(piece.data) for piece in exact) == 100 * len(part)


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    (tmp_path / "00000.out").write_bytes(b"".join(b"zero %d\n" % n for n in range(100)))
    (tmp_path / "00001.err").write_bytes(b"one\nhalf")
    (tmp_path / "coordinator.log").write_bytes(b"not of a rank\n")
    (tmp_path / "node-0000.index").write_text("4.0 1 e 4\n5.0 0 o 700\n")
    return tmp_path


@pytest.mark.parametrize(
    "expected, names",
    [
        (LogSelection(), ["00000.out", "00001.err"]),
        (LogSelection(frozenset([1])), ["00001.err"]),
        (LogSelection(stream="out"), ["00000.out"]),
        (LogSelection(frozenset([7])), []),
    ],
)
def test_only_the_requested_files_are_read(attempt: Path, expected: LogSelection, names: list[str]) -> None:
    assert [Path(file.path).name for file in log_files(str(attempt), expected)] == names


def test_an_attempt_is_read_in_order_of_time_and_a_half_line_is_shown(attempt: Path) -> None:
    result = list(in_order(str(attempt), log_files(str(attempt), LogSelection()), [(0, 9999), (0, 9999)]))
    assert result[0] == Piece(4.0, 1, "err", b"one\n")
    assert b"".join(piece.data for piece in result if piece.rank == 1) == b"one\nhalf"


def test_a_flood_is_read_in_parts_that_fit_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(4):
        (tmp_path / f"{rank:05d}.out").write_bytes(b"line\n" * 200_000)
    (tmp_path / "node-0000.index").write_text("".join(f"5.0 {rank} o 1000000\n" for rank in range(4)))
    requested: list[int] = []
    real = LogReading.take
    monkeypatch.setattr(attempt_logs, "MEMORY", 1 << 16)
    monkeypatch.setattr(
        LogReading, "take", lambda self, until: requested.append(until - self.position) or real(self, until)
    )
    result = in_order(str(tmp_path), log_files(str(tmp_path), LogSelection()), [(0, 1_000_000)] * 4)
    order = [(piece.at, piece.rank) for piece in result]
    assert max(requested[:-8]) <= 1 << 15
    assert order == sorted(order) and len({rank for _, rank in order[:8]}) == 4


@given(st.binary(max_size=400).map(lambda d: d.replace(b"a", b"\n")), st.integers(0, 12))
def test_a_tail_is_the_last_lines(data: bytes, count: int) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        start = tail_start(file.name, len(data), count)
    lines = data.split(b"\n")[:-1] if data.endswith(b"\n") else data.split(b"\n")
    expected = (
        b"\n".join(lines[len(lines) - count :] if count < len(lines) else lines) if count and data else b""
    )
    assert data[start:].removesuffix(b"\n") == expected


def test_a_long_tail_is_read_across_chunks(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"".join(b"line %06d\n" % n for n in range(60_000)))
    start = tail_start(str(path), path.stat().st_size, 45_000)
    assert path.read_bytes()[start : start + 12] == b"line 015000\n"


@pytest.mark.parametrize(
    "data, end", [(b"", 0), (b"half", 0), (b"a\nhalf", 2), (b"a\n", 2), (b"x" * 70_000, 70_000)]
)
def test_following_continues_at_the_last_unfinished_line(tmp_path: Path, data: bytes, end: int) -> None:
    (tmp_path / "x").write_bytes(data)
    assert end_of_lines(str(tmp_path / "x"), len(data)) == end


@given(st.sets(st.integers(0, 300)))
def test_numbers_fold_and_unfold(found: set[int]) -> None:
    assert not found or numbers(folded(tuple(found)), 301, "rank") == frozenset(found)


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "3-1", "8", "0-8", "1,,2", "١"])
def test_a_list_of_ranks_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        numbers(text, 8, "rank")
