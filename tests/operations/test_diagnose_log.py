"""Log files are read in bounded memory: the beginning, the end, and what looks like an error between them."""

from __future__ import annotations

import gzip
import io
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from clusterrun.diagnosis.verdict import Verdict
from clusterrun.model.errors import BadInput
from clusterrun.operations import diagnose_log
from clusterrun.operations.diagnose_log import LogReport, diagnose_logs, expanded

ERROR = """[rank2]: Traceback (most recent call last):
[rank2]:   File "/a/train.py", line 5, in main
[rank2]:     go()
[rank2]: KeyError: 'x'
"""
LINE = "step 1 of 100: loss\n"


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CHUNK": 4096, "SMALL": 512, "BEFORE": 64, "AFTER": 512, "LAST": 128}.items():
        monkeypatch.setattr(diagnose_log, name, value)


def read(*names: str, seconds: Any = None, stdin: bytes = b"") -> LogReport:
    times = iter(seconds or ())
    return diagnose_logs(names, io.BytesIO(stdin), lambda: next(times, 0.0))


@pytest.mark.usefixtures("small_chunks")
def test_a_long_search_is_reported_once_a_second_and_at_its_end(tmp_path: Path) -> None:
    path, messages = tmp_path / "slurm-1.out", list[str]()
    path.write_text(LINE * 3000)
    seconds = itertools.count(0.0, 0.5)
    (file,) = diagnose_logs([str(path)], io.BytesIO(), lambda: next(seconds), messages.append).files
    assert len(messages) == round(file.scanned / diagnose_log.CHUNK) // 2 + 1 and messages[-1] == ""
    assert all(message.startswith(f"searching {path}: ") for message in messages[:-1])


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("place", [0, 300, 1500, 2990])
@pytest.mark.parametrize("by", ["file", "stdin"])
def test_an_error_anywhere_in_a_long_log_is_found(tmp_path: Path, place: int, by: str) -> None:
    text = LINE * place + ERROR + LINE * (3000 - place)
    path = tmp_path / "slurm-1.out"
    path.write_text(text)
    report = read(str(path)) if by == "file" else read("-", stdin=text.encode())
    assert [culprit.rank for culprit in report.diagnosis.culprits] == [2]
    assert "KeyError: 'x', at train.py:5 (main)" in report.diagnosis.message
    (file,) = report.files
    assert (file.size, file.skipped) == (len(text), 0) and file.scanned > len(text) / 2
    assert any("between them were only searched for errors" in line for line in report.diagnosis.evidence)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("last", "is_read"),
    [
        ("srun: error: n1: task 2: Exited with exit code 1\n", False),
        ("srun: error: n1: task 5: Exited with exit code 1\n", True),
        ("", True),
    ],
)
def test_the_middle_is_skipped_if_a_launcher_confirms_the_error_at_the_end(
    tmp_path: Path, last: str, is_read: bool
) -> None:
    path = tmp_path / "a.out"
    path.write_text(LINE * 5000 + ERROR + last)
    (file,) = (report := read(str(path))).files
    assert (file.scanned > 0, file.skipped == 0) == (is_read, is_read)
    assert "KeyError: 'x', at train.py:5 (main)" in report.diagnosis.message


@pytest.mark.usefixtures("small_chunks")
def test_a_part_beyond_the_time_limit_is_skipped_with_a_notice(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(LINE * 5000 + ERROR)
    report = read(str(path), seconds=itertools.count(0, 1000))
    (file,) = report.files
    assert file.skipped > 0 and file.read + file.scanned + file.skipped == file.size
    assert any("were not read" in line for line in report.diagnosis.evidence)
    assert [culprit.rank for culprit in report.diagnosis.culprits] == [2]


@pytest.mark.usefixtures("small_chunks")
def test_an_unread_part_is_not_reported_as_free_of_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(LINE * 5000)
    report = read(str(path), seconds=itertools.count(0, 1000))
    assert "no error" in report.diagnosis.message and "were not read" in report.diagnosis.message


@pytest.mark.usefixtures("small_chunks")
def test_a_log_full_of_errors_is_read_within_its_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnose_log, "MOST_AROUND", 4096)
    path = tmp_path / "a.log"
    path.write_text(ERROR * 2000)
    report = read(str(path))
    assert len(report.errors) == diagnose_log.MOST_ERRORS and report.more_errors > 0
    assert any(
        "more places that look like errors were not read" in line for line in report.diagnosis.evidence
    )


