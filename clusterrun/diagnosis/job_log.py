"""Find in the log of any job which rank failed first, and why; pure.

The log has no reliable times. So the launcher's own report of the first failure counts first, then the order
of the lines. Errors that follow from the end of another rank count last.
"""

from __future__ import annotations

import re
import signal
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from clusterrun.diagnosis.decide import decide_end
from clusterrun.diagnosis.end_lines import NOT_STARTED, WHOLE_JOB, EndKind, EndLine, EndLines, end_in_words
from clusterrun.diagnosis.known_errors import NCCL_FAILED, NPU_FAILED, ROWS, SIZES, meaning
from clusterrun.diagnosis.log_lines import LOGGED_RANK, LineSplitter, LogLine
from clusterrun.diagnosis.printed_errors import (
    RANK_MARK,
    RANK_OF_WATCHDOG,
    Error,
    ErrorListener,
    is_of_launcher,
    is_plain_output,
    is_report,
    is_timer,
    lacks_inner,
    last_complaint,
)
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.rules.timed_out import LINK_REMEDY
from clusterrun.diagnosis.rules.timed_out import LOGS_REMEDY as TIMEOUT_REMEDY
from clusterrun.diagnosis.stacks import line_of, short
from clusterrun.diagnosis.torchrun_report import TorchrunReport, without_heading
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.vote import RankVote
from clusterrun.diagnosis.watchdog_lines import is_timeout
from clusterrun.diagnosis.wording import cut
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.states import State

# Lines of a process that count as one second for the reader of errors, which expects times.
LINES_PER_SECOND = 20.0
# Lines about steps that a rank prints after an error that it has survived.
STEPS_AFTER_SURVIVED = 3
# Other lines after an error that probably did not end its process.
OUTPUT_AFTER_SURVIVED = 30
# So much other output between two errors of a process shows that the first was handled.
OUTPUT_AFTER_HANDLED = 5
# So much other output between an exception and an end shows that the exception did not cause the end.
OUTPUT_BEFORE_OTHER_END = 2
# Ranks of a job for each rank of which a log that shows all of them has a line.
MOST_SILENT = 1.25
# Lines from a library's message to the exception that follows from it.
LINES_TO_EXCEPTION = 60
# Lines before the end of a rank in which it may say why.
LINES_BEFORE_END = 20
MOST_CULPRITS = 16
MOST_LAST_LINES = 5
# Lines at the end of a log that are searched for what looks like an error, and the most that are shown.
LINES_OF_TAIL = 300
MOST_SUSPECTS = 3
# Lines before and behind an error that are searched for what belongs to it, and the most that are shown.
LINES_BEFORE, LINES_BEHIND = 30, 12
MOST_NEAR = 2
# Lines of code in which different ranks were, of which so many are shown.
MOST_PLACES = 4
# Characters of an exception without a traceback.
MOST_EXCEPTION = 400
# Lines at the beginning of a file by which another attempt of the job is recognized.
HEAD_LINES = 10
# Letters that such a line has at least.
HEAD_LETTERS = 8
# Time after the end of a job in which its last processes end. Later lines are of its next start.
LATER = timedelta(minutes=10)

_STEP = re.compile(
    r"(?i)\b(?:step|iter(?:ation)?|epoch|it)\b\W{0,3}\[?\d|\d(?:\.\d+)?\s?(?:it/s|s/it)|\bloss\b\W{0,3}\d|%\|"
)
# An exception's name and message at the beginning of a line. A script printed it without its traceback.
_EXCEPTION_LINE = re.compile(
    r"^(?:\[rank(\d+)\]:\s?)?"
    r"((?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Interrupt|Failure)|Exception): .+)"
)
# A module or an environment that a script could not load, in two lines at most.
_NOT_LOADED = re.compile(
    r"^(?:Lmod has detected the following error|ERROR: Unable to locate a modulefile|CommandNotFoundError)"
)
# Errors of a GPU whose cause stands elsewhere in the log.
_UNEXPLAINED = re.compile(r"(?:CUDA|HIP) error: (?:device-side assert|unspecified launch|unknown)")
_GPU_ERROR = re.compile(r"device-side assert|CUDA error: [\w ]+")
# Exceptions and messages of the libraries through which ranks communicate.
_COMMUNICATION = re.compile(r"DistBackendError|NCCL (?:WARN|error)")
# How many ranks a job has.
_WORLD = re.compile(r"(?i)(?:\bworld[_ ]?size\W{1,3}|\bnranks |\bMEMBER: \d+/)(\d{1,6})\b")
# A rank that prints this after an error has survived it.
_FINISHED = re.compile(r"(?i)\b(?:training|run|job|fit)\b[^.]{0,20}\b(?:finished|completed?|done)\b")
# What a program prints before or after the traceback of an error that does not end it.
_GOES_ON = re.compile(
    r"(?i)\b(?:(?:re)?trying|will (?:retry|try)|retry(?! limit)|attempt \d+|ignor(?:ed|ing)|skip(?:ped|ping)"
    r"|f(?:alling|alls?|ell) ?back|continu(?:es?|ing)|recover(?:ed|ing))\b"
)
# Exceptions that only wrong code raises. Others may come from the data, the environment or another rank.
_OF_CODE = re.compile(
    r"(?:\w+\.)*\w*(?:Name|UnboundLocal|Attribute|Type|Index|ZeroDivision|NotImplemented|Recursion)Error\b"
    r"|RuntimeError: .*(?:must match|should be the same|shape|dimension)"
)
_UNSET = re.compile(r"(?:NameError|UnboundLocalError)\b")
# Lines that look like an error, and lines that look like one and are none.
_LOOKS_FATAL = re.compile(
    r"(?i)\b(?:fatal|critical|panic|aborted|core dumped|segmentation fault|\w*(?:error|exception):"
    r"|error\b.{0,3}[:\]])|^\W*\[?E(?:\d{4}|\b)|\bERROR\b|NCCL WARN"
)
_LOOKS_WRONG = re.compile(
    r"(?i)\b(?:error(?!s?\W*\d)|exception|fail(?:ed|ure|s)?|cannot|can't|could not|couldn't|unable|denied"
    r"|refused|invalid|killed|not found|no such|timed out|timeout(?!\W{0,3}[:=(])"
    r"|unrecognized|unreachable|mismatch|corrupt(?:ed)?|closing signal)\b"
)
_HARMLESS = re.compile(
    r"(?i)\bwarn(?:ing)?s?\b(?<!NCCL WARN)|\w+Warning:|NCCL INFO|\bINFO\b|\bDEBUG\b|deprecat|libibverbs"
    r"|plugin|hostname of the client socket|\b(?:0|no) (?:errors?|failures?)\b|skipp|ignor|retry|falling back"
)
# Source code, headings, and what launchers and loaders print of an error.
_NOT_NEAR = re.compile(
    r"^raise |:$|frame #|following exception|(?:exitcode|exit code|status)\b|: Caught |^\w+\("
    r"|terminate called"
)
_CANCELLED_AT = re.compile(r"\*\*\* JOB .* CANCELLED AT (\d\S+)")
_LOCAL = "local rank"
# The end of a process that no line names.
_VAGUE = re.compile(r"^a process exited|returned non-zero exit status")
_FROM_OUTSIDE = re.compile(r"SIGTERM|SIGINT|SIGHUP")
# The report of torch on the ranks that did or did not take part in a collective that timed out.
_DESYNC = re.compile(r"\[[\d, ]+\] (?:joined but didn't finish|finished .*didn't join|never joined) .*")
_CODE_1 = re.compile(r"exited with (?:exit )?code 1\b")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_NO_LETTERS = re.compile(r"[\W\d_]+")
_SIGNAL_NUMBER = re.compile(r"signal (\d+)(?: \(\w+\))?")
_ABORTED = re.compile(r"Abort|SIGABRT|\bsignal 6\b")
_BARRIER = re.compile(r"\(world_size=(\d+), worker_count=(\d+)")
_TOO_MANY_REMEDY = (
    "give every rank the number of all ranks as WORLD_SIZE, and start each once; end what was left over, and"
    " remove an old file of the store"
)
_RESTARTS = re.compile(r"\d+ attempts left; will restart worker group")
_NOTHING_REMEDY = (
    "clusterrun diagnose JOB looks into the ranks if the job still runs; else the log may be of another part"
    " of the job: see the files of all ranks (srun -o, torchrun --log-dir), the exit code"
    " (sacct -j JOB -o JobID,State,ExitCode,MaxRSS), and dmesg on the nodes"
)
_ENDED_REMEDY = (
    "sacct -j JOB -o State,End shows when; kill, timeout and scancel do so, often because a job hangs:"
    " clusterrun diagnose JOB shows where"
)
_MEMORY_REMEDY = "ask for more with --mem, use fewer data-loader workers, or a smaller batch"
_REMEDIES = {
    EndKind.NODE: "sinfo -R shows why; submit again with --exclude for that node",
    EndKind.MEMORY: _MEMORY_REMEDY,
    EndKind.START: "correct the command, or load its environment before it (module load, source …/activate)",
    EndKind.CONTAINER: "start the image once by hand (enroot import, apptainer exec): name, access, mounts",
    EndKind.SIGNAL: "run once with PYTHONFAULTHANDLER=1 to see the line; dmesg on the node shows faults",
    EndKind.EXIT: "see what that rank printed last; srun -l and torchrun --tee 3 mark lines with the rank",
    EndKind.TIME_LIMIT: "ask for more with --time, or save checkpoints and continue in the next job",
    EndKind.PREEMPTED: "submit with --requeue and load the newest checkpoint",
    EndKind.CANCELLED: "sacct -j JOB -o State,End shows when; a person or a script called scancel",
    EndKind.REQUEUED: "squeue -j JOB shows its next start, whose log has the same name, or JOB's own",
    EndKind.OUTSIDE: _ENDED_REMEDY,
    EndKind.ENDED_BY_OTHERS: "see the ranks that ended first",
}
_OF_STATES = {
    "TIMEOUT": EndKind.TIME_LIMIT,
    "DEADLINE": EndKind.TIME_LIMIT,
    "OUT_OF_MEMORY": EndKind.MEMORY,
    "NODE_FAIL": EndKind.NODE,
    "BOOT_FAIL": EndKind.NODE,
    "PREEMPTED": EndKind.PREEMPTED,
    "CANCELLED": EndKind.CANCELLED,
}
_STATE_WORDS = {
    EndKind.TIME_LIMIT: "Slurm ended the job at its time limit",
    EndKind.MEMORY: "a process of the job ran out of the job's memory",
    EndKind.NODE: "a node of the job failed",
    EndKind.PREEMPTED: "the job was preempted: its nodes were given to another job",
    EndKind.CANCELLED: "the job was cancelled (scancel)",
}
# Exceptions that a signal from outside raises.
_ASKED_TO_END = re.compile(r"(?:\w+\.)*(?:KeyboardInterrupt|SIGTERMException|SignalException)\b")
_VERDICTS = {EndKind.MEMORY: Verdict.OUT_OF_MEMORY}
# Commands and options in remedies, and what stands for them in a job that clusterrun did not start.
_FOREIGN = (
    (re.compile(r"--env (\w+=)"), r"export \1"),
    (re.compile(r"clusterrun exec -- "), "ssh NODE "),
    (re.compile(r"clusterrun logs --rank N shows what it did last"), "see the end of every rank's log"),
    (re.compile(r"clusterrun logs --rank (\S+) shows what it did last"), r"see the end of rank \1's log"),
    (
        re.compile(
            r"clusterrun diagnose while it hangs, or a --hang-after below .* time-out, shows its line"
        ),
        "clusterrun diagnose JOB while it hangs shows its line",
    ),
    (re.compile(r"where submit was called; with --snapshot .*"), "where sbatch was called"),
    (re.compile(r"clusterrun logs --tail 5"), "the end of every rank's log"),
    (re.compile(r"\(--exclude\)"), "(sbatch --exclude)"),
)


