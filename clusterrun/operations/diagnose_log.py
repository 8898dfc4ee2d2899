"""Diagnose log files of any job. Files of any size are read in bounded memory and time."""

from __future__ import annotations

import glob
import gzip
import math
import os
import re
import stat
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO, cast

from clusterrun.diagnosis.job_log import JobLog
from clusterrun.diagnosis.log_process import LogError
from clusterrun.diagnosis.log_remedies import ENDED_WITHOUT_ERROR_REMEDY, NOTHING_REMEDY, with_names
from clusterrun.diagnosis.log_verdict import diagnosis_of
from clusterrun.diagnosis.verdict import Diagnosis, Verdict
from clusterrun.model.errors import BadInput, NoSuchRun
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.size import sized
from clusterrun.operations.context import Context, Tell, quiet
from clusterrun.operations.job_step import check_owner
from clusterrun.slurm.foreign_job import ForeignJob

STDIN = "-"
# How a compressed file begins.
GZIP = b"\x1f\x8b"
# Characters that no log has, and the share of the first bytes of a file that they may be.
_NO_TEXT = re.compile(rb"[\x01-\x06\x0e-\x1a\x1c-\x1f\x7f]")
HEAD, MOST_CONTROLS = 4096, 0.03
CHUNK = 4 << 20
# Chunks at the beginning and at the end of a long file that are read closely.
WHOLE_CHUNKS = 2
# Bytes of the middle of all files that are read around places which look like errors.
MOST_AROUND = 16 << 20
BEFORE, AFTER = 4096, 12288
# A file up to this size is read whole.
SMALL = 1 << 20
# The last bytes are read in any case.
LAST = 8192
# Lines of a file that differ only in numbers and words with digits, and around which it is read.
MOST_ALIKE = 128
# Seconds for the middle of all files. Then the rest of the middle is skipped.
SCAN_SECONDS = 60.0
# Seconds between two messages about the search.
TELL_SECONDS = 1.0
# Seconds by which a file server's clock and Slurm's may differ.
CLOCK_SECONDS = 60.0
MOST_FILES = 4096
MOST_ERRORS = 64
# In the middle of a long file only lines with one of these are read, and the lines around them.
# ``: error: `` is in all errors of srun and slurmstepd.
_CERTAIN = re.compile(
    rb"Traceback \(most recent call|Error: |: error: |Watchdog caught|Root Cause \(first|ut of memory"
    rb"|exited on signal|return code = |terminate called after|Fatal Python error"
)
# Elsewhere any line that may belong to an error is read, and the lines around it.
_MAYBE = re.compile(
    rb"(?i)error|exception|traceback|fail|abort|kill|fatal|watchdog|slurm|srun|nccl|usage:|terminat|timeout"
    rb"|timed out|signal|exit|File \"|mpirun|denied|not found|memory|cancel|closed|reset|HYDRA|assert"
)
_NUMBERED = re.compile(rb"\w*\d\w*")
_RANK = re.compile(
    r"(?:^|[^A-Za-z])(?:rank|task|proc)[-_.]?(\d{1,6})(?:\D|$)|/attempt_\d+/(\d+)/(?:stdout|stderr)\.log$"
    # submitit: JOB_TASK_log.out
    r"|/\d+(?:_\d+)?_(\d{1,6})_log\.(?:out|err)$"
)
# PBS and Grid Engine write JOB.o7 and JOB.e7.3.
_LOG_NAME = re.compile(
    r"\.(?:log|out|err|txt|jsonl)$|(?:^|[._-])(?:stdout|stderr|out|err)[._-]?\d+$|\.[oe]\d+(?:\.\d+)?$"
)
# The job that a file is of, in its name.
_JOB = re.compile(
    r"(?:^|/)(?:(?:slurm|job)[-_.]?(\d+)|[^/]*?[-_](\d{5,}))(?:[-_.]\d+)*\.(?:out|err|log)(?:\.gz)?$"
)
# Jobs before the newest that are judged.
MOST_JOBS = 8
# The least number of digits of a job. A shorter number may be that of a task of an array.
DIGITS_OF_JOB = 5
# How names of output files begin in front of the number of the job.
_USUAL_NAMES = "slurm|srun|step|job|task|log|out|output|err|error"
_LOG_FOLDER = re.compile(r"(?i)log|out|err|slurm")


