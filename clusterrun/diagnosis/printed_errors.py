"""Find the errors in what ranks print, line by line, each with its place in the user's code; pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence

from clusterrun.diagnosis.known_errors import (
    LAUNCHER_FAILED,
    PART_ENDED,
    RENDEZVOUS_LOST,
    VAGUE,
    KnownError,
    meaning,
)
from clusterrun.diagnosis.stacks import Doing, function_of, is_library, line_of, location, short
from clusterrun.diagnosis.torchrun_report import TorchrunReport, without_heading
from clusterrun.diagnosis.verdict import Verdict
from clusterrun.model.frozen import frozen, replace

MOST = 400
MOST_HEADLINE = 240
# Lines that are added to the first one of a message.
MOST_CONTINUED = 3
# Errors of a stream up to which equal lines count as several.
MOST_EQUAL = 64
# Seconds. A rank that still prints so long after an error has survived it.
SURVIVED_SECONDS = 5.0
# Seconds within which a stack dump belongs to the message before it.
SAME_DUMP = 2.0

# Colours, and the options of tensors in torch's messages about collectives that differ.
_UNREAD = re.compile(r"\x1b\[[\d;]*m|, TensorDeviceTypes=TensorOptions\((?:[^()]|\([^()]*\))*\)")
# A message that torch's workers print in C ends with a zero, which precedes the next line.
_PREFIX = re.compile(r"^[\0\s]*\[(?:rank|RANK)[ =:]?(\d+)\](:?)\s?")
# How a line begins that a node adds to the last ones of a rank.
OURS = "clusterrun: "
# Of torch, or of the program itself without the colon.
RANK_MARK = re.compile(r"^\[(?:rank|RANK)[ =:]?(\d+)\]:?\s?")
# The rank in a message of NCCL's watchdog or Megatron, of a group that is made, or of HCCL.
_RANK_IN = re.compile(
    r"\[(?:PG [^\]]*)?Rank (\d+)\]|(?:^|: )Rank (\d+): |\[(\d+)\] is setting up NCCL|\bRankID:(\d+)\)"
)
# Characters that draw a box around a line.
_FRAMING = re.compile(r"^[\s─-╿]+|[\s─-╿]+$")
_HEADER = re.compile(r"(?:^|\s)Traceback \(most recent call last\)|╭─+ Traceback \(most recent call")
# How a checkpoint of torch's tells every rank what failed in one.
_ELSEWHERE = re.compile(r"Traceback \(most recent call last\):? \(RANK (\d+)\)")
_FRAME = re.compile(r'^[>\s]*File ?"(.*)", ?line ?(\d+)(?:(,?) ?in (\S+))?\s*$')
# The functions in which Python, torch and launchers call a program: an exception that leaves them ends it.
_OUTERMOST = re.compile(
    r"<module>|<lambda>|_?bootstrap|_run_(?!trial)|_wrap|wrapper|main|_worker_loop|ray::|run\b"
)
_LAUNCHER_FRAME = re.compile(
    r"/bin/(?:torchrun|accelerate|deepspeed|horovodrun|composer)\b|runpy\.py|/torch/distributed/(?:run|launch|elastic)"
    r"|/torch/multiprocessing/spawn\.py:\d+ join"
)
# rich puts the function on a line of its own if its box is too narrow.
_RICH_FRAME = re.compile(r"^\s*│ (?=/|in )(/.*:\d+)?(?: ?in (\S+))?\s*│$")
_FATAL = re.compile(r"^Fatal Python error: (.*)")
# How ``faulthandler.dump_traceback_later`` begins; it may end the process, or only tell where it is.
_TIMER = re.compile(r"^Timeout \(\d+:\d\d:\d\d(?:\.\d+)?\)!$")
# Files of torch in whose functions a thread waits for collectives, the main thread also in ``backward``.
_COLLECTIVES, _BACKWARD = "/distributed_c10d.py:", "/autograd/graph.py:"
_DUMPED = re.compile(r"^(?:Current t|T)hread 0x")
# An exception's class is written with a capital, but for a few of the standard library.
_NAMED = re.compile(
    r"^(?:[A-Za-z_<][\w<>]*\.)*(?!(?:DEBUG|INFO|NOTE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b)"
    r"(?:_?[A-Z]\w*|error|timeout|gaierror|herror)(?:: ?|$)"
)
_THROWN = re.compile(r"^terminate called after throwing an instance of '(.*)'")
_WHAT = re.compile(r"^\s*what\(\):\s*(.*)")
_USAGE = re.compile(r"^\s*usage: ", re.IGNORECASE)
_MISUSED = re.compile(r"^(?:\S+: )?error: ", re.IGNORECASE)
# A logger shows behind its own error where it was called.
_IGNORED = re.compile(
    r"^(?:Exception ignored in|Error in atexit\._run_exitfuncs|--- Logging error ---|Call stack:$)"
)
# A program prints this hint if it printed a message instead of a traceback.
_TRACE_HINT = re.compile(r"(?i)set the environment variable \w+=\S+ for a complete")
_HINT = re.compile(_TRACE_HINT.pattern + r"|(?:for more|see) .*--help|try .*--help")
_LINK = re.compile(r"(?i)^(?:(?:see|for [\w ]+ (?:visit|see))\b.*)?https?://")
_DETAIL = re.compile(r"^\s+[a-z_]\w*(?::|\s?=)")
_COMPLAINT = re.compile(
    r"(?i)\b(?:warn|warning|error|exception|fatal|fail(?:ed|ure|ing)?|g(?:a|i)v(?:e|ing) up|skipp(?:ed|ing)|"
    r"ignor(?:ed|ing)|retry(?:ing)?|dropp(?:ed|ing)|could not|cannot|unable to)\b"
)
# A warning of Python's, or of a library, which is printed once and hides nothing.
_NOISE = re.compile(r"\wWarning\b|^\[W\d|NCCL WARN|\*\*\* End of error message")
# A program warns of a library that it does without, or Python warns.
_DOES_WITHOUT = re.compile(
    r"(?:[IW] \w+/|(?i:warn(?:ing)?:? )).*(?:ImportError|ModuleNotFoundError|cannot open shared object)"
    r"|\S+\.py:\d+: \w*Warning: |\S*/libbitsandbytes_cpu\.so: "
)
# Lines of an error that the list of errors has, and the numbers in which equal lines of ranks differ.
_OF_AN_ERROR = re.compile(
    r"^\[rank\d+\]:|^\s|^[\w.]*(?:Error|Exception)\b|^Fatal Python|^terminate called|Exception in thread "
)
# Lines that libraries add to an error, or print at the end of a process.
_OF_AN_END = re.compile(
    r"frame #|CUDA kernel errors|For debugging|Compile with|wandb:|[IWEF]\d{4} |Root Cause|Failures:|=   "
    r"|\S+ FAILED$|(?:\S+\.)?ChildFailedError"
    r"|Original Traceback|The above exception|During handling|\[\d+\]:$|File \"|\S+ NCCL |\S+:\d+:\d+ \[\d+\]"
)
_NUMBER = re.compile(r"\d+")
# Messages of several lines, and their lines below the first one: of NCCL, of HCCL, or of Ray.
_HAS_MORE = re.compile(r"CCL error(?: in|:)|killed due to the node running low on memory")
_OF_MESSAGE = re.compile(r"nccl|Last error:|\[ERROR\] |E[A-Z]\d{4}: |Memory on the node \(IP: ")
# Numbers of Ray, which stand before the process and the reason of its end.
_RAY_IDS = re.compile(r"\b(?:RayTask|Worker|Node|Job|Actor) ID: [0-9a-f]{8,} ?")
_SPACES = re.compile(r"\s{3,}")
_NCCLS_REASON = "Last error: "
_PROGRESS_BAR = re.compile(r"^.*%\|[^|]*\|[^\]]*\]")
_OF_TORCHRUN = "ChildFailedError"
# Lines below the message that an actor of Ray died, and how a traceback of Ray names the error of a task.
_OF_ACTOR = re.compile(r"\s+(?:class_name|actor_id|namespace): ")
_TASK_ERROR = re.compile(
    r"(?:RayTaskError\((?P<name>\w+)\)|Unhandled error .*): (?P<task>ray::\S+ ?\(pid=\d+, ip=[\w.:-]+)?"
)
_LOST_PEER = re.compile(
    r"(?:[\w.]+\.)?(?:Connection\w*Error|BrokenPipeError|EOFError|IncompleteReadError|RemoteDisconnected)\b"
)
_CAUSED = "its cause"
_LINKS = {
    "The above exception was the direct cause of the following exception:": _CAUSED,
    "During handling of the above exception, another exception occurred:": "raised while handling",
}
_WORKER = re.compile(r"Caught \S+ in (.*?)\.?$")
# What an exception wraps is in the text below it.
_WRAPS = re.compile(
    r"Caught \S+ in |\(\d+ sub-exceptions?\)$|(?:ProcessRaisedException|RemoteTraceback|and exception):\s*$"
)
_IN_PROCESS = ", in Process "
# A process that ended before it had handed an object to another one.
_CUT_OFF = re.compile(r"pickle data was truncated|Ran out of input")
_GROUP = re.compile(r"^\s*\+ Exception Group Traceback \(most recent call last\)")
# The margin of a line in a group of exceptions, and the rule above each of them.
_MARGIN = re.compile(r"^\s+(?:\| ?|\+[-+ \d]*$)")
# How torch, and so the launcher, begins a line of its log.
_LOGGED = re.compile(r"^[IWEF]\d{4} \d\d:\d\d:\d\d")
_REPORT = re.compile(
    r"^(?:exited with code -?\d+|was killed by signal \d+)|\bprocess \d+ terminated with (?:exit code|signal)"
    r"|\b(?:RayActor|ActorDied)Error\b|A worker died or was killed while executing a task"
    rf"|{LAUNCHER_FAILED}"
)


@frozen
class Error:
    """An error that a rank printed."""

    at: float  # when, in seconds since the epoch
    rank: int
    text: str
    frame: str = ""  # the line of the user's code; '' if it was not printed
    row: KnownError | None = None  # what the message means, if it is a known one
    more: str = ""  # the exception that it was raised from, or the process that it came from
    inner: int = -1  # the rank that printed it if ``rank`` is a launcher; -1: ``rank`` itself
    origin: int = -1  # the rank in which it happened if every rank reports it; -1: the rank that printed it
    ends: bool = False  # torch marks it as the error that ended the rank
    survived: bool = False  # the rank printed other lines long after it
    caught: bool = False  # its traceback begins inside of a function, so a handler has printed it
    thread: str = ""  # the line of another thread that was in a collective when the process aborted
    # the line of the main thread if it was in a collective, or in ``backward``, when the process aborted
    main: str = ""

    @property
    def is_consequence(self) -> bool:
        """Return whether another rank or process failed first."""
        elsewhere = self.origin >= 0 and self.origin != (self.inner if self.inner >= 0 else self.rank)
        return elsewhere or (self.row is not None and self.row.consequence)

    @property
    def lost_peer(self) -> bool:
        """Return whether it is a lost connection: the other end may have failed within the same second."""
        return _LOST_PEER.match(self.text) is not None

    @property
    def placed(self) -> str:
        return self.text + placed(self.frame)

    @property
    def message(self) -> str:
        """Return the message, where it came from and what belongs to it."""
        return self.placed + self.more

    @property
    def headline(self) -> str:
        """Return the message with what counts in a long text."""
        pattern = self.row.pattern if self.row else ""
        pattern = _NCCLS_REASON if _NCCLS_REASON in self.text else pattern
        return replace(self, text=shortened(self.text, MOST_HEADLINE, pattern)).message

    def of_rank(self, rank: int) -> Error:
        return replace(self, rank=rank)


def last_message(lines: Sequence[str]) -> str:
    """Return the last line with words in it, without torch's mark and without frames around it.

    A hint how to get a longer message, a link to a manual and an indented ``key: value`` below a
    message are returned only if there is nothing else.
    """
    messages: list[str] = []
    for line in reversed(lines):
        unmarked = RANK_MARK.sub("", line)
        message = _FRAMING.sub("", unmarked)
        if not any(map(str.isalnum, message)):
            continue
        messages.append(message)
        is_detail = _DETAIL.match(unmarked) and not _COMPLAINT.search(unmarked)
        if not (_HINT.match(message) or _LINK.match(message) or is_detail):
            return message.removeprefix(OURS)
    return messages[0].removeprefix(OURS) if messages else ""


def last_complaint(lines: Sequence[str], of_others: Sequence[str] = ()) -> str:
    """Return the last line that mentions something that went wrong, and that no other rank has printed.

    Return '' without one. Numbers in lines of other ranks may differ.
    """
    usual = {_NUMBER.sub("", line.strip()) for line in of_others if _COMPLAINT.search(line)}
    for number, line in reversed([*enumerate(lines)]):
        line = _PROGRESS_BAR.sub("", line.rpartition("\r")[2])
        # The title of a box, such as Error, stands above the message.
        if "─" in line and _COMPLAINT.search(line) and number + 1 < len(lines):
            return _FRAMING.sub("", lines[number + 1])[:MOST]
        is_noise = _NOISE.search(line) or _OF_AN_ERROR.search(line) or "frame #" in line
        is_noise = is_noise or line.rstrip().endswith("error stack:")
        if _COMPLAINT.search(line) and not is_noise and _NUMBER.sub("", line.strip()) not in usual:
            return line.strip()[:MOST]
    return ""


def is_plain_output(line: str) -> bool:
    """Return whether a line is neither a complaint nor a part of an error or of a report of an end."""
    return not (
        _COMPLAINT.search(line)
        or _NOISE.search(line)
        or _OF_AN_ERROR.search(line)
        or _OF_AN_END.match(line)
        or not any(map(str.isalnum, line))
    )


def is_report(error: Error) -> bool:
    """Return whether a launcher, ``mp.spawn`` or Ray only reports that a process ended."""
    return _REPORT.search(error.text) is not None


def is_of_launcher(error: Error) -> bool:
    """Return whether torchrun printed this when one of its ranks had failed."""
    return _OF_TORCHRUN in error.text


def lacks_inner(error: Error) -> bool:
    """Return whether an exception wraps one of another thread or process that was not read."""
    return _WORKER.search(error.text) is not None


def is_timer(error: Error) -> bool:
    """Return whether this is no error, but the stack of a rank whose script had set a timer."""
    return _TIMER.match(error.text) is not None


class ErrorListener:
    """Reads one stream of a rank line by line, and collects its ``errors``.

    A ``launcher`` starts other ranks, which share its stream. torch marks the lines of each.
    """

    def __init__(self, rank: int, launcher: bool = False) -> None:
        self._rank = rank
        self.report = TorchrunReport()
        self._is_launcher = launcher
        self._readers: dict[tuple[str, str], _Reader] = {}
        self._reported = 0  # errors before the last report of the launcher
        self._last_line, self._is_ending = "", False
        # The newest line of a message of NCCL, and the mark of its first line.
        self._message = self._message_mark = ""
        self.errors: list[Error] = []

    def hear(self, at: float, line: str, logger: str = "") -> bool:
        """Read one line, without its end and without what ``logger`` wrote in front of it.

        Return whether it adds a rank or its end to torchrun's report of the ranks that failed.
        """
        line = _UNREAD.sub("", line)
        is_of_message = bool(_OF_MESSAGE.match(line)) or self._message.endswith(":")
        is_of_message = is_of_message and self._message != "" and not _PREFIX.match(line)
        # Only the first line of a message of NCCL has the mark.
        line = f"{self._message_mark}{line}" if is_of_message else line
        prefix = _PREFIX.match(line)
        self._message = line.rstrip() if prefix and (is_of_message or _HAS_MORE.search(line)) else ""
        self._message_mark = prefix[0] if prefix else ""
        mark, is_of_torch = (prefix[1], prefix[2] == ":") if prefix else ("", False)
        event = ""
        if self._is_launcher and not is_of_torch:
            event = self.report.hear(line)
            self._note_last_line(line)
        reader_key, text, inner = (mark, logger), line[prefix.end() :] if prefix else line, int(mark or -1)
        if self.report.in_traceback:
            inner = self.report.rank
            reader_key, text = (f"report {inner}", ""), without_heading(line)
        reader = self._readers.get(reader_key)
        if reader is None:
            form = Error(0.0, self._rank, "", inner=inner if self._is_launcher else -1, ends=is_of_torch)
            reader = self._readers[reader_key] = _Reader(form, self.errors)
        reader.hear(at, text)
        if event == "ended":
            self._add_report(at)
        return bool(event)

    def unended(self) -> list[Error]:
        """Return the tracebacks that have begun and lack their exception, with their innermost frames."""
        errors = (reader.unended() for reader in self._readers.values())
        return [error for error in errors if error]

    def _note_last_line(self, line: str) -> None:
        """Remember the last line of torchrun's ranks before it ended them. torch marks only exceptions."""
        is_logged = _LOGGED.match(line) is not None
        self._is_ending |= (is_logged and "/elastic/" in line) or "torch.distributed.elastic." in line
        is_structure = is_logged or line[:1] in " \t│╭╰" or _HEADER.search(line) or _OF_AN_END.match(line)
        if not (self._is_ending or is_structure) and any(map(str.isalnum, line)):
            self._last_line = line.strip()

    def _add_report(self, at: float) -> None:
        """Add torchrun's report of the rank that failed first, unless that rank printed its error."""
        inner, text = self.report.rank, self.report.ended
        if any(error.inner == inner for error in self.errors):
            if self.errors[-1].inner == inner and is_report(self.errors[-1]):
                self.errors[-1] = replace(self.errors[-1], text=text)
            return
        # An exception does not end a process by a signal, but an abort may follow on one.
        is_killed = "signal" in text and f"signal {signal.SIGABRT.value}" not in text
        unnamed = [
            number
            for number, error in enumerate(self.errors)
            if error.inner < 0 and rank_in(error.text) in (-1, inner)
            if (error.text.startswith("Fatal Python error") or not is_killed)
            if not (is_of_launcher(error) or is_report(error))
        ]
        # Errors behind the last report belong to this one, also if they are consequences.
        unreported = [number for number in unnamed if number >= self._reported]
        self._reported = len(self.errors)
        own = [number for number in unreported or unnamed if not self.errors[number].is_consequence]
        # The launcher passed the number to the rank, whose argparse did not take it.
        argument = re.compile(rf"--local[-_]rank[= ]{self.report.local_rank}\b")
        refused = [number for number in own if argument.search(self.errors[number].text)]
        for number in [*refused, *own, *unreported][:1]:
            self.errors[number] = replace(self.errors[number], inner=inner)
            return
        # The launcher's exception has ended the traceback of a rank, whose lines are mixed with its own.
        cut = next((error.frame for error in self.errors if is_of_launcher(error) and error.frame), "")
        more = f"; the log lacks the exception of a traceback{placed(cut)}" if cut else ""
        if self._last_line and not cut:
            more = f"; the last line before that: {self._last_line[:MOST]}"
        self.errors.append(Error(at, self._rank, text, inner=inner, more=more))


