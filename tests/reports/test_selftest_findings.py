"""Findings from a self-test's file, and questions that the file leaves open."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from clusterrun.model.preflight_report import Grade
from clusterrun.reports.selftest_findings import findings, grade, lines

SOUND: dict[str, Any] = {
    "format": 1,
    "nodes": 1,
    "gpus": 2,
    "ranks": 2,
    "check": {
        "verdict": "pass",
        "seconds": 9.0,
        "backend": "nccl",
        "nodes": {"n1": {"verdict": "pass", "role": "rank", "findings": []}},
        "tests": [{"test": "set", "gigabytes_per_second": 370.0}],
        "notices": [],
    },
    "devices": {
        "device": "cuda",
        "torch": "2.9.0",
        "cuda": "12.8",
        "hip": None,
        "nccl": "2.27.5",
        "names": ["NVIDIA H100 80GB HBM3"] * 2,
        "listing": {"nvidia-smi": "<nvidia_smi_log/>"},
    },
    "sums": {"wrong": []},
    "rates": {"1048576": 20.5, "1073741824": 365.0},
    "training": {"first": 1.2, "last": 0.6, "seconds": 0.004, "equal": True},
    "stall": {"rank": 1, "at": 100.0},
    "hang": {
        "verdict": "rank never arrived",
        "said": "rank 1 on n1 never came to all_reduce (call 61 of group 0)",
        "culprits": [{"rank": 1, "node": "n1", "why": "it waits at gpu_selftest.py:9 (stalls_on_purpose)"}],
        "groups": [],
        "evidence": [],
        "at": 118.0,
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(SOUND)
    inner = document
    *way, last = path.split(".")
    for name in way:
        inner = inner[name]
    inner[last] = value
    return document


def test_a_healthy_machine_passes_with_its_measurements() -> None:
    assert grade(SOUND) is Grade.PASS
    assert lines(SOUND)[0] == "PASS: all is as expected (1 nodes with 2 GPUs each)"
    assert "ok      hang: 18 s after rank 1 stopped on purpose it was named: " in "\n".join(lines(SOUND))
    assert "365 GB/s with 1024 MiB; the check measured 370" in "\n".join(lines(SOUND))


FINDING = {"check": "xid", "verdict": "fail", "said": "Xid 79 of GPU 3", "remedy": "reboot the node"}


@pytest.mark.parametrize(
    ("path", "value", "part", "worst", "message"),
    [
        ("devices.names", ["H100"], "devices", Grade.FAIL, "torch sees 1 × H100, torch 2.9.0, not 2 GPUs"),
        ("devices.device", "cpu", "devices", Grade.FAIL, "not 2 GPUs"),
        ("devices.listing", {}, "driver", Grade.WARN, "neither nvidia-smi, amd-smi nor rocm-smi answered"),
        ("devices.listing", {"nvidia-smi": "no answer within 60 s"}, "driver", Grade.WARN, "neither"),
        ("check.backend", "gloo", "check", Grade.FAIL, "collectives were tested with gloo, not with NCCL"),
        ("check.nodes.n1.findings", [FINDING], "check", Grade.FAIL, "n1: xid: Xid 79 of GPU 3"),
        ("sums.wrong", ["int64 on rank 1"], "sums", Grade.FAIL, "all-reduce is wrong: int64 on rank 1"),
        ("rates", {"1048576": 2.0}, "bandwidth", Grade.WARN, "less than half under the agent"),
        ("rates", {"1048576": 0.0}, "bandwidth", Grade.FAIL, "0 GB/s"),
        ("training.equal", False, "training", Grade.FAIL, "the ranks' weights differ"),
        ("training.last", 1.3, "training", Grade.FAIL, "it does not learn"),
        ("training.last", float("nan"), "training", Grade.FAIL, "it does not learn"),
        ("hang.culprits", [{"rank": 0}], "hang", Grade.FAIL, "named rank 0"),
        ("hang.culprits", [], "hang", Grade.FAIL, "named no rank"),
        ("hang.culprits", [{"rank": 1, "why": "it waits"}], "stacks", Grade.WARN, "no stack shows"),
        (
            "hang.message",
            "rank 1 stands",
            "flight records",
            Grade.WARN,
            "no collective was identified by its number",
        ),
        ("hang", None, "hang", Grade.UNDETERMINED, "was not reached"),
        ("check", None, "check", Grade.UNDETERMINED, "was not reached"),
        ("rates", {}, "bandwidth", Grade.UNDETERMINED, "was not reached"),
    ],
)
def test_unexpected_results_are_reported_with_their_part(path, value, part, worst, message) -> None:
    document = changed(path, value)
    odd = [
        finding
        for finding in findings(document)
        if finding.verdict is not Grade.PASS and finding.check == part
    ]
    assert grade(document) is worst
    assert message in "; ".join(finding.message for finding in odd)


def test_one_gpu_skips_collectives_and_the_hang() -> None:
    document = changed("ranks", 1)
    document = {name: value for name, value in document.items() if name not in ("stall", "hang")}
    assert grade({**document, "gpus": 1}) is Grade.PASS


@pytest.mark.parametrize("document", [{}, {"check": []}, {"devices": 3, "gpus": "x"}, {"hang": {"at": {}}}])
def test_a_damaged_file_is_reported_as_not_reached(document) -> None:
    assert grade(document) is Grade.UNDETERMINED
    assert all("was not reached" in finding.message for finding in findings(document))
