"""Find in the log of any job which rank failed first, and why; pure.

The log has no reliable times. So the launcher's own report of the first failure counts first, then the order
of the lines. Errors that follow from the end of another rank count last.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from clusterrun.diagnosis.decide import decide_end
from clusterrun.diagnosis.end_lines import NOT_STARTED, OF_SCRIPT, WHOLE_JOB, EndKind, EndLine, end_in_words
from clusterrun.diagnosis.job_log import (
    MOST_LAST_LINES,
    JobLog,
    ended_first,
    named,
    whole_job_ended_at,
)
from clusterrun.diagnosis.known_errors import (
    LAUNCHER_FAILED,
    PEERS_REMEDY,
    meaning,
)
from clusterrun.diagnosis.log_failure import MOST_CULPRITS, FirstFailure, culprits_of, ended_alike, node_after
from clusterrun.diagnosis.log_process import (
    ASKED_TO_END,
    EXCEPTION_LINE,
    FINISHED,
    LOOKS_FATAL,
    STEP,
    STEPS_AFTER_SURVIVED,
    WARNING,
    LogError,
    is_alike,
    is_final,
    is_of_communication,
    is_of_hardware,
)
from clusterrun.diagnosis.log_remedies import (
    ENDED_REMEDY,
    NATIVE_REMEDY,
    NOT_LOADED_REMEDY,
    NOTHING_REMEDY,
    REMEDIES,
    foreign,
    remedy_of_end,
)
from clusterrun.diagnosis.log_suspects import (
    LINES_BEFORE,
    LINES_BEHIND,
    complaint_before,
    native_frame,
    suspect_errors,
    suspect_lines,
)
from clusterrun.diagnosis.printed_errors import (
    is_of_launcher,
    is_plain_output,
    is_report,
)
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.rules.timed_out import LINK_REMEDY
from clusterrun.diagnosis.rules.timed_out import LOGS_REMEDY as TIMEOUT_REMEDY
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.watchdog_lines import is_timeout
from clusterrun.model.frozen import replace
from clusterrun.model.states import State

# So much other output between an exception and an end shows that the exception did not cause the end.
OUTPUT_BEFORE_OTHER_END = 2
# Ranks of a job for each rank of which a log that shows all of them has a line.
MOST_SILENT = 1.25
# Lines about steps that show that a job ran on after it had started again.
STEPS_OF_RUN = 10
# Ends of earlier runs that are shown.
MOST_EARLIER = 2
_KILLED = re.compile(r"killed by signal: Killed|exited unexpectedly|abruptly")
# Lines that only announce an error, and the cell of a table.
_HEADING = re.compile(
    r":$|Error executing job|triggered an exception|failed to run torchrun(?!.*exception: (?!Enc))"
    r"|\bERROR(?: ?[|)]|  )"
)
# The end of a process that no line names.
_VAGUE = re.compile(r"^a process exited|returned non-zero exit status")
_WATCHDOG = re.compile(r"watchdog .*terminated with exception")
# A trainer or a launcher says that all is done.
_ENDED_WELL = re.compile(
    rf"{FINISHED.pattern}|'train_runtime': |\bmax_(?:epochs|steps)=\d+` reached|\bexit(?:s|ed) successfully"
    r"|\bSignaling Trainer to stop|\[exiting program at iteration"
    r"|\bWorkerState\.SUCCEEDED\b|worker group successfully finished"
)
# A counter and its total.
_COUNTER = re.compile(r"(?<![\w./])(\d+) *(?:/|of) *(\d+)(?![\w/]|\.\d)")
_RESULT = re.compile(
    r"(?i)(?:loss|\b(?:acc(?:uracy)?|ppl|perplexity|reward|score|auc|miou|bleu))\b\W{0,3}\d"
    r"|\d ?(?:it|samples|tokens)/s|\b(?:done|finished|completed?)\b"
)
_OF_PHASE = re.compile(r"(?i)\b(?:valid\w*|eval\w*|test\w*|warm-?up)\W+(?:step|iter\w*|epoch|batch)\b")
# Only a part of a run is done.
_OF_PART = re.compile(r"(?i)\b(?:epoch|step|round) \d")
# The last line of a script that has ended.
_DONE = re.compile(r"(?i)(?:all )?done\b(?! \w+ing\b)")
# Ranks, times, levels and names of loggers in front of words.
_MARKS = re.compile(r"^(?:\d+: ?|\[[^\]]*\]:?\s*|\([^)]*\)\s*|- |[\d,:. -]{10,}|[\w.]+ - )+")
_DONE_ALONE = re.compile(r"(?i)(?:all )?done[.!]*")
# A program lacks what an environment brings.
_LACKS = re.compile(r"ModuleNotFoundError|ImportError|shared object|not found|No such file")
_ABORTED = re.compile(r"Abort|SIGABRT|\bsignal 6\b")
# The part of a file's name that tells standard output from standard error.
_STREAM = re.compile(r"(?:std)?(?:out(?:put)?|err(?:or)?)\b")
_ONE_BEFORE = "; the one before: "
# Ends by the scheduler, which no error of the job caused.
_BY_SCHEDULER = (EndKind.TIME_LIMIT, EndKind.PREEMPTED, EndKind.CANCELLED, EndKind.REQUEUED)
_VERDICTS = {EndKind.MEMORY: Verdict.OUT_OF_MEMORY, **dict.fromkeys(_BY_SCHEDULER, Verdict.NOT_RUNNING)}


def diagnosis_of(log: JobLog) -> Diagnosis:
    """Return the diagnosis of all lines that were read, or of the last attempt of several."""
    return _LogVerdict(log).diagnose()


class _LogVerdict:
    """The verdict on a log whose lines were all read.

    own: errors that no other rank caused, and after which their processes did not go on
    timeouts, failures: those of them that tell of a collective that timed out, and the others
    ends: lines about ends, without commands that could not be started where others ran
    end: the one of them that explains most
    """

    def __init__(self, log: JobLog) -> None:
        errors = log.errors()
        self._log, self._all_ends = log, log.ends(errors)
        self._errors = [entry for entry in errors if not is_report(entry.error)]
        self._ends = [
            end for end in self._all_ends if end.kind not in NOT_STARTED or self._did_not_go_on(end)
        ]
        # No rank causes these ends.
        limits = (EndKind.TIME_LIMIT, EndKind.PREEMPTED)
        self._limits = [end.order for end in self._ends if end.kind in limits]
        self._end = min(self._ends, key=self._rank_of_end, default=None)
        is_noticed = any(entry.error.is_consequence and not entry.was_handled for entry in self._errors)
        own = self._own_errors(is_noticed)
        self._timeouts = [entry for entry in own if is_timeout(entry.error)]
        self._failures = [entry for entry in own if not is_timeout(entry.error)]
        if self._timeouts and all(is_of_communication(entry.error) for entry in self._failures):
            before = self._timeouts[0].order
            self._failures = [entry for entry in self._failures if entry.order < before]
        self._may_be_handled = not (self._ends or is_noticed) and self._may_have_ended_none(own)
        self._failures = [] if self._may_be_handled else self._failures
        self._unended = self._tracebacks_without_exception(of_launchers=False)
        earlier = [_LogVerdict(run).diagnose() for run in log.earlier]
        self._earlier = [diagnosis for diagnosis in earlier if diagnosis.verdict is not Verdict.UNDETERMINED]
        name_of_runs = "attempts of the job" if log.is_restarted else "runs"
        self._runs = f"{log.runs} {name_of_runs}"
        self._last_lines = tuple(f"last line: {line}" for line in log.last_lines[-3:])

    def _own_errors(self, is_noticed: bool) -> list[LogError]:
        """Return the errors that no other rank caused, and that their processes did not handle.

        ``is_noticed``: a rank or a thread noticed that another one had failed.
        """
        log = self._log
        own = [entry for entry in self._errors if not entry.error.is_consequence]
        if ended_alone := self._ended_without_exception():
            # Connections fail after it. Launchers know the first end by its time.
            begins = 0 if ended_alone.ranks == (log.first_rank,) else ended_alone.order
            own = [entry for entry in own if entry.order < begins or not is_of_communication(entry.error)]
        exits = [end for end in self._ends if end.kind in (EndKind.EXIT, EndKind.SIGNAL)]
        has_failed = bool(exits) or log.first_rank >= 0
        own = _without_handled(own, self._ends, ended_alone, is_noticed, has_failed)
        job_ended = whole_job_ended_at(self._ends)
        if not job_ended:
            return own
        # Processes that were ended with the whole job print errors. Others have handled theirs.
        file_of_end = log.file_at(job_ended)
        # A step may be cancelled because a rank failed, whose lines come late.
        ended = next(end for end in self._ends if end.order == job_ended)
        is_step = ended.kind is EndKind.CANCELLED and "*** STEP" in ended.line
        return [
            entry
            for entry in own
            # Files are read one after the other.
            if entry.order < job_ended
            or (is_step and not is_of_communication(entry.error))
            or not (is_of_communication(entry.error) or log.file_at(entry.order) == file_of_end)
            if not (ASKED_TO_END.match(entry.error.text) or entry.error.caught)
        ]

    def _may_have_ended_none(self, own: Sequence[LogError]) -> bool:
        """Return whether these errors, in files of ranks one of which shows training, may have ended none.

        The programs caught or only printed them.
        """
        log = self._log
        has_steps = any(process.steps >= STEPS_AFTER_SURVIVED for process in log.processes.values())
        is_of_ranks = len({_STREAM.sub("", name) for _, name in log.file_names}) > 1
        is_ended = any(
            is_timeout(entry.error) or (entry.error.frame and not entry.error.caught) for entry in own
        )
        return is_of_ranks and has_steps and not is_ended

    def diagnose(self) -> Diagnosis:
        """Return the first answer, with notes on attempts and on modules that could not be loaded."""
        answers = (
            self._finished_at_last,
            self._survived,
            self._failed,
            self._timed_out,
            self._ended,
            self._noticed,
            self._unmarked_error,
            self._cut_traceback,
            lambda: self._of_end(self._end) if self._end else None,  # it names no process
            self._listed,
            self._completed,
            self._failed_before,
        )
        diagnosis = next(filter(None, (answer() for answer in answers)), None) or self._nothing_certain()
        notes = []
        if self._log.runs > 1:
            if self._runs not in diagnosis.message:
                notes.append(f"the log holds {self._runs}: this is the last one's end")
            messages = dict.fromkeys(earlier.message for earlier in reversed(self._earlier))
            others = [message for message in messages if f"{_ONE_BEFORE}{message}" not in diagnosis.message]
            notes += [f"an earlier one ended so: {message}" for message in others[:MOST_EARLIER]]
        if self._log.not_loaded and diagnosis.verdict is Verdict.CRASHED:
            not_loaded = f"before that: {' '.join(self._log.not_loaded)}"
            if _LACKS.search(diagnosis.message):
                message = f"{diagnosis.message}; {not_loaded}"
                diagnosis = replace(diagnosis, message=message, remedy=NOT_LOADED_REMEDY)
            else:
                notes.append(not_loaded)
        elif diagnosis.verdict in (Verdict.CRASHED, Verdict.UNDETERMINED):
            not_started = [end.line for end in self._all_ends if end not in self._ends]
            notes += [f"before that: {line}" for line in not_started[:1]]
        return replace(diagnosis, evidence=(*diagnosis.evidence, *notes))

    # --- answers, the most certain first; None: the log does not give it ---

    def _finished_at_last(self) -> Diagnosis | None:
        """The job started again after a failure, and the last start finished."""
        is_restarted = self._earlier or any(end.kind is EndKind.REQUEUED for end in self._all_ends)
        orders = [entry.order for entry in self._errors] + [end.order for end in self._all_ends]
        last = max(orders, default=0)
        steps = [order for order, _, text in self._log.tail if order > last and STEP.search(text)]
        # A batch script says that it is done after a program that failed, too.
        is_clean = len(steps) >= STEPS_OF_RUN or not (self._failures or self._timeouts or self._ends)
        if not (is_restarted and is_clean) or self._finished()[0] <= last:
            return None
        diagnosis = self._without_failure("the job started again, and its last start shows no failure")
        notes = tuple(f"before that: {entry.error.message}" for entry in self._errors[:1])
        return replace(diagnosis, evidence=(*diagnosis.evidence, *notes))

    def _survived(self) -> Diagnosis | None:
        """Every error was handled, and nothing ended. The log may end inside of another traceback."""
        handled = [entry for entry in self._errors if entry.was_handled or not entry.error.is_consequence]
        if self._ends or self._failures or self._timeouts or not handled:
            return None
        message = handled[0].error.message
        sentence = f"there is no error in it that ended a rank: after {message}, it went on"
        if self._may_be_handled:
            sentence = f"no line shows that a rank ended: the program caught {message}"
        answer = self._without_failure(sentence)
        if answer.verdict is not Verdict.NOTHING:
            answer = self._unmarked_error(after=handled[-1].order) or answer
        return self._cut_traceback() or answer

    def _failed(self) -> Diagnosis | None:
        """A rank failed by itself."""
        failures, end = self._failures, self._end
        was_killed = all(_KILLED.search(entry.error.text) for entry in failures)
        if not failures or (end and end.kind is EndKind.MEMORY and was_killed):
            return None
        if end and end.kind in NOT_STARTED and all(is_of_communication(entry.error) for entry in failures):
            return None
        # Other ranks that aborted do not say why either.
        first = self._log.first_rank
        is_other = all(
            entry.rank not in (-1, first) and _ABORTED.search(entry.error.text) and not entry.error.frame
            for entry in failures
        )
        if is_other and end and end.is_report and end.ranks == (first,):
            return None
        return self._of_first(failures, self._errors)

    def _timed_out(self) -> Diagnosis | None:
        """A collective timed out."""
        end = self._end
        if not self._timeouts or (end and end.kind in (EndKind.NODE, EndKind.MEMORY, *NOT_STARTED)):
            return None
        return self._of_timeouts([entry for entry in self._errors if not entry.was_handled])

    def _ended(self) -> Diagnosis | None:
        """A launcher or Slurm says how ranks or the job ended."""
        end = self._end
        if end is None or (not end.ranks and _VAGUE.search(end.words)):
            return None
        # The errors of ranks say more than that Slurm ended another one after them, and the watchdog of NCCL
        # aborts the rank that noticed the end of another one.
        follows = end.kind is EndKind.ENDED_BY_OTHERS or (
            _ABORTED.search(end.words) and any(_WATCHDOG.search(entry.error.text) for entry in self._errors)
        )
        return None if self._errors and follows else self._of_end(end)

    def _noticed(self) -> Diagnosis | None:
        """Ranks only noticed that another one had failed."""
        errors = self._errors
        if not errors:
            return None
        first = errors[0]
        who = ranks_in_words([first.rank]) if first.rank >= 0 else "a process"
        if ASKED_TO_END.match(first.error.text):
            message = named(first.error.text)
            remedy = remedy_of_end(EndKind.OUTSIDE, message)
            why = ", and the log does not say why" if remedy == ENDED_REMEDY else ""
            return _undetermined(f"{who} was ended from outside{why}: {message}", remedy=remedy)
        row = first.error.row
        has_remedy = row is not None and row.remedy != PEERS_REMEDY and not is_of_launcher(first.error)
        remedy = foreign(row.remedy) if row and has_remedy else NOTHING_REMEDY
        cut_off = {entry.rank for entry in errors if entry.rank >= 0}
        if all(WARNING.match(entry.error.text) for entry in errors):
            sentence = f"there is no error in it that ended a rank; {who} only warned: {first.error.message}"
            return _undetermined(sentence, suspect_lines(self._log))
        if len(cut_off) > 1 and all(is_of_communication(entry.error) for entry in errors):
            # A rank that Slurm ended was still running.
            ended_late = {
                rank for end in self._all_ends if end.kind is EndKind.ENDED_BY_OTHERS for rank in end.ranks
            }
            silent = sorted({*range(max(cut_off))} - cut_off - ended_late)
            sentence = f"the log does not hold what failed first; {ranks_in_words(cut_off)} lost their peers"
            if silent:
                ended = {rank for end in self._log.end_lines.ends for rank in end.ranks}
                sentence += f", and {ranks_in_words(silent)} printed no error"
                # srun reports every task that ends, but for those with exit code 0.
                if cut_off <= ended and ended.isdisjoint(silent):
                    sentence += " nor a failed end: returning early gives exit code 0"
            return _undetermined(sentence, (first.error.message,), remedy)
        # A rank whose traceback the log lacks says more than the launcher.
        unmarked = self._unmarked_error() if all(is_of_launcher(entry.error) for entry in errors) else None
        if answer := unmarked or self._listed():
            return answer
        cause = f": {first.error.row.cause}" if first.error.row else ""
        if is_of_launcher(first.error):
            who, cause = "the launcher", ""
        sentence = f"the log does not hold what failed first; {who} only noticed it{cause}"
        return _undetermined(f"{sentence}: {first.error.message}", suspect_lines(self._log), remedy)

    def _listed(self) -> Diagnosis | None:
        """The report of torchrun is cut off above the rank that failed first."""
        if not (failed := self._log.report.failed):
            return None
        node = f" on {self._log.report.host}" if self._log.report.host else ""
        sentence = f"{ranks_in_words(failed)}{node} exited; the log lacks the rank that failed first"
        return _undetermined(sentence, suspect_lines(self._log))

    def _cut_traceback(self) -> Diagnosis | None:
        """The log ends inside of a traceback of a rank."""
        if not self._unended:
            return None
        message = self._unended[0].error.message
        culprits = tuple(
            Culprit(entry.rank, entry.node, entry.error.message)
            for entry in self._unended[:MOST_CULPRITS]
            if entry.rank >= 0
        )
        who = ranks_in_words(sorted({culprit.rank for culprit in culprits})) if culprits else "a process"
        sentence = f"{who} failed: the log ends in {message}"
        return Diagnosis(Verdict.CRASHED, sentence, culprits, (), suspect_lines(self._log), NOTHING_REMEDY)

    def _unmarked_error(self, after: int = 0) -> Diagnosis | None:
        """A line that looks like an error has no traceback, and little other output follows."""
        if self._may_be_handled:
            return None
        plain = [order for order, _, text in self._log.tail if is_plain_output(text)]
        until = plain[-1 - LINES_BEHIND] if len(plain) > LINES_BEHIND else 0
        suspects = [
            entry
            for entry in suspect_errors(self._log)
            if LOOKS_FATAL.search(entry.error.text)
            and entry.order > after
            # NCCL also warns of what it does without.
            and not re.search(f"NCCL WARN|{LAUNCHER_FAILED}", entry.error.text)
            and not (entry.error.is_consequence or (self._end and end_in_words(entry.error.text, 0)))
        ]
        exceptions = [entry for entry in suspects if EXCEPTION_LINE.match(entry.error.text)]
        others = [
            entry for entry in suspects if entry.order > until and not _HEADING.search(entry.error.text)
        ]
        first = next(iter([*exceptions[-1:], *others]), None)
        if first is None:
            return None
        lacks = "it has no traceback in the log"
        name, header, _ = first.error.text.partition(" Traceback (most recent call last)")
        if header:  # of IPython
            first = replace(
                first, error=replace(first.error, text=f"{name.strip(': ')}, whose message is cut off")
            )
            lacks = "its traceback is cut off"
        of_timeout = is_timeout(first.error)
        own = [entry for entry in exceptions if is_alike(entry.error, first.error)] or [first]
        diagnosis = self._of_timeouts([first]) if of_timeout else self._of_first(own, own)
        return replace(diagnosis, evidence=(*diagnosis.evidence, lacks, *self._last_lines))

    def _completed(self) -> Diagnosis | None:
        """Slurm says that the job has completed."""
        if not self._log.has_completed:
            return None
        message = "the job has ended well, without an error"
        return Diagnosis(Verdict.NOTHING, message, (), (), self._last_lines)

    def _failed_before(self) -> Diagnosis | None:
        """An earlier run failed, and the last one shows no end."""
        if not self._earlier:
            return None
        before = self._earlier[-1]
        unended = self._tracebacks_without_exception(of_launchers=True)
        end = f"ends in {unended[0].error.text}" if unended else "shows no failure"
        message = f"the last of {self._runs} {end}{_ONE_BEFORE}{before.message}"
        if self._log.has_steps_after(0):
            return _undetermined(message, (*before.evidence, *self._last_lines), before.remedy)
        return replace(before, message=message)

    def _nothing_certain(self) -> Diagnosis:
        """Return the line that looks most like an error."""
        if unended := self._tracebacks_without_exception(of_launchers=True):
            sentence = f"the log does not hold what failed first; it ends in {unended[0].error.text}"
            return _undetermined(sentence, self._last_lines)
        suspects = suspect_lines(self._log)
        if not suspects:
            has_lines = self._log.last_lines
            return self._without_failure("there is no error in it" if has_lines else "the log is empty")
        before, last = ["", "", *self._log.last_lines][-2:]
        # ``set -x`` prints a command in front of what it says.
        is_traced = re.match(rf"\++ (?:\S*/)?{re.escape(last.partition(':')[0])}\s", before) is not None
        if (self._log.has_failed or is_traced) and last == suspects[-1]:
            # A command that ended a script is the last one that printed.
            message = f"a command of the job failed, and nothing ran after it: {suspects[-1]}"
            return Diagnosis(Verdict.CRASHED, message, (), (), suspects[:-1], REMEDIES[EndKind.START])
        suspect = suspects[0]
        if suspect in self._log.not_loaded[:1]:
            suspect = " ".join(self._log.not_loaded)
        sentence = f"there is no error in it for certain; this looks most like one: {suspect}"
        return _undetermined(sentence, (*suspects[1:], *self._last_lines))

    # --- how an answer is made ---

    def _without_failure(self, message: str) -> Diagnosis:
        """Return the diagnosis of a log without a failure: all is well if it says that the run finished."""
        if words := self._finished()[1]:
            message += f", and it says that the run finished: {words}"
            return Diagnosis(Verdict.NOTHING, message, (), (), self._last_lines)
        lines = (text.strip()[:300] for _, _, text in reversed(self._log.tail))
        if step := next(filter(STEP.search, lines), ""):
            message += f"; the last progress is: {step}"
        return _undetermined(message, self._last_lines)

    def _finished(self) -> tuple[int, str]:
        """Return the order and the words of the line near the end that says that the run finished; 0, ''."""
        steps = 0
        for number, (order, _, text) in enumerate(reversed(self._log.tail)):
            line = text.strip()[:300]
            is_last = line in self._log.last_lines[-1:]
            unmarked = _MARKS.sub("", line)
            is_done = is_last or (_DONE_ALONE.fullmatch(unmarked) and self._log.has_steps_after(0))
            says_end = _ENDED_WELL.search(line) or (is_done and _DONE.match(unmarked))
            # Ranks whose lines come late may print a step behind it.
            is_near = number < LINES_BEFORE and steps < STEPS_AFTER_SURVIVED
            if says_end and is_near and not (self._log.has_failed or _OF_PART.search(line)):
                return order, line
            steps += STEP.search(line) is not None
        return (0, "") if self._log.has_failed else self._last_total()

    def _last_total(self) -> tuple[int, str]:
        """Return the order and the words of the last progress if its counters reached their totals; 0, ''.

        No other progress may be below its totals, and a line that announces an epoch has no result.
        """
        progress = [entry for entry in self._log.tail if STEP.search(entry[2]) and "%|" not in entry[2]]
        order, rank, last = progress[-1] if progress else (0, -1, "")
        # The counts in the lines of that rank, by the totals in them.
        by_totals: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        for _, other, text in progress:
            if other == rank and (counters := _COUNTER.findall(text)):
                counts, totals = zip(*counters)
                by_totals.setdefault(totals, []).append(counts)
        totals = tuple(total for _, total in _COUNTER.findall(last))
        times = Counter(by_totals.get(totals, ()))
        # Some programs print the last step again. Others print each epoch many times.
        is_first = times[totals] == 1 or (times[totals] == 2 and {*times.values()} == {1, 2})
        is_whole = is_first and all(lines[-1] == totals for totals, lines in by_totals.items())
        has_result = _RESULT.search(last) and not _OF_PHASE.search(last)
        return (order, last.strip()[:300]) if is_whole and has_result else (0, "")

    def _tracebacks_without_exception(self, of_launchers: bool) -> list[LogError]:
        """Return the tracebacks whose exceptions the log lacks: of ranks, or of launchers."""
        # Ranks that torchrun ends do not say either which one failed first.
        is_ended = any("closing signal SIGTERM" in text for _, _, text in self._log.tail)
        return [
            LogError(error, self._log.order, error.inner if error.inner >= 0 else error.rank)
            for process in self._log.processes.values()
            for error in process.listener.unended()
            if (error.is_consequence or is_ended) is of_launchers
        ]

    def _of_first(self, own: Sequence[LogError], errors: Sequence[LogError]) -> Diagnosis:
        return FirstFailure(self._log, own, errors, self._ends, self._unended).diagnose()

    def _of_timeouts(self, errors: Sequence[LogError]) -> Diagnosis:
        """Return the diagnosis of collectives that timed out, by the rules for runs that have ended."""
        numbers = (*self._log.last_line_by_rank(), *(log_error.rank for log_error in errors))
        ranks = {rank for rank in numbers if rank >= 0}
        # A log in which many ranks are missing is that of one node.
        is_whole = 0 < self._log.world <= len(ranks) * MOST_SILENT
        size = max(self._log.world if is_whole else 0, max(ranks, default=-1) + 1)
        # Silence proves nothing if Ray leaves out equal lines, or if the log may be that of some ranks only.
        # Rules blame one silent rank, not several.
        ended = {rank for end in self._log.end_lines.ends for rank in end.ranks}
        has_all = is_whole or self._log.first_rank >= 0 or {*range(size)} <= ranks or {*range(size)} <= ended
        size += 2 * (self._log.has_left_out or not has_all)
        nodes = tuple(self._log.nodes.get(rank, "") for rank in range(size))
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
        if self._log.desync:
            message = (
                f"{diagnosis.message.partition(': their output')[0]}; torch's report: {self._log.desync}"
            )
            diagnosis = replace(diagnosis, message=message)
        if "didn't finish" in self._log.desync:
            diagnosis = replace(diagnosis, verdict=Verdict.LINK, culprits=(), remedy=LINK_REMEDY)
        evidence += tuple(self._last_lines_of([culprit.rank for culprit in diagnosis.culprits]))
        return replace(diagnosis, evidence=evidence, remedy=foreign(diagnosis.remedy))

    def _last_lines_of(self, ranks: Sequence[int]) -> list[str]:
        lines = self._log.last_line_by_rank()
        printed = [rank for rank in ranks if rank >= 0 and lines.get(rank)]
        return [f"last line of rank {rank}: {lines[rank][:300]}" for rank in printed[:MOST_LAST_LINES]]

    def _of_end(self, end: EndLine) -> Diagnosis:
        """Return the diagnosis if only Slurm or a launcher says how ranks ended."""
        ends = [other for other in self._all_ends if other.kind is end.kind]
        placed = next((other for other in (end, *ends) if other.ranks or other.node), end)
        if end.is_report and not placed.ranks:
            placed = replace(end, node=end.node or node_after(end.order, self._all_ends))
        ranks, node = placed.ranks, placed.node
        ended = ended_first(self._all_ends)
        is_of_script = end.words.startswith(OF_SCRIPT)
        if not (ranks or node or is_of_script) and ended and end.kind in NOT_STARTED:
            ranks, node = ended_alike(ended, self._all_ends)
        elif not ranks and end.kind is EndKind.MEMORY:
            ended = next((other for other in self._all_ends if _names_victim(other, node)), None)
            ranks, node = (ended.ranks, ended.node) if ended else (ranks, node)
            if not ranks:
                # Ranks one of whose processes was killed print it.
                killed = {entry.rank for entry in self._errors if _KILLED.search(entry.error.text)}
                ranks = tuple(sorted(killed - {-1}))
        is_whole_job = end.kind.value >= EndKind.TIME_LIMIT.value
        culprits = () if is_whole_job else culprits_of(self._log, self._ends, ranks, [node], placed.words)
        message = sentence = named(placed.words)
        on = f" on {node}" if node else ""
        if placed.is_report and not ranks:
            sentence = f"a process{on} ended: {message}"
        elif node and not ranks and node not in message:
            sentence = f"on {node}: {message}"
        elif ranks and not is_whole_job:
            did = " failed first: it" if placed.is_report else ":"
            did = "" if message.startswith("ended: ") else did
            did = " failed first:" if EXCEPTION_LINE.match(message) else did
            sentence = f"{ranks_in_words(ranks)}{on}{did} {message}"
        if is_of_script:
            others = dict.fromkeys(other.words for other in ends if other.words != placed.words)
            sentence = "; then: ".join((sentence, *others))
        row = meaning(message) if placed.is_report else None
        row = row or next(
            (entry.error.row for entry in self._errors if self._explains(entry, end, ranks)), None
        )
        evidence = [f"cause: {row.cause}"] if row else []
        evidence += [other.line for other in ends[:4]]
        crashed_in = native_frame(self._log, end.order) if end.kind is EndKind.SIGNAL else ""
        complaint = crashed_in or complaint_before(self._log, end.order)
        if end.kind is EndKind.EXIT and not (complaint or self._errors):
            complaint = next(
                (line for line in suspect_lines(self._log, end.order) if line not in end.line), ""
            )
        if (
            complaint
            and end.kind in (EndKind.EXIT, EndKind.SIGNAL, EndKind.START)
            and not (placed.is_report and ranks)
        ):
            sentence += f"; before that: {complaint}"
        for log_error in self._errors[:2]:
            who = f"rank {log_error.rank}: " if log_error.rank >= 0 else ""
            evidence.append(f"{who}{log_error.error.message}")
        evidence += self._last_lines_of([culprit.rank for culprit in culprits])
        last = self._log.last_lines[-2:]
        evidence += [f"last line: {line}" for line in last if line not in evidence]
        verdict = _VERDICTS.get(end.kind, Verdict.CRASHED)
        if end.kind is EndKind.SIGNAL and not (complaint or self._errors):
            near = [line for line in suspect_lines(self._log, end.order) if line not in last]
            evidence += [f"near it: {line}" for line in near]
        remedy = NATIVE_REMEDY if crashed_in else remedy_of_end(end.kind, message)
        remedy = foreign(row.remedy) if row and row.hardware else remedy
        if end.kind is EndKind.TIME_LIMIT and (words := self._finished()[1]):
            sentence += f"; before that it said that the run had finished: {words}"
            remedy = "a process did not end: clusterrun diagnose JOB while it hangs shows where it is"
        return Diagnosis(verdict, sentence, culprits, (), tuple(evidence), remedy)

    def _explains(self, entry: LogError, end: EndLine, ranks: Sequence[int]) -> bool:
        """Return whether a failure of hardware may be why ``ranks`` ended; connections fail after an end."""
        is_later = is_of_communication(entry.error) and (
            entry.order > end.order or entry.rank not in (-1, *ranks)
        )
        return is_of_hardware(entry.error) and not is_later

    def _did_not_go_on(self, end: EndLine) -> bool:
        """Return whether nothing ran after a command that could not be started, but ranks that missed it."""
        return not self._log.has_steps_after(end.order) and not any(
            entry.order > end.order and not is_of_communication(entry.error) for entry in self._errors
        )

    def _ended_without_exception(self) -> EndLine | None:
        """Return the first end of a rank if it is by a signal, or with another code than 1; else None.

        An abort may follow on an exception.
        """
        ended = ended_first(self._ends)
        if ended is None:
            return None
        is_by_signal = ended.kind is not EndKind.EXIT and not _ABORTED.search(ended.words)
        has_other_code = re.search(r"exit(?:ed with)? code (?!1\b)", ended.words) is not None
        return ended if is_by_signal or has_other_code else None

    def _rank_of_end(self, end: EndLine) -> tuple[bool, int, bool, bool]:
        """Return a smaller value for an end that explains more. An abort may follow on another end."""
        kind = EndKind.EXIT if _ABORTED.search(end.words) else end.kind
        follows = kind in (EndKind.EXIT, EndKind.SIGNAL) and any(
            order < end.order and self._log.file_at(order) == self._log.file_at(end.order)
            for order in self._limits
        )
        return follows, kind.value, not end.is_report, end.ranks != (self._log.first_rank,)


def _undetermined(sentence: str, evidence: tuple[str, ...] = (), remedy: str = NOTHING_REMEDY) -> Diagnosis:
    return Diagnosis(Verdict.UNDETERMINED, sentence, (), (), evidence, remedy)


def _names_victim(end: EndLine, node: str) -> bool:
    """Return whether a line tells which process ended by itself, on ``node`` if it is not ''."""
    is_on_node = not (node and end.node) or end.node.partition(".")[0] == node.partition(".")[0]
    return end.kind in (EndKind.EXIT, EndKind.SIGNAL) and bool(end.ranks or end.node) and is_on_node


def _without_handled(
    own: Sequence[LogError],
    ends: Sequence[EndLine],
    ended_alone: EndLine | None,
    is_noticed: bool,
    has_failed: bool,
) -> list[LogError]:
    """Leave out errors after which their processes went on, and those like them if nothing ended.

    ``ended_alone`` is the first end of a rank that no exception explains.
    ``is_noticed``: a rank or a thread noticed that another one had failed.
    ``has_failed``: a launcher or Slurm saw a rank fail.
    """
    ended = [log_error for log_error in own if not log_error.error.survived]
    certain = [log_error for log_error in ended if not log_error.is_doubtful]
    if not ends:
        handled = [log_error.error for log_error in own if log_error.was_handled]
        certain = [
            log_error
            for log_error in certain
            # A traceback is the last thing that a process prints.
            if is_final(log_error.error)
            or (log_error is own[-1] and log_error.is_last and not log_error.error.caught)
            or not any(
                is_alike(error, log_error.error) and error.caught is log_error.error.caught
                for error in handled
            )
        ]
    if ended_alone:
        return [
            log_error
            for log_error in certain
            if log_error.error.ends
            or log_error.output_after < OUTPUT_BEFORE_OTHER_END
            or not (EXCEPTION_LINE.match(log_error.error.text) or WARNING.match(log_error.error.text))
        ]
    if certain or any(end.kind in WHOLE_JOB for end in ends):
        return certain
    # The steps behind the last traceback may have waited in the buffer of a process until its end.
    uncaught = [entry for entry in own if entry.error.frame and not (entry.is_doubtful or entry.error.caught)]
    if has_failed and uncaught:
        return [entry for entry in uncaught if is_alike(entry.error, uncaught[-1].error)]
    if any(end.is_report for end in ends):
        return []
    return ended or list(own) if has_failed or (is_noticed and not ends) else []
