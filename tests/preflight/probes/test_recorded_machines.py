"""nvidia-smi's values for published machines, tag by tag, and the findings of the checks.

Each row has the facts of a recording that is public at its source; the documents are made anew from them.
"""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from clusterrun.model.preflight_report import Grade
from clusterrun.preflight.checks import gpus
from clusterrun.preflight.checks.gpu_health import CLOCKS, DRIVER, ERRORS, FABRIC, MEMORY, PCIE
from clusterrun.preflight.probes import nvidia_smi
from tests.preflight.checks.values import FAIL, WARN, asked
from tests.preflight.checks.values import RECORDED as FOLDER

CHECKS = (gpus, MEMORY, ERRORS, PCIE, CLOCKS, FABRIC, DRIVER)
LANES, GENERATION = "pci/pci_gpu_link_info/link_widths", "pci/pci_gpu_link_info/pcie_gen"
THROTTLE, EVENT = "clocks_throttle_reasons/clocks_throttle_reason", "clocks_event_reasons/clocks_event_reason"


def document(version: str, cuda: str, tags: dict[str, str], instances: tuple[str, ...] = ()) -> str:
    """Return a log with one GPU and the uncorrected errors of each instance."""
    log = ElementTree.Element("nvidia_smi_log")
    ElementTree.SubElement(log, "driver_version").text = version
    ElementTree.SubElement(log, "cuda_version").text = cuda
    gpu = ElementTree.SubElement(log, "gpu")
    for path, text in tags.items():
        place = gpu
        for name in path.split("/"):
            result = place.find(name)
            place = ElementTree.SubElement(place, name) if result is None else result
        place.text = text
    for errors in instances:
        device = ElementTree.SubElement(gpu.find("mig_devices") or _made(gpu), "mig_device")
        count = ElementTree.SubElement(ElementTree.SubElement(device, "ecc_error_count"), "volatile_count")
        ElementTree.SubElement(count, "sram_uncorrectable").text = errors
    return ElementTree.tostring(log, encoding="unicode")


def _made(gpu: ElementTree.Element) -> ElementTree.Element:
    result = gpu.find("mig_devices")
    return ElementTree.SubElement(gpu, "mig_devices") if result is None else result


def pci(most: str, now: str, generation_most: str, generation: str) -> dict[str, str]:
    return {
        f"{LANES}/max_link_width": most,
        f"{LANES}/current_link_width": now,
        f"{GENERATION}/max_link_gen": generation_most,
        f"{GENERATION}/current_link_gen": generation,
    }


