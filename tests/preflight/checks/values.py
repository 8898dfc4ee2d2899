"""Values for the tests of checks: a run with eight GPUs per node, and readings of its nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clusterrun.model.frozen import replace
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.tasks import LocalAnswer, ProbeReading, RunNeeds

RECORDED = Path(__file__).resolve().parents[2] / "recorded" / "nvidia-smi"
ASKED = RunNeeds(
    run_dir="/shared/runs/r",
    home="/home/alice",
    cwd="/shared/alice",
    gpus=8,
    ranks=8,
)
FAIL, WARN, PASS, UNDETERMINED = Grade.FAIL, Grade.WARN, Grade.PASS, Grade.UNDETERMINED


def asked(**changes: Any) -> RunNeeds:
    return replace(ASKED, **changes)


def verdicts(
    check: Any, readings: dict[str, Any], provided: RunNeeds = ASKED
) -> list[tuple[str, Grade, str]]:
    """Return (node, verdict, message) in the order of the findings."""
    result = list(check.judge(provided, readings))
    assert all(
        isinstance(entry, Finding) and entry.check == check.NAME and entry.message for _, entry in result
    )
    return [(node, entry.verdict, entry.message) for node, entry in result]


def blamed(check: Any, readings: dict[str, Any], needs: RunNeeds = ASKED) -> dict[str, Grade]:
    return {node: entry.verdict for node, entry in check.judge(needs, readings)}


def gpu(**changes: Any) -> dict[str, Any]:
    healthy = {
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-0",
        "memory": 81559,
        "used": 1,
        "width": 16,
        "width_most": 16,
        "generation": 1,
        "generation_most": 5,
        "rows_pending": "No",
        "rows_failed": "No",
        "watts_most": 700,
        "temperature": 31,
        "fabric": "Completed",
        "fabric_status": "Success",
        "slowed": [],
        "uncorrected": 0,
        "corrected": 0,
        "processes": [],
    }
    return {**healthy, **changes}


def gpus(count: int = 8, driver: str = "550.54.15", **of_gpu_3: Any) -> dict[str, Any]:
    """Return the reading of a node with ``count`` GPUs. GPU 3 may differ."""
    rows = [gpu(uuid=f"GPU-{i}", **(of_gpu_3 if i == 3 else {})) for i in range(count)]
    return {"has_driver": True, "code": 0, "visible": [""], "driver": driver, "cuda": "12.4", "gpus": rows}


def answer(**readings: Any) -> LocalAnswer:
    return LocalAnswer(
        tuple(ProbeReading(name.replace("_", "-"), json.dumps(value)) for name, value in readings.items())
    )


def nodes(count: int, reading: Any, **others: Any) -> dict[str, Any]:
    """Return ``count`` nodes n1, n2, … with the same reading; ``others`` have another."""
    return {**{f"n{i}": reading for i in range(1, count + 1)}, **others}