@frozen
class LogError:
    """An error in a log."""

    error: Error
    order: int  # its place among all lines
    rank: int = -1
    node: str = ""  # of the rank; '' if the log does not show it
    is_doubtful: bool = False  # its process printed much else after it, so it was probably handled
    output_after: int = 0  # lines without complaints that its process printed after it

    @property
    def was_handled(self) -> bool:
        return self.is_doubtful or self.error.survived


@frozen
class _Place:
    """The place of an error among all lines, and the rank and node in the prefix of its line."""

    order: int
    rank: int
    node: str
    # lines about steps, and other output without complaints, that the process printed before the error
    steps: int = 0
    output: int = 0
    goes_on: bool = False  # the program says that the error does not end it
    was_logged: bool = False  # a logger printed it, so the program caught it


class _Process:
    """The lines of one process: its errors, each with its place, and how much else it printed."""

    def __init__(self, rank: int) -> None:
        self.listener = ErrorListener(rank, launcher=True)
        self.places: list[_Place] = []
        self.rank = rank
        self.lines = self.steps = self.output = 0
        # The order of the newest line about a step.
        self.last_step = 0
        # The rank that a logger named in the line before a traceback.
        self._logged_rank = -1
        # The text that a logger printed before a traceback; '' without one.
        self._record = ""
        # The last line with text ended an error.
        self._is_after_error = False
        # Steps and output at the first reported end of a rank after each error, by number of the error.
        self._at_end: list[tuple[int, int]] = []
        self.last_line = ""

    def hear(self, text: str, place: _Place, logger: str) -> None:
        """Read one line, without what ``logger`` wrote in front of it."""
        before = self.listener.errors[-1:]
        self.lines += 1
        if "Traceback (most recent call last)" in text:
            is_title = self.last_line.startswith(("---", "===", "***"))
            is_record = is_title or not (is_plain_output(self.last_line) or RANK_MARK.match(self.last_line))
            self._record = self.last_line if is_record else ""
            logged = LOGGED_RANK.search(self._record)
            self._logged_rank = int(logged[1]) if logged else -1
        if place.rank < 0 <= self._logged_rank:
            place = replace(place, rank=self._logged_rank)
        self.last_line = text.strip() or self.last_line
        self.listener.hear(self.lines / LINES_PER_SECOND, text, logger)
        if len(self.listener.errors) > len(self.places):
            goes_on, was_logged = _GOES_ON.search(self._record) is not None, bool(self._record or logger)
            place = replace(
                place, steps=self.steps, output=self.output, goes_on=goes_on, was_logged=was_logged
            )
            self.places += [place] * (len(self.listener.errors) - len(self.places))
            self._logged_rank, self._record, self._is_after_error = -1, "", True
        elif self._is_after_error and text.strip():
            if _GOES_ON.search(text):
                self.places[-1] = replace(self.places[-1], goes_on=True)
            self._is_after_error = False
        if self.listener.errors[-1:] != before and place.rank >= 0:
            # The line belongs to the newest error: a driver of Ray prints which worker it is of.
            self.places[-1] = replace(self.places[-1], rank=place.rank, node=place.node)
        if _FINISHED.search(text):
            self.steps += STEPS_AFTER_SURVIVED
        elif _STEP.search(text):
            self.steps += 1
            self.last_step = place.order
        elif self.places:
            self.output += is_plain_output(text)

    def on_end(self) -> None:
        """Note that a rank has ended. Later output may be that of other ranks."""
        missing = len(self.places) - len(self._at_end)
        self._at_end += [(self.steps, self.output)] * missing

    def printed_after(self, number: int) -> tuple[int, int]:
        """Return how many steps and other lines followed an error, before the next end of a rank."""
        steps, output = self._at_end[number] if number < len(self._at_end) else (self.steps, self.output)
        return steps - self.places[number].steps, output - self.places[number].output

    def handled(self, is_single: bool) -> list[bool]:
        """Return for each error whether the process went on and later printed another one of its own.

        ``is_single``: all lines are of one rank, which goes on if it has logged an error.
        """
        errors, handled = self.listener.errors, []
        # The last errors that another rank did not cause. The second one differs from the last.
        last: list[int] = []
        for number in reversed(range(len(errors))):
            error, output = errors[number], self.places[number].output
            later = next((other for other in last if not _is_alike(errors[other], error)), number)
            went_on = self.places[later].output - output >= OUTPUT_AFTER_HANDLED
            place = self.places[number]
            is_followed = later != number or (place.goes_on and bool(self.listener.unended()))
            went_on = went_on or (is_followed and (place.goes_on or (is_single and place.was_logged)))
            handled.append(went_on and not error.ends)
            is_own = not (_is_of_communication(error) or is_report(error) or _ASKED_TO_END.match(error.text))
            if is_own and (not last or (later != number and len(last) < 2)):
                last.append(number)
        return handled[::-1]