@frozen
class ReadFile:
    """A file that was read."""

    path: str
    size: int  # bytes of the file, or of all that stdin held
    read: int  # bytes whose lines were all read
    scanned: int  # bytes that were searched for errors only
    is_text: bool = True

    @property
    def skipped(self) -> int:
        return self.size - self.read - self.scanned


@frozen
class LogReport:
    """The diagnosis of log files, with the errors in them."""

    files: tuple[ReadFile, ...]
    diagnosis: Diagnosis
    errors: tuple[LogError, ...]
    more_errors: int = 0


def diagnose_logs(
    names: Sequence[str], stdin: BinaryIO, clock: Callable[[], float], tell: Tell = quiet
) -> LogReport:
    """Return the diagnosis of log files, globs, directories, or ``-`` for stdin.

    If their names show several jobs, it is the newest one's. Its evidence has the messages of the others.
    ``tell`` gets what is searched, once a second, and '' at the end. Raise ``BadInput`` if no file can be
    read.
    """
    paths = expanded(names)
    jobs = {path: int(match[1] or match[2]) for path in paths if (match := _JOB.search(path))}
    newest, *others = sorted({*jobs.values()}, reverse=True) or [0]
    paths = [path for path in paths if jobs.get(path, newest) == newest]
    log, files, notes = _read_all(paths, clock, tell, stdin)
    if not files:
        raise BadInput("; ".join(notes), "name log files that exist, a glob in quotes, or - for stdin")
    if others:
        notes.append(f"the files are of {len(others) + 1} jobs: this is the newest, job {newest}")
    for job in others[:MOST_JOBS]:
        with suppress(BadInput):
            files_of_job = [path for path, number in jobs.items() if number == job]
            other = diagnose_logs(files_of_job, stdin, clock, tell).diagnosis
            notes.append(f"job {job}: {other.verdict.value}: {other.message}")
    diagnosis = _limited(diagnosis_of(log), files)
    remedy = with_names(diagnosis.remedy, str(newest or ""), diagnosis.culprits)
    diagnosis = replace(diagnosis, evidence=(*diagnosis.evidence, *notes), remedy=remedy)
    errors = log.errors()
    return LogReport(tuple(files), diagnosis, tuple(errors[:MOST_ERRORS]), max(0, len(errors) - MOST_ERRORS))


