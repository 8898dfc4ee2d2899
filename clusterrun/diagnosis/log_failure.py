"""Explain the first failure in the log of a job: which ranks failed, by which error, and why; pure."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence

from clusterrun.diagnosis.end_lines import EndKind, EndLine
from clusterrun.diagnosis.job_log import JobLog, ended_first, named, too_many_ranks
from clusterrun.diagnosis.known_errors import NCCL_FAILED, PART_ENDED, SIZES, VAGUE, KnownError, meaning
from clusterrun.diagnosis.log_process import (
    ASKED_TO_END,
    EXCEPTION_LINE,
    NUMBER,
    LogError,
    is_alike,
    is_of_communication,
    is_of_hardware,
)
from clusterrun.diagnosis.log_remedies import NATIVE_REMEDY, TOO_MANY_REMEDY, foreign, remedy_of_end
from clusterrun.diagnosis.log_suspects import ends_in_common, lines_near
from clusterrun.diagnosis.printed_errors import Error, is_of_launcher, lacks_inner, rank_in
from clusterrun.diagnosis.rules.timed_out import LOGS_REMEDY as TIMEOUT_REMEDY
from clusterrun.diagnosis.stacks import line_of, short
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.watchdog_lines import is_timeout
from clusterrun.diagnosis.wording import cut
from clusterrun.model.hostlist import fold

MOST_CULPRITS = 16
# Lines from a library's message to the exception that follows from it.
LINES_TO_EXCEPTION = 60
# Lines near an error that are shown.
MOST_NEAR = 2
# Errors of a GPU whose cause stands elsewhere in the log.
_UNEXPLAINED = re.compile(r"(?:CUDA|HIP) error: (?:device-side assert|unspecified launch|unknown)")
# Exceptions that only wrong code raises. Others may come from the data, the environment or another rank.
_OF_CODE = re.compile(
    r"(?:\w+\.)*\w*(?:Name|UnboundLocal|Attribute|Type|Index|ZeroDivision|NotImplemented|Recursion)Error\b"
    r"|RuntimeError: .*(?:must match|should be the same|shape|dimension)"
)
_NOT_CONNECTED = re.compile(r"failed to connect to .*errno: ?(?:11[13]|101)\b")
_UNSET = re.compile(r"(?:NameError|UnboundLocalError)\b")
# An error between two ranks, either of which may be wrong.
_BETWEEN = re.compile(rf"mismatch between collectives|Mismatched NCCL version|{SIZES.pattern}")
# The ranks that such a message, or one about a shared GPU, names.
_MEANT = re.compile(r"\b[Rr]ank (\d+)(?= and rank| both on| is running| version)")


class FirstFailure:
    """The first error that a rank caused itself, and what the log says about it.

    own: all such errors; errors: those that other ranks caused, too
    ends: lines about ends
    unended: tracebacks without their exception
    """

    def __init__(
        self,
        log: JobLog,
        own: Sequence[LogError],
        errors: Sequence[LogError],
        ends: Sequence[EndLine],
        unended: Sequence[LogError],
    ) -> None:
        self._log, self._errors, self._ends, self._unended = log, errors, ends, unended
        of_first_rank = [entry for entry in own if entry.rank == log.first_rank >= 0]
        self._launcher_names_it = bool(of_first_rank)
        # Files are read one after the other.
        self._has_times = len(log.file_names) > 1 and all(entry.time for entry in own)
        first, hint = _exception_after(min(of_first_rank or own, key=self._order), own)
        self._first, self._error = first, first.error
        # A message of a library, of a GPU or of a watchdog.
        self._hint = _explanation(first, errors) or hint
        self._same = [entry for entry in own if self._is_same(entry)]
        self._others = [entry for entry in own if entry not in self._same]
        self._is_between = _BETWEEN.search(self._error.text) is not None
        self._ranks, self._nodes = self._who_failed()

    def diagnose(self) -> Diagnosis:
        """Return the diagnosis."""
        error = self._error
        connections, has_one_reporter = ends_in_common(self._log, self._same)
        remote = tuple(Culprit(-1, node, error.headline) for node in connections or ())
        culprits = culprits_of(self._log, self._ends, self._ranks, self._nodes, error.headline)
        who, is_alone = self._who(culprits), max(len(self._ranks), len(self._nodes)) < 2
        files = list(dict.fromkeys(filter(None, map(self._file_of, self._same))))
        evidence = [f"in {', '.join(files[:MOST_CULPRITS])}"] if files else []
        doubts = self._doubts()
        did = "failed first" if is_alone and not doubts else "failed"
        if self._is_between:
            # The other rank may be wrong.
            did, culprits = "reported", ()
        elif ASKED_TO_END.match(error.text):
            did = "was ended from outside" if is_alone else "were ended from outside"
        elif error.row and error.row.verdict is Verdict.NEVER_ARRIVED:
            # Others did not come.
            did, culprits = "gave up waiting", ()
        if has_one_reporter:
            culprits += remote
        elif connections is not None:
            evidence.append(f"reported by {who}")
            who, did, culprits = "RDMA connections", "failed", remote
            if connections:
                who = f"RDMA connections of {connections[0]}"
        message = error.message if self._is_between else error.headline
        if message != error.message:
            evidence.append(error.text)
        sentence = f"{who} {did}: {message}"
        follows_nccl = self._follows_nccl()
        if follows_nccl:
            sentence = f"operations of NCCL failed or timed out; then, in {who}: {message}"
        row, causes, notes = self._cause()
        place, calls = self._place()
        clauses = [*doubts, *self._other_suspects(), *causes, *calls]
        sentence = "; ".join((sentence, *clauses))
        evidence += [*notes, *self._around(sentence)]
        verdict = row.verdict if row else Verdict.CRASHED
        remedy = self._remedy(row, line_of(place))
        if too_many_ranks(error.text):
            verdict, remedy = Verdict.MISMATCH, TOO_MANY_REMEDY
        elif follows_nccl:
            verdict, remedy = Verdict.NEVER_ARRIVED, foreign(TIMEOUT_REMEDY)
        return Diagnosis(verdict, sentence, culprits, (), tuple(dict.fromkeys(evidence)), remedy)

    # --- which error is the first, and whose it is ---

    def _order(self, entry: LogError) -> tuple[bool, bool, bool, str, int]:
        """Return a smaller value for an error that was printed before, and that no other one caused."""
        # A name that was never set is often one in the handler of another error.
        is_of_handler = _UNSET.match(entry.error.text) is not None
        # One that a program caught may have ended no rank, and files of ranks do not show what came after.
        may_be_handled = entry.error.caught and len(self._log.file_names) > 1
        time = entry.time if self._has_times else ""
        return is_of_communication(entry.error), is_of_handler, may_be_handled, time, entry.order

    def _is_same(self, entry: LogError) -> bool:
        """Return whether an error is the first one, printed by any rank.

        The launcher knows which rank failed first, so similar errors may be consequences.
        """
        error, first = entry.error, self._error
        is_similar = not self._launcher_names_it and is_alike(error, first)
        if error.text == first.text and not (error.frame and first.frame):
            return True
        return error.frame == first.frame and (error.text == first.text or is_similar)

    def _who_failed(self) -> tuple[tuple[int, ...], list[str]]:
        """Return the ranks that printed the error, or the nodes if no line names a rank.

        An error without a rank is that of the rank that noticed the end of its own thread or process, or
        else of the rank whose end is reported next. Ranks that later lost their peers waited for another one.
        """
        first, same, errors, log = self._first, self._same, self._errors, self._log
        meant = _MEANT.findall(self._hint.error.text if self._hint else self._error.text)
        if len(meant) > 1:
            return tuple(sorted({int(rank) for rank in meant})), [""]
        later = [entry for entry in errors if entry.order > first.order and entry.rank >= 0]
        ranks: tuple[int, ...] = tuple(sorted({entry.rank for entry in same if entry.rank >= 0}))
        if not ranks and len(same) == 1:
            ranks = tuple(entry.rank for entry in later if entry.error.row is PART_ENDED)[:1]
        node = first.node
        if not ranks:
            waited = {entry.rank for entry in later if is_of_communication(entry.error)}
            waited = set() if is_of_communication(first.error) else waited
            ends = [end for end in self._ends if not end.ranks or not waited.issuperset(end.ranks)]
            ended = ended_first([end for end in ends if not node or end.node in ("", node)])
            if ended:
                ranks, node = ended.ranks, ended.node or node
                texts = Counter(NUMBER.sub("", entry.error.text) for entry in same)
                if max(texts.values()) > 1 and not first.node:
                    # The error was printed several times, but not by ranks that ended after another error.
                    other_orders = (
                        entry.order for entry in errors if entry.order > ended.order and entry not in same
                    )
                    until = min(other_orders, default=log.order + 1)
                    ranks, node = ended_alike(ended, [end for end in self._ends if end.order < until])
            elif log.first_rank >= 0:
                ranks = (log.first_rank,)
            else:
                node = node or node_after(first.order, ends)
        # torchrun names one rank of several that failed alike, and lists the others.
        others_failed = {entry.rank for entry in errors if entry not in same}
        alike = {*log.report.failed} - others_failed - {*ranks}
        if len(alike) <= sum(entry.rank < 0 for entry in same):
            ranks = tuple(sorted({*ranks, *alike}))
        nodes = sorted({entry.node for entry in same if entry.node}) if not ranks else []
        return ranks, nodes or [node]

    # --- the words about it ---

    def _who(self, culprits: Sequence[Culprit]) -> str:
        """Return the ranks or processes that failed, and their node."""
        files = [file for file in map(self._file_of, self._same) if file]
        if self._ranks:
            who = ranks_in_words(self._ranks)
        elif len(self._nodes) > 1:
            return f"processes on {fold(self._nodes)}"
        else:
            who = f"a process of {files[0]}" if files and self._nodes == [""] else "a process"
        node = culprits[0].node if len(culprits) == 1 else ""
        return f"{who} on {node}" if node else who

    def _doubts(self) -> list[str]:
        """Return why another rank may have failed before."""
        log, doubts = self._log, []
        if not (self._launcher_names_it or self._has_times):
            others = [entry for entry in self._others if not is_of_communication(entry.error)]
            files = {*map(self._file_of, others)} - {*map(self._file_of, self._same)}
            if files:
                listed = ", ".join(sorted(files)[:MOST_CULPRITS])
                doubts.append(f"{listed} shows another failure, and no times tell which was first")
        ranks = {rank if rank >= 0 else rank_in(text) for _, rank, text in log.tail if text}
        ranks |= {process.rank for process in log.processes.values() if process.rank >= 0}
        has_one_file = len(log.file_names) < 2
        if ranks == {*self._ranks} and log.world != 1 and has_one_file and not self._ends:
            doubts.append("the log shows no other rank, which may have failed before")
        return doubts

    def _other_suspects(self) -> list[str]:
        """Return which other ranks may be at fault."""
        log, clauses = self._log, []
        if log.first_rank >= 0 and self._ranks and log.first_rank not in self._ranks:
            node = log.nodes.get(log.first_rank, "")
            on_node = f" on {node}" if node else ""
            clauses.append(f"the launcher saw rank {log.first_rank}{on_node} end first")
        if SIZES.search(self._error.text):
            clauses.append("it received these data, so their sender may be at fault")
        return clauses

    def _follows_nccl(self) -> bool:
        """Return whether NCCL failed before. What its operation should have received may be garbage."""
        lines_after = self._first.order - self._log.nccl_failed if self._log.nccl_failed else 0
        is_near = 0 < lines_after < LINES_TO_EXCEPTION and not self._launcher_names_it
        return is_near and not (is_of_communication(self._error) or is_of_hardware(self._error))

    def _cause(self) -> tuple[KnownError | None, list[str], list[str]]:
        """Return what the error means, and clauses and notes that say why it happened."""
        error, hint, row = self._error, self._hint, self._error.row
        warnings, clauses, notes = self._log.nccl_warnings, [], []
        if (hint and is_timeout(hint.error)) or (hint and hint.error.row is error.row):
            notes = [hint.error.text]
        elif hint:
            row = hint.error.row
            clauses.append(f"its cause: {hint.error.text}")
        elif row and row.verdict is Verdict.NEVER_ARRIVED and (refusals := self._refusals()):
            clauses.append(f"before that: {refusals[-1]}")
        elif row is NCCL_FAILED and warnings:
            warning = next(filter(meaning, reversed(warnings)), warnings[-1])
            row = meaning(warning) or row
            clauses.append(f"NCCL's warning: {warning}")
            notes = [*warnings]
        cause = too_many_ranks(error.text) or (row and f"cause: {row.cause}")
        return row, clauses, [cause, *notes] if cause else notes

    def _refusals(self) -> list[str]:
        """Return the lines that say why a connection could not be made, before the rank gave up."""
        tail, until = self._log.tail, self._first.order
        return [text.strip() for order, _, text in tail if order < until and _NOT_CONNECTED.search(text)]

    def _place(self) -> tuple[str, list[str]]:
        """Return the line of the user's code that failed, and clauses about a process that called it."""
        error, place, clauses = self._error, self._error.frame, []
        caller = None if place else _caller(self._first, [*self._errors, *self._unended])
        if caller:
            place = caller.frame
            is_equal = caller.text == error.text
            clauses.append(f"called at {short(place)}" if is_equal else f"then: {caller.message}")
        if lacks_inner(error):
            place = ""
            clauses.append("the log lacks the exception that it wraps")
        return place, clauses

    def _around(self, sentence: str) -> list[str]:
        """Return what else the log has around the error, without what ``sentence`` has."""
        error, evidence = self._error, []
        for entry in self._errors[:1]:
            is_later = self._has_times and entry.time > self._first.time
            if not is_later and entry.is_doubtful and entry.error.frame and not is_alike(entry.error, error):
                evidence.append(f"printed before, and the log goes on after it: {cut(entry.error.message)}")
        for entry in self._errors:
            is_of_rank = entry.rank >= 0 and not is_of_launcher(entry.error)
            if entry.error.is_consequence and is_of_rank and not entry.was_handled:
                evidence.append(f"a consequence: rank {entry.rank} printed {cut(entry.error.text)}")
                break
        last = self._others[-1].error if self._others else None
        if last and last.frame and error.text not in last.message:
            evidence.append(f"also printed: {cut(last.message)}")
        is_explained = error.row not in (None, *VAGUE) and "NCCL WARN" not in error.text
        near = lines_near(self._log, self._first)
        if is_explained and not is_of_hardware(error):
            # DDP lists the parameters below its message.
            near = [line for line in near if "did not receive grad" in line]
        ends = [end.line for end in self._ends[:3]]
        consequences = [entry.error.text for entry in self._errors if entry.error.is_consequence]
        stated = "\n".join((sentence, error.message, *consequences, *ends))
        near = [line for line in near if line not in stated]
        return [*evidence, *(f"near it: {line}" for line in near[:MOST_NEAR]), *ends]

    def _remedy(self, row: KnownError | None, place: str) -> str:
        """Return the remedy for an error that means ``row``, at a line of the user's code; '' for none."""
        error = self._error
        if row is NCCL_FAILED and (self._log.nccl_warnings or "Last error:" in error.text):
            return foreign(row.remedy).partition("; ")[2]
        if row:
            return foreign(row.remedy)
        if ASKED_TO_END.match(error.text):
            return remedy_of_end(EndKind.OUTSIDE, named(error.text))
        if error.text.startswith("Fatal Python error: Segmentation fault"):
            return NATIVE_REMEDY
        if not place:
            return "the message says all that the log has: it shows no line of your code"
        of_program = "; the error is the program's own" if _OF_CODE.match(error.text) else ""
        return f"look at {place}{of_program}"

    def _file_of(self, log_error: LogError) -> str:
        """Return the file of an error, without the folder of all files; '' if there is only one file."""
        # Relative and absolute names have no common folder.
        files = [(begins, os.path.join("/", name)) for begins, name in self._log.file_names]
        names = [name for begins, name in files if begins < log_error.order]
        if len({name for _, name in files}) < 2 or not names:
            return ""
        return os.path.relpath(names[-1], os.path.commonpath([os.path.dirname(name) for _, name in files]))


