"""The law: no recording of a healthy machine may fail, alone, beside another model, or in use by others.

A machine is healthy if its owner trained on it or published it as an example of a healthy one.
`tests/recorded/healthy` holds facts of public outputs, each with its source.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from clusterrun.diagnosis.known_errors import meaning
from clusterrun.preflight import registry
from clusterrun.preflight.checks import nvlink
from clusterrun.preflight.probes import nvidia_smi
from clusterrun.preflight.torch_worker import error_text
from tests.preflight.checks.values import FAIL, answer, asked
from tests.preflight.checks.values import RECORDED as FOLDER
from tests.preflight.probes.test_recorded_machines import FABRICS, RECORDED, WHOLE, document, of_file

Gpu = dict[str, Any]


def public(name: str) -> list[dict[str, Any]]:
    """Return the recordings of public outputs of one kind."""
    return json.loads((FOLDER.parent / "healthy" / f"{name}.json").read_text())


def number_of(memory: str) -> float | None:
    return float(memory.split()[0]) if memory.split()[:1] and memory.split()[0].isdecimal() else None


def healthy_recordings() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (source, reading of nvidia-smi) of each machine that is known to be healthy."""
    for name, _, _, _, findings in WHOLE:
        if not findings:
            yield name, nvidia_smi.gpus(of_file(name))
    yield "h100, a rank computes", nvidia_smi.gpus(of_file("driver-580-h100-virtual-busy.xml"))
    for source, version, cuda, tags, instances, _, _ in RECORDED:
        yield source, nvidia_smi.gpus(document(version, cuda, tags, instances))
    for recording in public("gpus"):
        documents = [
            nvidia_smi.gpus(
                document(recording["driver"], recording["cuda"], {**recording["common"], **gpu["tags"]})
            )
            for gpu in recording["gpus"]
        ]
        for log, gpu in zip(documents, recording["gpus"], strict=True):
            log["gpus"][0]["instances"] = len(gpu.get("instances", ()))
        gpus = [log["gpus"][0] for log in documents]
        for gpu, recorded in zip(gpus, recording["gpus"], strict=True):
            others = [process for process in recorded.get("processes", ()) if "G" in process[0]]
            if others != recorded.get("processes", []):
                gpu["used"] = 0.0  # a compute process of somebody fails by design
            gpu["processes"] = [
                {"pid": 9, "kind": kind, "command": command, "used": number_of(used)}
                for kind, command, used in others
            ]
        yield recording["source"], {**documents[0], "gpus": gpus}
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
    if gpu.get("rows_pending") == "Yes":
        return gpu  # its driver would ask for a reset
    return {**gpu, "uncorrected": 1.0, "recovered": True}


def idle_link(gpu: Gpu) -> Gpu:
    return {**gpu, "generation": 1}


CONDITIONS = (as_it_is, page_cache_in_numa_memory, desktop, small_compute_process, recovered_error, idle_link)


def reading(source: str, condition: Any) -> dict[str, Any]:
    recording = RECORDINGS[source]
    gpus = [condition(gpu) for gpu in recording["gpus"]]
    return {"has_driver": True, "code": 0, "visible": [], **recording, "gpus": gpus}


def failures(readings: dict[str, dict[str, Any]], gpus: int) -> list[str]:
    return failed(findings(readings, gpus))


def findings(readings: dict[str, dict[str, Any]], gpus: int) -> dict[str, Any]:
    answers = {node: answer(gpus=value) for node, value in readings.items()}
    return registry.findings(asked(gpus=gpus, ranks=gpus), answers, {}, {})


def devices(source: str) -> int:
    """Return how many devices a program can open there."""
    divided = (gpu.get("instances") or 1 for gpu in RECORDINGS[source]["gpus"])
    return int(sum(divided))


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("source", RECORDINGS)
def test_no_healthy_machine_fails(source, condition) -> None:
    assert failures({"n1": reading(source, condition)}, devices(source)) == []


# A desktop or a program used the GPU, or a row of memory waited for a reset.
NOTICED = (
    *("h100, a rank computes", "tesla-t4.xml", "gt-1030.xml", "rtx-3080-v12.xml", "rtx-3080-v13.xml"),
    *("rtx-4000-sff-ada-v13.xml", "tesla_p4.xml", "rtx-2080-win.xml", "valid.a10", "WDDM)"),
)