def diagnose_ended_job(context: Context, job: ForeignJob, tell: Tell = quiet, user: str = "") -> Diagnosis:
    """Return the diagnosis of a job that has ended, from its output files. ``tell``: as for other logs.

    Raise ``BadInput`` if the job is of somebody else, ``NoSuchRun`` if no output file is on this machine.
    """
    check_owner(job, user)
    names = context.client().output_files(job)
    paths = [path for name in names for path in ([name] if os.path.isfile(name) else sorted(glob.glob(name)))]
    # Its number is in the names of files that its steps wrote: behind its name, or as the last number that
    # follows no letter. A small number is in other names too, of files that are older than the job, or were
    # still written after its end. Behind another number it is that of a task of an array.
    number = rf"(?:{re.escape(job.number or job.job_id)}|{re.escape(job.job_id)})(?!\d)"
    if len(job.number or job.job_id) < DIGITS_OF_JOB:
        number = rf"(?<!\d_){number}"
    belongs = re.compile(
        rf"^(?:{_USUAL_NAMES}|{re.escape(job.name)})?[-_.]?{number}|(?<!\d){number}(?!.*(?<![A-Za-z\d])\d)"
    )
    paths_of_steps = [path for name in context.client().step_files(job) for path in sorted(glob.glob(name))]
    folders = [os.path.dirname(path) for path in paths or names]
    if not paths:
        # The accounting of an older Slurm lacks the output file that a line of the script names.
        near = [path for folder in folders for path in glob.glob(f"{glob.escape(folder)}/*/")]
        folders += sorted(path for path in near if _LOG_FOLDER.search(os.path.basename(path[:-1])))
    for folder in dict.fromkeys(folders):
        with suppress(OSError):
            listed = sorted(name for name in os.listdir(folder) if belongs.search(name))
            paths_of_steps += [os.path.join(folder, name) for name in listed if _LOG_NAME.search(name)]
    written: list[str] = []
    for path in paths_of_steps[:MOST_FILES]:
        with suppress(OSError):
            status = os.stat(path)
            until = job.ended_at + CLOCK_SECONDS if job.ended_at else math.inf
            if stat.S_ISREG(status.st_mode) and job.submitted_at <= status.st_mtime <= until:
                written.append(path)
    paths += written
    log, files, read_notes = _read_all(list(dict.fromkeys(paths)), context.clock.monotonic, tell)
    if not files:
        where = ", ".join(names) or "its name is not known"
        why = "; ".join(read_notes) or f"its output is not on this machine ({where})"
        message = f"job {job.job_id} has ended as {job.word}, and {why}"
        raise NoSuchRun(message, "clusterrun diagnose --log FILE reads it where it is")
    log.job_ended(job.word, job.nodelist)
    diagnosis = _limited(diagnosis_of(log), files)
    read = ", ".join(file.path for file in files)
    state = " ".join(filter(None, (job.word, job.exit_code)))
    notes = [f"Slurm's state of job {job.job_id} is {state}; files read: {read}"]
    notes += read_notes
    remedy = diagnosis.remedy.replace(NOTHING_REMEDY, ENDED_WITHOUT_ERROR_REMEDY)
    remedy = with_names(remedy, job.job_id, diagnosis.culprits)
    return replace(diagnosis, evidence=tuple(dict.fromkeys((*diagnosis.evidence, *notes))), remedy=remedy)


def output_of(context: Context, job: ForeignJob) -> JobLog:
    """Return the output of a job that runs. The middle of a long one is not read."""
    log, reader = JobLog(), _BoundedReader(context.clock.monotonic, quiet, skips_middle=True)
    _read_each(log, reader, tuple(dict.fromkeys(filter(None, (job.output, job.error_output)))))
    return log


def failure_in_output(log: JobLog) -> Diagnosis | None:
    """Return the diagnosis of the failure that the output of a job that runs shows; None if it shows none."""
    diagnosis = diagnosis_of(log)
    return diagnosis if diagnosis.verdict in (Verdict.CRASHED, Verdict.OUT_OF_MEMORY) else None


def _read_all(
    paths: Sequence[str], clock: Callable[[], float], tell: Tell, stdin: BinaryIO | None = None
) -> tuple[JobLog, list[ReadFile], list[str]]:
    """Read files. Return what they say, the files that could be read, and notes about the rest.

    The middle of long files is searched only if their beginnings and ends do not settle what failed first.
    """
    if all(map(os.path.isfile, paths)):
        log, reader = JobLog(), _BoundedReader(clock, tell, skips_middle=True)
        files, problems = _read_each(log, reader, paths)
        if log.is_settled() or not any(file.skipped for file in files):
            return log, files, [*problems, *_not_read(files)]
    log, reader = JobLog(), _BoundedReader(clock, tell)
    files, problems = _read_each(log, reader, paths, stdin)
    tell("")
    return log, files, [*problems, *_not_read(files), *reader.notes()]