@pytest.mark.usefixtures("small_chunks")
def test_a_warning_that_is_printed_for_ever_hides_no_error_and_is_seldom_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnose_log, "CHUNK", 1 << 18)
    monkeypatch.setattr(diagnose_log, "MOST_ALIKE", 4)
    lines: list[str] = []
    monkeypatch.setattr(diagnose_log.JobLog, "hear", lambda log, line: lines.append(line))
    path = tmp_path / "a.log"
    warnings = [f"sample {number} failed to decode\n" for number in range(3000)]
    path.write_text("".join((*warnings[:1500], ERROR, *warnings[1500:])))
    read(str(path))
    assert "[rank2]: KeyError: 'x'" in lines and len(lines) < len(warnings) / 5


@pytest.mark.parametrize("missing", [0, 12])
def test_a_compressed_log_is_read_or_refused(tmp_path: Path, missing: int) -> None:
    path = tmp_path / "a.log.gz"
    compressed = gzip.compress(ERROR.encode())
    path.write_bytes(compressed[: len(compressed) - missing])
    if missing:
        with pytest.raises(BadInput, match="cannot be read"):
            read(str(path))
    else:
        assert [culprit.rank for culprit in read(str(path)).diagnosis.culprits] == [2]


def test_several_files_globs_and_directories(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for rank in (0, 2):
        (tmp_path / "logs" / f"rank{rank}.log").write_text(ERROR.replace("[rank2]: ", "") if rank else LINE)
    os.symlink(tmp_path / "logs" / "rank0.log", tmp_path / "same.log")
    names = (str(tmp_path / "logs"), str(tmp_path / "logs" / "*.log"), str(tmp_path / "same.log"))
    assert len(expanded(names)) == 2
    report = read(*names, str(tmp_path / "missing.out"))
    assert [culprit.rank for culprit in report.diagnosis.culprits] == [2]
    assert any("missing.out cannot be read" in line for line in report.diagnosis.evidence)


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"attempt_0/{rank}").mkdir(parents=True)
        error = f"Traceback (most recent call last):\n  File 'a.py', line 3\nKeyError: {rank}\n"
        (tmp_path / f"attempt_0/{rank}/stderr.log").write_text(error if rank == 1 else LINE)
    evidence = read(str(tmp_path)).diagnosis.evidence
    assert "in 1/stderr.log" in evidence


@pytest.mark.parametrize("name", ["solver.o5512", "solver.e5512.3", "stderr.0", "a.txt"])
def test_output_files_of_any_scheduler_are_read_from_a_folder(tmp_path: Path, name: str) -> None:
    for file in (name, "model.onnx", "vocab.bpe"):
        (tmp_path / file).write_text(LINE)
    assert expanded([str(tmp_path)]) == [str(tmp_path / name)]


@pytest.mark.parametrize("name", ["slurm-{}.out", "job_{}.log", "runs/gpt-471{}1_0.err"])
def test_files_of_several_jobs_are_judged_each_for_itself(tmp_path: Path, name: str) -> None:
    for number, kind in ((8, "ValueError"), (9, "KeyError")):
        path = tmp_path / name.format(number)
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'Traceback (most recent call last):\n  File "a.py", line 3\n{kind}: {number}\n')
    report = read(str(tmp_path))
    evidence = "\n".join(report.diagnosis.evidence)
    assert "KeyError: 9" in report.diagnosis.message and "ValueError" not in report.diagnosis.message
    assert [file.path for file in report.files] == [str(tmp_path / name.format(9))]
    assert "ValueError: 8" in evidence and "2 jobs" in evidence


def test_nothing_to_read_is_bad_input(tmp_path: Path) -> None:
    for name in ("missing.out", "*.nothing"):
        with pytest.raises(BadInput, match="No such file"):
            read(str(tmp_path / name))
    with pytest.raises(BadInput):
        read(str(tmp_path))


def test_hostile_bytes_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "a.out"
    path.write_bytes(bytes(range(256)) * 40 + b"\r" * 5000 + b"\x1b[31m" + ERROR.encode() + b"\xff\x00" * 100)
    assert "KeyError: 'x'" in read(str(path)).diagnosis.message


def test_files_of_submitit_belong_to_their_ranks(tmp_path: Path) -> None:
    (tmp_path / "7_0_log.err").write_text("srun: error: n1: task 1: Exited with exit code 3\n")
    (tmp_path / "7_1_log.err").write_text("no tiles left\n")
    report = read(str(tmp_path))
    assert "last line of rank 1: no tiles left" in report.diagnosis.evidence


def test_files_of_json_lines_are_read(tmp_path: Path) -> None:
    (tmp_path / "n1.jsonl").write_text(ERROR)
    assert "KeyError: 'x'" in read(str(tmp_path)).diagnosis.message