@pytest.mark.parametrize("source", [name for name in RECORDINGS if not name.endswith(NOTICED)])
def test_an_idle_healthy_machine_is_passed_over_in_silence(source) -> None:
    readings = {f"n{i}": reading(source, as_it_is) for i in range(3)}
    assert findings(readings, devices(source)) == {}


@pytest.mark.parametrize("source", RECORDINGS)
def test_no_healthy_machine_fails_beside_another_model(source) -> None:
    for other in RECORDINGS:
        pair = (source, other)
        nodes = [*pair, *pair, source]
        readings = {f"n{i}": reading(name, as_it_is) for i, name in enumerate(nodes)}
        assert failures(readings, min(map(devices, pair))) == [], other


def test_the_corpus_holds_at_least_sixty_recordings_with_their_sources() -> None:
    others = [recording for kind in ("links", "ports", "nccl") for recording in public(kind)]
    assert len(RECORDINGS) + len(others) >= 60
    assert all(recording["source"] for recording in [*public("gpus"), *others])


@pytest.mark.parametrize("recording", public("links"), ids=lambda recording: recording["source"])
def test_no_healthy_nvlinks_fail(recording) -> None:
    rows = nvlink.of_text(recording["text"], "")
    assert rows
    readings = {f"n{i}": answer(nvlink=rows) for i in range(3)}
    assert registry.findings(asked(gpus=len(rows), ranks=len(rows)), readings, {}, {}) == {}


PORTS = {recording["source"]: recording["ports"] for recording in public("ports")}


def port_readings(ports: dict[str, Any]) -> dict[str, Any]:
    """Return what the probe reads twice from ports whose counters do not grow."""
    counted = {}
    for name, port in ports.items():
        counters = {**port.get("counters", {}), **port.get("hw_counters", {})}
        counted[name] = {**port, "first": counters, "later": counters}
    return {name: {**port, "used": True} for name, port in counted.items()}


@pytest.mark.parametrize("source", PORTS)
def test_no_healthy_ports_fail_alone_or_beside_a_node_with_other_adapters(source) -> None:
    for other in PORTS:
        ports = [PORTS[source]] * 3 + [PORTS[other]]
        for count in (1, 3):
            answers = {f"n{i}": answer(infiniband=port_readings(ports[i])) for i in range(count)}
            assert failed(registry.findings(asked(gpus=8, ranks=8), answers, {}, {})) == []
        beside = {f"n{i}": answer(infiniband=port_readings(own)) for i, own in enumerate(ports)}
        assert failed(registry.findings(asked(gpus=8, ranks=8), beside, {}, {})) == []


def failed(findings: dict[str, Any]) -> list[str]:
    return [
        finding.message for of_node in findings.values() for finding in of_node if finding.verdict is FAIL
    ]


def test_a_cable_in_the_other_port_of_a_card_is_passed_over_in_silence() -> None:
    usual, other = (own for name, own in PORTS.items() if "imbue-ai" in name)
    answers = {f"n{i}": answer(infiniband=port_readings(other if i == 2 else usual)) for i in range(4)}
    assert registry.findings(asked(gpus=8, ranks=8), answers, {}, {}) == {}


@pytest.mark.parametrize("recording", public("nccl"), ids=lambda recording: recording["source"])
def test_no_line_of_a_healthy_nccl_log_is_a_known_error(recording) -> None:
    assert [line for line in recording["lines"] if meaning(line)] == []
    assert error_text.chosen("\n".join(recording["lines"])) == recording["transport"]


def test_a_process_that_holds_half_of_a_gpu_does_fail() -> None:
    occupied = nvidia_smi.gpus(of_file("driver-580-h100-virtual-occupied.xml"))
    (message,) = failures({"n1": {"has_driver": True, "code": 0, "visible": [], **occupied}}, 1)
    assert message == "GPU 0: 41579 of 81559 MiB in use (51%, limit 30%) by python3 pid 859 41570 MiB"
