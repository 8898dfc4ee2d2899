"""Many ranks' lines become one stream in time order, whatever they write."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.logs import files
from clusterrun.logs.files import end_of_lines, in_order, log_files, tail_start
from clusterrun.logs.merge import LINE_LIMIT, Piece, merged, pieces
from clusterrun.logs.selection import Selection, folded, numbers
from clusterrun.logs.timeline import Timeline, read_index
from clusterrun.model.errors import BadInput


def chunks(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def test_the_lines_of_two_ranks_interleave_by_the_times_of_their_index() -> None:
    one = pieces([b"a1\na2\n"], Timeline([(10.0, 3), (12.0, 6)]), 0, "out")
    two = pieces([b"b1\nb2\n"], Timeline([(11.0, 3), (13.0, 6)]), 1, "out")
    assert [piece.data for piece in merged([one, two])] == [b"a1\n", b"b1\n", b"a2\n", b"b2\n"]


def test_lines_between_two_knots_are_spread_evenly() -> None:
    found = list(pieces([b"1234\n" * 10], Timeline([(10.0, 0), (11.0, 50)]), 0, "out"))
    assert [(round(piece.at, 3), piece.data) for piece in found] == [
        (round(10.1 + n / 10, 3), b"1234\n") for n in range(10)
    ]


def test_what_comes_after_a_silence_came_within_the_last_second() -> None:
    found = list(pieces([b"x\n"], Timeline([(100.0, 0), (200.0, 2)]), 0, "out"))
    assert 199.0 < found[0].at <= 200.0


def test_what_no_index_covers_comes_last_and_in_the_order_of_ranks() -> None:
    covered = pieces([b"early\n"], Timeline([(5.0, 6)]), 1, "out")
    fresh = [pieces([b"late\n"], Timeline((), after=9.0), rank, "out") for rank in (2, 0)]
    assert [(p.rank, p.data) for p in merged([covered, *fresh])] == [
        (1, b"early\n"),
        (0, b"late\n"),
        (2, b"late\n"),
    ]


@given(
    st.lists(
        st.sampled_from([b"a\n", b"bb\n", b"\n", b"c" * 40 + b"\n", b"bar\r", b"\xff\n"]), max_size=40
    ).map(b"".join),
    st.integers(1, 50),
    st.lists(st.tuples(st.floats(0, 50), st.integers(0, 200)), max_size=8),
)
def test_no_byte_is_lost_or_moved(data: bytes, size: int, knots: list[tuple[float, int]]) -> None:
    found = list(pieces(chunks(data, size), Timeline(knots), 0, "out"))
    times = [piece.at for piece in found]
    assert b"".join(piece.data for piece in found) == data
    assert all(piece.data.endswith(b"\n") for piece in found[:-1])
    assert times == sorted(times)


@pytest.mark.parametrize("part", [b"x" * 8192, b"\r50% of a bar" * 600])
def test_a_line_without_end_is_shown_in_parts_of_bounded_size(part: bytes) -> None:
    sizes = [len(piece.data) for piece in pieces((part for _ in range(100)), Timeline(), 0, "out")]
    assert sum(sizes) == 100 * len(part) and max(sizes) <= LINE_LIMIT + len(part)


def test_an_index_is_read_and_its_damaged_lines_are_passed_over() -> None:
    lines = [
        "10.000 0 o 3\n",
        "11.5 0 e 9\n",
        "nonsense\n",
        "12 0 o\n",
        "12.0 0 o x\n",
        "12.0 0 z 1\n",
        "12.0 0 o 6\n",
        "13.0 0",
    ]
    assert read_index(lines) == {(0, "out"): [(10.0, 3), (12.0, 6)], (0, "err"): [(11.5, 9)]}


def test_an_index_that_goes_backwards_in_time_or_size_does_no_harm() -> None:
    timeline = Timeline([(10.0, 5), (9.0, 8), (11.0, 2)])
    assert [timeline.tick(6)[0], timeline.tick(99)] == [10.0, (10.0, None)]


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    (tmp_path / "00000.out").write_bytes(b"".join(b"zero %d\n" % n for n in range(100)))
    (tmp_path / "00001.err").write_bytes(b"one\nhalf")
    (tmp_path / "coordinator.log").write_bytes(b"not of a rank\n")
    (tmp_path / "node-0000.index").write_text("5.0 0 o 700\n4.0 1 e 4\n")
    return tmp_path


@pytest.mark.parametrize(
    "wanted, names",
    [
        (Selection(), ["00000.out", "00001.err"]),
        (Selection(frozenset([1])), ["00001.err"]),
        (Selection(streams=("out",)), ["00000.out"]),
        (Selection(frozenset([7])), []),
    ],
)
def test_only_the_wanted_files_are_read(attempt: Path, wanted: Selection, names: list[str]) -> None:
    assert [Path(file.path).name for file in log_files(str(attempt), wanted)] == names


def test_an_attempt_is_read_in_order_of_time_and_a_half_line_is_shown(attempt: Path) -> None:
    found = log_files(str(attempt), Selection())
    whole = list(in_order(str(attempt), found, [(0, 9999), (0, 9999)]))
    assert [whole[0], b"".join(p.data for p in whole if p.rank == 1)] == [
        Piece(4.0, 1, "err", b"one\n"),
        b"one\nhalf",
    ]


def test_ten_thousand_ranks_need_neither_many_open_files_nor_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(300):
        (tmp_path / f"{rank:05d}.out").write_bytes(b"line\n" * 2000)
    asked: list[int] = []
    real = files.read_at
    monkeypatch.setattr(files, "MEMORY", 300 * 4096)
    monkeypatch.setattr(files, "read_at", lambda path, at, size: asked.append(size) or real(path, at, size))
    found = log_files(str(tmp_path), Selection())
    assert sum(p.data.count(b"\n") for p in in_order(str(tmp_path), found, [(0, 10_000)] * 300)) == 600_000
    assert max(asked) == 4096


@given(st.binary(max_size=400).map(lambda d: d.replace(b"a", b"\n")), st.integers(0, 12))
def test_a_tail_is_the_last_lines(data: bytes, count: int) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        start = tail_start(file.name, len(data), count)
    lines = data.split(b"\n")[:-1] if data.endswith(b"\n") else data.split(b"\n")
    expected = (
        b"\n".join(lines[len(lines) - count :] if count < len(lines) else lines) if count and data else b""
    )
    assert data[start:].removesuffix(b"\n") == expected


def test_a_long_tail_is_found_across_portions(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"".join(b"line %06d\n" % n for n in range(60_000)))
    start = tail_start(str(path), path.stat().st_size, 45_000)
    assert path.read_bytes()[start : start + 12] == b"line 015000\n"


@pytest.mark.parametrize(
    "data, end", [(b"", 0), (b"half", 0), (b"a\nhalf", 2), (b"a\n", 2), (b"x" * 70_000, 70_000)]
)
def test_following_goes_on_at_the_last_unfinished_line(tmp_path: Path, data: bytes, end: int) -> None:
    (tmp_path / "x").write_bytes(data)
    assert end_of_lines(str(tmp_path / "x"), len(data)) == end


@given(st.sets(st.integers(0, 300)))
def test_numbers_fold_and_unfold(found: set[int]) -> None:
    assert not found or numbers(folded(found), 301, "rank") == frozenset(found)


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "3-1", "8", "0-8", "1,,2", "١"])
def test_a_list_of_ranks_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        numbers(text, 8, "rank")