class JobLog:
    """Reads the lines of one job's log files, and diagnoses them."""

    def __init__(self) -> None:
        self._splitter = LineSplitter()
        self._ends = EndLines()
        # The processes that wrote the lines, by file and prefix of the line.
        self._processes: dict[tuple[int, str], _Process] = {}
        # The names of the files, each with the order of the last line before it.
        self._names: list[tuple[int, str]] = []
        # The processes of the current file.
        self._of_file: list[_Process] = []
        self._order = 0
        self._file = 0
        # The order of the last line before the file.
        self._file_begins = 0
        self._file_rank = -1
        # Times of the last line, of the end of the whole job, and of the last line before that.
        self._time = self._ended_at = self._time_before_end = ""
        # The first lines of the file, without numbers, and whether each of them stands only once in it.
        self._head: dict[str, bool] = {}
        # The last line repeats one of these, after a rank has ended.
        self._is_repeated = False
        self._attempts = 1
        self._nodes: dict[int, str] = {}
        # Ray has replaced equal lines of several processes by one.
        self._has_left_out = False
        # The number of ranks; 0 if no line says it.
        self._world = 0
        self._has_completed = False
        # More ranks than the world has came to a barrier; '' if no line says so.
        self._too_many = ""
        # The report of torch on a time-out, the first line in which NCCL failed, and NCCL's last warnings.
        self._desync = ""
        self._nccl_failed = 0
        self._nccl_warnings: deque[str] = deque(maxlen=MOST_SUSPECTS)
        # The rank that failed first by the reports of all launchers, and when it did.
        self._first_rank, self._first_time = -1, ""
        self._report = TorchrunReport()
        # The first end of a process that any other line tells of: a launcher's report may be missing.
        self._failed_worker: EndLine | None = None
        # The same in the attempt before.
        self._ended_before: EndLine | None = None
        # The newest line that may be an exception without a traceback.
        self._exception_line: LogError | None = None
        self.last_lines: list[str] = []
        # Modules that the script could not load before its ranks began.
        self._not_loaded: list[str] = []
        # The last lines before the newest one about an end.
        self._recent: deque[str] = deque(maxlen=LINES_BEFORE_END)
        # The last lines, with their order and rank.
        self._tail: deque[tuple[int, int, str]] = deque(maxlen=LINES_OF_TAIL)
        # The complaint in one of these lines, at the first end of a rank.
        self._complaint = ""

    def begin_file(self, rank: int = -1, name: str = "") -> None:
        """Begin another file; ``rank`` if its name holds one."""
        self._file += 1
        self._names.append((self._order, name.rpartition("/")[2]))
        self._of_file = []
        self._file_begins = self._order
        self._file_rank = rank
        self._splitter = LineSplitter()
        self._head = {}
        self._time = self._time_before_end = ""
        self._report.close()

    def hear(self, line: str) -> None:
        """Read one line, without its end."""
        for part in self._splitter.split(line):
            self._order += 1
            self._hear_part(part)

    def _hear_part(self, line: LogLine) -> None:
        text = line.text
        if text.strip():
            self.last_lines = [*self.last_lines[1 - MOST_LAST_LINES :], text.strip()[:300]]
        if line.time and self._goes_on_later(line.time):
            self._begin_attempt()
        self._time = line.time or self._time
        if self._ends.hear(self._order, text):
            if cancelled := _CANCELLED_AT.search(text):
                self._ended_at, self._time_before_end = cancelled[1], self._time
            self._complaint = self._complaint or last_complaint([*filter(_is_no_consequence, self._recent)])
            for other in self._of_file:
                other.on_end()
            return
        if not self._ends.is_in_message:
            self._recent.append(text)
        self._tail.append((self._order, line.rank, text))
        if not self._nccl_failed and "Some NCCL operations have failed" in text:
            self._nccl_failed = self._order
        if "join" in text and (desync := _DESYNC.search(text)):
            self._desync = desync[0]
        if "NCCL WARN" in text and not _HARMLESS.search(text):
            self._nccl_warnings.append(text.strip()[:MOST_EXCEPTION])
        if _NOT_LOADED.match(text) or (len(self._not_loaded) == 1 and self._not_loaded[0].endswith(":")):
            self._not_loaded = [*self._not_loaded, text.strip()][:2]
        self._has_left_out = self._has_left_out or "x across cluster]" in text
        self._too_many = _too_many(text) or self._too_many
        if world := _WORLD.search(text):
            self._world = max(self._world, int(world[1]))
        worker = self._failed_worker
        is_ended = worker is None or worker.kind is EndKind.OUTSIDE
        if is_ended and (failed := end_in_words(text, self._order)):
            self._failed_worker = replace(failed, node=line.node or failed.node)
        if _RESTARTS.search(text):
            self._begin_attempt()
        self._hear_head(text)
        rank = line.rank if line.rank >= 0 else self._file_rank
        source = line.source
        if rank >= 0 and line.node:
            self._nodes[rank] = line.node
        report = self._report
        if report.hear(text) and report.rank >= 0:
            self._nodes.setdefault(report.rank, report.host)
            if self._first_rank < 0 or report.time < self._first_time:
                self._first_rank, self._first_time = report.rank, report.time
        if report.in_traceback:
            rank, source, text = report.rank, f"report {report.rank}", without_heading(text)
        process = self._processes.get((self._file, source))
        if process is None:
            process = self._processes[self._file, source] = _Process(rank)
            self._of_file.append(process)
        process.hear(text, _Place(self._order, rank, line.node), line.logger)
        # The line above an exception is indented if it has a traceback, which the listener reads.
        is_bare = len(self._recent) < 2 or not self._recent[-2][:1].isspace()
        if is_bare and (match := _EXCEPTION_LINE.match(text)):
            printed_by = int(match[1]) if match[1] else rank
            error = Error(0.0, printed_by, match[2][:MOST_EXCEPTION])
            self._exception_line = LogError(error, self._order, printed_by, line.node)

    def _hear_head(self, text: str) -> None:
        """Recognize another attempt of the job: the log begins again after ranks or the job have ended.

        One line is enough if Slurm ended the job. Else ranks that started late may print one line again.
        """
        letters = _NO_LETTERS.sub(" ", text)
        if len(letters) < HEAD_LETTERS or _STEP.search(text):
            return
        has_ended = bool(self._ends.ends) and self._ends.ends[-1].order > self._file_begins
        if letters not in self._head:
            self._is_repeated = False
            if len(self._head) < HEAD_LINES and not has_ended and is_plain_output(text):
                self._head[letters] = True
        elif not has_ended:
            self._head[letters] = False
        elif not self._head[letters]:
            self._is_repeated = False
        elif self._is_repeated or self._ends.whole_job_ended > self._file_begins:
            self._begin_attempt()
        else:
            self._is_repeated = True

    def _goes_on_later(self, time: str) -> bool:
        """Return whether a line is so late that Slurm has started the job again.

        The log's clock may be in another time zone than Slurm's, and the job may have hung before its end.
        """
        if self._ends.whole_job_ended <= self._file_begins or not self._time_before_end:
            return False
        with suppress(ValueError):
            now, before, end = map(datetime.fromisoformat, (time, self._time_before_end, self._ended_at))
            return min(now - before, now - end) > LATER
        return False

    def _begin_attempt(self) -> None:
        """Forget the lines of the file so far: they are of an attempt before the last one."""
        self._attempts += 1
        self._ended_before = self._failed_worker
        self._ends.forget(self._file_begins)
        self._processes = {key: process for key, process in self._processes.items() if key[0] != self._file}
        self._of_file = []
        self._first_rank, self._first_time = -1, ""
        self._exception_line = self._failed_worker = None
        self._tail.clear()
        self._is_repeated = False

    def job_ended(self, word: str, nodes: str) -> None:
        """Note how Slurm says that the job ended."""
        self._has_completed = word == "COMPLETED"
        kind = _OF_STATES.get(word)
        if kind:
            where = f" on {nodes}" if nodes else ""
            line = f"Slurm's state of the job is {word}"
            self._ends.ends.append(EndLine(kind, f"{_STATE_WORDS[kind]}{where}", line))

    # --- the verdict ---

    def errors(self) -> list[LogError]:
        """Return all errors in the order of their lines. Timers of scripts are left out."""
        errors = []
        ended = {rank for end in self._ends.ends for rank in end.ranks}
        shows_one_rank = max(self._world, len(ended)) <= 1
        processes = Counter(file for file, _ in self._processes)
        for (file, _), process in self._processes.items():
            is_marked = any(error.inner >= 0 for error in process.listener.errors)
            is_alone = process.rank >= 0 or (shows_one_rank and processes[file] == 1)
            handled = process.handled(is_alone and not is_marked)
            for number, (error, place) in enumerate(zip(process.listener.errors, process.places)):
                if is_timer(error):
                    continue
                steps, output = process.printed_after(number)
                rank = error.inner if error.inner >= 0 else place.rank
                rank = error.origin if error.origin >= 0 else rank
                if rank < 0 and (named := RANK_OF_WATCHDOG.search(error.text)):
                    rank = int(named[1] or named[2])
                went_on = output >= OUTPUT_AFTER_SURVIVED
                survived = steps >= STEPS_AFTER_SURVIVED or (went_on and place.was_logged)
                survived = survived and not error.ends
                is_doubtful = handled[number] or (went_on and not error.ends)
                error = replace(error, rank=rank, inner=-1, survived=survived)
                node = place.node or self._nodes.get(rank, "")
                errors.append(LogError(error, place.order, rank, node, is_doubtful, output))
        return sorted(self._marked_as_survived(errors), key=lambda log_error: log_error.order)

    def _marked_as_survived(self, errors: Sequence[LogError]) -> list[LogError]:
        """Mark errors of ranks that later reported the time-out of a collective.

        A message without a rank is one of theirs if it was printed more often than there are other ranks.
        """
        reports = {entry.rank: entry.order for entry in errors if entry.rank >= 0 and is_timeout(entry.error)}
        unmarked = Counter(entry.error.text for entry in errors if entry.rank < 0)
        others = (self._world or max(reports, default=0) + 2) - len(reports)
        marked = []
        for entry in errors:
            reported_at = reports.get(entry.rank, -1)
            if entry.rank < 0 and unmarked[entry.error.text] > max(others, 1):
                reported_at = max(reports.values(), default=-1)
            is_survived = entry.order < reported_at and not entry.error.ends and not is_timeout(entry.error)
            marked.append(replace(entry, is_doubtful=True) if is_survived else entry)
        return marked

    def ends(self) -> list[EndLine]:
        """Return the lines about ends and the reports of launchers, in their order."""
        ends, limit = [*self._ends.ends], _job_ended(self._ends.ends) or self._order + 1
        reports = [
            log_error
            for log_error in self.errors()
            if is_report(log_error.error) and not log_error.error.survived and log_error.order < limit
        ]
        # Several exceptions of Ray may tell of one process. The last one with a place says most.
        unranked = [report for report in reports if report.rank < 0]
        best = max(unranked, key=lambda report: (bool(report.error.frame), report.order), default=None)
        for report in reports:
            if report.rank >= 0 or report is best:
                kind = EndKind.SIGNAL if re.search("[Ss]ignal", report.error.text) else EndKind.EXIT
                kind = EndKind.OUTSIDE if _FROM_OUTSIDE.search(report.error.text) else kind
                ranks = (report.rank,) if report.rank >= 0 else ()
                message = _named(report.error.message)
                ends.append(EndLine(kind, message, message, ranks, report.node, report.order, True))
        worker = self._failed_worker
        if worker and not self._has_steps_after(worker.order):
            # One with a rank counts beside all others, one with a local rank beside those that are no report.
            others = [end for end in ends if end.is_report] if _LOCAL in worker.words else ends
            if worker.ranks or all(worker.node and end.node not in ("", worker.node) for end in others):
                ends.append(worker)
        # A rank that only noticed the end of another one exits with code 1.
        errors = [entry for entry in self.errors() if not is_report(entry.error)]
        noticed = {entry.rank for entry in errors if entry.error.is_consequence}
        noticed -= {entry.rank for entry in errors if not entry.error.is_consequence}
        ends = [
            end
            for end in ends
            if not (noticed.issuperset(end.ranks) and _CODE_1.search(end.words))
            or not (end.ranks or len(noticed) > 1)
        ]
        return sorted(ends, key=lambda end: end.order)

    def is_settled(self) -> bool:
        """Return whether a launcher confirms the end of a rank that printed an error of its own before.

        Lines between the beginning and the end of the log, which were not read, do not change the diagnosis.
        """
        ended = self._ended_first(self.ends())
        for log_error in self.errors():
            error = log_error.error
            is_own = not (is_report(error) or is_timeout(error) or error.is_consequence)
            if not is_own or error.survived or error.lost_peer:
                continue
            if log_error.rank == self._first_rank >= 0:
                return True
            if ended and log_error.order < ended.order and log_error.rank in (-1, *ended.ranks):
                return True
        return False

    def diagnose(self) -> Diagnosis:
        """Return the diagnosis of all lines that were read, or of the last attempt of several."""
        diagnosis = self._diagnose()
        notes = []
        if self._attempts > 1:
            notes.append(f"the log holds {self._attempts} attempts of the job: this is the last one's end")
        if self._not_loaded and diagnosis.verdict is Verdict.CRASHED:
            notes.append(f"before that: {' '.join(self._not_loaded)}")
        return replace(diagnosis, evidence=(*diagnosis.evidence, *notes))

    def _diagnose(self) -> Diagnosis:
        errors, ends = [entry for entry in self.errors() if not is_report(entry.error)], self.ends()
        own = [log_error for log_error in errors if not log_error.error.is_consequence]
        survived = [log_error for log_error in own if log_error.error.survived]
        if survived and survived == errors and not ends:
            sentence = (
                f"there is no error in it that ended a rank: after {survived[-1].error.message}, it went on"
            )
            return Diagnosis(Verdict.UNDETERMINED, sentence, remedy=_NOTHING_REMEDY)
        ends = [end for end in ends if end.kind not in NOT_STARTED or self._did_not_go_on(end, errors)]
        own = _without_aftermath(_without_handled(own, ends, self._ended_without_exception(ends)), ends)
        timeouts = [entry for entry in own if is_timeout(entry.error)]
        others = [entry for entry in own if not is_timeout(entry.error)]
        end = min(ends, key=self._rank_of_end, default=None)
        if timeouts and all(_is_of_communication(entry.error) for entry in others):
            others = [entry for entry in others if entry.order < timeouts[0].order]
        unended = self._unended()
        if unended and others and not ends and all(entry.was_handled for entry in others):
            return replace(_of_unended(unended), evidence=self._suspects())
        if others and not (end and end.kind is EndKind.MEMORY and _was_killed(others)):
            return self._of_errors(others, errors, ends)
        if timeouts and not (end and end.kind in (EndKind.NODE, EndKind.MEMORY, *NOT_STARTED)):
            end = self._died_before(timeouts, ends)
            if end is None:
                return self._of_timeouts([entry for entry in errors if not entry.was_handled])
        is_vague = end is not None and not end.ranks and _VAGUE.search(end.words) is not None
        # What a rank noticed says more than that Slurm ended another one after it.
        is_vague = is_vague or bool(errors and end and end.kind is EndKind.ENDED_BY_OTHERS)
        if end and not is_vague:
            return self._of_end(end, errors)
        if errors:
            first = errors[0]
            who = ranks_in_words([first.rank]) if first.rank >= 0 else "a process"
            if _ASKED_TO_END.match(first.error.text):
                sentence = f"{who} was ended from outside, and the log does not say why: {first.error.text}"
                return Diagnosis(Verdict.UNDETERMINED, sentence, remedy=_ENDED_REMEDY)
            cut_off = {entry.rank for entry in errors if entry.rank >= 0}
            if len(cut_off) > 1 and all(_is_of_communication(entry.error) for entry in errors):
                silent = sorted({*range(max(cut_off))} - cut_off)
                sentence = (
                    f"the log does not hold what failed first; {ranks_in_words(cut_off)} lost their peers"
                )
                if silent:
                    sentence += f", and {ranks_in_words(silent)} printed no error"
                evidence = tuple(entry.error.message for entry in errors[:1])
                return Diagnosis(Verdict.UNDETERMINED, sentence, (), (), evidence, _NOTHING_REMEDY)
            if failed := self._report.failed:
                node = f" on {self._report.host}" if self._report.host else ""
                sentence = f"{ranks_in_words(failed)}{node} exited; the log lacks the rank that failed first"
                return Diagnosis(Verdict.UNDETERMINED, sentence, (), (), self._suspects(), _NOTHING_REMEDY)
            cause = f": {first.error.row.cause}" if first.error.row else ""
            if is_of_launcher(first.error):
                who, cause = "the launcher", ""
            sentence = f"the log does not hold what failed first; {who} only noticed it{cause}"
            sentence = f"{sentence}: {first.error.message}"
            return Diagnosis(Verdict.UNDETERMINED, sentence, (), (), self._suspects(), _NOTHING_REMEDY)
        if unended:
            return replace(_of_unended(unended), evidence=self._suspects())
        lines = tuple(f"last line: {line}" for line in self.last_lines[-3:])
        last = self._exception_line
        if last and _is_no_consequence(last.error.text) and not self._has_steps_after(last.order):
            diagnosis = self._of_errors([last], [last], ends)
            return replace(
                diagnosis, evidence=(*diagnosis.evidence, "it has no traceback in the log", *lines)
            )
        if end:
            return self._of_end(end, errors)
        if self._has_completed:
            return Diagnosis(Verdict.NOTHING, "the job has ended well, without an error", (), (), lines)
        before = self._ended_before
        if before and not self._has_steps_after(before.order):
            return self._of_end(before, errors)
        if noticed := self._unended(of_launchers=True):
            sentence = f"the log does not hold what failed first; it ends in {noticed[0].error.text}"
            return Diagnosis(Verdict.UNDETERMINED, sentence, (), (), lines, _NOTHING_REMEDY)
        if self._too_many:
            return Diagnosis(Verdict.MISMATCH, self._too_many, (), (), lines, _TOO_MANY_REMEDY)
        if suspects := self._suspects():
            sentence = f"there is no error in it for certain; this looks most like one: {suspects[0]}"
            evidence = (*suspects[1:], *lines)
            return Diagnosis(Verdict.UNDETERMINED, sentence, (), (), evidence, _NOTHING_REMEDY)
        return Diagnosis(Verdict.UNDETERMINED, "there is no error in it", (), (), lines, _NOTHING_REMEDY)

    def _suspects(self) -> tuple[str, ...]:
        """Return lines near the end of the log, after its last step, that look like an error."""
        last_step = max((process.last_step for process in self._processes.values()), default=0)
        lines, is_skipped = [], False
        for order, rank, text in self._tail:
            # Python prints these at the end of a process, and they do not change its exit code.
            is_skipped = is_skipped or text.startswith("Exception ignored in")
            if order > last_step and not is_skipped:
                who = f"rank {rank}: " if rank >= 0 else ""
                lines.append(who + text.strip()[:MOST_EXCEPTION])
            is_skipped = is_skipped and not _EXCEPTION_LINE.match(text)
        lines = [line for line in dict.fromkeys(lines) if not _HARMLESS.search(line)]
        suspects = [line for line in lines if _LOOKS_FATAL.search(line)]
        suspects = suspects or [line for line in lines if _LOOKS_WRONG.search(line)]
        return tuple(suspects[:MOST_SUSPECTS])

    def _near(self, first: LogError) -> list[str]:
        """Return lines around an error that look like one, and are neither a heading nor a report of ends."""
        lines = []
        for order, rank, text in self._tail:
            line = RANK_MARK.sub("", text)
            distance = order - first.order
            # The lines of a traceback are indented, and stand above its exception.
            is_far = not -LINES_BEFORE < distance < LINES_BEHIND or (distance < 0 and line[:1].isspace())
            looks_wrong = _LOOKS_FATAL.search(line) or _LOOKS_WRONG.search(line)
            if rank in (-1, first.rank) and looks_wrong and not (is_far or _HARMLESS.search(line)):
                lines.append(line.strip()[:MOST_EXCEPTION])
        return [line for line in dict.fromkeys(lines) if not _NOT_NEAR.search(line)]

    def _unended(self, of_launchers: bool = False) -> list[LogError]:
        """Return the tracebacks whose exceptions the log lacks: of ranks, or of launchers."""
        return [
            LogError(error, self._order, error.inner if error.inner >= 0 else error.rank)
            for process in self._processes.values()
            for error in process.listener.unended()
            if error.is_consequence is of_launchers
        ]

    def _of_errors(
        self, own: Sequence[LogError], errors: Sequence[LogError], ends: Sequence[EndLine]
    ) -> Diagnosis:
        """Return the diagnosis of the first own error of a rank."""
        root = [log_error for log_error in own if log_error.rank == self._first_rank >= 0]
        first = min(
            root or own,
            key=lambda log_error: (
                _is_of_communication(log_error.error),
                # A name that was never set is often one in the handler of another error.
                _UNSET.match(log_error.error.text) is not None,
                log_error.order,
            ),
        )
        first, hint = _exception_after(first, own)
        hint = hint or _explanation(first, errors)
        error = first.error
        same = [
            log_error
            for log_error in own
            if log_error.error.frame == error.frame
            and (log_error.error.text == error.text or (not root and _is_alike(log_error.error, error)))
        ]
        ranks: tuple[int, ...] = tuple(sorted({log_error.rank for log_error in same if log_error.rank >= 0}))
        node = first.node
        if not ranks:
            ended = self._ended_first([end for end in ends if not node or end.node in ("", node)])
            ranks, node = (ended.ranks, ended.node or node) if ended else ((), node)
            if not ended:
                ranks = (self._first_rank,) if self._first_rank >= 0 else ()
                node = node or ("" if ranks else _node_after(first.order, ends))
            texts = Counter(_NUMBER.sub("", log_error.error.text) for log_error in same)
            if ended and max(texts.values()) > 1 and not first.node:
                # The error was printed several times, but not by ranks that ended after another error.
                later = (entry.order for entry in errors if entry.order > ended.order and entry not in same)
                until = min(later, default=self._order + 1)
                ranks, node = _ended_alike(ended, [end for end in ends if end.order < until])
        if not ranks:
            ranks = _watched(error, errors)
        node_of_ended = {rank: end.node for end in reversed(ends) if end.node for rank in end.ranks}
        places = {rank: self._nodes.get(rank) or node_of_ended.get(rank, "") for rank in ranks}
        culprits = tuple(
            Culprit(rank, places[rank] or (node if len(ranks) == 1 else ""), error.message)
            for rank in ranks[:MOST_CULPRITS]
        )
        if not culprits and node:
            culprits = (Culprit(-1, node, error.message),)
        files = list(dict.fromkeys(filter(None, map(self._file_of, same))))
        evidence = [f"in {', '.join(files[:MOST_CULPRITS])}"] if files else []
        who = f"a process of {files[0]}" if files and not node else "a process"
        who = ranks_in_words(ranks) if ranks else who
        on = f" on {culprits[0].node}" if culprits and culprits[0].node and len(culprits) == 1 else ""
        if SIZES.search(error.text):
            culprits = ()  # the sender may be wrong
        lines_after_nccl = first.order - self._nccl_failed if self._nccl_failed else 0
        # What an operation that failed should have received may be garbage.
        follows_nccl = 0 < lines_after_nccl < LINES_TO_EXCEPTION and not root
        follows_nccl = follows_nccl and not _is_of_communication(error)
        is_first_unmarked = self._first_rank >= 0 and ranks and self._first_rank not in ranks
        is_asked = _ASKED_TO_END.match(error.text) is not None
        waits = error.row is not None and error.row.verdict is Verdict.NEVER_ARRIVED
        did = "failed first" if len(ranks) < 2 else "failed"
        were = "was" if len(ranks) < 2 else "were"
        did = f"{were} ended from outside" if is_asked else "gave up waiting" if waits else did
        sentence = f"{who}{on} {did}: {error.message}"
        if follows_nccl:
            sentence = f"operations of NCCL failed or timed out; then, in {who}{on}: {error.message}"
        if is_first_unmarked:
            where = f" on {self._nodes[self._first_rank]}" if self._nodes.get(self._first_rank) else ""
            sentence += f"; the launcher saw rank {self._first_rank}{where} end first"
        if SIZES.search(error.text):
            sentence += f"; it was sent these data, and the sender may be wrong{_places(errors)}"
        row = hint.error.row if hint and not is_timeout(hint.error) else error.row
        too_many = _too_many(error.text)
        if too_many:
            evidence.append(too_many)
        elif row:
            evidence.append(f"cause: {row.cause}")
        evidence += [hint.error.text] if hint else []
        if error.row is NCCL_FAILED and not hint and self._nccl_warnings:
            sentence += f"; NCCL's warning: {self._nccl_warnings[-1]}"
            evidence += self._nccl_warnings
        where = error.frame
        if not where and (caller := _caller(first, [*errors, *self._unended()])):
            where = caller.frame
            sentence += f"; then: {caller.message}"
        if lacks_inner(error):
            sentence += "; the log lacks the exception that it wraps"
            where = ""
        consequence = next(
            (
                log_error
                for log_error in errors
                if log_error.error.is_consequence and log_error.rank >= 0 and not log_error.was_handled
            ),
            None,
        )
        if consequence:
            printed = cut(consequence.error.text)
            evidence.append(f"a consequence: rank {consequence.rank} printed {printed}")
        others = [log_error for log_error in own if log_error is not first and log_error not in same]
        evidence += [
            f"also printed: {cut(log_error.error.message)}"
            for log_error in others[-1:]
            if log_error.error.frame and error.text not in log_error.error.message
        ]
        is_explained = error.row not in (None, NCCL_FAILED, NPU_FAILED) and "NCCL WARN" not in error.text
        if not is_explained or (error.row and error.row.hardware):
            evidence += [f"near it: {line}" for line in self._near(first) if line not in sentence][:MOST_NEAR]
        evidence += [end.line for end in ends[:3]]
        where = line_of(where)
        remedy = f"look at {where}"
        if _OF_CODE.match(error.text):
            remedy += "; the error is the program's own"
        if is_asked:
            remedy = _ENDED_REMEDY
        elif not where:
            remedy = "the message says all that the log has: it shows no line of your code"
        remedy = foreign(row.remedy) if row else remedy
        if row is NCCL_FAILED and (self._nccl_warnings or "Last error:" in error.text):
            remedy = remedy.partition("; ")[2]
        verdict = row.verdict if row else Verdict.CRASHED
        if too_many:
            verdict, remedy = Verdict.MISMATCH, _TOO_MANY_REMEDY
        elif follows_nccl:
            verdict, remedy = Verdict.NEVER_ARRIVED, foreign(TIMEOUT_REMEDY)
        return Diagnosis(verdict, sentence, culprits, (), tuple(dict.fromkeys(evidence)), remedy)

    def _file_of(self, log_error: LogError) -> str:
        """Return the name of the file of an error; '' if there is only one file."""
        names = [name for begins, name in self._names if begins < log_error.order]
        return names[-1] if len(self._names) > 1 and names else ""

    def _of_timeouts(self, errors: Sequence[LogError]) -> Diagnosis:
        """Return the diagnosis of collectives that timed out, by the rules for runs that have ended."""
        last_lines = {process.rank: process.last_line for process in self._processes.values()}
        last_lines = {**self._splitter.early, **last_lines}
        ranks = {rank for rank in (*last_lines, *(log_error.rank for log_error in errors)) if rank >= 0}
        # A log in which many ranks are missing is that of one node.
        is_whole = 0 < self._world <= len(ranks) * MOST_SILENT
        size = max(self._world if is_whole else 0, max(ranks, default=-1) + 1)
        # Silence proves nothing if Ray leaves out equal lines, or if the log may be that of some ranks only.
        # Rules blame one silent rank, not several.
        ended = {rank for end in self._ends.ends for rank in end.ranks}
        has_all = is_whole or self._first_rank >= 0 or {*range(size)} <= ranks or {*range(size)} <= ended
        size += 2 * (self._has_left_out or not has_all)
        nodes = tuple(self._nodes.get(rank, "") for rank in range(size))
        printed = tuple(log_error.error for log_error in errors if log_error.rank >= 0)
        if not printed:
            message = f"a collective timed out in a rank that the log does not name: {errors[0].error.text}"
            return Diagnosis(Verdict.NEVER_ARRIVED, message, remedy=foreign(TIMEOUT_REMEDY))
        diagnosis = decide_end(Remains(State.FAILED, "", None, printed, nodes))
        if not has_all and len({error.rank for error in printed}) == 1:
            # The others may have reported the same.
            diagnosis = replace(diagnosis, culprits=())
        evidence = (*diagnosis.evidence, *(log_error.error.text for log_error in errors[:1]))
        if diagnosis.verdict is Verdict.LINK and not is_whole:
            waited = diagnosis.message.rpartition(":")[0]
            message = f"{waited}; the log may not show all ranks: a silent one may not have joined"
            diagnosis = replace(
                diagnosis, verdict=Verdict.NEVER_ARRIVED, message=message, remedy=TIMEOUT_REMEDY
            )
        if self._desync:
            message = f"{diagnosis.message.partition(': their output')[0]}; torch's report: {self._desync}"
            diagnosis = replace(diagnosis, message=message)
        if "didn't finish" in self._desync:
            diagnosis = replace(diagnosis, verdict=Verdict.LINK, culprits=(), remedy=LINK_REMEDY)
        silent = [culprit.rank for culprit in diagnosis.culprits if last_lines.get(culprit.rank)]
        evidence += tuple(f"last line of rank {rank}: {last_lines[rank][:300]}" for rank in silent)
        return replace(diagnosis, evidence=evidence, remedy=foreign(diagnosis.remedy))

    def _of_end(self, end: EndLine, errors: Sequence[LogError]) -> Diagnosis:
        """Return the diagnosis if only Slurm or a launcher says how ranks ended."""
        ends = [other for other in self.ends() if other.kind is end.kind]
        placed = next((other for other in (end, *ends) if other.ranks or other.node), end)
        if end.is_report and not placed.ranks:
            placed = replace(end, node=end.node or _node_after(end.order, self.ends()))
        ranks, node = placed.ranks, placed.node
        ended = self._ended_first(self.ends())
        if not ranks and ended and end.kind in NOT_STARTED:
            ranks, node = _ended_alike(ended, self.ends())
        elif not ranks and ended and end.kind is EndKind.MEMORY:
            ranks, node = ended.ranks, ended.node
        is_whole_job = end.kind.value >= EndKind.TIME_LIMIT.value
        culprits: tuple[Culprit, ...] = ()
        if not is_whole_job:
            nodes = {rank: other.node for other in self.ends() for rank in other.ranks}
            culprits = tuple(
                Culprit(rank, node or nodes.get(rank, ""), placed.words) for rank in ranks[:MOST_CULPRITS]
            )
            if not culprits and node:
                culprits = (Culprit(-1, node, placed.words),)
        message = sentence = _named(placed.words)
        on = f" on {node}" if node else ""
        if placed.is_report and not ranks:
            sentence = f"a process{on} ended: {message}"
        elif node and not ranks and node not in message:
            sentence = f"on {node}: {message}"
        elif ranks and not is_whole_job:
            did = " failed first: it" if placed.is_report else ":"
            did = "" if message.startswith("ended: ") else did
            sentence = f"{ranks_in_words(ranks)}{on}{did} {message}"
        row = meaning(message) if placed.is_report else None
        evidence = [f"cause: {row.cause}"] if row else []
        evidence += [other.line for other in ends[:4]]
        complaint = self._complaint
        if end.kind is EndKind.EXIT and not (complaint or errors):
            complaint = next((line for line in self._suspects() if line not in end.line), "")
        if (
            complaint
            and end.kind in (EndKind.EXIT, EndKind.SIGNAL, EndKind.START)
            and not (placed.is_report and ranks)
        ):
            sentence += f"; before that: {complaint}"
        for log_error in errors[:2]:
            who = f"rank {log_error.rank}: " if log_error.rank >= 0 else ""
            evidence.append(f"{who}{log_error.error.message}")
        if culprits:
            processes = [process for process in self._processes.values() if process.rank in ranks]
            last_lines = [(process.rank, process.last_line) for process in processes]
            if not last_lines:
                last_lines = [(rank, line) for rank, line in self._splitter.early.items() if rank in ranks]
            evidence += [
                f"last line of rank {rank}: {line[:300]}" for rank, line in last_lines[:MOST_LAST_LINES]
            ]
        evidence += [f"last line: {line}" for line in self.last_lines[-2:] if line not in evidence]
        verdict = _VERDICTS.get(end.kind, Verdict.CRASHED)
        return Diagnosis(verdict, sentence, culprits, (), tuple(evidence), _remedy(end.kind, message))

    def _did_not_go_on(self, end: EndLine, errors: Sequence[LogError]) -> bool:
        """Return whether nothing ran after a command that could not be started."""
        return not self._has_steps_after(end.order) and not any(
            log_error.order > end.order for log_error in errors
        )

    def _ended_without_exception(self, ends: Sequence[EndLine]) -> EndLine | None:
        """Return the first end of a rank if it is by a signal, or with another code than 1; else None.

        An abort may follow on an exception.
        """
        ended = self._ended_first(ends)
        if ended is None:
            return None
        is_by_signal = ended.kind is not EndKind.EXIT and not _ABORTED.search(ended.words)
        has_other_code = re.search(r"exit(?:ed with)? code (?!1\b)", ended.words) is not None
        return ended if is_by_signal or has_other_code else None

    def _rank_of_end(self, end: EndLine) -> tuple[int, bool, bool]:
        """Return a smaller value for an end that explains more. An abort may follow on another end."""
        kind = EndKind.EXIT if _ABORTED.search(end.words) else end.kind
        return kind.value, not end.is_report, end.ranks != (self._first_rank,)

    def _died_before(self, timeouts: Sequence[LogError], ends: Sequence[EndLine]) -> EndLine | None:
        """Return the end of ranks for which others waited until a collective timed out."""
        waited = {entry.rank for entry in timeouts}
        died = [
            end
            for end in ends
            if end.kind in (EndKind.SIGNAL, EndKind.EXIT)
            and end.ranks
            and waited.isdisjoint(end.ranks)
            and not _ABORTED.search(end.words)
            and (end.order < timeouts[0].order or end.ranks == (self._first_rank,))
        ]
        return min(died, key=self._rank_of_end, default=None)

    def _has_steps_after(self, order: int) -> bool:
        return any(process.last_step > order for process in self._processes.values())

    def _ended_first(self, ends: Sequence[EndLine]) -> EndLine | None:
        """Return the first end of named ranks that another rank did not cause."""
        kinds = (EndKind.EXIT, EndKind.SIGNAL, EndKind.MEMORY)
        return next((end for end in ends if end.ranks and end.kind in kinds), None)


