"""`clusterrun status --watch`: shows runs repeatedly, with few requests to Slurm."""

from __future__ import annotations

import os
import sys

from clusterrun.cli.error_output import say
from clusterrun.cli.fullscreen import other_screen, picture
from clusterrun.cli.status_view import drawn, plain, show
from clusterrun.cli.terminal import coloured, left_out_line
from clusterrun.model.contract import ExitCode
from clusterrun.model.duration import clock_time
from clusterrun.model.record import RunStatus
from clusterrun.operations.context import Context
from clusterrun.operations.list_runs import RunList
from clusterrun.operations.wait import gist

# Seconds between polls of the runs' own files.
LOOK_EVERY = 1.0
# The pause after a look is this many times as long as the look.
SHARE = 10
# Seconds for which an answer of Slurm is reused. The time grows while nothing changes.
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 30.0


class StatusWatch:
    """The runs of a listing over time. It asks Slurm less often while nothing changes."""

    def __init__(self, context: Context, listing: RunList) -> None:
        self._context = context
        self._listing = listing
        self._pause = FIRST_PAUSE
        self._before: list[tuple[str, ...]] = []
        self.statuses: list[RunStatus] = []
        self.notices: list[str] = []

    def look(self) -> float:
        """Update the statuses. Return the seconds until the next look."""
        began = self._context.clock.monotonic()
        inquiry = self._context.inquiry()
        statuses = self._listing.look(inquiry, self._pause)
        self.statuses = statuses if self._listing.named else self._listing.folded(statuses, inquiry)
        self.notices = inquiry.notices
        now = [_gist(status) for status in self.statuses]
        self._pause = FIRST_PAUSE if now != self._before else min(self._pause * 1.2, LONGEST_PAUSE)
        self._before = now
        return max(LOOK_EVERY, SHARE * (self._context.clock.monotonic() - began))

    @property
    def over(self) -> bool:
        return bool(self._listing.named) and all(status.state.ended for status in self.statuses)


def _gist(status: RunStatus) -> tuple[str, ...]:
    """Return the facts that cause a new line when they change. Durations are not among them."""
    return status.run_id, status.state, status.phase, str(status.attempt), gist(status.reason)


def watch(context: Context, listing: RunList) -> int:
    """Show the runs until all named runs have ended. Ctrl-C returns 130 if runs were named."""
    watching = StatusWatch(context, listing)
    try:
        if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
            _on_terminal(context, watching)
        else:
            # Print every run once, then a line for each change, with the time of day.
            gist_by_run: dict[str, tuple[str, ...]] = {}
            shown_notices: list[str] = []
            while True:
                pause = watching.look()
                changed = [
                    status for status in watching.statuses if gist_by_run.get(status.run_id) != _gist(status)
                ]
                now = context.clock.now()
                lines = plain(changed, now) if changed else []
                for line in lines[1:] if gist_by_run else lines:
                    print(f"{clock_time(now, now)}  {line}")
                sys.stdout.flush()
                gist_by_run.update((status.run_id, _gist(status)) for status in changed)
                if watching.notices and not shown_notices:
                    say("\n".join(watching.notices))
                shown_notices = watching.notices
                if watching.over:
                    break
                context.clock.sleep(pause)
    except KeyboardInterrupt:
        if not listing.named:
            return ExitCode.DONE
        say(f"stopped watching; the runs continue: clusterrun status --watch {' '.join(listing.named)}")
        return ExitCode.INTERRUPTED
    return ExitCode.DONE


def _on_terminal(context: Context, watching: StatusWatch) -> None:
    """Show the runs on the alternate screen, and print the last picture on the main screen."""
    paint = coloured(sys.stdout)
    try:
        with other_screen() as keys:
            before = ""
            while True:
                pause = watching.look()
                columns, rows = os.get_terminal_size(sys.stdout.fileno())
                drawn = _picture(context, watching, columns or 80, rows or 24, paint)
                if drawn != before:
                    sys.stdout.write(drawn)
                    sys.stdout.flush()
                    before = drawn
                if watching.over:
                    break
                if keys.wait(pause):
                    raise KeyboardInterrupt
    finally:
        if watching.statuses:
            show(watching.statuses, context.clock.now())


def _picture(context: Context, watching: StatusWatch, columns: int, rows: int, paint: bool) -> str:
    now = context.clock.now()
    foot = [*watching.notices, f"{clock_time(now, now)}  q stops watching, the runs continue"]
    lines = ["no runs"]
    if watching.statuses:  # the end of a long list is cut: live runs stand first
        drawing = drawn(sorted(watching.statuses, key=lambda status: status.state.ended), now, columns, paint)
        lines = [*drawing.lines, *([left_out_line(drawing.left_out)] if drawing.left_out else [])]
    room = max(1, rows - len(foot) - 1)
    if len(lines) > room:
        hidden = len(lines) - room + 1
        lines = [*lines[: room - 1], f"… {hidden} more lines: a filter, or a taller window, shows them"]
    return picture([*lines, "", *(line[: columns - 1] for line in foot)])
