"""Split the lines of a job's log by the rank that printed them; pure.

Marks of launchers, time stamps and colours are removed.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping

from clusterrun.diagnosis.known_errors import meaning
from clusterrun.diagnosis.printed_errors import RANK_MARK
from clusterrun.model.frozen import frozen

MOST_CHARACTERS = 4000
# Pieces of a line that a progress bar has rewritten; the last ones are kept.
MOST_STATES = 3
# Loggers of one log whose marks are recognized.
MOST_LOGGERS = 16

# A log server may write the escape character as #033.
_ESCAPES = re.compile(
    r"(?:\x1b|#033)\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]"
)
# deepspeed's lines begin with a time and a level, which tell them from the lines of a traceback.
_TIME = re.compile(
    r"^(?!\[[\d:., -]+\] \[(?:INFO|ERROR|WARNING)\])"
    r"\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?[ \t]?"
    # the log of a container
    r"(?:std(?:out|err) [FP] )?"
)
# The time that a logger writes behind its name.
_LATER_TIME = re.compile(r"^[^\d(\[]{1,40}[(\[](\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)")
# A name that ends with the first half of a DOS line end.
_DOS_NAME = re.compile(r"\r(?=['\":])")
# How a message quotes lines.
_QUOTE = re.compile(r"^(?:> )+(?!File )")
_MPIRUN = re.compile(
    r"^(?:\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4})?\[(?:\d+,)?(?:mpirank:)?(\d+)(?:,[\w.-]+)?\]"
    r"(?:\[[\w.-]+:\d+\])?<std(?:out|err)>:\s?"
)
# Ray, vLLM, and SkyPilot, which names the node. Its rank is that of the node.
_RAY = re.compile(
    r"^[\x1b*]*(?:\(\w+ pid=\d+\) (?=\())?"
    r"\((?:(?P<node>[\w.-]+), rank=\d+, |[\w-]+,? )?(?:rank=(?P<rank>\d+) )?pid=(?P<pid>\d+)"
    r"(?:, ip=(?P<ip>[\w.:]+))?\)\s?"
)
# Ray's list of workers, and a task of one in the traceback that the driver prints, or below its message.
_RAY_WORKER = re.compile(r"ip=([\w.:]+), pid=(\d+)\) world_rank=(\d+)")
_RAY_TASKS = (
    re.compile(r"ray::\S+ ?\(pid=(?P<pid>\d+), ip=(?P<ip>[\w.:-]+)"),
    re.compile(r"^Memory on the node \(IP: (?P<ip>[\w.:-]+?),.*\bpid=(?P<pid>\d+)"),
)
# Cray's MPICH, above the lines of an error.
_MPICH = re.compile(r"^MPICH ERROR \[Rank (\d+)\].* \[([\w.-]+)\] - ")
_NCCL = re.compile(r"^([A-Za-z][\w.-]*):\d+:\d+ \[\d+\] (?:\S+ )?NCCL ")
# Names that loggers give to the message and the level of a record, and to its rank.
_MESSAGE_KEYS = ("message", "msg", "event")
_LEVEL_KEYS = ("level", "levelname", "severity")
_RANK_KEYS = ("rank", "global_rank", "process_index")
_NODE_KEYS = ("host", "hostname", "node")
_TIME_KEYS = ("ts", "time", "timestamp", "asctime")
_TEE = re.compile(r"^(?:\[(?!rank\d)[A-Za-z_]\w*?\d+\]:\s?|std(?:err|out): |\[\d{3,}\] (?=\[rank\d))")
_LABEL = re.compile(r"^\s{0,6}(\d{1,6}): ?")
# A pod or a container, which a collector of logs writes in front of its lines.
_POD = re.compile(r"\[?(?:pod/)?([A-Za-z][\w.]*(?:-[\w.]+)*-\d+)(?:/[\w.-]+)?\]?\s*[|:]?")
_HOST = re.compile(r"^([A-Za-z][\w.-]*\d[\w.-]*|\d+(?:\.\d+){3}): ")
_STARTS_ERROR = re.compile(
    r"^(?:\[rank\d+\]:\s?)?"
    r"(?:(?:  \+ Exception Group |╭─+ )?Traceback \(most recent call last\)"
    r'|  File "|│ (?:/|❱)|Exception ignored in|Error in atexit|--- Logging error|Root Cause \(first'
    r"|Fatal Python error: |terminate called after |slurmstepd: error: |wandb: ERROR "
    # NCCL, which names the process first
    r"|[\w.-]+:\d+:\d+ \[\d+\] (?:\S+ )?NCCL "
    # deepspeed, PALS
    r"|\[\d{4}-[\d:, -]+\] \[ERROR\] "
    r"|\[[EW]\d* |usage: |bash: line \d+: |rank \d+ (?:died from|exited with) )"
)
# What a logger or a launcher writes in front of every line of an error: anything in front of the first one.
_LOGGED_HEADER = re.compile(
    r"^([^\s│╭%](?:[^│╭%]{0,150}?\w)?[^\w│╭%]{1,9}|\s+)"
    r"(?:Traceback \(most recent call last\):|Fatal Python error: |terminate called after throwing )"
    # A frame is indented by two spaces. It shows the mark if the log lacks the first line of an error.
    r'|^(\S[^│╭%]{0,150}\s)  File "[^"]+", line \d+, in '
)
_FIRST_LINE = ("Traceback (most recent", "Fatal Python error: ", "terminate called after", '  File "')
_NOT_LOGGED = re.compile(r"Original |.*Exception Group |[\w.]+(?:Error|Exception): ")
_HEADER = "Traceback (most recent call last)"
# A frame, and what stands in front of an exception, in a traceback on one line.
_SPACED_FRAME = re.compile(r' (File "[^"]+", line \d+, in \S+) ')
_SPACED_EXCEPTION = re.compile(r" (?=(?:[A-Za-z_]\w*\.)*\w+(?:Error|Exception): )")
_DIGITS = re.compile(r"\d+")
_CLOCK = re.compile(r"\d+(?:[-:.,]\d+)+")
# The rank in a line of a logger.
LOGGED_RANK = re.compile(r"(?i)(?<!local_)(?:rank|\bTP)(?:[ _=]|: ?)?(\d{1,5})\b")
# Lines of clusterrun's own check: its progress, and the first two of its report.
_OWN_LINE = re.compile(r"pre-flight(?::| [A-Z]+:) |CLUSTERRUN_\w+ is set but ")
_REPORT = re.compile(
    r"(?:PASS|WARN|FAIL|UNDETERMINED): .*(?:\b(?:un)?fit\b|the link |could not be judged| a warning|no node )"
    r"|(?:full|quick) check (?:by \w+ )?of \d{8}-"
)
# A beginning on the same line after a progress bar, or after another process's line without an end.
_INNER_START = re.compile(
    r"(?<=\S)(?<!\d\]:)(?=Traceback \(most recent call last\)|\s*\[rank\d+\]:"
    r"|terminate called after throwing )"
    # The line of a shell behind a progress bar.
    r"|(?:(?<=[\])])|\s[-\\|/])(?=(?:Killed|Terminated)$)"
    # Lines that were joined with the spaces behind them.
    r"|(?<=\s{10})(?=\d{4}-\d\d-\d\d[ T]\d\d:)"
)
# The line of a frame up to the place where a terminal or rich broke it.
_BROKEN_FRAME = re.compile(r'^[^"]*  File(?: ?"(?:[^"]{0,400}|[^"]+",? ?l?i?n?e?(?: \d+, ?i?n?)?))?$')
# A progress bar with other output behind it, and the right end of one behind other output.
_BAR_BEFORE = re.compile(r"(%\|[^|]*\|[^\]]*\])(?=[A-Z*\[])")
_BAR_BEHIND = re.compile(r"(?<=\S)\s{2,}\| \d+/\d+ \[[^\]]*\]$")


@frozen
class LogLine:
    """One line of a log."""

    text: str
    source: str = ""  # what tells apart processes whose lines are mixed; '' if nothing does
    rank: int = -1  # the rank in front of the line, by srun -l or mpirun; -1 without one
    node: str = ""  # the node in front of the line; '' without one
    logger: str = ""  # what a logger wrote in front of the line, without its time; '' without one
    time: str = ""  # date and time in front of the line, in ISO format; '' without one


class OwnLines:
    """Recognizes what clusterrun itself printed about nodes, which is no error of a process of the job."""

    def __init__(self) -> None:
        self._in_report = self._after_blank = False

    def hear(self, text: str) -> bool:
        """Return whether a line is clusterrun's own. A report has headings and indented lines."""
        if _OWN_LINE.match(text) or _REPORT.match(text):
            self._in_report = True
            return True
        is_heading = self._after_blank and not _STARTS_ERROR.match(text)
        is_indented = text.startswith("  ") and not text.startswith('  File "')
        is_own = self._in_report and (is_heading or is_indented or not text)
        self._in_report = is_own and not text.startswith(("fit: ", "fit, but "))
        self._after_blank = not text
        return is_own


