"""Read the lines of one process of a job from a log: its errors, and how much else it printed."""

from __future__ import annotations

import re

from clusterrun.diagnosis.known_errors import NCCL_FAILED
from clusterrun.diagnosis.log_lines import LOGGED_RANK
from clusterrun.diagnosis.printed_errors import Error, ErrorListener, is_plain_output, is_report
from clusterrun.diagnosis.verdict import Verdict
from clusterrun.model.frozen import frozen, replace

# Lines of a process that count as one second for the reader of errors, which expects times.
LINES_PER_SECOND = 20.0
# Later than any time in ISO format.
_LAST_TIME = "~"
# Lines about steps that a rank prints after an error that it has survived.
STEPS_AFTER_SURVIVED = 3
# So much other output between two errors of a process shows that the first was handled.
OUTPUT_AFTER_HANDLED = 5
STEP = re.compile(
    r"(?i)\b(?:step|iter(?:ation)?|epoch|it)\b\W{0,3}\[?\d|\d(?:\.\d+)?\s?(?:it/s|s/it)|\bloss\b\W{0,3}\d|%\|"
)
# Exceptions and messages of the libraries through which ranks communicate.
_COMMUNICATION = re.compile(r"DistBackendError|NCCL (?:WARN|error)")
# Words that a run has finished.
FINISHED = re.compile(
    r"(?i)\b(?:training|run|job|fit|all (?:\d+ )?(?:epochs|steps))\b[^.]{0,20}"
    r"\b(?:finished|completed?|done)\b"
    r"|\b(?:finished|completed|done) training\b|^\W*(?:finished|completed?|all done)[.!]"
    r"|\bsaved (?:the )?final (?:checkpoint|model|weights)\b"
)
# What a program prints before or after the traceback of an error that does not end it.
_GOES_ON = re.compile(
    r"(?i)\b(?:(?:re)?trying|will (?:retry|try)|retry(?! limit)|attempt \d+|ignor(?:ed|ing)|skip(?:ped|ping)"
    r"|f(?:alling|alls?|ell) ?back|continu(?:es?|ing)|recover(?:ed|ing))\b"
)
# The level of a record, in what its logger writes in front of it.
_BELOW_ERROR = re.compile(r"\b(?:WARN(?:ING)?|INFO|DEBUG)\b|^[IW]\d{4}\b")
# A mark without a level may be that of a rank, a pod or a collector of logs.
_HAS_LEVEL = re.compile(r"(?i)\b(?:error|critical|fatal|warn(?:ing)?|info|debug|record)\b|^[EWIF]\d{4}\b")
_WARNS = re.compile(r"\W*(?:WARN(?:ING)?\b|W \d{4}-)")
# The mark of torch's loggers on a warning.
WARNING = re.compile(r"(?:\[rank\d+\]:\s?)?(?:\[W\d* |W\d{4} )")
NUMBER = re.compile(r"\d+(?:\.\d+)?")
OF_TORCH = re.compile(r"\[rank\d+\]:")
# A line of NCCL's watchdog thread.
OF_WATCHDOG = re.compile(r"\bProcessGroupNCCL\.cpp:\d+\]")
# An exception's name and message at the beginning of a line. A script printed it without its traceback, or
# IPython above it.
EXCEPTION_LINE = re.compile(
    r"^(?:\[rank\d+\]:?\s?)?(?:[A-Za-z_]\w*\.)*(?:\w+(?:Error|Exception|Interrupt|Failure)|Exception)"
    r"(?::(?: |$)|\s{2,}Traceback \(most recent call last\)$)"
)
# Lines that look like an error, and lines that look like one and are none.
_MAY_FAIL = re.compile(r"[Ee]rror|ERROR|[Ff]atal|FATAL|CRIT|[Aa]bort|[Ee]xcept")
LOOKS_FATAL = re.compile(
    r"(?i:\b(?:fatal|critical|panic|aborted|core dumped|segmentation fault"
    r"|\w*(?:error|exception)(?::|\s+Traceback)|error\b.{0,3}[:\]]))"
    r"|^\W*\[?E(?:\d{3,4}|\b)|\bERROR\b|NCCL WARN"
)
HARMLESS = re.compile(
    r"(?i)\bwarn(?:ing)?s?\b(?<!NCCL WARN)|\w+Warning:|NCCL INFO|\bINFO\b|\bDEBUG\b|deprecat|libibverbs"
    r"|plugin|wandb: (?:ERROR|Network)|hostname of the client socket|\b(?:0|no) (?:errors?|failures?)\b"
    r"|skipp|ignor|retry|falling back"
    # a metric
    r"|creating|frame #|error[:= ]{1,2}\d+\.\d+(?:[%, ]|$)|error rate"
    r"|\baborted[:=]? \d+\b|\b(?:failed|errors|failures)[:=] ?\d+\b|[,;] trying\b"
)
# Exceptions that a signal from outside raises.
ASKED_TO_END = re.compile(
    r"(?:\w+\.)*(?:KeyboardInterrupt|SIGTERMException|SignalException|SystemExit: (?:15|143))\b"
    r"|RuntimeError: DataLoader worker .* killed by signal: Hangup"
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
    is_last: bool = False  # whether its process printed no step nor such a line after it
    time: str = ""  # of its line or the last one before with a time, as in LogLine

    @property
    def was_handled(self) -> bool:
        # The watchdog prints beside the program: output that follows proves nothing.
        return (self.is_doubtful or self.error.survived) and not OF_WATCHDOG.search(self.error.text)


@frozen
class LogPlace:
    """The place of an error among all lines, and the rank and node in the prefix of its line."""

    order: int
    rank: int
    node: str
    time: str = ""  # as in LogLine
    # lines about steps, and other output without complaints, that the process printed before the error
    steps: int = 0
    output: int = 0
    goes_on: bool = False  # the program says that the error does not end it
    was_logged: bool = False  # a logger printed it, so the program caught it
    is_warning: bool = False  # the logger marked it as less than an error
    last_time: str = ""  # of this line or of the last one before with a time


class LogProcess:
    """The lines of one process: its errors, each with its place, and how much else it printed."""

    def __init__(self, rank: int) -> None:
        self.listener = ErrorListener(rank, launcher=True)
        self.places: list[LogPlace] = []
        self.rank = rank
        self.lines = self.steps = self.output = 0
        # The order of the newest line about a step, and its time; the last time if it has none.
        self.last_step, self.step_time = 0, _LAST_TIME
        # The rank that a logger named in the line before a traceback.
        self._logged_rank = -1
        # The text that a logger printed before a traceback; '' without one.
        self._record = ""
        # The last line with text ended an error.
        self._is_after_error = False
        # Steps and output at the first reported end of a rank after each error, by number of the error.
        self._at_end: list[tuple[int, int]] = []
        self.last_line = ""
        # The time of the newest line that has one.
        self._time = ""

    def hear(self, text: str, place: LogPlace, logger: str) -> bool:
        """Read one line, without what ``logger`` wrote in front of it.

        Return whether it adds a rank or its end to torchrun's report of the ranks that failed.
        """
        before = self.listener.errors[-1:]
        self._time = place.time or self._time
        # The line of source below a frame may contain the name of a step.
        is_source = 'File "' in self.last_line
        self.lines += 1
        if "Traceback (most recent call last)" in text:
            is_title = self.last_line.startswith(("---", "===", "***"))
            is_record = is_title or not (is_plain_output(self.last_line) or OF_TORCH.match(self.last_line))
            self._record = self.last_line if is_record else ""
            logged = LOGGED_RANK.search(self._record)
            self._logged_rank = int(logged[1]) if logged else -1
        if place.rank < 0 <= self._logged_rank:
            place = replace(place, rank=self._logged_rank)
        self.last_line = text.strip() or self.last_line
        is_of_report = self.listener.hear(self.lines / LINES_PER_SECOND, text, logger)
        if len(self.listener.errors) > len(self.places):
            of_message = text if not self.listener.errors[-1].frame else ""
            goes_on = _GOES_ON.search(f"{self._record} {of_message}") is not None
            was_logged = self._record != "" or _HAS_LEVEL.search(logger) is not None
            # A program that fails may have warned of something else before.
            name = self.listener.errors[-1].text.partition(":")[0].rpartition(".")[2]
            record = self._record if name in self._record else text
            is_warning = (_BELOW_ERROR.search(logger) or _WARNS.match(record)) is not None
            signs = (self.steps, self.output, goes_on, was_logged, is_warning, self._time)
            place = LogPlace(place.order, place.rank, place.node, place.time, *signs)
            self.places += [place] * (len(self.listener.errors) - len(self.places))
            self._logged_rank, self._record, self._is_after_error = -1, "", True
        elif self._is_after_error and text.strip():
            if _GOES_ON.search(text):
                self.places[-1] = replace(self.places[-1], goes_on=True)
            self._is_after_error = False
        if self.listener.errors[-1:] != before and (place.rank >= 0 or place.node):
            # The line belongs to the newest error: a driver of Ray prints which worker it is of.
            self.places[-1] = replace(self.places[-1], rank=place.rank, node=place.node)
        if is_source:
            return is_of_report
        if self._has_survived() and FINISHED.search(text):
            self.steps += STEPS_AFTER_SURVIVED
        # Ranks that load files end bars, and a process that ends prints its bar again.
        elif (
            STEP.search(text)
            and "100%|" not in text
            and "| 0/" not in text
            and not (_MAY_FAIL.search(text) and LOOKS_FATAL.search(text) and not HARMLESS.search(text))
        ):
            self.steps += 1
            self.last_step, self.step_time = place.order, place.time or _LAST_TIME
        elif self.places:
            self.output += is_plain_output(text)
        return is_of_report

    def _has_survived(self) -> bool:
        """Return whether the program caught the newest error and went on, so it prints its own end.

        A batch script may print such words after a program that failed.
        """
        if not self.places or not self.listener.errors[-1].caught:
            return False
        return self.places[-1].goes_on or self.steps > self.places[-1].steps

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

        If the program caught the first one and not the other, the other one ended it.
        ``is_single``: all lines are of one rank, which goes on if it has logged an error.
        """
        errors, handled = self.listener.errors, []
        # The last errors that another rank did not cause. The second one differs from the last.
        last: list[int] = []
        for number in reversed(range(len(errors))):
            error, output = errors[number], self.places[number].output
            later = next((other for other in last if not is_alike(errors[other], error)), number)
            went_on = self.places[later].output - output >= OUTPUT_AFTER_HANDLED
            place = self.places[number]
            if is_single and place.was_logged and later == number:
                went_on = self.printed_after(number)[1] >= OUTPUT_AFTER_HANDLED
            is_followed = later != number or (place.goes_on and bool(self.listener.unended()))
            went_on = went_on or (is_followed and (place.goes_on or (is_single and place.was_logged)))
            final = errors[later]
            went_on = went_on or (is_single and error.caught and final.frame != "" and not final.caught)
            handled.append(went_on and not is_final(error))
            is_own = not (is_of_communication(error) or is_report(error) or ASKED_TO_END.match(error.text))
            if is_own and (not last or (later != number and len(last) < 2)):
                last.append(number)
        return handled[::-1]


def is_final(error: Error) -> bool:
    """Return whether an error ended its process, whatever the log shows after it."""
    return error.ends or ASKED_TO_END.match(error.text) is not None


def is_alike(error: Error, other: Error) -> bool:
    """Return whether messages differ in numbers only, or mean the same known error."""
    if error.row is not None:
        return error.row is other.row
    return NUMBER.sub("", error.text) == NUMBER.sub("", other.text)


def is_of_communication(error: Error) -> bool:
    """Return whether the end of another rank may have caused an error."""
    if error.row not in (None, NCCL_FAILED):
        return error.row.consequence or error.row.verdict in (Verdict.LINK, Verdict.NEVER_ARRIVED)
    return error.lost_peer or _COMMUNICATION.search(error.text) is not None


def is_of_hardware(error: Error) -> bool:
    """Return whether a GPU, a link or the driver of a node failed."""
    return error.row is not None and error.row.hardware