def culprits_of(
    log: JobLog, ends: Sequence[EndLine], ranks: Sequence[int], nodes: Sequence[str], why: str
) -> tuple[Culprit, ...]:
    """Return ranks as culprits, each with its node, or ``nodes`` if there are none."""
    node_of_ended = {rank: end.node for end in reversed(ends) if end.node for rank in end.ranks}
    places = {rank: log.nodes.get(rank) or node_of_ended.get(rank, "") for rank in ranks}
    culprits = tuple(
        Culprit(rank, places[rank] or (nodes[0] if len(ranks) == 1 else ""), why)
        for rank in ranks[:MOST_CULPRITS]
    )
    return culprits or tuple(Culprit(-1, node, why) for node in nodes[:MOST_CULPRITS] if node)


def ended_alike(ended: EndLine, ends: Sequence[EndLine]) -> tuple[tuple[int, ...], str]:
    """Return the ranks that ended as the ranks of ``ended`` did, and their node if they have only one."""
    alike = [end for end in ends if (end.kind, end.words) == (ended.kind, ended.words)]
    nodes = {end.node for end in alike}
    ranks = tuple(sorted({rank for end in alike for rank in end.ranks}))
    return ranks, ended.node if len(nodes) == 1 else ""


def node_after(order: int, ends: Sequence[EndLine]) -> str:
    """Return the node whose task ended first after a line; '' if no line names it."""
    nodes = (end.node for end in ends if end.order > order and end.kind in (EndKind.EXIT, EndKind.SIGNAL))
    return next(nodes, "")


def _exception_after(first: LogError, own: Sequence[LogError]) -> tuple[LogError, LogError | None]:
    """Return the exception that a library's message without a place led to, and that message."""
    if first.error.frame or first.error.row is None or EXCEPTION_LINE.match(first.error.text):
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


def _explanation(first: LogError, errors: Sequence[LogError]) -> LogError | None:
    """Return the message of a GPU, its driver or a watchdog that explains an error; None without one.

    A kernel's assertion and the driver's report lack the mark of a rank. A watchdog aborts its process.
    """
    is_of_gpu = _UNEXPLAINED.search(first.error.text)
    is_abort = first.error.text.startswith("Fatal Python error: Aborted")
    for log_error in errors:
        row = log_error.error.row
        is_of_other_rank = log_error.rank >= 0 and first.rank not in (-1, log_error.rank)
        is_of_other_node = first.node != "" and log_error.node not in ("", first.node)
        if row is None or log_error.error.frame or is_of_other_rank or is_of_other_node:
            continue
        is_report = " Assertion `" in log_error.error.text or (row.hardware and "Xid" in log_error.error.text)
        if (is_of_gpu and is_report) or (is_abort and is_timeout(log_error.error)):
            return log_error
    return None
