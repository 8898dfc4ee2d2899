"""What amd-smi says, in the forms that public tests of its readers show, and what it means for a node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterrun.preflight.checks import amd_gpus
from tests.preflight.checks.values import FAIL, WARN, asked, nodes, verdicts


def amd_smi(used: int = 283, errors: Any = 0) -> dict[str, Any]:
    """A GPU of ``amd-smi metric --mem-usage --ecc --json`` (ROCm 7: ROCm/gpu-agent, MI300X)."""
    return {
        "mem_usage": {
            "total_vram": {"value": 196592, "unit": "MB"},
            "used_vram": {"value": used, "unit": "MB"},
        },
        "ecc": {"total_correctable_count": 0, "total_uncorrectable_count": errors},
    }


ROW = {"memory": 196592.0, "used": 283.0, "uncorrected": 0.0}


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (json.dumps({"gpu_data": [{"gpu": 0, **amd_smi()}]}), [ROW]),  # ROCm 7
        (json.dumps([{"gpu": 0, **amd_smi()}, {"gpu": 1, **amd_smi()}]), [ROW, ROW]),  # ROCm 6
        ("WARNING: User is missing the following required groups: render\n" + json.dumps([amd_smi()]), [ROW]),
        (
            json.dumps([{"mem_usage": {"total_vram": 1000, "used_vram": 250}}]),
            [{"memory": 1000.0, "used": 250.0}],
        ),
        (json.dumps([{**amd_smi(errors="N/A"), "gpu": 0}]), [{"memory": 196592.0, "used": 283.0}]),
        ("", []),
        ("amd-smi: command not found", []),
        ("[1, 2", []),
        ("{}", []),
    ],
)
def test_both_forms_of_the_answer_are_read_and_nonsense_is_no_gpu(text, rows):
    assert amd_gpus.of_text(text) == rows


def reading(count: int = 8, given: list[str] | None = None, **of_gpu_3: Any) -> dict[str, Any]:
    rows = [{**ROW, **(of_gpu_3 if place == 3 else {})} for place in range(count)]
    return {"found": True, "code": 0, "given": given or [], "gpus": rows}


@pytest.mark.parametrize(
    ("ill", "verdict", "said"),
    [
        (reading(7), FAIL, "amd-smi sees 7 of 8 GPUs"),
        (
            reading(uncorrected=2.0),
            FAIL,
            "GPU 3: 2 uncorrected memory errors since the driver's start (limit 0)",
        ),
        (reading(used=68000.0), FAIL, "GPU 3: 68000 MB of its memory in use (35%, limit 30%)"),
        (reading(used=5000.0), WARN, "GPU 3: 5000 MB of its memory in use (3%, limit 2%)"),
    ],
)
def test_a_node_with_an_ill_gpu_is_named(ill, verdict, said):
    assert verdicts(amd_gpus, nodes(2, reading(), bad=ill)) == [("bad", verdict, said)]


def test_gpus_of_other_jobs_are_not_ours():
    busy = reading(used=68000.0, given=["0", "1"])
    assert verdicts(amd_gpus, {"n1": busy}, asked(gpus=2)) == []
    assert len(verdicts(amd_gpus, {"n1": {**busy, "given": ["2", "3"]}}, asked(gpus=2))) == 1
    assert len(verdicts(amd_gpus, {"n1": {**busy, "given": ["GPU-76a08c022586fed6"]}}, asked(gpus=2))) == 1


@pytest.mark.parametrize(
    "nothing", [{"found": False}, {"found": True, "code": 127, "gpus": []}, None, [], "x"]
)
def test_machines_without_amds_driver_or_program_are_not_spoken_of(nothing):
    assert verdicts(amd_gpus, nodes(2, nothing)) == []