def _too_many(line: str) -> str:
    """Return how many ranks came to a barrier of the store, if the world has fewer; '' otherwise."""
    counts = _BARRIER.search(line) if "worker_count" in line else None
    if counts is None or int(counts[2]) <= int(counts[1]):
        return ""
    return f"{counts[2]} ranks came, and each expected {counts[1]} in all"


def _of_unended(unended: Sequence[LogError]) -> Diagnosis:
    """Return the diagnosis of a log that ends inside of a traceback."""
    culprits = tuple(
        Culprit(log_error.rank, log_error.node, log_error.error.message)
        for log_error in unended[:MOST_CULPRITS]
        if log_error.rank >= 0
    )
    who = ranks_in_words(sorted({culprit.rank for culprit in culprits})) if culprits else "a process"
    sentence = f"{who} failed: the log ends in {unended[0].error.message}"
    return Diagnosis(Verdict.CRASHED, sentence, culprits, (), (), _NOTHING_REMEDY)


def foreign(remedy: str) -> str:
    """Return a remedy in words for a job that clusterrun did not start."""
    for row in ROWS:
        if row.elsewhere:
            remedy = remedy.replace(row.remedy, row.elsewhere)
    for pattern, replacement in _FOREIGN:
        remedy = pattern.sub(replacement, remedy)
    return remedy


