"""xpu-smi's output, in the form of public reports, and the findings about a node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterrun.preflight.checks import intel_gpus
from clusterrun.preflight.probes.run_program import ProgramAnswer
from tests.preflight.checks.values import FAIL, WARN, asked, blamed, nodes, verdicts

LISTED = {
    "device_function_type": "physical",
    "device_name": "Intel(R) Data Center GPU Max 1100",
    "device_type": "GPU",
    "drm_device": "/dev/dri/card1",
    "pci_bdf_address": "0000:29:00.0",
    "pci_device_id": "0xbda",
    "uuid": "00000000-0000-0029-0000-002f0bda8086",
    "vendor_name": "Intel(R) Corporation",
}
MAX_1100 = {
    "memory_free_size_byte": "51493543936",
    "memory_physical_size_byte": "51522830336",
    "number_of_tiles": "1",
}
"""``xpu-smi discovery -j`` and ``-d 0 -j``: from public tests of a reader of a Max 1100."""
BATTLEMAGE = {"memory_free_size_byte": "25447600128", "memory_physical_size_byte": "25669140480"}
"""intel/xpumanager#127: 0xe211, 6.14.0-1008-intel."""


@pytest.mark.parametrize(
    ("out", "read"),
    [
        (json.dumps(MAX_1100), {"tiles": 1.0, "memory": 49136.0, "used": 27.9296875}),
        (json.dumps(BATTLEMAGE), {"memory": 24480.0, "used": 211.27734375}),
        ('{"memory_physical_size_byte": 14942253056, "number_of_tiles": 2}', {"tiles": 2.0}),
        ("Warning: no permission\n" + json.dumps(BATTLEMAGE), {"memory": 24480.0, "used": 211.27734375}),
        ('{"memory_physical_size_byte": "unknown", "memory_free_size_byte": "N/A"}', {}),
        ('{"memory_physical_size_byte": "10", "memory_free_size_byte": "20"}', {}),
        ("", {}),
        ("Error: Level Zero Initialization Error", {}),
        ("[1]", {}),
    ],
)
def test_a_devices_answer_is_parsed_and_nonsense_is_ignored(out, read) -> None:
    assert intel_gpus.of_device(out) == read


def test_the_program_lists_devices_and_describes_each(monkeypatch) -> None:
    def answer(*argv: str, seconds: float) -> ProgramAnswer:
        if argv == ("xpu-smi", "discovery", "-j"):
            return ProgramAnswer(
                0, json.dumps({"device_list": [{**LISTED, "device_id": i} for i in (0, 1)]}), ""
            )
        assert argv[:3] == ("xpu-smi", "discovery", "-d")
        return ProgramAnswer(0, json.dumps(MAX_1100), "")

    monkeypatch.setattr(intel_gpus, "answer", answer)
    monkeypatch.setenv("ZE_AFFINITY_MASK", "1")
    message = intel_gpus.probe(asked())
    gpu = {"tiles": 1.0, "memory": 49136.0, "used": 27.9296875}
    assert message == {
        "has_driver": True,
        "gpus": [{"number": 0, **gpu}, {"number": 1, **gpu}],
        "visible": ["1"],
        "flat": True,
    }
    assert verdicts(intel_gpus, {"n1": message}, asked(gpus=2)) == []
    monkeypatch.setattr(intel_gpus, "answer", lambda *argv, seconds: ProgramAnswer(127, "", "No such file"))
    assert intel_gpus.probe(asked()) == {"has_driver": False}


def reading(*used: float, mask: tuple[str, ...] = (), tiles: int = 2, flat: bool = True) -> dict[str, Any]:
    """Return the reading of GPUs of a Max 1550 with two tiles each; ``used``: MiB in use on each."""
    entry = {"tiles": tiles, "memory": 131072.0}
    gpus = [{"number": i, "used": mib, **entry} for i, mib in enumerate(used)]
    return {"has_driver": True, "gpus": gpus, "visible": list(mask), "flat": flat}


def test_a_missing_gpu_is_reported_and_each_tile_counts() -> None:
    whole, less = reading(*[30.0] * 6), reading(*[30.0] * 5)
    assert verdicts(intel_gpus, nodes(2, whole, bad=less), asked(gpus=12)) == [
        ("bad", FAIL, "xpu-smi sees 5 GPUs (10 tiles), and 12 were asked for")
    ]
    assert (
        verdicts(
            intel_gpus, {"n1": {"has_driver": False}, "n2": {"has_driver": True, "gpus": []}}, asked(gpus=2)
        )
        == []
    )


def test_used_memory_of_the_jobs_gpus_is_reported() -> None:
    busy = reading(30.0, 60000.0, 4000.0)
    assert verdicts(intel_gpus, {"n1": busy}, asked(gpus=6)) == [
        ("n1", FAIL, "GPU 1: 60000 of 131072 MiB in use (46%, limit 30%)"),
        ("n1", WARN, "GPU 2: 4000 of 131072 MiB in use (3%, limit 2%)"),
    ]


@pytest.mark.parametrize(
    ("provided", "flat", "blames"),
    [
        (("0", "1"), True, {}),  # both tiles of the first
        (("2",), True, {"n1": FAIL}),  # a tile of the second
        (("1",), False, {"n1": FAIL}),
        (("1.0",), False, {"n1": FAIL}),
        (("0.0", "0.1"), False, {}),
        (("what",), True, {"n1": FAIL}),
        ((), True, {"n1": FAIL}),
    ],
)
def test_a_mask_names_gpus_or_their_tiles(provided, flat, blames) -> None:
    assert (
        blamed(intel_gpus, {"n1": reading(30.0, 60000.0, mask=provided, flat=flat)}, asked(gpus=1)) == blames
    )
