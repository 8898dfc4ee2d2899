"""The law: no recording of a healthy machine may fail, alone, beside another model, or in use by others.

A machine is healthy if its owner trained on it or published it as an example of a healthy one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from clusterrun.preflight import registry
from clusterrun.preflight.probes import nvidia_smi
from tests.preflight.checks.values import FAIL, answer, asked
from tests.preflight.probes.test_recorded_machines import FABRICS, RECORDED, WHOLE, document, of_file

Gpu = dict[str, Any]


def healthy_recordings() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (source, reading of nvidia-smi) of each machine that is known to be healthy."""
    for name, _, _, _, findings in WHOLE:
        if not findings:
            yield name, nvidia_smi.gpus(of_file(name))
    yield "h100, a rank computes", nvidia_smi.gpus(of_file("driver-580-h100-virtual-busy.xml"))
    for source, version, cuda, tags, instances, _, _ in RECORDED:
        yield source, nvidia_smi.gpus(document(version, cuda, tags, instances))
    for source, tags, findings in FABRICS:
        if not findings:
            yield source, nvidia_smi.gpus(document("580.1", "13.0", {"product_name": "NVIDIA GB200", **tags}))


RECORDINGS = dict(healthy_recordings())


def as_it_is(gpu: Gpu) -> Gpu:
    return gpu


def page_cache_in_numa_memory(gpu: Gpu) -> Gpu:
    return {**gpu, "used": 0.35 * gpu.get("memory", 81559), "processes": []}


def desktop(gpu: Gpu) -> Gpu:
    browser = {"pid": 9, "kind": "C+G", "command": "/usr/bin/chrome", "used": 2600}
    return {**gpu, "used": 0.35 * gpu.get("memory", 8192), "processes": [browser]}


def small_compute_process(gpu: Gpu) -> Gpu:
    monitor = {"pid": 9, "kind": "C", "command": "/usr/bin/python3", "used": 300}
    return {**gpu, "used": 300, "processes": [monitor]}


def recovered_error(gpu: Gpu) -> Gpu:
    return {**gpu, "uncorrected": 1.0, "recovered": True}


def idle_link(gpu: Gpu) -> Gpu:
    return {**gpu, "generation": 1}


CONDITIONS = (
    as_it_is,
    page_cache_in_numa_memory,
    desktop,
    small_compute_process,
    recovered_error,
    idle_link,
)


def reading(source: str, condition: Any) -> dict[str, Any]:
    recording = RECORDINGS[source]
    gpus = [condition(gpu) for gpu in recording["gpus"]]
    return {"found": True, "code": 0, "given": [], **recording, "gpus": gpus}


def failures(readings: dict[str, dict[str, Any]], gpus: int) -> list[str]:
    answers = {node: answer(gpus=value) for node, value in readings.items()}
    findings = registry.findings(asked(gpus=gpus, ranks=gpus), answers, {}, {})
    return [finding.said for of_node in findings.values() for finding in of_node if finding.verdict is FAIL]


def devices(source: str) -> int:
    """Return how many devices a program can open there."""
    divided = (gpu.get("instances") or 1 for gpu in RECORDINGS[source]["gpus"])
    return int(sum(divided))


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("source", RECORDINGS)
def test_no_healthy_machine_fails(source, condition):
    assert failures({"n1": reading(source, condition)}, devices(source)) == []


@pytest.mark.parametrize("pair", list(itertools.combinations(RECORDINGS, 2)), ids=" beside ".join)
def test_no_healthy_machine_fails_beside_another_model(pair):
    readings = {f"n{i}": reading(source, as_it_is) for i, source in enumerate([*pair, *pair, pair[0]])}
    assert failures(readings, min(map(devices, pair))) == []


def test_a_process_that_holds_half_of_a_gpu_does_fail():
    occupied = nvidia_smi.gpus(of_file("driver-580-h100-virtual-occupied.xml"))
    (message,) = failures({"n1": {"found": True, "code": 0, "given": [], **occupied}}, 1)
    assert message == "GPU 0: 41579 of 81559 MiB in use (51%, limit 30%) by python3 pid 859 41570 MiB"