def _ended_alike(ended: EndLine, ends: Sequence[EndLine]) -> tuple[tuple[int, ...], str]:
    """Return the ranks that ended as the ranks of ``ended`` did, and their node if they have only one."""
    alike = [end for end in ends if (end.kind, end.words) == (ended.kind, ended.words)]
    nodes = {end.node for end in alike}
    ranks = tuple(sorted({rank for end in alike for rank in end.ranks}))
    return ranks, ended.node if len(nodes) == 1 else ""


def _node_after(order: int, ends: Sequence[EndLine]) -> str:
    """Return the node whose task ended first after a line; '' if no line names it."""
    nodes = (end.node for end in ends if end.order > order and end.kind in (EndKind.EXIT, EndKind.SIGNAL))
    return next(nodes, "")


def _remedy(kind: EndKind, message: str) -> str:
    """Return the remedy for an end, by its message or its signal if that has few causes."""
    if kind is EndKind.SIGNAL and ("SIGKILL" in message or "Killed" in message):
        return f"often memory ran out: dmesg on the node shows OOM kills; then {_MEMORY_REMEDY}"
    if "SIGHUP" in message:
        return "its terminal or ssh session closed: sbatch, tmux or nohup outlive it"
    row = meaning(message) if kind in (EndKind.SIGNAL, EndKind.START, EndKind.EXIT) else None
    is_by_signal = kind is EndKind.SIGNAL and row is not None and row.consequence
    return foreign(row.remedy) if row and not is_by_signal else _REMEDIES[kind]


