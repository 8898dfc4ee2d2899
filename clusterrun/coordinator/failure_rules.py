"""Decide what the error of a rank means for a restart: one table of rules; pure.

A failure that recurs is not restarted. After a failure of hardware the node is left out, if a spare remains.
``--no-progress 0`` switches off the rules that end a run.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence

from clusterrun.coordinator.failures import FailureEvent, FailureKind
from clusterrun.model.frozen import frozen
from clusterrun.model.record import Attempt, Failure

# A script that reports no progress made none if its ranks ran at most this long. Longer runs may have saved
# a checkpoint, and are restarted.
MOST_SECONDS_WITHOUT_REPORT = 600.0

_CLASS = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?::|$)")
_OWN_TEXT = frozenset(
    ("SyntaxError", "IndentationError", "TabError", "NameError", "UnboundLocalError", "AttributeError")
)
_OF_THE_ENVIRONMENT = frozenset(("ImportError", "ModuleNotFoundError"))
# A value that another machine should have delivered may be None.
_NONE = "'NoneType' object has no attribute"
_OF_A_MODULE = re.compile(r"AttributeError: (?:partially initialized )?module ")
_USAGE = re.compile(r"(?i)(?:^|: )error: ")
_NO_PROGRAM = re.compile(
    r"can't open file|can't find '__main__' module|not found$|No such file or directory$"
)
_USAGE_CODE, _NOT_EXECUTABLE, _NOT_FOUND = 2, 126, 127
# Errors of other machines, services and processes, and signals. The next attempt may do better.
_ELSEWHERE = re.compile(
    r"(?:[A-Za-z_]\w*\.)*\w*(?:Connection|Connect|Timeout|HTTP|URL|SSL|socket|gaierror|Network|DistStore|Dist\w*Error"
    r"|Remote|IncompleteRead|BrokenPipe|EOFError|CommError|ClientError|Botocore|Protocol|ProcessExited|CalledProcess|ExceptionGroup|KeyboardInterrupt)\w*(?::|$)"
    r"|.*(?:[Tt]imed out|[Cc]onnection (?:refused|reset|closed)|closed by (?:remote )?peer|[Uu]nreachable"
    r"|Temporary failure|Too [Mm]any [Rr]equests|Service [Uu]navailable|NCCL error|\b(?:429|50[234])\b)"
)
_NETWORK = re.compile(
    r"(?i)ncclremoteerror|ncclsystemerror|ncclinternalerror|unhandled system error|unhandled cuda error"
)


class FailureConsequence(enum.Enum):
    """The decision after a failure."""

    END = "the run ends"
    SWAP = "a restart without the node"
    CHECK_LINKS = "a restart; the links of the node are checked first"


@frozen
class FailureEvidence:
    """The evidence about the failure of a rank."""

    event: FailureEvent
    attempts: Sequence[Attempt]  # all attempts of the run; the newest one has this failure
    # the newest attempts in a row that got no further than an earlier attempt
    since_progress: Sequence[Attempt]

    @property
    def failure(self) -> Failure:
        return self.event.failure

    @property
    def error_class(self) -> str:
        return _class(self.failure)

    @property
    def made_no_progress(self) -> bool:
        """Return whether the newest attempt got no further than earlier ones."""
        if not self.since_progress:
            return False
        return _reports(self.attempts) or _was_short(self.attempts[-1])

    @property
    def made_no_step(self) -> bool:
        """Return whether the newest attempt failed before its first step."""
        newest = self.attempts[-1]
        if newest.step >= 0 or newest.checkpoint >= 0:
            return False
        return _reports(self.attempts) or _was_short(newest)


@frozen
class FailureRule:
    """One row of the table."""

    word: str  # of ``decision`` in ``status --json``
    consequence: FailureConsequence  # what follows if the rule applies
    applies: Callable[[FailureEvidence], str]  # returns the reason as words, '' if the rule does not apply


@frozen
class FailureJudgement:
    """The rule that applies, and its reason."""

    word: str
    consequence: FailureConsequence
    reason: str


def own_text(evidence: FailureEvidence) -> str:
    """The script itself is wrong. It is the same on every node and in every attempt."""
    error = evidence.failure.error
    is_own = evidence.error_class in _OWN_TEXT and _NONE not in error and not _OF_A_MODULE.match(error)
    return (
        f"{_placed(evidence.failure)} before a step was reported" if is_own and evidence.made_no_step else ""
    )


def usage(evidence: FailureEvidence) -> str:
    failure = evidence.failure
    is_usage = failure.code == _USAGE_CODE and _USAGE.search(failure.error) is not None
    return f"its arguments are refused: {failure.error}" if is_usage else ""


def environment(evidence: FailureEvidence) -> str:
    """A module or a program is missing. On one node of several, another node may have it."""
    failure = evidence.failure
    is_module = evidence.error_class in _OF_THE_ENVIRONMENT or _OF_A_MODULE.match(failure.error) is not None
    is_program = failure.code in (_NOT_EXECUTABLE, _NOT_FOUND) or (
        failure.code == _USAGE_CODE and _NO_PROGRAM.search(failure.error) is not None
    )
    if not (is_module or is_program) or not evidence.made_no_step or not evidence.event.everywhere:
        return ""
    return f"{_placed(failure)} on every node"


def _gpu_memory(evidence: FailureEvidence) -> str:
    """The same batch needs the same memory, unless another process held it."""
    from clusterrun.diagnosis.gpu_memory import gpu_memory, what_fits
    from clusterrun.diagnosis.known_errors import GPU_MEMORY, meaning

    failure = evidence.failure
    if meaning(failure.error) is not GPU_MEMORY or not evidence.made_no_progress:
        return ""
    memory = gpu_memory(failure.error)
    if memory.is_held_by_others:
        return ""
    return "a GPU ran out of memory, without progress: " + (what_fits(memory) or GPU_MEMORY.remedy)


def host_memory(evidence: FailureEvidence) -> str:
    """The same work needs the same memory, and the limit is the job's own."""
    is_recurring = evidence.event.kind is FailureKind.MEMORY and evidence.made_no_progress
    return "the job's memory ran out, without progress: --mem asks for more" if is_recurring else ""


