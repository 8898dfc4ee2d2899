"""Growing files are followed over restarts, truncation and half lines, to the end of the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clusterrun.logs.attempt_logs import LogSelection
from clusterrun.logs.log_reader import PARTIAL_SECONDS, Follower, following
from clusterrun.logs.merge import Piece
from clusterrun.model.paths import RunPaths


class HandClock:
    """A clock that only ``sleep`` moves. Each sleep runs the next of ``acts``."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        self.time = 1000.0
        self.acts = list(acts)

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        if self.acts:
            self.acts.pop(0)()


def append(path: Path, data: bytes) -> Callable[[], object]:
    def act() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)

    return act


def told(pieces: list[Piece]) -> list[tuple[int, bytes]]:
    return [(piece.rank, piece.data) for piece in pieces if piece.data]


def follow(
    tmp_path: Path, clock: HandClock, tail: int | None = None
) -> tuple[list[tuple[int, bytes]], list[int]]:
    attempts: list[int] = []
    selection = LogSelection(tail=tail)
    result = following(RunPaths(str(tmp_path)), selection, lambda: not clock.acts, clock, attempts.append)
    return told(list(result)), attempts


def test_existing_lines_are_shown_before_new_lines(tmp_path: Path) -> None:
    out = tmp_path / "attempts/000/00000.out"
    append(out, b"one\ntwo\nhal")()
    clock = HandClock(
        append(out, b"f\nthree\n"), append(out.with_name("00001.out"), b"new rank\n"), lambda: None
    )
    assert follow(tmp_path, clock) == ([(0, b"one\ntwo\n"), (0, b"half\nthree\n"), (1, b"new rank\n")], [0])


def test_only_the_tail_of_existing_lines_is_shown(tmp_path: Path) -> None:
    out = tmp_path / "attempts/000/00000.out"
    append(out, b"one\ntwo\nthree\n")()
    assert follow(tmp_path, HandClock(append(out, b"four\n")), tail=1)[0] == [(0, b"three\n"), (0, b"four\n")]


def test_following_passes_through_new_attempts_without_loss(tmp_path: Path) -> None:
    first, second = tmp_path / "attempts/000/00000.out", tmp_path / "attempts/001/00000.out"

    def restart() -> None:
        append(first, b"last words")()
        append(second, b"again\n")()

    clock = HandClock(append(first, b"first\n"), restart, append(second, b"done\n"))
    assert follow(tmp_path, clock) == (
        [(0, b"first\n"), (0, b"last words"), (0, b"again\n"), (0, b"done\n")],
        [0, 1],
    )


def test_a_run_that_ends_without_output_ends_the_following(tmp_path: Path) -> None:
    assert follow(tmp_path, HandClock()) == ([], [])


def follower(tmp_path: Path, clock: HandClock) -> Follower:
    created = Follower(str(tmp_path), LogSelection(), clock)
    list(created.so_far())
    return created


def test_a_truncated_or_replaced_file_is_shown_from_its_start(tmp_path: Path) -> None:
    out, clock = tmp_path / "00000.out", HandClock()
    append(out, b"long first content\n")()
    following_ = follower(tmp_path, clock)
    following_.new()
    out.write_bytes(b"short\n")
    truncated = told(following_.new())
    out.with_suffix(".new").write_bytes(b"replaced, and longer than before\n")
    out.with_suffix(".new").rename(out)
    replaced = told(following_.new())
    out.unlink()
    assert [truncated, replaced, told(following_.new())] == [
        [(0, b"short\n")],
        [(0, b"replaced, and longer than before\n")],
        [],
    ]


def test_a_half_line_waits_for_its_end_but_not_for_ever(tmp_path: Path) -> None:
    out, clock = tmp_path / "00000.out", HandClock()
    following_ = follower(tmp_path, clock)
    append(out, b"loading ... ")()
    early = told(following_.new())
    clock.time += PARTIAL_SECONDS + 0.1
    late = told(following_.new())
    append(out, b"done\n")()
    assert [early, late, told(following_.new())] == [[], [(0, b"loading ... ")], [(0, b"done\n")]]


def test_follow_shows_a_moving_progress_bar_at_intervals(tmp_path: Path) -> None:
    out, clock = tmp_path / "00000.out", HandClock()
    following_ = follower(tmp_path, clock)
    output = []
    for step in range(100):
        append(out, b"\r%3d%%" % step)()
        output += told(following_.new())
        clock.time += 0.1
    append(out, b"\r100%\n")()
    output += told(following_.new())
    assert output == [(0, b"\r  0%"), (0, b"\r 30%"), (0, b"\r 60%"), (0, b"\r 90%"), (0, b"\r 99%\r100%\n")]


def test_exact_following_prints_every_byte_at_once(tmp_path: Path) -> None:
    out = tmp_path / "00000.out"
    following_ = Follower(str(tmp_path), LogSelection(exact=True), HandClock())
    output = []
    for part in (b"a\nhal", b"f\r1%\r2%", b"\n"):
        append(out, part)()
        output += told(following_.new())
    assert output == [(0, b"a\nhal"), (0, b"f\r1%\r2%"), (0, b"\n")]