A100_MIG = {
    "product_name": "NVIDIA A100-SXM4-40GB",
    "mig_mode/current_mig": "Enabled",
    "minor_number": "0",
    "fb_memory_usage/total": "40960 MiB",
    "fb_memory_usage/used": "38 MiB",
    "ecc_errors/volatile/sram_uncorrectable": "N/A",
    "ecc_errors/volatile/dram_uncorrectable": "N/A",
    "ecc_errors/aggregate/dram_uncorrectable": "0",
    "remapped_rows": "N/A",
    "retired_pages/pending_retirement": "N/A",
    "power_readings/power_limit": "400.00 W",
    f"{THROTTLE}_hw_slowdown": "Not Active",
    **pci("16x", "16x", "4", "4"),
}
T4 = {
    "product_name": "Tesla T4",
    "minor_number": "0",
    "fb_memory_usage/total": "15360 MiB",
    "fb_memory_usage/used": "1032 MiB",
    "retired_pages/pending_retirement": "No",
    **pci("16x", "8x", "3", "3"),
}
A10G = {
    "product_name": "NVIDIA A10G",
    "minor_number": "0",
    "fb_memory_usage/total": "23028 MiB",
    "fb_memory_usage/used": "22 MiB",
    "remapped_rows/remapped_row_pending": "No",
    "remapped_rows/remapped_row_failure": "No",
    "remapped_rows/remapped_row_unc": "0",
    **pci("16x", "8x", "4", "1"),
}
A100_535 = {
    "product_name": "NVIDIA A100-SXM4-80GB",
    "mig_mode/current_mig": "Enabled",
    "minor_number": "1",
    "gpu_reset_status/reset_required": "No",
    "fb_memory_usage/total": "81920 MiB",
    "fb_memory_usage/used": "50 MiB",
    "gpu_power_readings/current_power_limit": "500.00 W",
    **pci("16x", "16x", "4", "4"),
}
RTX_570 = {
    "product_name": "NVIDIA GeForce RTX 3060",
    "minor_number": "0",
    "gpu_reset_status/reset_required": "Requested functionality has been deprecated",
    "fb_memory_usage/total": "12288 MiB",
    "fb_memory_usage/used": "116 MiB",
    **pci("16x", "16x", "4", "1"),
}
RTX_595 = {
    "product_name": "NVIDIA GeForce RTX 3080",
    "mig_mode/current_mig": "N/A",
    "minor_number": "0",
    "gpu_recovery_action": "None",
    "fb_memory_usage/total": "10240 MiB",
    "fb_memory_usage/used": "9184 MiB",
    f"{EVENT}_hw_slowdown": "Not Active",
    f"{EVENT}_sw_thermal_slowdown": "Not Active",
    **pci("16x", "16x", "4", "4"),
}
QUADRO_418 = {
    "product_name": "Quadro P400",
    "minor_number": "0",
    "fb_memory_usage/total": "1998 MiB",
    "fb_memory_usage/used": "0 MiB",
    **pci("16x", "16x", "3", "1"),
}
IN_USE = "GPU 0: 1032 of 15360 MiB in use (7%, limit 2%), by no process that can be seen"
FULL = "GPU 0: 9184 of 10240 MiB in use (90%, limit 30%), by no process that can be seen"
RECORDED = [
    ("netdata: a100-sxm4-mig.xml", "510.47.03", "11.6", A100_MIG, ("0", "0"), 2, []),
    ("telegraf: a100-sxm4-v12.xml", "535.54.03", "12.2", A100_535, ("0",) * 4, 4, []),
    ("telegraf: tesla-t4.xml", "515.105.01", "11.7", T4, (), 1, [(Grade.WARN, IN_USE)]),
    ("telegraf: a10g.xml", "515.105.01", "11.7", A10G, (), 1, []),
    ("telegraf: rtx-3060-v12.xml", "570.124.04", "12.8", RTX_570, (), 1, []),
    ("telegraf: rtx-3080-v13.xml", "595.58.03", "13.2", RTX_595, (), 1, [(Grade.WARN, FULL)]),
    ("telegraf: quadro-p400.xml", "418.43", "10.1", QUADRO_418, (), 1, []),
]


@pytest.mark.parametrize(
    ("source", "version", "cuda", "tags", "instances", "devices", "message"),
    RECORDED,
    ids=[r[0] for r in RECORDED],
)
def test_a_machine_that_somebody_published_is_read_and_nothing_is_held_against_it_wrongly(
    source, version, cuda, tags, instances, devices, message
) -> None:
    read = nvidia_smi.gpus(document(version, cuda, tags, instances))
    assert (read["driver"], read["cuda"]) == (version, cuda)
    reading = {"n1": {"has_driver": True, "code": 0, "visible": [], **read}}
    messages = [
        (entry.verdict, entry.message)
        for check in CHECKS
        for _, entry in check.judge(asked(gpus=devices), reading)
    ]
    assert messages == message
    more = [entry for _, entry in gpus.judge(asked(gpus=devices + 1), reading)]
    assert [entry.message for entry in more] == [f"the driver sees {devices} of {devices + 1} GPUs"]


JOINED = {"fabric/state": "Completed", "fabric/status": "Success"}
FABRICS = [
    (
        "NVIDIA/gpu-operator#2511: 580.159.04, no fabric manager yet",
        {"fabric/state": "In Progress", "fabric/status": "N/A", "fabric/health/summary": "N/A"},
        [(Grade.FAIL, "GPU 0 has not joined the NVSwitch fabric: In Progress")],
    ),
    (
        "Azure/azhpc-images#506",
        {"fabric/state": "Completed", "fabric/status": "Insufficient Resources", "fabric/cliqueId": "0"},
        [(Grade.FAIL, "GPU 0 could not join the NVSwitch fabric: Insufficient Resources")],
    ),
    (
        "kubernetes-sigs/dra-driver-nvidia-gpu#626",
        {**JOINED, "fabric/health/summary": "Unhealthy", "fabric/health/bandwidth": "Full"},
        [(Grade.WARN, "the driver calls the NVSwitch fabric of GPU 0 Unhealthy")],
    ),
    ("NVIDIA/k8s-test-infra#677: GB300, 580.173.02", {**JOINED, "fabric/health/summary": "Healthy"}, []),
    ("telegraf: rtx-3080-v13.xml", {"fabric/state": "N/A", "fabric/health/summary": "N/A"}, []),
    ("telegraf: rtx-3060-v12.xml", {"fabric/state": "N/A", "fabric/health/bandwidth": "N/A"}, []),
]
"""The fabric of machines that people reported, by source."""