def hardware(evidence: FailureEvidence) -> str:
    from clusterrun.diagnosis.known_errors import meaning

    row = meaning(evidence.failure.error)
    return row.cause if row is not None and row.hardware else ""


def network(evidence: FailureEvidence) -> str:
    return (
        "NCCL reports an error of the system or of a peer" if _NETWORK.search(evidence.failure.error) else ""
    )


def same_error(evidence: FailureEvidence) -> str:
    """The same exception at the same line ended two attempts in a row, or they hung in the same way."""
    from clusterrun.diagnosis.known_errors import meaning

    failure, row = evidence.failure, meaning(evidence.failure.error)
    before = evidence.attempts[-2] if len(evidence.attempts) > 1 else None
    if before is None or before.failure is None or not evidence.made_no_progress:
        return ""
    if not _reports(evidence.attempts) and not _was_short(before):
        return ""
    may_differ = _ELSEWHERE.match(failure.error) or (row is not None and (row.consequence or row.shared))
    is_equal = failure.place == before.failure.place and evidence.error_class == _class(before.failure)
    is_judged, subject = failure.place and evidence.error_class and is_equal, _placed(failure)
    if evidence.event.kind is FailureKind.HANG:
        is_judged, subject = failure.error == before.failure.error, "the same hang"
    if not is_judged or may_differ:
        return ""
    return f"{subject} ended two attempts in a row, without progress between them"


# The first rule that applies decides. If none does, the run is restarted while its budgets last.
RULES = (
    FailureRule("own-text", FailureConsequence.END, own_text),
    FailureRule("usage", FailureConsequence.END, usage),
    FailureRule("environment", FailureConsequence.END, environment),
    FailureRule("gpu-memory", FailureConsequence.END, _gpu_memory),
    FailureRule("host-memory", FailureConsequence.END, host_memory),
    FailureRule("hardware", FailureConsequence.SWAP, hardware),
    FailureRule("network", FailureConsequence.CHECK_LINKS, network),
    FailureRule("same-error", FailureConsequence.END, same_error),
)


def judge(evidence: FailureEvidence) -> FailureJudgement | None:
    """Return the decision about the failure of a rank; None if no rule applies."""
    kinds = (FailureKind.RANK, FailureKind.MEMORY, FailureKind.HANG)
    if evidence.event.kind not in kinds or not evidence.failure.error or evidence.failure.noticed:
        return None
    for rule in RULES:
        if reason := rule.applies(evidence):
            return FailureJudgement(rule.word, rule.consequence, reason)
    return None


def _class(failure: Failure) -> str:
    match = _CLASS.match(failure.error)
    return match[1] if match else ""


def _reports(attempts: Sequence[Attempt]) -> bool:
    return any(attempt.step >= 0 or attempt.checkpoint >= 0 for attempt in attempts)


def _was_short(attempt: Attempt) -> bool:
    if attempt.ranks_at is None or attempt.failure is None:
        return True
    return attempt.failure.at - attempt.ranks_at <= MOST_SECONDS_WITHOUT_REPORT


def _placed(failure: Failure) -> str:
    from clusterrun.diagnosis.stacks import short

    return failure.error + (f", at {short(failure.place)}," if failure.place else "")