@pytest.mark.parametrize(
    ("times", "first", "words"),
    [
        (("2026-03-02 19:20:00 ", "2026-03-02T19:05:00 "), 1, "failed first"),
        (("", ""), 0, "no times tell which was first"),
    ],
)
def test_the_first_of_two_files_is_the_one_with_the_earlier_time(
    tmp_path: Path, times: tuple[str, str], first: int, words: str
) -> None:
    for rank, (time, kind) in enumerate(zip(times, ("KeyError", "ValueError"), strict=True)):
        text = f"Traceback (most recent call last):\n  File 'a.py', line 3, in go\n{kind}: {rank}\n"
        (tmp_path / f"rank{rank}.log").write_text(f"{time}step 1\n{time}{text}")
    diagnosis = read(str(tmp_path)).diagnosis
    assert [culprit.rank for culprit in diagnosis.culprits] == [first]
    assert words in diagnosis.message


CAUGHT = """Traceback (most recent call last):
  File "/a/viz.py", line 12, in plot
    save()
PermissionError: [Errno 13] Permission denied: 'fig.png'
"""
UNCAUGHT = """Traceback (most recent call last):
  File "/a/train.py", line 80, in <module>
    main()
  File "/a/train.py", line 5, in main
    go()
KeyError: 'x'
"""


@pytest.mark.parametrize(
    ("names", "text", "verdict"),
    [
        (("0.log", "1.log"), CAUGHT, Verdict.NOTHING),
        (("0.log", "1.log"), "ERROR:me:cannot open 3 files, they are left out\n", Verdict.UNDETERMINED),
        (("0.log", "1.log"), UNCAUGHT, Verdict.CRASHED),
        (("job.out", "job.err"), CAUGHT, Verdict.CRASHED),
    ],
)
def test_an_error_that_a_rank_caught_ended_no_rank_if_the_file_of_another_goes_on(
    tmp_path: Path, names: tuple[str, str], text: str, verdict: Verdict
) -> None:
    (tmp_path / names[0]).write_text(LINE * 20 + "Training finished.\n")
    (tmp_path / names[1]).write_text(text)
    assert read(str(tmp_path)).diagnosis.verdict is verdict


def test_an_error_that_one_rank_caught_is_not_before_one_that_ended_another(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(LINE * 20)
    (tmp_path / "rank1.log").write_text(CAUGHT)
    (tmp_path / "rank2.log").write_text(UNCAUGHT)
    diagnosis = read(str(tmp_path)).diagnosis
    assert [culprit.rank for culprit in diagnosis.culprits] == [2]


def test_of_two_errors_in_the_file_of_a_rank_the_one_that_was_not_caught_ended_it(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(LINE * 20)
    (tmp_path / "rank1.log").write_text(CAUGHT + UNCAUGHT)
    (tmp_path / "slurm-7.out").write_text("srun: error: n1: task 1: Exited with exit code 1\n")
    assert "KeyError: 'x', at train.py:5 (main)" in read(str(tmp_path)).diagnosis.message


def test_a_file_that_is_no_text_is_named_unless_it_shows_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"PK\3\4\0\0\x08\x08" + bytes(range(256)) * 9)
    assert read(str(path)).diagnosis.message == f"{path} is no text"
    path.write_bytes(path.read_bytes() + f"\n{ERROR}".encode())
    assert "KeyError: 'x'" in read(str(path)).diagnosis.message


@pytest.mark.parametrize("names", [("a.err", "b.out"), ("b.out", "a.err")])
def test_an_error_in_another_file_than_the_end_of_the_job_is_the_first_failure(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    ended = "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-01-02T10:00:00 DUE TO TIME LIMIT ***\n"
    (tmp_path / "a.err").write_text(ended)
    (tmp_path / "b.out").write_text(f"{LINE}{ERROR}")
    diagnosis = read(*(str(tmp_path / name) for name in names)).diagnosis
    assert "KeyError: 'x'" in diagnosis.message and [culprit.rank for culprit in diagnosis.culprits] == [2]
    # A connection may fail because the job ends.
    (tmp_path / "b.out").write_text(LINE + ERROR.replace("KeyError: 'x'", "ConnectionResetError: lost"))
    diagnosis = read(str(tmp_path / "a.err"), str(tmp_path / "b.out")).diagnosis
    assert diagnosis.verdict is Verdict.NOT_RUNNING


def test_a_remedy_names_the_job_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "slurm-4711.out").write_text(LINE)
    assert "sacct -j 4711" in read(str(tmp_path)).diagnosis.remedy
