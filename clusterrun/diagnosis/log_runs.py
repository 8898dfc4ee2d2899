"""Recognize that another run begins in a log file; pure.

Slurm appends the output of a job that starts again, and a file may hold the output of several jobs. Ranks of
one run may print the same lines, and torchrun may restart them, so a run begins only at a line that shows it.
"""

from __future__ import annotations

import enum
import re
from contextlib import suppress
from datetime import datetime, timedelta

from clusterrun.diagnosis.known_errors import meaning
from clusterrun.diagnosis.log_process import STEP
from clusterrun.diagnosis.printed_errors import is_plain_output

# How many lines at the beginning of a file identify a run, and how many letters each has at least.
HEAD_LINES = 10
HEAD_LETTERS = 8
# The number of letters of a line that are compared. The arguments behind them may differ.
HEAD_WIDTH = 40
# Lines within which several ranks print one line.
OF_RANKS = 50
# Time after the end of a job in which its last processes end. Later lines are of its next start.
LATER = timedelta(minutes=10)
_CANCELLED = re.compile(r"\*\*\* JOB (\d+) .* CANCELLED AT (\d\S+)")
_NO_LETTERS = re.compile(r"[\W\d_]+")
# What ``date`` prints, often at both ends of a script.
_DATE = re.compile(r"^\w{3},? (?:\w{3} +\d+|\d+ \w{3} \d{4}) \d\d:\d\d:\d\d\b.{0,20}$")
# What a job prints that continues from where it was.
_RESUMES = re.compile(
    r"(?i)\b(?:resum(?:ed|ing) (?:from|at|training)|restart(?:ed)? #?\d"
    r"|(?:load|restor)(?:ed|ing)\b.*\bcheckpoint)"
)
_NOHUP = "nohup: ignoring input"
_HEADER = "Traceback (most recent call last)"


class EndSign(enum.IntEnum):
    """The strongest sign of a run's end that its lines hold so far."""

    NONE = 0
    ERROR = 1  # a process printed an error
    RANK = 2  # a launcher or Slurm reported the end of a rank
    JOB = 3  # the scheduler ended the job


class RunDetector:
    """Reads the lines of one file, and recognizes where another run begins."""

    def __init__(self) -> None:
        self._ending = EndSign.NONE
        # The first lines of the file, without numbers, and the order of each.
        self._head: dict[str, int] = {}
        # The first lines that are printed again soon, as by several ranks.
        self._printed_twice: set[str] = set()
        self._has_begun_again = False
        # The lines of the head that the last lines repeat.
        self._repeated: list[str] = []
        # Times of the last line, of the end of the whole job, and of the last line before that.
        self._time = self._ended_at = self._time_before_end = ""
        # The last job that Slurm ended, and the order of that line.
        self._job, self._job_ended = "", 0
        # The last line with text.
        self._last = ""

    def note(self, ending: EndSign, message: str = "") -> None:
        """Note a sign that the run ends. Each rank of a run may print the ``message`` of an error."""
        self._ending = max(ending, self._ending)
        letters = _NO_LETTERS.sub(" ", message)
        self._head = {line: order for line, order in self._head.items() if line.strip() not in letters}

    def hear_end(self, order: int, text: str) -> int:
        """Read a line that may be Slurm's about the end of a job. Return what ``hear`` returns."""
        cancelled = _CANCELLED.search(text)
        if cancelled is None:
            return -1
        # Each job writes that line at most once.
        begins = self._job_ended if self._job not in ("", cancelled[1]) else -1
        if begins >= 0:
            self._ending = EndSign.NONE
        self._job, self._job_ended = cancelled[1], order
        self._ended_at, self._time_before_end = cancelled[2], self._time
        return begins

    def hear(self, order: int, text: str, time: str) -> int:
        """Read another line. Return the order of the last line before another run; -1 if none has begun."""
        is_later = self._ending is EndSign.JOB and time and self._is_later(time)
        self._time = time or self._time
        is_later = is_later or (self._ending is EndSign.JOB and _RESUMES.search(text) is not None)
        is_of_next = is_later or (bool(self._last) and text.startswith(_NOHUP))
        begins = order - 1 if is_of_next or self._repeats_head(order, text) else -1
        if begins >= 0:
            self._ending = EndSign.NONE
            self._repeated, self._has_begun_again = [], True
            self._job = self._time_before_end = ""
        if text.strip():
            self._last = text
        return begins

    def _is_later(self, time: str) -> bool:
        """Return whether a line is so late that Slurm has started the job again.

        The log's clock may be in another time zone than Slurm's, and the job may have hung before its end.
        """
        with suppress(ValueError):
            now, before, end = map(datetime.fromisoformat, (time, self._time_before_end, self._ended_at))
            return min(now - before, now - end) > LATER
        return False

    def _repeats_head(self, order: int, text: str) -> bool:
        """Return whether the file begins again after its ranks or its job have ended.

        One line is enough if Slurm ended the job. Else ranks that started late may print one line again.
        """
        letters = _NO_LETTERS.sub(" ", text)[:HEAD_WIDTH]
        if len(letters) < HEAD_LETTERS or STEP.search(text) or _HEADER in text or _DATE.match(text):
            return False
        has_ended = self._ending is not EndSign.NONE
        if letters in self._head and has_ended and letters not in self._printed_twice:
            self._repeated.append(letters)
            first = next(line for line in self._head if line not in self._printed_twice)
            is_enough = self._ending >= EndSign.RANK or first in self._repeated
            # A script prints its first line once, and a rank may print another one late.
            is_first = self._ending >= EndSign.RANK and letters == next(iter(self._head))
            return self._ending is EndSign.JOB or is_first or (len(self._repeated) > 1 and is_enough)
        self._repeated = []
        if letters in self._head:
            if not self._has_begun_again and order - self._head[letters] < OF_RANKS:
                self._printed_twice.add(letters)
        elif not has_ended and len(self._head) < HEAD_LINES:
            is_near = order - next(iter(self._head.values()), order) < OF_RANKS
            if is_near and is_plain_output(text) and not meaning(text):
                self._head[letters] = order
        return False
