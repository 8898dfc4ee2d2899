"""The findings of a rehearsal, and the starts of the ranks under one fault."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from clusterrun.model.frozen import frozen
from clusterrun.rehearse.rank_trace import Start, kind_of


class Severity(enum.Enum):
    """How bad a finding is. A note fails nothing."""

    OK = "ok"
    NOTE = "note"
    FAIL = "FAIL"
    UNKNOWN = "unknown"


class Cause(enum.Enum):
    NONE = ""
    NOT_DETERMINISTIC = "not-deterministic"
    NO_STEPS = "no-steps"
    SCRIPT_FAILS = "script-fails"
    NO_CHECKPOINT = "no-checkpoint"
    TWO_WRITERS = "two-writers"
    NEVER_DROPPED = "never-dropped"
    NEVER_RESUMED = "never-resumed"
    TOO_FAR_BACK = "resumed-too-far-back"
    RANKS_DISAGREE = "ranks-resume-at-different-steps"
    PARAMETERS = "parameters-not-restored"
    OPTIMIZER = "optimizer-not-restored"
    RATES = "learning-rate-not-restored"
    SCHEDULER = "scheduler-not-restored"
    SCALER = "scaler-not-restored"
    AVERAGES = "averages-not-restored"
    BUFFERS = "buffers-not-restored"
    DATA = "data-order-not-restored"
    END = "end-not-restored"
    RANDOM = "random-state-not-restored"
    TORN = "torn-checkpoint-loaded"
    OTHER_RANK = "file-of-another-rank-loaded"
    CRASH = "restart-fails"
    NOTICE_UNHEARD = "notice-unheard"
    NOTICE_IGNORED = "notice-ignored"
    NOTICE_UNSAVED = "notice-without-save"
    SAVE_TOO_SLOW = "save-slower-than-notice"
    ONLY_ONE = "only-one-checkpoint"
    UNDETERMINED = "undetermined"


# Every other cause fails the rehearsal.
SEVERITIES = {
    Cause.NONE: Severity.OK,
    Cause.UNDETERMINED: Severity.UNKNOWN,
    **dict.fromkeys((Cause.NOT_DETERMINISTIC, Cause.NEVER_DROPPED), Severity.NOTE),
    **dict.fromkeys((Cause.NOTICE_UNHEARD, Cause.ONLY_ONE), Severity.NOTE),
}


@frozen
class Discovery:
    """One finding: its cause, what happened, what to write instead, and places in the script."""

    cause: Cause
    message: str
    remedy: str = ""
    lines: tuple[str, ...] = ()
    step: int = 0

    @property
    def level(self) -> Severity:
        return SEVERITIES.get(self.cause, Severity.FAIL)


@frozen
class FaultRun:
    """All starts of the ranks under one fault, in order, and how the run ended."""

    fault: str
    lives: tuple[Start, ...]
    struck_at: int  # completed steps when the fault was injected
    until: float = 0.0  # seconds of notice; 0: none
    took: float | None = None  # seconds until the ranks ended by themselves; None: they were ended
    damaged: tuple[str, ...] = ()  # paths of the files that were cut off
    elastic: bool = False
    tail: str = ""
    damaged_step: int = 0  # step of the damaged save; 0: the newest of that path
    twins: tuple[str, ...] = ()  # kinds of files with the same content as the damaged ones
    folder: str = ""  # the working directory
    of_companion: bool = False  # the damaged files accompany a checkpoint that is complete

    @property
    def restarted(self) -> Start:
        """Return the start to judge: the first after the fault that took a step, else the first after it."""
        after = [life for life in self.lives[1:] if not life.struck]
        stepped = (life for life in after if any(trace.before for trace in life.ranks.values()))
        return next(stepped, (after or self.lives)[0])

    def kind(self, path: str) -> str:
        return kind_of(path, self.folder)

    def writes(self, path: str = "") -> tuple[str, ...]:
        """Return the line that last wrote ``path`` or a file of its kind, else the line of the last save."""
        saves = self.lives[0].saves
        companions = self.lives[0].companions if self.of_companion else ()
        matching = [
            save for save in (*saves, *companions) if path and self.kind(save.path) == self.kind(path)
        ]
        lines = [save.line for save in (matching or saves)[-1:] if save.line]
        return tuple(f"{line} writes the checkpoint" for line in lines)

    def reads(self, among: Sequence[str]) -> tuple[str, ...]:
        lines = [line for path, line in self.restarted.loaded if line and path in among]
        return tuple(f"{line} reads it" for line in dict.fromkeys(lines))

    def made(self) -> tuple[str, ...]:
        return (*self.writes(), *self.reads([save.path for save in self.lives[0].saves]))


def unknown(message: str, remedy: str = "", lines: tuple[str, ...] = ()) -> Discovery:
    """Return a finding that names no cause; the remedy says what to look at."""
    return Discovery(Cause.UNDETERMINED, message, remedy, lines)