@pytest.mark.parametrize(("source", "tags", "message"), FABRICS, ids=[fabric[0] for fabric in FABRICS])
def test_the_fabric_of_a_machine_that_somebody_reported_is_judged_as_it_was(source, tags, message) -> None:
    read = nvidia_smi.gpus(document("580.1", "13.0", {"product_name": "NVIDIA GB200", **tags}))
    result = FABRIC.judge(asked(), {"n1": {"has_driver": True, "visible": [], **read}})
    assert [(fabric.verdict, fabric.message) for _, fabric in result] == message


def test_errors_of_an_instance_are_errors_of_its_gpu() -> None:
    (ill,) = nvidia_smi.gpus(document("510.47.03", "11.6", A100_MIG, ("0", "2")))["gpus"]
    assert ill["uncorrected"] == 2.0
    (_, result), *_ = ERRORS.judge(asked(), {"n1": {"has_driver": True, "visible": [], "gpus": [ill]}})
    assert (result.verdict, result.message) == (
        Grade.FAIL,
        "GPU 0: 2 uncorrected memory errors since the driver's start (limit 0)",
    )


@pytest.mark.parametrize(
    ("message", "verdict"),
    [
        ("None", None),
        ("Requested functionality has been deprecated", None),
        ("[GPU access blocked by the operating system]", None),
        ("Drain P2P", Grade.WARN),
        ("Drain and Reset", Grade.FAIL),
        ("Recover IMEX Domain", Grade.FAIL),
        ("System Reboot", Grade.FAIL),
        ("A word of a later driver", Grade.WARN),
    ],
)
def test_the_drivers_request_decides_and_a_missing_value_is_no_fault(message, verdict) -> None:
    read = nvidia_smi.gpus(document("580.1", "13.0", {"gpu_recovery_action": message}))
    results = [entry.verdict for _, entry in ERRORS.judge(asked(), {"n1": {"visible": [], **read}})]
    assert results == ([] if verdict is None else [verdict])


LOST = [
    (FAIL, "GPU 0: 5 uncorrected memory errors since the driver's start (limit 0)"),
    (FAIL, "GPU 0: a row of memory could not be remapped"),
    (FAIL, "GPU 1: the driver says: GPU is lost"),
]
WHOLE = [
    ("driver-570-a100.xml", "570.148.08", 1, ("NVIDIA A100-SXM4-40GB", 40960, 4, 400, ""), []),
    ("driver-580-h100.xml", "580.105.08", 2, ("NVIDIA H100 80GB HBM3", 81559, 5, 700, "Completed"), []),
    ("driver-580-b200.xml", "580.105.08", 2, ("NVIDIA B200", 183359, 5, 1000, "Completed"), []),
    ("driver-580-gb300.xml", "580.173.02", 2, ("NVIDIA GB300", 284208, 6, 1400, "Completed"), []),
    ("driver-595-l40s.xml", "595.91.07", 1, ("NVIDIA L40S", 46068, 4, 350, ""), []),
    ("driver-580-h100-virtual-idle.xml", "580.159.04", 1, ("NVIDIA H100 80GB HBM3", 81559, 5, 700, ""), []),
    ("driver-580-gb200-one-lost.xml", "580.65.06", 2, ("NVIDIA GB200", 196608, 6, 1000, "Completed"), LOST),
]
FACTS = ("name", "memory", "generation_most", "watts_most", "fabric")


