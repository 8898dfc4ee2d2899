"""The list of all checks, a line for each, and what readings mean; makes no reading, decides no fate."""

from __future__ import annotations

import json

from clusterrun.model.document import encode
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.checks import (
    amd_gpus,
    check_command,
    cpus,
    environment,
    folders,
    gpu_health,
    gpus,
    host_memory,
    infiniband,
    intel_gpus,
    nvlink,
    product,
    resource_limits,
    shared_memory,
    torch,
    versions,
    xid,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Protocol

    from clusterrun.preflight.tasks import GroupResult, LocalAnswer, RunNeeds, TorchStarted

    class Judge(Protocol):
        """Judges readings of all nodes at once. A node's name of '' in a finding means all together."""

        @property
        def NAME(self) -> str: ...  # noqa: N802

        def judge(
            self, request: RunNeeds, readings: Mapping[str, object]
        ) -> Iterator[tuple[str, Finding]]: ...

    class Check(Judge, Protocol):
        """A judge that has a probe of its own; ``LIMIT`` is in seconds, ``LATE`` what exceeding it means.

        ``LATE_EVERYWHERE``, where it has one, is said instead where each of several nodes exceeded it;
        nothing is said where the check that ``LATE_WITH`` names, an earlier one, exceeded its own too.
        """

        @property
        def LIMIT(self) -> float: ...  # noqa: N802

        @property
        def LATE(self) -> Finding: ...  # noqa: N802

        def probe(self, request: RunNeeds) -> object: ...


CHECKS: tuple[Check, ...] = (
    gpus,
    amd_gpus,
    intel_gpus,
    xid,
    nvlink,
    infiniband,
    resource_limits,
    shared_memory,
    host_memory,
    cpus,
    folders.RUN_DIRECTORY,
    folders.WORKING_DIRECTORY,
    folders.TEMPORARY,
    folders.HOME,
    environment,
    versions,
    check_command,
)
"""One line is one check."""

SECONDARY_JUDGES: tuple[Judge, ...] = (
    gpu_health.MEMORY,
    gpu_health.ERRORS,
    gpu_health.PCIE,
    gpu_health.CLOCKS,
    gpu_health.FABRIC,
    gpu_health.DRIVER,
    torch,
    product,
)
"""Judges of a reading that is already there, as ``OF`` says: of a check, of ``torch`` or of ``product``."""

ALL = ""
"""Stands for the node in a finding about all nodes together."""


def names(request: RunNeeds) -> tuple[str, ...]:
    """The checks to be made for this run: what ``LocalTask.checks`` holds."""
    skipped: list[Check] = []
    if not request.gpus:
        skipped += _OF_GPUS
    if not request.check_commands:
        skipped.append(check_command)
    return tuple(check.NAME for check in CHECKS if check not in skipped)


_OF_GPUS: tuple[Check, ...] = (gpus, amd_gpus, intel_gpus, xid, nvlink)


def check_named(name: str) -> Check | None:
    return next((check for check in CHECKS if name == check.NAME), None)


def findings(
    request: RunNeeds,
    answers: Mapping[str, LocalAnswer],
    warm: Mapping[str, TorchStarted],
    products: Mapping[str, GroupResult],
) -> dict[str, tuple[Finding, ...]]:
    """What is to be said of each node (by name; '' for all together), from all that is known so far."""
    read: dict[str, dict[str, object]] = {
        "torch": {node: encode(said) for node, said in warm.items()},
        "product": {node: encode(said) for node, said in products.items()},
    }
    found: dict[str, list[Finding]] = {}
    for node, finding in (*_taken(answers, read), *_judged(request, read)):
        found.setdefault(node, []).append(finding)
    return {node: tuple(said) for node, said in found.items()}


def _taken(
    answers: Mapping[str, LocalAnswer], read: dict[str, dict[str, object]]
) -> Iterator[tuple[str, Finding]]:
    """Take the values of readings into ``read``; where there is none, say why."""
    late: set[tuple[str, str]] = set()
    for check in CHECKS:
        own = read.setdefault(check.NAME, {})
        made = [
            (node, reading)
            for node, answer in answers.items()
            for reading in answer.readings
            if reading.check == check.NAME
            and not (reading.late and (getattr(check, "LATE_WITH", ""), node) in late)
        ]
        late |= {(check.NAME, node) for node, reading in made if reading.late}
        everywhere = getattr(check, "LATE_EVERYWHERE", None)
        if everywhere and len(made) > 1 and all(reading.late for _, reading in made):
            yield ALL, everywhere
            continue
        for node, reading in made:
            if reading.late:
                said = check.LATE.said + (f" ({reading.why})" if reading.why else "")
                yield node, Finding(check.NAME, check.LATE.verdict, said, check.LATE.remedy)
                continue
            try:
                own[node] = json.loads(reading.value)
            except (ValueError, RecursionError):
                said = f"could not be read: {reading.why or 'the answer is no JSON'}"
                yield node, Finding(check.NAME, Grade.UNDETERMINED, said, "")


def _judged(request: RunNeeds, read: Mapping[str, dict[str, object]]) -> Iterator[tuple[str, Finding]]:
    for judge in (*CHECKS, *SECONDARY_JUDGES):
        readings = read.get(getattr(judge, "OF", judge.NAME), {})
        try:
            yield from judge.judge(request, readings) if readings else ()
        except Exception as error:  # noqa: BLE001 (a check that a site added must not end the run)
            said = f"the check itself failed: {type(error).__name__}: {error}"
            remedy = "this is a fault of the check, not of a node"
            yield ALL, Finding(judge.NAME, Grade.UNDETERMINED, said, remedy)


def slow_products(request: RunNeeds, products: Mapping[str, GroupResult]) -> tuple[str, ...]:
    """Return the nodes with a slow matrix product, to be measured again before they are reported."""
    return tuple(product.slow_nodes(request, {node: encode(said) for node, said in products.items()}))