def heard(pieces: Iterable[tuple[int, str, float, str]], launchers: bool = False) -> tuple[Error, ...]:
    """Return the errors in pieces of output (rank, stream, time in seconds, lines), by time.

    ``launchers``: each "rank" starts other ranks.
    """
    # Streams are read one by one: their order within a moment is a guess, and would tear tracebacks.
    listeners: dict[tuple[int, str], ErrorListener] = {}
    newest: dict[int, float] = {}
    for rank, stream, at, text in pieces:
        listener = listeners.setdefault((rank, stream), ErrorListener(rank, launchers))
        newest[rank] = max(newest.get(rank, 0.0), at)
        for line in text.splitlines():
            listener.hear(at, line)
    errors = []
    for listener in listeners.values():
        for error in listener.errors:
            printed_on = error.at > 0 and newest[error.rank] - error.at > SURVIVED_SECONDS
            errors.append(replace(error, survived=printed_on and not error.ends))
    return tuple(sorted(errors, key=lambda error: (error.at, error.rank)))


class _Reader:
    """Reads the lines of one process. It appends errors to ``errors``, and completes the last one there."""

    def __init__(self, form: Error, errors: list[Error]) -> None:
        # The fields that all errors of this process share.
        self._form = form
        self._errors = errors
        # Which of the errors is the newest one of this reader, that following lines may complete.
        self._last = -1
        # The innermost and the outermost frame of the user's code in a traceback.
        self._frame = self._outermost = ""
        self._item = ""
        # The outermost function of all code in it.
        self._caller = ""
        # The innermost frame of a library in it.
        self._library = ""
        # The error of a task of Ray, whose message comes last.
        self._of_task = ""
        self._rich = self._usage = False
        # File and line of the newest frame in a box of rich.
        self._rich_place = ""
        # Exceptions that Python ignores and whose last lines were not read.
        self._skipped = 0
        # Tracebacks that have begun and lack their exception.
        self._open = 0
        # A traceback began in another one: lines of several processes are mixed.
        self._is_woven = False
        # The exception of one of them was read.
        self._is_closing = False
        # Another frame that may be the innermost one, if lines are mixed.
        self._rival = ""
        # How many more lines may belong to the message.
        self._continued = 0
        self._link = self._thrown = ""
        self._origin = -1
        self._dump = ""
        self._in_group = False
        # The frames of one thread in the dump of a fatal error.
        self._section: list[str] = []
        # The frames of one thread, while a timer's stacks are read.
        self._timed: list[str] | None = None
        # torch.compile shows below an exception which line of the user's code it is about.
        self._is_compiled = False
        # The last line, where it names an exception and no traceback stood before it.
        self._plain = ""
        # The last paragraph of other output, without its details.
        self._paragraph: list[str] = []
        self._is_ended = False

    def hear(self, at: float, text: str) -> None:
        if _DOES_WITHOUT.match(text):
            self._continued = 0
            return
        if ("RayTask" in text or "ray::" in text) and (of_task := _TASK_ERROR.search(text)):
            task = f" in {of_task['task']})" if of_task["task"] else ""
            self._of_task = f" of {of_task['name'] or 'an error'}{task}"
        is_ignored = _IGNORED.match(text) is not None
        self._skipped += is_ignored
        if self._in_group:
            self._in_group = _MARGIN.match(text) is not None
            text = _MARGIN.sub("", text)
        link = _LINKS.get(text.strip())
        if link:
            last = self._newest()
            if self._plain and not (last and last.text == self._plain):
                self._append(self._error(at, self._plain))
            self._link, self._continued = link, 0
        elif header := _HEADER.search(text):
            front = text[: header.start()].strip()
            if _NAMED.match(front):
                self._of_task = f" of {front.rstrip(':')}"
            elif meaning(front):
                self._hear_message(at, front)
            self._begin()
            self._in_group = self._in_group or _GROUP.match(text) is not None
            self._rich = "─" in text
            elsewhere = _ELSEWHERE.search(text)
            self._origin = int(elsewhere[1]) if elsewhere else -1
        elif frame := _FRAME.match(text):
            # The comma tells a traceback from a stack dump. The log may lack the beginning of a traceback.
            if frame[3] and not (self._open or self._is_compiled):
                self._begin()
                self._caller = "<module>"  # it may be
            file = frame[1].replace("\\", "/")
            self._note(f"{file}:{frame[2]} {frame[4] or '<module>'}", "in" if frame[4] else "")
        elif frame := _RICH_FRAME.match(text):
            if not self._open:
                self._begin()
            self._rich, self._rich_place = True, frame[1] or self._rich_place
            if frame[2] and self._rich_place:
                self._note(f"{self._rich_place} {frame[2]}", "in")
        elif text.startswith("from user code:"):
            self._is_compiled = True
        elif self._open:
            self._hear_open(at, text)
        elif not self._continues(text):
            self._skipped *= is_ignored or not text.strip()
            self._hear_other(at, text)

    def unended(self) -> Error | None:
        """Return the traceback whose exception was not read; None without one.

        That of a launcher is a consequence.
        """
        if not self._open or not (self._frame or self._library or self._form.inner >= 0):
            return None
        is_of_parent = not self._frame or self._library.endswith(" join")
        if is_of_parent and _LAUNCHER_FRAME.search(self._library):
            text = "a traceback of a launcher without its exception"
            return replace(self._error(0.0, text), row=meaning(_OF_TORCHRUN))
        more = "" if self._frame else placed(self._library, "in")
        text = f"a traceback{self._of_task} without its exception"
        return replace(self._error(0.0, text), frame=self._frame, more=more)

    def _begin(self) -> None:
        self._is_woven = self._open > 0
        if not self._open:
            self._frame = self._rival = self._library = self._caller = ""
        self._open += 1
        self._dump, self._continued, self._is_closing = "", 0, False
        self._is_compiled = False
        self._timed = None
        self._plain = ""

    def _hear_open(self, at: float, text: str) -> None:
        """Read a line of a traceback. The first one that is not indented and names an exception ends it."""
        if self._rich:
            self._rich = "╰" not in text
            self._continued = 1
            return
        line = text.strip() if self._continued else text
        # The frames and the error of a task of Ray stand below the exception that wraps them.
        is_wrapper = _TASK_ERROR.search(line) is not None
        if line and not (line[0].isspace() or is_wrapper) and (_NAMED.match(line) or meaning(line)):
            self._open, self._continued, self._is_closing = self._open - 1, 0, True
            if self._skipped:
                self._skipped -= 1
            else:
                self._add(at, line)
        elif self._is_closing and line and not line[0].isspace():
            self._open = 0

    def _hear_other(self, at: float, text: str) -> None:
        last = self._newest()
        if fatal := _FATAL.match(text):  # an abort says where it was, after what it was about
            self._dump = "other"
            if last is None or last.frame or at - last.at >= SAME_DUMP:
                self._append(self._error(at, f"Fatal Python error: {fatal[1]}"))
        elif thrown := _THROWN.match(text):
            self._thrown = thrown[1]
        elif _TIMER.match(text):
            self._append(self._error(at, text))
            self._timed = []
        elif _DUMPED.match(text):
            self._section = []
            self._dump = self._dump and ("current" if text.startswith("Current") else "other")
            self._timed = None if self._timed is None else []
        elif _TRACE_HINT.match(text):
            if self._paragraph and (last is None or at - last.at > SAME_DUMP):
                self._add(at, "; ".join(self._paragraph).replace(".; ", ". "))
        elif not text.strip():
            self._is_ended = True
        else:
            if _NOISE.search(text) or (text.startswith("  ") and not _DETAIL.match(text)):
                self._paragraph = []
            elif not (text[0].isspace() or text.endswith(":") or _LINK.match(text)):
                before = [] if self._is_ended else self._paragraph[-MOST_CONTINUED:]
                self._paragraph, self._is_ended = [*before, text.strip()], False
            self._timed = None
            self._plain = text.strip() if _NAMED.match(text) else ""
            # An exception of a chain or a group that was never raised has no traceback.
            if self._plain and (self._link or self._in_group):
                self._add(at, self._plain)
                self._plain = ""
            else:
                self._hear_message(at, text)

    def _hear_message(self, at: float, text: str) -> None:
        """Read a line outside of tracebacks and stack dumps."""
        what = _WHAT.match(text)
        # Source code, advice, what Python prints of processes that did not end well, and the line above the
        # traceback in an error file of torchelastic.
        is_source = text.lstrip().startswith(("raise ", "Compile with ", "traceback : ", '"message": '))
        if self._skipped or is_source or "resource_tracker" in text:
            return
        if _USAGE.match(text):
            self._usage = True
        elif self._usage and _MISUSED.match(text):
            self._usage = False
            self._append(replace(self._error(at, text.strip()), row=meaning(text)))
        elif what and self._thrown and not meaning(text):
            self._append(replace(self._error(at, f"{self._thrown}: {what[1]}"), ends=True))
        elif row := meaning(text):
            last = self._newest()
            goes_on = last is not None and last.row is row and at - last.at <= SAME_DUMP
            # Ranks without marks print the same line. Other lines of one row belong to one message.
            is_of_other = last is not None and len(self._errors) < MOST_EQUAL
            if last and _mark_in(last.text) == _mark_in(text):
                is_of_other = is_of_other and last.text == text.strip()
            if not goes_on or is_of_other:
                text = shortened(_RAY_IDS.sub("", text.strip()), pattern=row.pattern)
                self._append(replace(self._error(at, text), row=row, ends=bool(what and self._thrown)))
                self._continued = MOST_CONTINUED if _HAS_MORE.search(text) else 0

    # --- tracebacks ---

    def _note(self, frame: str, function: str) -> None:
        """Read a frame of a traceback (outermost first), or of a fatal error's stack (innermost first)."""
        if self._timed is not None:
            self._note_timed(frame)
            return
        if not function and not self._open:
            self._begin()  # a script that is no Python has no traceback, only its place
        self._caller = self._caller or function_of(frame)
        last = self._newest()
        if self._is_compiled and last and not self._open:
            self._errors[self._last] = replace(last, frame=frame)
        if self._dump and last and not self._open:
            self._section.append(frame)
            own = [place for place in self._section if not is_library(place)]
            calls = any(_COLLECTIVES in place for place in self._section)
            backward = any(_BACKWARD in place for place in self._section)
            # The outermost frame of a thread that is not the main one, and that of a script.
            if function_of(frame) == "_bootstrap" and own and calls:
                last = self._errors[self._last] = replace(last, thread=own[0])
            elif function_of(frame) == "<module>" and own and (calls or backward):
                last = self._errors[self._last] = replace(last, main=own[0])
        if is_library(frame):
            self._library = frame
            # The innermost frame of a dump comes first.
            if self._dump and last and not (self._open or last.frame or last.more):
                self._errors[self._last] = replace(last, more=placed(frame, "in"))
            return
        if self._open:
            # The outermost frame of another process may follow on an inner one.
            self._outermost = self._outermost if self._frame else frame
            is_script = function_of(frame) == "<module>" and _scope(frame) == _scope(self._outermost)
            is_inner = not (self._is_woven and is_script)
            is_rival = self._is_woven and frame != self._frame and _scope(frame) == _scope(self._frame)
            self._rival = self._frame if is_rival else self._rival
            self._frame = frame if is_inner else self._frame or frame
        elif last and (self._dump == "current" or (self._dump and not last.frame)):
            # The user's innermost frame, of the thread that failed if the dump marks it.
            self._dump = "" if self._dump == "current" else self._dump
            self._errors[self._last] = replace(last, frame=frame, more="")

    def _add(self, at: float, text: str) -> None:
        """Add an exception: a new one, the next one of a chain, or the one that a wrapper wraps."""
        error = replace(self._error(at, text), frame=self._frame, row=meaning(text), origin=self._origin)
        if self._caller and not (self._is_woven or _OUTERMOST.match(self._caller)):
            error = replace(error, caught=True)
        if "_call_store" in self._library:
            error = replace(error, row=RENDEZVOUS_LOST)
        is_cut_off = "/multiprocessing/" in self._library and _CUT_OFF.search(text)
        # deepspeed's handler runs because something ends the ranks.
        if is_cut_off or self._library.endswith(" sigkill_handler"):
            error = replace(error, row=PART_ENDED)
        if self._rival:
            error = replace(error, more=f", or {short(self._rival)}: lines of several processes are mixed")
        elif self._library and not (self._frame or error.is_consequence or is_report(error)):
            error = replace(error, more=placed(self._library, "in"))
        self._frame, self._origin = self._frame if self._open else "", -1
        self._library = self._of_task = ""
        if is_of_launcher(error) and not self._is_woven:
            error = replace(error, frame="")
        last = self._newest()
        link, self._link = self._link, ""
        reported = error.origin >= 0 and last is not None and last.origin < 0
        # The text of an old mp.spawn's exception is empty, until the exception of its process follows.
        is_empty = last is not None and last.more.startswith(_IN_PROCESS) and last.text.rstrip().endswith(":")
        wraps = last is not None and (is_empty or _WRAPS.search(last.text))
        if last and not link and (reported or wraps):
            # An exception of another process, with its own message and place.
            worker = _WORKER.search(last.text)
            outer = last.more if not worker or last.more.startswith(_IN_PROCESS) else ""
            more = error.more + (f", in {worker[1]}" if worker else "") + outer
            # The line that called a worker says more than none. That of a launcher does not.
            called = last.frame if worker or reported else ""
            row, frame = error.row or last.row, error.frame or called
            self._errors[self._last] = replace(error, at=last.at, row=row, frame=frame, more=more)
        elif last and link:
            # The final exception of a chain is a consequence if the one before it is.
            row = _of_chain(last.row, error.row)
            chained = replace(error, at=last.at, row=row, more=f"; {link}: {last.message}")
            if last.text == error.text:  # another process printed it first
                chained = replace(last, row=row, frame=last.frame or error.frame)
            elif last.frame and (link == _CAUSED or (last.row and not error.row)):
                # The exception that was raised last only wraps the one that failed, or its handler failed.
                chained = replace(last, row=row, more=f"{last.more}; which led to: {error.placed}")
            self._errors[self._last] = chained
        else:
            self._append(error)
        is_last = self._errors[self._last].text == error.text
        self._continued = MOST_CONTINUED if is_last and not self._is_woven else 0

    def _continues(self, text: str) -> bool:
        """Return whether a line continues the message before it: it is indented, or follows a colon."""
        last = self._newest()
        if not self._continued or last is None:
            return False
        announces = last.text.rstrip().endswith(":")
        # Items of a list below a colon begin alike.
        is_item = self._item and text.startswith(self._item)
        self._item = text[:4] if announces or is_item else ""
        if not text.strip() or _OF_ACTOR.match(text):
            return True
        wrapper = text.startswith("-- Process ")
        is_other = "%|" in text or _LOGGED.match(text)
        is_of_message = _HAS_MORE.search(last.text) is not None and _OF_MESSAGE.match(text) is not None
        goes_on = text[0].isspace() or announces or is_item or is_of_message
        goes_on = goes_on and any(map(str.isalnum, text)) and not is_other
        if wrapper or _WRAPS.search(last.text) or not goes_on:
            self._continued = 0
            if wrapper:
                # The line of its parent says nothing of it.
                process = text[11:].partition(" term")[0]
                self._errors[self._last] = replace(last, frame="", more=f"{_IN_PROCESS}{process}")
            return wrapper
        self._continued -= not is_item
        whole = shortened(f"{last.text.rstrip()} {text.strip()}")
        self._errors[self._last] = replace(last, text=whole, row=meaning(whole) or last.row)
        return True

    # --- what the interpreter or the library prints when it aborts ---

    def _note_timed(self, frame: str) -> None:
        """Keep the innermost frame of the user's code, and what it waits in. The main thread comes last."""
        last = self._newest()
        before, self._timed = self._timed or [], [*(self._timed or []), frame]
        if last is not None and not is_library(frame) and all(map(is_library, before)):
            is_timed = location(tuple(self._timed))
            waits = is_timed.doing in (Doing.COLLECTIVE, Doing.RENDEZVOUS)
            more = f", in {is_timed.operation}" if waits else ""
            self._errors[self._last] = replace(last, frame=frame, more=more)

    def _error(self, at: float, text: str) -> Error:
        return replace(self._form, at=at, text=shortened(text))

    def _append(self, error: Error) -> None:
        self._last = len(self._errors)
        self._errors.append(error)

    def _newest(self) -> Error | None:
        return self._errors[self._last] if self._last >= 0 else None