def _named(message: str) -> str:
    """Return a message with the names of signals behind their numbers."""
    return _SIGNAL_NUMBER.sub(_with_name, message)


def _with_name(match: re.Match[str]) -> str:
    with suppress(ValueError):
        return f"signal {match[1]} ({signal.Signals(int(match[1])).name})"
    return match[0]


def _is_no_consequence(line: str) -> bool:
    row = meaning(line)
    return row is None or not row.consequence


def _is_alike(error: Error, other: Error) -> bool:
    """Return whether messages differ in numbers only, or mean the same known error."""
    if error.row is not None:
        return error.row is other.row
    return _NUMBER.sub("", error.text) == _NUMBER.sub("", other.text)


def _exception_after(first: LogError, own: Sequence[LogError]) -> tuple[LogError, LogError | None]:
    """Return the exception that a library's message without a place led to, and that message."""
    if first.error.frame or first.error.row is None or _EXCEPTION_LINE.match(first.error.text):
        return first, None
    for log_error in own:
        is_near = 0 < log_error.order - first.order <= LINES_TO_EXCEPTION
        if is_near and log_error.error.frame and (log_error.rank == first.rank or first.rank < 0):
            return log_error, first
    return first, None


def _caller(first: LogError, errors: Sequence[LogError]) -> Error | None:
    """Return the next error with a line of the user's code, which called the process that failed first."""
    for log_error in errors:
        is_of_rank = first.rank < 0 or log_error.rank in (-1, first.rank)
        if log_error.order > first.order and log_error.error.frame and is_of_rank:
            return log_error.error
    return None


