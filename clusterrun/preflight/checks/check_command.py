"""Run the user's own checks (``--check-command``): shell commands on every node."""

from __future__ import annotations

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.probes.run_program import answer
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import number, rows, text

NAME = "check-command"
LIMIT = 30.0
REMEDY = "this is a check of your own, of --check-command: repair the node, or leave it out with --exclude"
LATE = Finding(NAME, Grade.FAIL, f"--check-command did not end within {LIMIT:g} s", REMEDY)
LATE_EVERYWHERE = Finding(
    NAME,
    Grade.UNDETERMINED,
    f"--check-command did not end within {LIMIT:g} s on any node",
    "make it faster, or leave it out",
)
# Exit codes of a shell that cannot execute or find a program.
NOT_RUN = (126, 127)


def probe(request: RunNeeds) -> object:
    """Run the commands one after the other, in the ranks' directory and environment."""
    readings = []
    for command in request.check_commands:
        # LIMIT ends the probe with everything it started, before this limit passes.
        reply = answer("/bin/sh", "-c", command, seconds=2 * LIMIT, cwd=request.cwd)
        lines = [line for line in (reply.out.splitlines() or reply.err.splitlines()) if line.strip()]
        readings.append({"command": command, "code": reply.code, "line": lines[-1] if lines else ""})
    return readings


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Report each command that did not exit with 0, with its last line."""
    for node, reading in readings.items():
        for row in rows(reading):
            code = number(row, "code")
            if code is None or code == 0:
                continue
            line = text(row, "line") or "it printed nothing"
            message = f"{line} (exit code {code:.0f} of: {text(row, 'command')})"
            if code in NOT_RUN:
                remedy = "name a program by a path that every node has; ./check is relative to this directory"
                yield node, Finding(NAME, Grade.UNDETERMINED, message, remedy)
            else:
                yield node, Finding(NAME, Grade.FAIL, message, REMEDY)