def placed(frame: str, preposition: str = "at") -> str:
    return f", {preposition} {short(frame)}" if frame else ""


def _mark_in(text: str) -> str:
    """Return the group and the rank of a message of a library, as it has them; '' without them."""
    match = _RANK_IN.search(text)
    return match[0] if match else ""


def rank_in(text: str) -> int:
    """Return the rank that a message of a library names; -1 without one."""
    match = RANK_MARK.match(text) or _RANK_IN.search(text)
    return int(next(filter(None, match.groups()))) if match else -1


def shortened(text: str, most: int = MOST, pattern: str = "") -> str:
    """Return the beginning of a long message, and what ``pattern`` matches in it or else its end."""
    if len(text) <= most:
        return text
    text = _SPACES.sub("  ", text)
    match = re.search(pattern, text) if pattern else None
    if match and match.end() <= most:
        return f"{text[:most].rpartition(' ')[0]} …"
    head = text[: most // 4 if match else most * 3 // 4].rpartition(" ")[0]
    tail = text[match.start() :] if match else text[-most // 4 :].partition(" ")[2]
    return f"{head} … {tail[: most - len(head)]}"


def _scope(frame: str) -> tuple[str, str]:
    """Return the file and the function of a frame."""
    return line_of(frame).rpartition(":")[0], function_of(frame)


def _of_chain(before: KnownError | None, error: KnownError | None) -> KnownError | None:
    is_of_disk = before is not None and before.shared and not (error and error.shared and error not in VAGUE)
    # Ranks that do not meet say less than why.
    is_met = error is not None and error.verdict is Verdict.NEVER_ARRIVED
    if before is not None and (before.consequence or is_of_disk or is_met):
        return before
    return error if error is not None and not error.consequence else before