def _places(errors: Sequence[LogError]) -> str:
    """Return ``; ranks 0-1 at train.py:33 (step), rank 2 at …`` if ranks failed in several lines."""
    frames = {other.rank: other.error.frame for other in errors if other.rank >= 0 and other.error.frame}
    vote = RankVote(frames)
    places = [f"{ranks_in_words(ranks)} at {short(frame)}" for frame, ranks in vote.sides[:MOST_PLACES]]
    return "" if vote.is_unanimous else f"; {', '.join(places)}"


def _watched(error: Error, errors: Sequence[LogError]) -> tuple[int, ...]:
    """Return the rank whose watchdog reports an error of a GPU that lacks the mark of a rank."""
    match = _GPU_ERROR.search("device-side assert" if " Assertion `" in error.text else error.text)
    others = {entry.rank for entry in errors if match and entry.rank >= 0 and match[0] in entry.error.text}
    return tuple(others) if len(others) == 1 else ()


def _explanation(first: LogError, errors: Sequence[LogError]) -> LogError | None:
    """Return the message of a GPU, its driver or a watchdog that explains an error; None without one.

    A kernel's assertion and the driver's report lack the mark of a rank. A watchdog aborts its process.
    """
    is_of_gpu = _UNEXPLAINED.search(first.error.text)
    is_abort = first.error.text.startswith("Fatal Python error: Aborted")
    for log_error in errors:
        row, is_marked = log_error.error.row, log_error.rank >= 0
        if row is None or log_error.error.frame or (is_marked and first.rank not in (-1, log_error.rank)):
            continue
        is_report = " Assertion `" in log_error.error.text or (row.hardware and "Xid" in log_error.error.text)
        if (is_of_gpu and is_report) or (is_abort and is_timeout(log_error.error)):
            return log_error
    return None


