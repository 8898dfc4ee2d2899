"""How a script met the notice that came before the end; pure."""

from __future__ import annotations

from clusterrun.rehearse.discoveries import Cause, Discovery, FaultRun, unknown
from clusterrun.rehearse.rank_trace import Start
from clusterrun.rehearse.resumption import Reference, resumed


def complete(seen: FaultRun) -> bool:
    """The run that had notice came to the end of its training: the next one finds nothing left to do."""
    last = seen.restarted
    return bool(seen.until and not last.errors and all(one.end == "exit" for one in last.ranks.values()))


def came_to_its_end(life: Start) -> Discovery:
    """The script may have ended because it was done: nothing is said of the notice but whether it listens."""
    said = f"the script came to its end at step {life.last}, soon after the notice"
    if _hears(life):
        return unknown(f"{said}: give it more to do, and rehearse again")
    return Discovery(Cause.NOTICE_UNHEARD, f"{said}, and does not listen for it")


def _hears(life: Start) -> bool:
    return any(trace.steps and trace.steps[-1].hears for trace in life.ranks.values())


def _unheard(lost: str) -> Discovery:
    remedy = "clusterrun.training.should_stop(), or a handler for SIGUSR2 that lets the loop save and end"
    said = f"the script does not listen for the notice: {lost}"
    return Discovery(Cause.NOTICE_UNHEARD, said, remedy)


def notice_met(known: Reference, seen: FaultRun) -> tuple[Discovery, ...]:
    """How the script met the notice, where there was one."""
    life, after = seen.lives[0], seen.restarted
    at = max((step for step in resumed(known, after).values() if step is not None), default=None)
    if not seen.until or at is None:
        return ()
    hears = _hears(life)
    done = max((trace.last for trace in life.ranks.values()), default=0)
    lost = done - at
    if lost <= 0 and (hears or seen.took is not None):
        ended = f"and ended in {seen.took:.1f} s of" if seen.took is not None else "; it was ended after"
        said = f"notice heard, saved {ended} {seen.until:g} s; resumed at step {at}".replace(" ;", ";")
        return (Discovery(Cause.NONE, said, step=at),)
    if lost <= 0:
        return (_unheard("no step is lost only because it had just saved"),)
    reached = at + max((trace.last for trace in after.ranks.values()), default=0)
    if seen.took is not None and reached <= done:
        return (came_to_its_end(life),)
    if seen.took is not None:
        said = f"ended at the notice without saving: {lost} steps are lost"
        remedy = "save a checkpoint before ending: if should_stop(): save(); break"
        return (Discovery(Cause.NOTICE_UNSAVED, said, remedy),)
    if not hears:
        return (_unheard(f"{lost} steps are lost"),)
    if done - seen.struck_at <= 2:
        said = f"the save at the notice was not done within {seen.until:g} s: {lost} steps are lost"
        remedy = "give more notice (--notice), or save faster (each rank its part, a local disk first)"
        return (Discovery(Cause.SAVE_TOO_SLOW, said, remedy, seen.writes()),)
    said = f"the notice reaches a handler, but {done - seen.struck_at} steps later the script had not ended"
    remedy = "test the flag that the handler sets after every step, save, and end with exit code 0"
    return (Discovery(Cause.NOTICE_IGNORED, f"{said}: {lost} steps are lost", remedy),)