def _read_each(
    log: JobLog, reader: _BoundedReader, paths: Iterable[str], stdin: BinaryIO | None = None
) -> tuple[list[ReadFile], list[str]]:
    """Read files into ``log``. Return those that could be read, and why others could not."""
    files, problems = [], []
    for path in paths:
        rank = _RANK.search(path)
        log.begin_file(int(rank[rank.lastindex or 0]) if rank else -1, path)
        try:
            if path == STDIN and stdin is not None:
                files.append(reader.read(log, "stdin", stdin, is_seekable=False))
                continue
            with open(path, "rb") as file:
                is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
                head = os.pread(file.fileno(), HEAD, 0) if is_regular else b""
                if head.startswith(GZIP):
                    with gzip.GzipFile(fileobj=file) as unzipped:
                        files.append(reader.read(log, path, cast(BinaryIO, unzipped), is_seekable=False))
                else:
                    is_text = len(_NO_TEXT.findall(head)) <= len(head) * MOST_CONTROLS
                    files.append(replace(reader.read(log, path, file, is_regular), is_text=is_text))
        except (OSError, EOFError, zlib.error) as error:
            why = error.strerror if isinstance(error, OSError) else None
            problems.append(f"{path} cannot be read: {why or error}")
    return files, problems


def expanded(names: Sequence[str]) -> list[str]:
    """Return the files that ``names`` mean, each once. Raise ``BadInput`` for a directory without logs."""
    paths: list[str] = []
    for name in names:
        if name == STDIN or not (os.path.isdir(name) or glob.has_magic(name)) or os.path.isfile(name):
            paths.append(name)
            continue
        if os.path.isdir(name):
            matches = sorted(
                os.path.join(folder, file)
                for folder, _, files in os.walk(name)
                for file in files
                if _LOG_NAME.search(file)
            )
        else:
            matches = sorted(path for path in glob.glob(name, recursive=True) if not os.path.isdir(path))
            matches = matches or [name]
        if not matches:
            raise BadInput(
                f"{name} holds no log files", "names such as a.log, a.out, a.err, a.txt and stdout.7 are read"
            )
        paths += matches
    unique = {path if path == STDIN else os.path.realpath(path): path for path in reversed(paths)}
    if len(unique) > MOST_FILES:
        raise BadInput(f"these are {len(unique)} files", f"name at most {MOST_FILES}")
    return list(reversed(unique.values()))


class _BoundedReader:
    """Reads the beginning and the end of a file whole, and the middle around places that look like errors."""

    def __init__(self, clock: Callable[[], float], tell: Tell, skips_middle: bool = False) -> None:
        self._clock, self._tell = clock, tell
        now = clock()
        self._until = now + (0.0 if skips_middle else SCAN_SECONDS)
        self._tell_at = now + TELL_SECONDS
        self._around = MOST_AROUND
        self._unread_places = 0

    def notes(self) -> list[str]:
        """Return what was left out of the places that look like errors."""
        if not self._unread_places:
            return []
        return [f"{self._unread_places} more places that look like errors were not read"]

    def read(self, log: JobLog, path: str, file: BinaryIO, is_seekable: bool) -> ReadFile:
        """Read one file into ``log``."""
        size = os.fstat(file.fileno()).st_size if is_seekable else 0
        pending: deque[bytes] = deque()
        count = read = scanned = total = 0
        lines, rest = _LineFeeder(log), b""
        places: Counter[bytes] = Counter()
        while data := file.read(CHUNK):
            total += len(data)
            count += 1
            # Chunks end with a line.
            data = rest + data
            cut = data.rfind(b"\n") + 1 or len(data)
            chunk, rest = data[:cut], data[cut:]
            pending.append(chunk)
            if len(pending) <= WHOLE_CHUNKS:
                continue
            oldest = pending.popleft()
            if count <= 2 * WHOLE_CHUNKS:
                self._read_closely(lines, oldest, places)
                read += len(oldest)
            elif (now := self._clock()) < self._until:
                if now >= self._tell_at:
                    self._tell_at = now + TELL_SECONDS
                    of_all = f" of {sized(size)}" if is_seekable else ""
                    self._tell(f"searching {path}: {sized(total)}{of_all}")
                lines.at = 0
                self._read_around(lines, oldest, _CERTAIN, places)
                scanned += len(oldest)
            elif is_seekable and size - total > WHOLE_CHUNKS * CHUNK:
                file.seek(size - WHOLE_CHUNKS * CHUNK)
                pending.clear()
                rest = b""
        pending.append(rest)
        for chunk in pending:
            self._read_closely(lines, chunk, places)
            read += len(chunk)
            last = chunk[max(lines.at, len(chunk) - LAST) :]
            lines.feed(last)
        lines.end()
        return ReadFile(path, max(size, total), read, scanned)

    def _read_closely(self, lines: _LineFeeder, chunk: bytes, places: Counter[bytes]) -> None:
        """Read the lines of a chunk that may belong to an error, and the lines around them.

        ``places`` is that of ``_read_around``.
        """
        if len(chunk) <= SMALL:
            lines.feed(chunk)
            lines.at = len(chunk)
            return
        lines.at = 0
        # Another run begins as the file does.
        if not places:
            lines.feed_around(chunk, 0)
        self._read_around(lines, chunk, _MAYBE, places)

    def _read_around(
        self, lines: _LineFeeder, chunk: bytes, pattern: re.Pattern[bytes], places: Counter[bytes]
    ) -> None:
        """Read the lines around each match of ``pattern``; in the middle of a file while there is room.

        ``places`` counts the lines that matched, without words that hold digits. A line that a program
        prints for ever is soon left out.
        """
        at, is_middle = 0, pattern is _CERTAIN
        while match := pattern.search(chunk, at):
            at = chunk.find(b"\n", match.start()) + 1 or len(chunk)
            if is_middle and self._around <= 0:
                self._unread_places += 1
                at = match.start() + AFTER
                continue
            line = _NUMBERED.sub(b"", chunk[chunk.rfind(b"\n", 0, match.start()) + 1 : at])
            places[line] += 1
            if places[line] <= MOST_ALIKE:
                self._around -= lines.feed_around(chunk, match.start()) * is_middle
                at = max(at, lines.at)


