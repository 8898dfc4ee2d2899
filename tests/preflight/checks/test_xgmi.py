"""amd-smi's output about xGMI links, and the GPUs that differ."""

from __future__ import annotations

import pytest

from clusterrun.preflight.checks import xgmi
from clusterrun.preflight.probes.run_program import ProgramAnswer
from tests.preflight.checks.values import WARN, asked, verdicts

# ROCm/amdsmi, CHANGELOG of ROCm 6.3.0: the example of --link-status.
ROCM_6_3 = """
XGMI LINK STATUS:
    bdf           link_status
GPU0   0000:08:00.0  U  U  U  U  D  U  D  X
GPU1   0000:44:00.0  U  U  U  U  D  U  D  X

* U:Up D:Down X:Disabled
"""
# ROCm/rocm-systems, CHANGELOG of AMD SMI: a virtual function that may not see its links.
WITHOUT_LINKS = """
GPU LINK PORT STATUS:
       bdf           port_num
GPU0   0000:05:00.0  N/A  N/A  N/A  N/A  N/A  N/A  N/A  N/A
GPU1   0000:15:00.0  N/A  N/A  N/A  N/A  N/A  N/A  N/A  N/A
"""
# The same before that was corrected (rocm-systems#2053), and two cards without xGMI (amd-smi of ROCm 7).
ALL_DOWN = "GPU LINK PORT STATUS:\nGPU0   0000:05:00.0  D  D  D  D  D  D  D  D\n"
DISABLED = "GPU LINK PORT STATUS:\nGPU0   0000:03:00.0  X  X  X  X  X  X  X  X\n"
# ROCm 7.1: --link-status is a matrix.
MATRIX = (
    "XGMI LINK STATUS:\n        bdf            GPU0          GPU1\nGPU0\t0000:03:00.0   SELF          U\n"
)


@pytest.mark.parametrize(
    ("out", "states"),
    [
        (ROCM_6_3, {"0": "UUUUDUDX", "1": "UUUUDUDX"}),
        (WITHOUT_LINKS, {}),
        (ALL_DOWN, {}),
        (DISABLED, {}),
        (MATRIX, {}),
        ("amd-smi: error: unrecognized arguments: --source-status", {}),
        ("", {}),
    ],
)
def test_the_tables_of_all_releases_are_read(out: str, states: dict[str, str]) -> None:
    assert xgmi.of_text(out) == states


def test_an_older_program_prints_its_own_table(monkeypatch, tmp_path) -> None:
    tables = []

    def answer(*argv: str, seconds: float) -> ProgramAnswer:
        tables.append(argv[-1])
        return (
            ProgramAnswer(0, ROCM_6_3, "") if argv[-1] == "--link-status" else ProgramAnswer(2, "", "error")
        )

    monkeypatch.setattr(xgmi, "answer", answer)
    monkeypatch.setattr(xgmi.amd_gpus, "DEVICE", str(tmp_path / "none"))
    assert (xgmi.probe(asked()), tables) == ({}, [])
    monkeypatch.setattr(xgmi.amd_gpus, "DEVICE", str(tmp_path))
    assert xgmi.probe(asked()) == {"0": "UUUUDUDX", "1": "UUUUDUDX"}
    assert tables == ["--source-status", "--link-status"]


HEALTHY = {str(gpu): "UUUUUUUX" for gpu in range(8)}
ONE_LINK_DOWN = {**HEALTHY, "2": "UUUDUUUX", "5": "UUUDUUUX"}
# Two links join the dies of a card, and others have only one.
UNEVEN = {str(gpu): "UUUU" if gpu % 2 else "UUUD" for gpu in range(8)}
MESSAGES = [
    (node, WARN, f"GPU {gpu}: 6 xGMI links are up, 7 is usual") for node, gpu in (("bad", 2), ("bad", 5))
]


@pytest.mark.parametrize("others", [0, 1, 2, 3, 9])
def test_both_ends_of_a_link_that_is_down_are_named(others: int) -> None:
    readings = {f"n{number}": HEALTHY for number in range(others)}
    assert verdicts(xgmi, {**readings, "bad": ONE_LINK_DOWN}) == MESSAGES


@pytest.mark.parametrize(
    "readings",
    [
        {"a": xgmi.of_text(ROCM_6_3)},
        {"a": HEALTHY, "b": UNEVEN},
        {"a": UNEVEN, "b": UNEVEN, "c": UNEVEN},
        {"a": HEALTHY, "b": HEALTHY, "c": HEALTHY, "other model": {str(gpu): "UUU" for gpu in range(8)}},
        {"a": HEALTHY, "b": HEALTHY, "no AMD": {}, "nonsense": [1]},
        {"a": {}, "b": {}},
    ],
)
def test_machines_that_are_built_in_another_way_are_not_reported(readings) -> None:
    assert verdicts(xgmi, readings) == []