def _is_of_communication(error: Error) -> bool:
    """Return whether the end of another rank may have caused an error."""
    if error.row not in (None, NCCL_FAILED):
        return error.row.consequence or error.row.verdict in (Verdict.LINK, Verdict.NEVER_ARRIVED)
    return error.lost_peer or _COMMUNICATION.search(error.text) is not None


def _without_handled(
    own: Sequence[LogError], ends: Sequence[EndLine], ended_alone: EndLine | None
) -> list[LogError]:
    """Leave out errors after which their processes went on, if anything else explains the end.

    ``ended_alone`` is the first end of a rank that no exception explains. Connections fail after it.
    """
    ended = [log_error for log_error in own if not log_error.error.survived]
    certain = [log_error for log_error in ended if not log_error.is_doubtful]
    if ended_alone:
        return [
            log_error
            for log_error in certain
            if not (_is_of_communication(log_error.error) and log_error.order > ended_alone.order)
            if log_error.error.ends
            or log_error.output_after < OUTPUT_BEFORE_OTHER_END
            or not _EXCEPTION_LINE.match(log_error.error.text)
        ]
    if certain or any(end.kind in WHOLE_JOB or end.is_report for end in ends):
        return certain
    return ended or ([] if ends else list(own))


def _job_ended(ends: Sequence[EndLine]) -> int:
    """Return the order of the first line that the whole job was ended; 0 without one."""
    return min((end.order for end in ends if end.kind in WHOLE_JOB and end.order), default=0)


def _without_aftermath(own: Sequence[LogError], ends: Sequence[EndLine]) -> list[LogError]:
    """Leave out errors of processes that were ended with the whole job."""
    job_ended = _job_ended(ends)
    if not job_ended:
        return list(own)
    return [
        log_error
        for log_error in own
        if log_error.order < job_ended and not _ASKED_TO_END.match(log_error.error.text)
    ]


def _was_killed(errors: Sequence[LogError]) -> bool:
    """Return whether all errors tell of a process that was killed."""
    return all(
        re.search(
            r"killed by signal: Killed|exited unexpectedly|abruptly",
            log_error.error.text,
        )
        for log_error in errors
    )