class _LineFeeder:
    """Cuts bytes into lines. ``at`` is the end of what was read of the current chunk."""

    def __init__(self, log: JobLog) -> None:
        self._log = log
        self._rest = b""
        self.at = 0

    def feed(self, data: bytes) -> None:
        *complete, self._rest = (self._rest + data).split(b"\n")
        for line in complete:
            self._log.hear(line.decode("utf-8", "replace"))

    def feed_around(self, chunk: bytes, place: int) -> int:
        """Read whole lines around ``place`` that were not read before. Return how many bytes that were."""
        start = max(self.at, chunk.rfind(b"\n", 0, max(0, place - BEFORE)) + 1)
        if start > self.at:
            self.end()
        end = chunk.find(b"\n", place + AFTER) + 1 or len(chunk)
        self.feed(chunk[start:end])
        self.at = end
        return end - start

    def end(self) -> None:
        """Read a line without an end."""
        if self._rest:
            self._log.hear(self._rest.decode("utf-8", "replace"))
        self._rest = b""


def _limited(diagnosis: Diagnosis, files: Sequence[ReadFile]) -> Diagnosis:
    """Return a diagnosis without an error that names the limits of what was read."""
    if diagnosis.verdict is Verdict.UNDETERMINED and not any(file.is_text for file in files):
        message, remedy = (
            f"{files[0].path} is no text",
            "name the job's output; unpack a compressed log first",
        )
        return Diagnosis(diagnosis.verdict, message, remedy=remedy)
    skipped = sum(file.skipped for file in files)
    if diagnosis.verdict is not Verdict.UNDETERMINED or not skipped:
        return diagnosis
    remedy = f"search the rest in parts: tail -c 4G FILE | clusterrun diagnose --log -; {diagnosis.remedy}"
    return replace(
        diagnosis, message=f"{diagnosis.message}, but {sized(skipped)} were not read", remedy=remedy
    )


def _not_read(files: Sequence[ReadFile]) -> Iterator[str]:
    for file in files:
        if file.scanned or file.skipped:
            text = f"{file.path} has {sized(file.size)}: its beginning and end were read"
            if file.scanned:
                text += f", {sized(file.scanned)} between them were only searched for errors"
            yield text + (f", {sized(file.skipped)} were not read" if file.skipped else "")
