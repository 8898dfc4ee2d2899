"""Read the log of any job: the errors and ends of its ranks, and what else its lines say; pure.

`log_verdict` judges them.
"""

from __future__ import annotations

import copy
import re
import signal
import sys
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from clusterrun.diagnosis.end_lines import NOT_STARTED, WHOLE_JOB, EndKind, EndLine, EndLines, end_in_words
from clusterrun.diagnosis.known_errors import RENDEZVOUS_LOST, meaning
from clusterrun.diagnosis.log_lines import LineSplitter, LogLine, OwnLines
from clusterrun.diagnosis.log_process import (
    HARMLESS,
    OF_TORCH,
    STEPS_AFTER_SURVIVED,
    LogError,
    LogPlace,
    LogProcess,
    is_final,
)
from clusterrun.diagnosis.log_runs import EndSign, RunDetector
from clusterrun.diagnosis.printed_errors import is_report, is_timer, rank_in
from clusterrun.diagnosis.torchrun_report import TorchrunReport
from clusterrun.diagnosis.watchdog_lines import is_timeout
from clusterrun.model.frozen import replace

# Other lines after an error that probably did not end its process.
OUTPUT_AFTER_SURVIVED = 30
MOST_LAST_LINES = 5
# Lines at the end of a log that are searched for what looks like an error, and the most that are shown.
LINES_OF_TAIL = 300
MOST_SUSPECTS = 3
# Characters of an exception without a traceback.
MOST_EXCEPTION = 400
# Clocks of nodes, and starts of ranks, differ by less than half of it.
JOINED_AFTER = timedelta(minutes=1)
# Runs before the last one that are kept.
MOST_RUNS = 8
# A module or an environment that a script could not load, in two lines at most.
_NOT_LOADED = re.compile(
    r"^(?:Lmod has detected the following error|ERROR: Unable to locate a modulefile|CommandNotFoundError"
    r"|CondaError: Run 'conda init')"
)
# How many ranks a job has.
_WORLD = re.compile(r"(?i)(?:\bworld[_ ]?size\W{1,3}|\bnranks |\bMEMBER: \d+/)(\d{1,6})\b")
# submitit writes one file for each rank.
_OF_SUBMITIT = re.compile(r"JobEnvironment\(.*\bhostname=([\w.-]+),.*\bglobal_rank=(\d+)\((\d+)\)")
_LOCAL = "local rank"
_FROM_OUTSIDE = re.compile(r"SIGTERM|SIGINT|SIGHUP")
_DEAD_ACTOR = re.compile(r"\b(?:ActorDied|RayActor)Error\b(?:.*\bip: \[?([\w.:-]+))?")
# The report of torch on the ranks that did or did not take part in a collective that timed out.
_DESYNC = re.compile(r"\[[\d, ]+\] (?:joined but didn't finish|finished .*didn't join|never joined) .*")
_CODE_1 = re.compile(r"exited with (?:exit )?code 1\b")
_SIGNAL_NUMBER = re.compile(r"signal:? (\d+)(?: \(\w+\))?")
_BARRIER = re.compile(r"\(world_size=(\d+), worker_count=(\d+)")
_RESTARTS = re.compile(r"\d+ attempts left; will restart worker group")


