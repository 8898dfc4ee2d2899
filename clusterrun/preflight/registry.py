"""List all checks, one per line, and turn their readings into findings."""

from __future__ import annotations

import json
from types import MappingProxyType

from clusterrun.model.document import encode
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.checks import (
    amd_gpus,
    burn,
    check_command,
    controller_clock,
    cpus,
    dcgm,
    environment,
    folders,
    gpu_health,
    gpus,
    host_memory,
    infiniband,
    intel_gpus,
    loopback,
    names,
    nvlink,
    product,
    resource_limits,
    shared_memory,
    torch,
    versions,
    xgmi,
    xid,
)
from clusterrun.preflight.untrusted import rows, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Protocol

    from clusterrun.model.frozen import Any
    from clusterrun.preflight.tasks import (
        Findings,
        GroupResult,
        LocalAnswer,
        ProbeReading,
        RunNeeds,
        TorchStarted,
    )

    class Judge(Protocol):
        """Judge the readings of all nodes at once. ``tasks.Findings`` explains the result."""

        @property
        def NAME(self) -> str: ...  # noqa: N802

        def judge(self, request: RunNeeds, readings: Mapping[str, object]) -> Findings: ...

    class Check(Judge, Protocol):
        """A judge with a probe of its own. ``LIMIT`` is in seconds. ``LATE`` is the finding beyond it.

        The optional ``LATE_EVERYWHERE`` replaces ``LATE`` if several nodes, and all of them, were late.
        The optional ``LATE_WITH`` names an earlier check. A missing reading is not reported if that check
        has none either.
        The optional ``BETWEEN_NODES`` runs the check after the nodes opened ports, and gives it ``peers``.
        """

        @property
        def LIMIT(self) -> float: ...  # noqa: N802

        @property
        def LATE(self) -> Finding: ...  # noqa: N802

        def probe(self, request: RunNeeds) -> object: ...


# One line is one check.
CHECKS: tuple[Check, ...] = (
    gpus,
    amd_gpus,
    xgmi,
    intel_gpus,
    xid,
    nvlink,
    dcgm,
    infiniband,
    loopback,
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
    names,
    controller_clock,
)

# Judges of an existing reading. ``OF`` names it: a check, ``torch``, ``product`` or ``burn``.
SECONDARY_JUDGES: tuple[Judge, ...] = (
    gpu_health.MEMORY,
    gpu_health.ERRORS,
    gpu_health.PCIE,
    gpu_health.CLOCKS,
    gpu_health.FABRIC,
    gpu_health.DRIVER,
    torch,
    product,
    burn,
)

# The node name in a finding about all nodes together.
ALL = ""


def check_names(request: RunNeeds, between_nodes: bool = False) -> tuple[str, ...]:
    """Return the names of the checks of each node for this run, or of the checks between nodes."""
    skipped: list[Check] = []
    if not request.gpus:
        skipped += _OF_GPUS
    if not request.check_commands:
        skipped.append(check_command)
    skipped += [check for check in CHECKS if hasattr(check, "BETWEEN_NODES") != between_nodes]
    return tuple(check.NAME for check in CHECKS if check not in skipped)


def probe_seconds(checks: Iterable[str]) -> list[float]:
    """Return the time limits of the probes of these checks."""
    return [check.LIMIT for check in CHECKS if check.NAME in checks]


_OF_GPUS: tuple[Check, ...] = (gpus, amd_gpus, xgmi, intel_gpus, xid, nvlink, dcgm)


def check_named(name: str) -> Check | None:
    return next((check for check in CHECKS if name == check.NAME), None)


def findings(
    request: RunNeeds,
    answers: Mapping[str, LocalAnswer],
    warm: Mapping[str, TorchStarted],
    products: Mapping[str, GroupResult],
    burns: Mapping[str, GroupResult] = MappingProxyType({}),
) -> dict[Any, tuple[Finding, ...]]:
    """Return the findings by place (as in ``tasks.Findings``) from all answers so far."""
    read: dict[str, dict[str, object]] = {
        "torch": {node: encode(started) for node, started in warm.items()},
        "product": {node: encode(result) for node, result in products.items()},
        "burn": {node: encode(result) for node, result in burns.items()},
    }
    # A reading without a value is a finding.
    problems: list[tuple[Any, Finding]] = []
    unread: set[tuple[str, str]] = set()
    for check in CHECKS:
        values = read.setdefault(check.NAME, {})
        earlier_check = getattr(check, "LATE_WITH", "")
        check_readings: list[tuple[str, ProbeReading]] = []
        for node, answer in answers.items():
            for reading in answer.readings:
                is_covered = not reading.value and (earlier_check, node) in unread
                if reading.check == check.NAME and not is_covered:
                    check_readings.append((node, reading))
        unread |= {(check.NAME, node) for node, reading in check_readings if not reading.value}
        everywhere = getattr(check, "LATE_EVERYWHERE", None)
        if everywhere and len(check_readings) > 1 and all(reading.late for _, reading in check_readings):
            problems.append((ALL, everywhere))
            continue
        for node, reading in check_readings:
            if reading.late:
                reason = f" ({reading.why})" if reading.why else ""
                message = check.LATE.message + reason
                problems.append((node, Finding(check.NAME, check.LATE.verdict, message, check.LATE.remedy)))
                continue
            try:
                values[node] = json.loads(reading.value)
            except (ValueError, RecursionError):
                message = f"could not be read: {reading.why or 'the answer is no JSON'}"
                problems.append((node, Finding(check.NAME, Grade.UNDETERMINED, message, "")))
    # Replace the names of each job's GPUs by the UUIDs that torch reports: CUDA numbers cards by speed,
    # nvidia-smi by PCI address. A machine with several models has both orders.
    readings = read[gpus.NAME]
    for node, started in warm.items():
        listed = readings.get(node)
        if not isinstance(listed, dict) or not started.uuids:
            continue
        uuids = {gpu.get("uuid") for gpu in listed.get("gpus") or () if isinstance(gpu, dict)}
        if uuids >= set(started.uuids):  # not so for MIG instances
            listed["visible"] = list(started.uuids)
    for node, errors in read[xid.NAME].items():
        if isinstance(errors, dict):
            # Older errors of a GPU that needs no recovery now are over.
            gpu_rows = rows(read[gpus.NAME].get(node), "gpus")
            errors["recovered"] = [text(gpu, "bus") for gpu in gpu_rows if gpu.get("recovered") is True]
    findings_by_place: dict[Any, list[Finding]] = {}
    for place, finding in (*problems, *_judged(request, read)):
        findings_by_place.setdefault(place, []).append(finding)
    return {place: tuple(of_place) for place, of_place in findings_by_place.items()}


def _judged(request: RunNeeds, read: Mapping[str, dict[str, object]]) -> Findings:
    for judge in (*CHECKS, *SECONDARY_JUDGES):
        readings = read.get(getattr(judge, "OF", judge.NAME), {})
        try:
            yield from judge.judge(request, readings) if readings else ()
        except Exception as error:  # noqa: BLE001 (a check of a site must not end the run)
            message = f"the check itself failed: {type(error).__name__}: {error}"
            remedy = "this is a fault of the check, not of a node"
            yield ALL, Finding(judge.NAME, Grade.UNDETERMINED, message, remedy)


def slow_products(request: RunNeeds, products: Mapping[str, GroupResult]) -> tuple[str, ...]:
    """Return the nodes with a slow or late matrix product, to be measured again before they are reported."""
    readings = {node: encode(result) for node, result in products.items()}
    return tuple(dict.fromkeys((*product.late_nodes(readings), *product.slow_nodes(request, readings))))
