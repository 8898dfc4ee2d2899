"""Lines that match, lines since a moment, and of a bar below another one the last state."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.logs.attempt_logs import LogSelection, log_files
from clusterrun.logs.filters import SHOW_EVERY, Grep, LineFilter, moving
from clusterrun.logs.format import headed, lines, plain
from clusterrun.logs.log_reader import FEW, LONGEST_WAIT, Follower, spans
from clusterrun.logs.merge import Piece
from clusterrun.model.errors import BadInput
from tests.logs.test_follow import HandClock, append, told
from tests.logs.test_format import HEADINGS


def text(pieces: list[Piece]) -> list[str]:
    return b"".join(headed(pieces, HEADINGS)).decode().splitlines()


def grep(pattern: str, *data: bytes) -> list[bytes]:
    result = Grep(pattern, plain)(Piece(1.0, 0, "out", entry) for entry in data)
    return [piece.data for piece in result]


@pytest.mark.parametrize(
    "pattern, retained",
    [
        ("loss", [b"loss 1\n", b"loss 2"]),
        ("^loss [2-9]$", [b"loss 2"]),
        ("(?i)NAN", [b"nan\xff\n"]),
        ("é$", [b"caf\xc3\xa9\n"]),
        ("nothing", []),
    ],
)
def test_only_lines_that_match_the_pattern_are_shown(pattern: str, retained: list[bytes]) -> None:
    given_ = [b"loss 1\nnan\xff\n", b"other\n", b"caf\xc3\xa9\nloss 2"]
    assert b"".join(grep(pattern, *given_)) == b"".join(retained)


def test_a_pattern_ignores_colours_and_overwritten_states() -> None:
    data = b"\r10% \r90% done\n\x1b[31mred alert\x1b[0m\n"
    assert grep("10%", data) == grep(r"\[31m", data) == []
    assert grep("^red alert$", data) == [b"\x1b[31mred alert\x1b[0m\n"]


def test_lines_without_a_match_are_counted() -> None:
    line_filter = LineFilter(grep=Grep("nothing", plain))
    assert list(line_filter([Piece(1.0, 0, "out", b"x\n" * 1234)])) == []
    assert line_filter.in_vain == "the pattern was not found in any of 1,234 lines"
    assert LineFilter(grep=Grep("nothing", plain)).in_vain == LineFilter().in_vain == ""


def test_a_wrong_pattern_is_refused_with_its_mistake() -> None:
    with pytest.raises(BadInput, match="unterminated"):
        Grep("(", plain)


def test_since_drops_earlier_output_and_keeps_undated_output() -> None:
    given_ = [Piece(at, 0, "out", b"%d\n" % at) for at in (5.0, 9.9, 10.0, 0.0)]
    assert [piece.at for piece in LineFilter(begin=10.0)(given_)] == [10.0, 0.0]


def test_a_file_that_has_not_grown_since_the_time_is_not_read(tmp_path: Path) -> None:
    for number, at in enumerate((100, 200)):
        path = tmp_path / f"0000{number}.out"
        path.write_bytes(b"a\nb\n")
        os.utime(path, (at, at))
    files = log_files(str(tmp_path), LogSelection())
    whole, last = LogSelection(begin=150.0), LogSelection(tail=1, begin=150.0)
    assert spans(files, [4, 4], whole) == [(4, 4), (0, 4)]
    assert spans(files, [4, 4], last) == [(4, 4), (2, 4)]


def bars(epochs: int, batches: int) -> bytes:
    """Return the bytes that two bars of tqdm write, one below the other."""
    parts = []
    for epoch in range(epochs):
        parts.append(b"\router %d" % epoch)
        parts += [b"\n\rinner %d\x1b[K\x1b[A" % batch for batch in range(batches)]
    return b"".join(parts) + b"\router done\n\nlast words\n"


def test_overwritten_states_of_nested_progress_bars_are_not_shown() -> None:
    data = bars(3, 1000)
    cut = [data[start : start + 700] for start in range(0, len(data), 700)]
    pieces, rest = [], b""
    for number, part in enumerate(cut):
        *whole, rest = (rest + part).split(b"\n")
        pieces.append(Piece(float(number), 0, "err", b"".join(line + b"\n" for line in whole)))
    assert text(list(moving(pieces))) == [
        f"n1    r0  ! {line}" for line in ("outer 0", "outer 1", "outer 2", "outer done", "", "last words")
    ]


def test_a_moving_progress_bar_is_shown_at_intervals() -> None:
    frame = b"\rinner %d\x1b[A\n"
    given_: list[Piece] = []
    for second in range(10):
        given_ += [Piece(second, 0, "err", frame % second), Piece(second, 0, "out", b"")]
    output = text(list(moving(given_)))
    assert 1 < len(output) <= 10 / SHOW_EVERY + 1 and output[-1].endswith("inner 9")


def test_a_progress_bar_of_a_rank_hides_no_line_of_another_rank() -> None:
    given_ = [
        Piece(1.0, 0, "err", b"\rbar\x1b[A\n"),
        Piece(1.0, 1, "err", b"mine\n"),
        Piece(1.0, 0, "out", b"o\n"),
    ]
    assert sorted(text(list(moving(given_)))) == ["n1    r0  ! bar", "n1    r0  | o", "n1    r1  ! mine"]


@given(st.lists(st.sampled_from([b"a\n", b"\n", b"\rbar\n", b"b"]), max_size=8), st.integers(0, 1))
def test_text_without_cursor_movement_passes_unchanged(parts: list[bytes], rank: int) -> None:
    given_ = [Piece(float(n), rank, "out", part) for n, part in enumerate(parts)]
    assert list(moving(given_)) == given_


def test_cursor_movements_of_progress_bars_are_not_shown() -> None:
    assert lines(b"\x1b[?25l\x1b[2K\r50%\x1b[1A\x1b[0K\n\x1b[2J kept\n") == ["50%", "\\x1b[2J kept"]


def test_silent_files_among_thousands_are_polled_less_and_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, busy = HandClock(), tmp_path / "00000.out"
    for rank in range(FEW + 10):
        append(tmp_path / f"{rank:05d}.out", b"first\n")()
    follower = Follower(str(tmp_path), LogSelection(), clock)
    assert len(list(follower.so_far())) == FEW + 10
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda path, *more, **named: opened.append(path) or real(path, *more, **named)
    )
    for _ in range(100):
        clock.time += 0.2
        append(busy, b"more\n")()
        assert told(follower.new()) == [(0, b"more\n")]
    assert opened.count(str(busy)) == 100
    silent = [path for path in opened if path != str(busy)]
    assert len(silent) < 20 * (FEW + 10)
    late = tmp_path / "00007.out"
    append(late, b"late\n")()
    clock.time += LONGEST_WAIT + 0.1
    assert told(follower.new()) == [(7, b"late\n")]
    append(late, b"last\n")()
    assert told(follower.last()) == [(7, b"last\n")]