def of_file(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def findings(read, gpus_of_job, **more):
    reading = {"n1": {"has_driver": True, "code": 0, "visible": [], **read, **more}}
    return [
        (entry.verdict, entry.message)
        for check in CHECKS
        for _, entry in check.judge(asked(gpus=gpus_of_job), reading)
    ]


@pytest.mark.parametrize(
    ("name", "version", "count", "facts", "message"), WHOLE, ids=[entry[0] for entry in WHOLE]
)
def test_a_complete_document_of_a_real_driver_is_parsed_and_judged(
    name, version, count, facts, message
) -> None:
    read = nvidia_smi.gpus(of_file(name))
    assert (read["driver"], len(read["gpus"])) == (version, count)
    assert tuple(read["gpus"][0].get(fact, "") for fact in FACTS) == facts
    assert findings(read, count) == message


def test_a_lost_gpu_without_a_uuid_may_be_the_jobs_and_one_of_another_job_is_ignored() -> None:
    remote = nvidia_smi.gpus(of_file("driver-580-gb200-one-lost.xml"))["gpus"]
    remote[1]["uuid"] = ""
    ended = (FAIL, "GPU 1: the driver says: GPU is lost")
    both = [remote[0]["uuid"], "GPU-of-the-one-that-is-lost"]
    assert ended in findings({"gpus": remote}, 2, visible=both)
    assert ended not in findings({"gpus": remote}, 1, visible=both[:1])
    assert ended not in findings({"gpus": remote}, 1, visible=["0"])


UNKNOWN = "Unable to determine the device handle for GPU 0000:BA:80.0: Unknown Error"
ROM = "WARNING: infoROM is corrupted at gpu 0000:0B:00.0"
"""NVIDIA/dcgm-exporter#604; microsoft/pai#3756 has the second, where -q -x ended with code 0."""


@pytest.mark.parametrize("text", [f"{UNKNOWN}\n{{}}", f"{{}}\n{ROM}\n", f"{UNKNOWN}\n{{}}{ROM}"])
def test_an_error_message_around_the_document_is_reported_and_the_document_read(text) -> None:
    printed = text.format(of_file("driver-580-h100.xml"))
    read, message = nvidia_smi.gpus(printed), nvidia_smi.complaints(printed)
    assert len(read["gpus"]) == 2
    assert findings(read, 2, complaints=message) == [(WARN, f"nvidia-smi: {entry}") for entry in message]
    assert message == [entry for entry in (UNKNOWN, ROM) if entry in text]
    (missing,) = findings(read, 8, complaints=message)
    assert missing == (FAIL, "; ".join(["the driver sees 2 of 8 GPUs", *message]))


NOT_LISTED = [
    (
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.195",
        "reboot it",
    ),
    ("No devices were found", "no GPU started"),
    ("Failed to initialize NVML: Unknown Error", "it lost its devices"),
    ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "modprobe nvidia"),
    ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", "--nv"),
    ("Unable to determine the device handle for GPU0000:1B:00.0: GPU is lost.", "reboot the node"),
    ("Failed to initialize NVML: Unknown Error", "reboot the node"),
]
"""tinygrad/open-gpu-kernel-modules#47 has the first, with the second line that newer drivers add."""


@pytest.mark.parametrize(("message", "remedy"), NOT_LISTED)
def test_a_message_of_nvidia_smi_without_a_list_has_its_own_remedy(message, remedy) -> None:
    ((_, result),) = gpus.judge(
        asked(), {"n1": {"has_driver": True, "code": 9, "visible": [], "message": message}}
    )
    assert result.verdict == FAIL
    assert result.message == f"nvidia-smi: {message}".replace("\n", " ")
    assert remedy in result.remedy


def test_a_gpu_for_instances_without_an_instance_is_no_missing_gpu() -> None:
    read = nvidia_smi.gpus(document("535.54.03", "12.2", {**A100_535, "mig_devices": "None"}))
    assert findings(read, 1) == [(FAIL, "GPU 0 is in MIG mode and has no instance: CUDA cannot open it")]


def test_a_virtual_gpu_without_a_license_is_slow_and_reported() -> None:
    tags = {"product_name": "GRID A100-40C", "vgpu_software_licensed_product/license_status": "{}"}

    def told(status):
        created = {name: value.format(status) for name, value in tags.items()}
        return findings(nvidia_smi.gpus(document("535.129.03", "12.2", created)), 1)

    assert told("Unlicensed (Restricted)") == [  # NVIDIA/gpu-operator#628
        (WARN, "GPU 0: the license of this virtual GPU: Unlicensed (Restricted); the driver slows it down")
    ]
    assert told("Licensed (Expiry: 2026-12-6 13:1:7 GMT)") == told("N/A") == []


def test_a_node_without_ecc_among_nodes_with_ecc_is_reported() -> None:
    def node(ecc):
        return nvidia_smi.gpus(
            document("580.1", "13.0", {"product_name": "H100", "ecc_mode/current_ecc": ecc})
        )

    readings = {name: {"has_driver": True, "visible": [], **node("Enabled")} for name in ("n1", "n2", "n3")}
    assert list(DRIVER.judge(asked(), readings)) == []
    odd = {**readings, "n4": {"has_driver": True, "visible": [], **node("Disabled")}}
    ((name, result),) = DRIVER.judge(asked(), odd)
    assert (name, result.verdict) == ("n4", WARN)
    assert result.message == "ECC of the GPUs' memory is Disabled; it is Enabled on 3 of 4 nodes"
