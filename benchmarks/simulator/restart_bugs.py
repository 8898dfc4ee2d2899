"""Bugs to plant in the handling of failures. The simulator must detect each of them."""

from __future__ import annotations

from .mutant import Mutant

RESTART_BUGS = (
    Mutant(
        "progress does not fill the budget again",
        "coordinator/restart_policy",
        "            after = number\n",
        "",
    ),
    Mutant(
        "the same step counts as progress",
        "coordinator/restart_policy",
        "attempt.step > step or",
        "attempt.step >= step or",
    ),
    Mutant(
        "no progress is not noticed",
        "coordinator/restart_policy",
        "    if len(fruitless) < most or",
        "    if True or",
    ),
    Mutant(
        "an error of the script's own text is restarted",
        "coordinator/failure_rules",
        "evidence.error_class in _OWN_TEXT",
        "evidence.error_class in ()",
    ),
    Mutant(
        "an error of the script's own text ends a run that trains",
        "coordinator/failure_rules",
        "if newest.step >= 0 or newest.checkpoint >= 0:",
        "if False:",
    ),
    Mutant(
        "the same error twice is restarted",
        "coordinator/failure_rules",
        "is_equal = failure.place == before.failure.place and",
        "is_equal = False and",
    ),
    Mutant(
        "the same error twice ends a run that got further",
        "coordinator/failure_rules",
        "if before is None or before.failure is None or not evidence.made_no_progress:",
        "if before is None or before.failure is None:",
    ),
    Mutant(
        "another error counts as the same",
        "coordinator/failure_rules",
        "is_equal = failure.place == before.failure.place and evidence.error_class == _class(before.failure)",
        "is_equal = True",
    ),
    Mutant(
        "a lost connection twice is not restarted",
        "coordinator/failure_rules",
        "may_differ = _ELSEWHERE.match(failure.error) or",
        "may_differ = False or",
    ),
    Mutant(
        "causes are all the same", "coordinator/restart_policy", '_CAUSES.get(kind, "failure")', '"requeue"'
    ),
    Mutant(
        "whoever asked for an end is not heard after a failure",
        "coordinator/restart_policy",
        "if self.requested_end is not None and (decision.restart_reason or failure_event.ended_by_request):",
        "if False:",
    ),
    Mutant(
        "a failure before any rank is never charged",
        "coordinator/restart_policy",
        "        return self._decision(failure_event, end_with(failure_event))",
        '        return RestartDecision("again", end_with(failure_event), failure_event, "node")',
    ),
    Mutant(
        "nodes without an agent may train",
        "coordinator/lost_nodes",
        "return member is not None and member.here",
        "return member is not None",
    ),
    Mutant(
        "everybody moves up where one is lost",
        "coordinator/lost_nodes",
        "world = [node if node in present_nodes else next(idle, -1) for node in places]",
        "world = [*(node for node in places if node in present_nodes), *idle][: len(places)]",
    ),
    Mutant(
        "spares train beside the others",
        "coordinator/lost_nodes",
        "places = self._places or tuple(present[: self._need])",
        "places = self._places or present",
    ),
    Mutant(
        "a loss during a check ends the run",
        "coordinator/preflight_gate",
        "if self._lost and not outcome.fit and not self._orders.preflight.alone:",
        "if False:",
    ),
    Mutant(
        "a loss while agents gather ends the run",
        "coordinator/world_formation",
        "if lost and not self.lost_nodes.enough:",
        "if False:",
    ),
    Mutant(
        "a loss while a port is looked for is not noticed",
        "coordinator/lifecycle",
        "            self.follow(now, NoRanks(failure_event))",
        "            pass",
    ),
    Mutant(
        "agents are launched beside those that live",
        "coordinator/rendezvous",
        "present = [member.node for member in self._membership.linked() if member.present]",
        "present = []",
    ),
    Mutant(
        "what ended all agents is held against their nodes",
        "coordinator/lost_nodes",
        "telling = launcher_lives and bool(self._present())",
        "telling = True",
    ),
    Mutant(
        "places are those of a check that came to nothing",
        "coordinator/preflight_gate",
        "places = report.world if outcome.fit else self._report.world if self._report else ()",
        "places = report.world",
    ),
    Mutant(
        "the loss of the launcher is held against the ranks",
        "coordinator/restart_policy",
        "_NOT_OF_RANKS = (FailureKind.NODE, FailureKind.OVERLOAD, FailureKind.LAUNCHER)",
        "_NOT_OF_RANKS = (FailureKind.NODE, FailureKind.OVERLOAD)",
    ),
    Mutant(
        "a pause never ends",
        "coordinator/restart_policy",
        "self._pause_until = now.steady + decision.pause",
        "self._pause_until = None",
    ),
    Mutant(
        "an answer that does not come is waited for without end",
        "coordinator/restart_policy",
        "self._read_by = now.steady + READ_SECONDS",
        "self._read_by = now.steady + 1e9",
    ),
)
