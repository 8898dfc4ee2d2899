"""amd-smi's output, in the forms of public tests of its readers, and the findings about a node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterrun.preflight.checks import amd_gpus
from clusterrun.preflight.probes.run_program import ProgramAnswer
from tests.preflight.checks.values import FAIL, WARN, asked, nodes, verdicts


def amd_smi(used: int = 283, errors: Any = 0) -> dict[str, Any]:
    """Return a GPU of ``amd-smi metric --mem-usage --ecc --json`` (ROCm 7: ROCm/gpu-agent, MI300X)."""
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
def test_both_formats_of_the_answer_are_parsed_and_nonsense_is_no_gpu(text, rows) -> None:
    assert amd_gpus.of_text(text) == rows


def rocm_smi(used: object = "297771008", total: object = "206141652992") -> dict[str, object]:
    """Return a card of ``rocm-smi --showmeminfo vram --json``.

    Form: marimo-team/marimo issue 9237 (2026), numbers of an MI300X: ROCm/legacy-rocm-build issue 4750.
    """
    return {"VRAM Total Memory (B)": total, "VRAM Total Used Memory (B)": used}


CARD = {"memory": 206141652992 / 2**20, "used": 297771008 / 2**20}


@pytest.mark.parametrize(
    ("out", "rows"),
    [
        (json.dumps({"card0": rocm_smi()}), [CARD]),
        (json.dumps({f"card{place}": rocm_smi(str(place << 20)) for place in (10, 2, 1)}), [1.0, 2.0, 10.0]),
        ("WARNING: GPU[0]: low-power state\n" + json.dumps({"card0": rocm_smi(), "system": {}}), [CARD]),
        (json.dumps({"card0": rocm_smi(used="N/A")}), [{"memory": CARD["memory"]}]),
        (
            json.dumps({"card0": "x", "cardx": rocm_smi(), "card1": rocm_smi(7, None)}),
            [{}, {"used": 7 / 2**20}],
        ),
        ("", []),
        ("ERROR: GPU[0] : unable to get memory", []),
        ("[1]", []),
        ('{"card0": ', []),
    ],
)
def test_the_older_program_tells_bytes_by_card(out, rows) -> None:
    result = amd_gpus.of_cards(out)
    assert result == rows or [entry["used"] for entry in result] == rows


def test_the_older_program_is_the_fallback(monkeypatch) -> None:
    asked_for = []

    def answer(program, *arguments, seconds):
        asked_for.append((program, *arguments))
        remote = program == "rocm-smi"
        return ProgramAnswer(0 if remote else 127, json.dumps({"card0": rocm_smi()}) if remote else "", "")

    monkeypatch.setattr(amd_gpus, "answer", answer)
    monkeypatch.setattr(amd_gpus, "DEVICE", "/dev/null")
    message = amd_gpus.probe(asked())
    assert asked_for[1:] == [("rocm-smi", "--showmeminfo", "vram", "--json")]
    assert (message["gpus"], message["program"]) == ([CARD], "rocm-smi")
    assert verdicts(amd_gpus, {"n1": message}, asked(gpus=2)) == [("n1", FAIL, "rocm-smi sees 1 of 2 GPUs")]


def reading(count: int = 8, visible: list[str] | None = None, **of_gpu_3: Any) -> dict[str, Any]:
    rows = [{**ROW, **(of_gpu_3 if place == 3 else {})} for place in range(count)]
    return {"has_driver": True, "visible": visible or [], "gpus": rows}


@pytest.mark.parametrize(
    ("ill", "verdict", "message"),
    [
        (reading(7), FAIL, "amd-smi sees 7 of 8 GPUs"),
        (reading(uncorrected=2.0), FAIL, "GPU 3: 2 uncorrected errors since the driver's start (limit 0)"),
        (reading(used=68000.0), FAIL, "GPU 3: 68000 of 196592 MiB in use (35%, limit 30%)"),
        (reading(used=5000.0), WARN, "GPU 3: 5000 of 196592 MiB in use (3%, limit 2%)"),
    ],
)
def test_a_node_with_a_faulty_gpu_is_named(ill, verdict, message) -> None:
    assert verdicts(amd_gpus, nodes(2, reading(), bad=ill)) == [("bad", verdict, message)]


def test_gpus_of_other_jobs_are_not_ours() -> None:
    busy = reading(used=68000.0, visible=["0", "1"])
    assert verdicts(amd_gpus, {"n1": busy}, asked(gpus=2)) == []
    assert len(verdicts(amd_gpus, {"n1": {**busy, "visible": ["2", "3"]}}, asked(gpus=2))) == 1
    assert len(verdicts(amd_gpus, {"n1": {**busy, "visible": ["GPU-76a08c022586fed6"]}}, asked(gpus=2))) == 1


@pytest.mark.parametrize("nothing", [{"has_driver": False}, {"has_driver": True, "gpus": []}, None, [], "x"])
def test_machines_without_amds_driver_or_program_are_not_spoken_of(nothing) -> None:
    assert verdicts(amd_gpus, nodes(2, nothing)) == []
