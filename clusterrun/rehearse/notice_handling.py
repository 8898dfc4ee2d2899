"""Judge how the script met the notice that came before the end; pure."""

from __future__ import annotations

from clusterrun.rehearse.discoveries import Cause, Discovery, FaultRun, unknown
from clusterrun.rehearse.rank_trace import Start
from clusterrun.rehearse.resumption import Reference, resumed


def has_finished(fault_run: FaultRun) -> bool:
    """Return whether the run with a notice reached the end of its training."""
    last = fault_run.restarted
    return bool(
        fault_run.until and not last.errors and all(trace.end == "exit" for trace in last.ranks.values())
    )


def ended_early(life: Start) -> Discovery:
    """Return the finding for a script that may have ended because it was done: whether it listens."""
    message = f"the script came to its end at step {life.last}, soon after the notice"
    if _listens(life):
        return unknown(f"{message}: give it more to do, and rehearse again")
    return Discovery(Cause.NOTICE_UNHEARD, f"{message}, and does not listen for it")


def notice_finding(reference: Reference, fault_run: FaultRun) -> Discovery | None:
    """Return how the script met the notice; None if there was none."""
    life, restart = fault_run.lives[0], fault_run.restarted
    resumed_at = max(
        (step for step in resumed(reference, restart).values() if step is not None), default=None
    )
    if not fault_run.until or resumed_at is None:
        return None
    listens, has_ended = _listens(life), fault_run.took is not None
    steps_done = max((trace.last for trace in life.ranks.values()), default=0)
    lost = f"{steps_done - resumed_at} steps are lost"
    if steps_done <= resumed_at and (listens or has_ended):
        end = f" and ended in {fault_run.took:.1f} s of" if has_ended else "; it was ended after"
        message = f"notice heard, saved{end} {fault_run.until:g} s; resumed at step {resumed_at}"
        return Discovery(Cause.NONE, message, step=resumed_at)
    if steps_done <= resumed_at:
        return _unheard("no step is lost only because it had just saved")
    reached = resumed_at + max((trace.last for trace in restart.ranks.values()), default=0)
    if has_ended and reached <= steps_done:
        return ended_early(life)
    if has_ended:
        remedy = "save a checkpoint before ending: if should_stop(): save(); break"
        return Discovery(Cause.NOTICE_UNSAVED, f"ended at the notice without saving: {lost}", remedy)
    if not listens:
        return _unheard(lost)
    later = steps_done - fault_run.struck_at
    if later <= 2:
        message = f"the save at the notice was not done within {fault_run.until:g} s: {lost}"
        remedy = "give more notice (--notice), or save faster (each rank its part, a local disk first)"
        return Discovery(Cause.SAVE_TOO_SLOW, message, remedy, fault_run.writes())
    message = f"the notice reaches a handler, but {later} steps later the script had not ended: {lost}"
    remedy = "test the flag that the handler sets after every step, save, and end with exit code 0"
    return Discovery(Cause.NOTICE_IGNORED, message, remedy)


def _listens(life: Start) -> bool:
    return any(trace.steps and trace.steps[-1].hears for trace in life.ranks.values())


def _unheard(lost: str) -> Discovery:
    remedy = "clusterrun.training.should_stop(), or a handler for SIGUSR2 that lets the loop save and end"
    message = f"the script does not listen for the notice: {lost}"
    return Discovery(Cause.NOTICE_UNHEARD, message, remedy)