class LineSplitter:
    """Removes the marks in front of lines.

    A number or a name with a colon is a mark only in a log in which errors begin behind such a mark.
    """

    def __init__(self) -> None:
        self._is_labelled = False
        # The last line of each rank before an error showed that numbers in front of lines are ranks.
        self._early: dict[int, str] = {}
        self._hosts: set[str] = set()
        # Ranks of Ray's workers, by address and process.
        self._ray_ranks: dict[tuple[str, str], int] = {}
        # Patterns of what loggers write in front of the lines of a traceback.
        self._logged: list[re.Pattern[str]] = []
        # The white space in front of all lines of an indented error.
        self._indent = ""
        # Rank and address of the worker whose traceback the driver prints.
        self._ray_task = (-1, "")
        # The beginning of a frame that a terminal broke.
        self._broken = ""
        # Source, rank and logger of the line before, if it begins a traceback behind a logger's mark.
        self._header: tuple[str, int, str] | None = None

    @property
    def early(self) -> Mapping[int, str]:
        """Return the last line of each rank before the first error; empty without labels."""
        return self._early if self._is_labelled else {}

    def split(self, line: str) -> list[LogLine]:
        """Return the states of one line, each without its marks."""
        line = self._broken + _DOS_NAME.sub(r"\\r", _ESCAPES.sub("", line.rstrip()))
        self._broken = line if "  File" in line and _BROKEN_FRAME.match(line) else ""
        if self._broken:
            return []
        if "%|" in line:
            line = _BAR_BEFORE.sub("\\1\r", line)
        elif line.endswith("]"):
            line = _BAR_BEHIND.sub("", line)
        if "&quot;" in line or "&lt;" in line:  # copied from a page
            line = html.unescape(line)
        record = _record(line)
        if record and isinstance(text := record.get("log"), str):  # the log of a container
            line, record = _ESCAPES.sub("", text.rstrip("\n")), None
        if record:
            ranks = [record.get(key) for key in _RANK_KEYS]
            rank = next((value for value in ranks if isinstance(value, int)), -1)
            texts = [value for value in record.values() if isinstance(value, str)]
            message = next((record[key] for key in _MESSAGE_KEYS if key in record), "")
            texts = [f"{_level(record)}: {message}", *(text for text in texts if "\n" in text)]
            node = next((str(record[key]) for key in _NODE_KEYS if key in record), "")
            stamp = next(filter(None, (_TIME.match(str(record.get(key))) for key in _TIME_KEYS)), None)
            time = stamp[1] if stamp else ""
            source = str(rank) if rank >= 0 else node
            return [
                LogLine(_shortened(part), source, rank, node, "record", time)
                for text in texts
                for part in text.split("\n")
            ]
        if _HEADER in line and "\\n  File " in line:  # one string with escaped ends of lines
            states = line.replace("\\n", "\n").replace('\\"', '"').split("\n")
        elif f'{_HEADER}: File "' in line:  # one string whose ends of lines became spaces
            *states, end = _SPACED_FRAME.sub(r"\n  \1\n    ", line.replace(_HEADER, f"\n{_HEADER}")).split(
                "\n"
            )
            states += _SPACED_EXCEPTION.sub("\n", end, count=1).split("\n")
        else:
            states = [state for state in line.split("\r") if state][-MOST_STATES:] or [""]
        return [line for state in states for line in self._without_marks(_shortened(state))]

    def _without_marks(self, text: str) -> list[LogLine]:
        source, rank, node, logger = "", -1, "", ""
        text = _QUOTE.sub("", text, count=1)
        stamp = _TIME.match(text)
        text = _TIME.sub("", text, count=1)
        if mark := _MPIRUN.match(text):
            rank, text = int(mark[1]), text[mark.end() :]
        elif mark := _RAY.match(text):
            source, node, text = mark["pid"], mark["ip"] or "", text[mark.end() :]
            rank = int(mark["rank"]) if mark["rank"] else self._ray_ranks.get((node, source), -1)
            node = mark["node"] or node
        elif mark := self._label(text):
            rank, text = int(mark[1]), text[mark.end() :]
        elif mark := self._host(text):
            node, text = mark[1], text[mark.end() :]
        stamp = stamp or _TIME.match(text)
        text = _TIME.sub("", text, count=1)
        text = _TEE.sub("", text, count=1)
        marked = RANK_MARK.match(text)
        torch_mark = marked[0] if marked else ""
        line_text = text
        if mark := self._logger_mark(text[len(torch_mark) :]):
            text = (torch_mark and f"{torch_mark.rstrip()} ") + text[len(torch_mark) + mark.end() :]
            logger = "" if torch_mark else _CLOCK.sub("", mark[0]).strip()
            if not node and (pod := _POD.fullmatch(logger)):
                node = pod[1]
            if logged_rank := LOGGED_RANK.search(mark[0]):
                rank = int(logged_rank[1])
            self._header = (source, rank, logger) if _HEADER in line_text else None
        elif self._header and text:
            # The logger marked the first line of the traceback only.
            source, rank, logger = self._header
            self._header = self._header if text[0].isspace() else None
        if worker := _RAY_WORKER.search(text):
            self._ray_ranks[worker[1], worker[2]] = int(worker[3])
        elif task := next(filter(None, (pattern.search(text) for pattern in _RAY_TASKS)), None):
            self._ray_task = (self._ray_ranks.get((task["ip"], task["pid"]), -1), task["ip"])
        elif mark := _MPICH.match(text):
            self._ray_task = (int(mark[1]), mark[2])
        elif not text:
            self._ray_task = (-1, "")
        source = source or (str(rank) if rank >= 0 else node)
        if not node and (reporter := _NCCL.match(text)):
            node = reporter[1]
        if not (source or node):
            rank, node = self._ray_task
        stamp = stamp or _LATER_TIME.match(line_text)
        time = stamp[1] if stamp else ""
        return [LogLine(part.rstrip(), source, rank, node, logger, time) for part in _INNER_START.split(text)]

    def _label(self, text: str) -> re.Match[str] | None:
        mark = _LABEL.match(text)
        if mark and not self._is_labelled:
            self._is_labelled = _STARTS_ERROR.match(text[mark.end() :]) is not None
            self._early[int(mark[1])] = text[mark.end() :]
        return mark if self._is_labelled else None

    def _logger_mark(self, text: str) -> re.Match[str] | None:
        """Return what a logger wrote in front of a line, if it began a traceback in the same way."""
        if self._indent:
            self._indent = self._indent if not text or text.startswith(self._indent) else ""
        if any(first in text for first in _FIRST_LINE) and (header := _LOGGED_HEADER.match(text)):
            front = header[1] or header[2]
            mark, end = front.rstrip(), r"(?:\s|$)" if front[-1].isspace() else ""
            if not mark:
                self._indent = front
            elif not (_NOT_LOGGED.match(text) or meaning(mark)) and len(self._logged) < MOST_LOGGERS:
                pattern = re.compile(_DIGITS.sub(r"\\d+", re.escape(mark)) + end)
                if pattern not in self._logged:
                    self._logged.append(pattern)
        if self._indent and text:
            return re.match(re.escape(self._indent), text)
        return next((mark for pattern in self._logged if (mark := pattern.match(text))), None)

    def _host(self, text: str) -> re.Match[str] | None:
        mark = _HOST.match(text)
        if mark and mark[1] not in self._hosts and _STARTS_ERROR.match(text[mark.end() :]):
            self._hosts.add(mark[1])
        return mark if mark and mark[1] in self._hosts else None


def _record(line: str) -> Mapping[str, object] | None:
    """Return a logger's line of JSON, or one with a traceback in it; None for other lines."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    is_log = _HEADER in line or _level(record) or record.keys() >= {"log", "stream"}
    # The message of torchelastic's error file is a record itself.
    is_nested = isinstance(record.get("message"), dict)
    return record if is_log and not is_nested else None


def _level(record: Mapping[str, object]) -> str:
    return next((str(record[key]) for key in _LEVEL_KEYS if key in record), "")


def _shortened(text: str) -> str:
    half = MOST_CHARACTERS // 2
    return text if len(text) <= MOST_CHARACTERS else f"{text[:half]} … {text[-half:]}"