class JobLog:
    """Reads the lines of one job's log files: errors, ends, and what else they say of its ranks."""

    def __init__(self) -> None:
        self.splitter, self._own_lines = LineSplitter(), OwnLines()
        self.end_lines = EndLines()
        # The processes that wrote the lines, by file and prefix of the line.
        self.processes: dict[tuple[int, str], LogProcess] = {}
        # The names of the files, each with the order of the last line before it.
        self.file_names: list[tuple[int, str]] = []
        # The processes of the current file.
        self._of_file: list[LogProcess] = []
        self.order = 0
        self._file = 0
        # The order of the last line before the file.
        self._file_begins = 0
        self._file_rank = -1
        # The first and the latest time in the file.
        self._oldest_time = self._newest_time = ""
        self._run_detector = RunDetector()
        # The newest runs before the last one, and how many runs or attempts the files hold.
        self.earlier: deque[JobLog] = deque(maxlen=MOST_RUNS)
        self.runs = 1
        # The order of the last line of an earlier run, by file, and of the last line of this run.
        self._begins: dict[int, int] = {}
        self._until = sys.maxsize
        # torchrun started the ranks again.
        self.is_restarted = False
        self.nodes: dict[int, str] = {}
        # Ray has replaced equal lines of several processes by one.
        self.has_left_out = False
        # The number of ranks; 0 if no line says it.
        self.world = 0
        self.has_completed = self.has_failed = False
        # The report of torch on a time-out, the first line in which NCCL failed, and NCCL's last warnings.
        self.desync = ""
        self.nccl_failed = 0
        self.nccl_warnings: deque[str] = deque(maxlen=MOST_SUSPECTS)
        # The rank that failed first by the reports of all launchers, and when it did.
        self.first_rank, self._first_time = -1, ""
        self.report = TorchrunReport()
        # The first end of a process that any other line tells of: a launcher's report may be missing.
        self._failed_worker: EndLine | None = None
        self.last_lines: list[str] = []
        # Modules that the script could not load before its ranks began.
        self.not_loaded: list[str] = []
        # The orders of the lines about steps, by file.
        self._steps: dict[int, list[int]] = {}
        # The program marks its lines as torch marks those of an exception.
        self._marks_all = False
        # The last lines, with their order and rank.
        self.tail: deque[tuple[int, int, str]] = deque(maxlen=LINES_OF_TAIL)

    def begin_file(self, rank: int = -1, name: str = "") -> None:
        """Begin another file; ``rank`` if its name holds one."""
        self._file += 1
        self.file_names.append((self.order, name))
        self._of_file = []
        self._file_begins = self.order
        self._file_rank = rank
        self._oldest_time = self._newest_time = ""
        self.splitter, self._own_lines = LineSplitter(), OwnLines()
        self._run_detector = RunDetector()

    def hear(self, line: str) -> None:
        """Read one line, without its end."""
        for part in self.splitter.split(line):
            self.order += 1
            self._hear_part(part)

    def _hear_part(self, line: LogLine) -> None:
        text = line.text
        if self._own_lines.hear(text):
            return
        if line.time and self._begins_again(line.time):
            self.begin_file(self._file_rank, self.file_names[-1][1] if self.file_names else "")
        if any(map(str.isalnum, text)):
            self.last_lines = [*self.last_lines[1 - MOST_LAST_LINES :], text.strip()[:300]]
        if (last_of_run := self._run_detector.hear_end(self.order, text)) >= 0:
            self._begin_run(last_of_run)
        if self.end_lines.hear(self.order, text):
            end = self.end_lines.ends[-1]
            if not end.ranks:
                ranks = (line.rank,) * (end.kind in NOT_STARTED and line.rank >= 0)
                self.end_lines.ends[-1] = replace(end, ranks=ranks, node=end.node or line.node)
            is_of_job = end.kind in WHOLE_JOB
            self._run_detector.note(EndSign.JOB if is_of_job else EndSign.RANK)
            for other in self._of_file:
                other.on_end()
            return
        if (last_of_run := self._run_detector.hear(self.order, text, line.time)) >= 0:
            self._begin_run(last_of_run)
        if environment := _OF_SUBMITIT.search(text):
            self._file_rank = int(environment[2])
            self.nodes[self._file_rank] = environment[1]
            self.world = max(self.world, int(environment[3]))
        rank = line.rank if line.rank >= 0 else self._file_rank
        if not self.end_lines.is_in_message:
            self.tail.append((self.order, rank, text))
        if not self.nccl_failed and "Some NCCL operations have failed" in text:
            self.nccl_failed = self.order
        if "join" in text and (desync := _DESYNC.search(text)):
            self.desync = desync[0]
        is_warning = "NCCL WARN" in text and not HARMLESS.search(text)
        if is_warning and not ((row := meaning(text)) and row.consequence):
            self.nccl_warnings.append(text.strip()[:MOST_EXCEPTION])
        if _NOT_LOADED.match(text) or (len(self.not_loaded) == 1 and self.not_loaded[0].endswith(":")):
            self.not_loaded = [*self.not_loaded, text.strip()][:2]
        self.has_left_out = self.has_left_out or "x across cluster]" in text
        if world := _WORLD.search(text):
            self.world = max(self.world, int(world[1]))
        worker = self._failed_worker
        is_ended = worker is None or worker.kind is EndKind.OUTSIDE
        if is_ended and (failed := end_in_words(text, self.order, line.rank)):
            self._failed_worker = replace(failed, node=line.node or failed.node)
        if _RESTARTS.search(text):
            self.is_restarted, self._run_detector = True, RunDetector()
            self._begin_run(self.order)
        source = line.source
        if rank >= 0 and line.node:
            self.nodes[rank] = line.node
        process = self.processes.get((self._file, source))
        if process is None:
            process = self.processes[self._file, source] = LogProcess(rank)
            self._of_file.append(process)
        steps = process.steps
        is_of_report = process.hear(text, LogPlace(self.order, rank, line.node, line.time), line.logger)
        if process.steps > steps:
            self._steps.setdefault(self._file, []).append(self.order)
            self._marks_all = self._marks_all or OF_TORCH.match(text) is not None
        if is_of_report:
            self.report = process.listener.report
            self._note_report(self.report)
        has_failed = process.places and process.places[-1].order == self.order
        if has_failed and not process.listener.errors[-1].is_consequence:
            self._run_detector.note(EndSign.ERROR, process.listener.errors[-1].text)

    def _begins_again(self, time: str) -> bool:
        """Return whether a time is that of the file's first lines, so files of ranks were joined."""
        newest, self._newest_time = self._newest_time, max(time, self._newest_time)
        self._oldest_time = self._oldest_time or time
        if time >= newest:
            return False
        with suppress(ValueError):
            first, last, now = map(datetime.fromisoformat, (self._oldest_time, newest, time))
            return last - first > JOINED_AFTER and abs(now - first) < JOINED_AFTER / 2
        return False

    def _note_report(self, report: TorchrunReport) -> None:
        """Note the nodes of ranks, and the rank that failed first by the reports of all launchers."""
        if report.rank < 0:
            return
        for rank, node in {**report.failed, report.rank: report.host}.items():
            self.nodes.setdefault(rank, node)
        if self.first_rank < 0 or report.time < self._first_time:
            self.first_rank, self._first_time = report.rank, report.time

    def _begin_run(self, last: int) -> None:
        """Set the lines of the file up to ``last`` aside: they are of an earlier run."""
        run = copy.copy(self)
        run.processes = {key: process for key, process in self.processes.items() if key[0] == self._file}
        run.end_lines = self.end_lines.taken(self._file_begins, last)
        run.earlier, run.runs = deque(), 1
        run._begins, run._until = dict(self._begins), last
        self.earlier.append(run)
        self.runs += 1
        self._begins[self._file] = last
        if last >= self.order - 1:
            self.processes = {key: process for key, process in self.processes.items() if key[0] != self._file}
            self._of_file = []
        for process in self._of_file:
            process.on_end()
        self.first_rank, self._first_time = -1, ""
        self._failed_worker = None
        self.tail = deque((entry for entry in self.tail if entry[0] > last), maxlen=LINES_OF_TAIL)

    def job_ended(self, word: str, nodes: str) -> None:
        """Note how Slurm says that the job ended."""
        self.has_completed, self.has_failed = word == "COMPLETED", word not in ("COMPLETED", "")
        self.end_lines.note_state(word, nodes)

    def errors(self) -> list[LogError]:
        """Return all errors in the order of their lines. Timers of scripts are left out."""
        errors = []
        ended = {rank for end in self.end_lines.ends for rank in end.ranks}
        exited = {*self.report.failed, self.first_rank} | {
            rank
            for end in self.end_lines.ends
            if end.kind is not EndKind.ENDED_BY_OTHERS
            for rank in end.ranks
        }
        shows_one_rank = max(self.world, len(ended)) <= 1
        processes = Counter(file for file, _ in self.processes)
        for (file, _), process in self.processes.items():
            is_marked = any(error.inner >= 0 for error in process.listener.errors)
            is_alone = process.rank >= 0 or (shows_one_rank and processes[file] == 1)
            handled = process.handled(is_alone and not is_marked)
            for number, (error, place) in enumerate(zip(process.listener.errors, process.places)):
                if is_timer(error) or not self._begins.get(file, 0) < place.order <= self._until:
                    continue
                steps, output = process.printed_after(number)
                rank = error.inner if error.inner >= 0 else place.rank
                rank = error.origin if error.origin >= 0 else rank
                rank = rank if rank >= 0 else rank_in(error.text)
                went_on = output >= OUTPUT_AFTER_SURVIVED
                # Ranks train in step: none goes on long without another one.
                until = self._until
                if rank in exited and rank >= 0:
                    until = process.places[-1].order if number + 1 < len(process.places) else place.order
                steps_of_any = self._steps_between(file, place.order, until) * (rank >= 0 or error.caught)
                has_steps = max(steps, steps_of_any) >= (1 if place.goes_on else STEPS_AFTER_SURVIVED)
                survived = has_steps or (went_on and place.was_logged)
                survived = survived and not (error.ends and not self._marks_all)
                went_on = went_on or (place.was_logged and self.has_steps_after(place.order, place.last_time))
                is_doubtful = handled[number] or ((went_on or place.is_warning) and not is_final(error))
                error = replace(error, rank=rank, inner=-1, survived=survived)
                node = place.node or self.nodes.get(rank, "")
                time = place.last_time.replace("T", " ")
                is_last = steps == output == 0
                errors.append(LogError(error, place.order, rank, node, is_doubtful, output, is_last, time))
        return sorted(self._marked_as_survived(errors), key=lambda log_error: log_error.order)

    def _steps_between(self, file: int, begin: int, end: int) -> int:
        orders = self._steps.get(file, [])
        return bisect_left(orders, end) - bisect_right(orders, begin)

    def _marked_as_survived(self, errors: Sequence[LogError]) -> list[LogError]:
        """Mark errors of ranks that later reported the time-out of a collective.

        A message without a rank is one of theirs if it was printed more often than there are other ranks.
        """
        reports = {entry.rank: entry.order for entry in errors if entry.rank >= 0 and is_timeout(entry.error)}
        unmarked = Counter(entry.error.text for entry in errors if entry.rank < 0)
        others = (self.world or max(reports, default=0) + 2) - len(reports)
        marked = []
        for entry in errors:
            reported_at = reports.get(entry.rank, -1)
            if entry.rank < 0 and unmarked[entry.error.text] > max(others, 1):
                reported_at = max(reports.values(), default=-1)
            is_survived = entry.order < reported_at and not (is_final(entry.error) or is_timeout(entry.error))
            marked.append(replace(entry, is_doubtful=True) if is_survived else entry)
        return marked

    def ends(self, errors: Sequence[LogError]) -> list[EndLine]:
        """Return the lines about ends and the reports of launchers, in their order, beside all ``errors``."""
        ends, limit = [*self.end_lines.ends], whole_job_ended_at(self.end_lines.ends) or self.order + 1
        reports = [
            log_error
            for log_error in errors
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
                message = named(report.error.message)
                # An actor's node stands in the message. The line is of the process that noticed its death.
                actor = _DEAD_ACTOR.search(report.error.text)
                node = actor[1] or "" if actor else report.node
                ends.append(EndLine(kind, message, message, ranks, node, report.order, True))
        worker = self._failed_worker
        if worker and not self.has_steps_after(worker.order):
            # One with a rank counts beside all others, one with a local rank beside those that are no report.
            others = [end for end in ends if end.is_report] if _LOCAL in worker.words else ends
            if worker.ranks or all(worker.node and end.node not in ("", worker.node) for end in others):
                ends.append(worker)
        # A rank that only noticed the end of another one exits with code 1.
        printed = [entry for entry in errors if not is_report(entry.error)]
        noticed = {entry.rank for entry in printed if entry.error.is_consequence}
        noticed -= {entry.rank for entry in printed if not entry.error.is_consequence}
        is_launcher = any(entry.error.row is RENDEZVOUS_LOST for entry in printed)
        ends = [
            end
            for end in ends
            if not (noticed.issuperset(end.ranks) and _CODE_1.search(end.words))
            or not (end.ranks or len(noticed) > 1 or is_launcher)
        ]
        return sorted(ends, key=lambda end: end.order)

    def is_settled(self) -> bool:
        """Return whether a launcher confirms the end of a rank that printed an error of its own before.

        Lines between the beginning and the end of the log, which were not read, do not change the diagnosis.
        """
        errors = self.errors()
        ended = ended_first(self.ends(errors))
        for entry in errors:
            error, is_first = entry.error, entry.rank == self.first_rank >= 0
            if ended and entry.order < ended.order and entry.rank in (-1, *ended.ranks):
                is_first = True
            is_other = is_report(error) or is_timeout(error) or error.is_consequence or error.lost_peer
            if is_first and not (is_other or error.survived):
                return True
        return False

    def file_at(self, order: int) -> int:
        """Return the number of the file that holds a line."""
        return bisect_left(self.file_names, (order, ""))

    def last_line_by_rank(self) -> dict[int, str]:
        """Return the last line of each rank whose lines the log tells apart."""
        last_lines = {process.rank: process.last_line for process in self.processes.values()}
        return {**self.splitter.early, **last_lines}

    def has_steps_after(self, order: int, time: str = "") -> bool:
        """Return whether a step follows a line: by its time if it has one, as files are read in turn."""
        return any(
            process.last_step > order and not process.step_time < time for process in self.processes.values()
        )


def ended_first(ends: Sequence[EndLine]) -> EndLine | None:
    """Return the first end of named ranks that another rank did not cause."""
    kinds = (EndKind.EXIT, EndKind.SIGNAL, EndKind.MEMORY)
    return next((end for end in ends if end.ranks and end.kind in kinds), None)


def too_many_ranks(line: str) -> str:
    """Return how many ranks came to a barrier of the store, if the world has fewer; '' otherwise."""
    counts = _BARRIER.search(line) if "worker_count" in line else None
    if counts is None or int(counts[2]) <= int(counts[1]):
        return ""
    return f"{counts[2]} ranks came, and each expected {counts[1]} in all"


def named(message: str) -> str:
    """Return a message with the names of signals behind their numbers."""
    return _SIGNAL_NUMBER.sub(_with_name, message)


def _with_name(match: re.Match[str]) -> str:
    with suppress(ValueError):
        return f"signal {match[1]} ({signal.Signals(int(match[1])).name})"
    return match[0]


def whole_job_ended_at(ends: Sequence[EndLine]) -> int:
    """Return the order of the first line that the whole job was ended; 0 without one."""
    return min((end.order for end in ends if end.kind in WHOLE_JOB and end.order), default=0)
