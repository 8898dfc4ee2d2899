"""What nvidia-smi says of machines that others published, tag by tag, and what the checks make of it.

Each row has the facts of a recording that is public at its source; the documents are made anew from them.
"""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from clusterrun.model.preflight_report import Grade
from clusterrun.preflight.checks import clocks, driver, fabric, gpu_errors, gpu_memory, gpus, pcie
from clusterrun.preflight.probes import nvidia_smi
from tests.preflight.checks.values import asked

CHECKS = (gpus, gpu_memory, gpu_errors, pcie, clocks, fabric, driver)
LANES, GENERATION = "pci/pci_gpu_link_info/link_widths", "pci/pci_gpu_link_info/pcie_gen"
THROTTLE, EVENT = "clocks_throttle_reasons/clocks_throttle_reason", "clocks_event_reasons/clocks_event_reason"


def document(version: str, cuda: str, tags: dict[str, str], instances: tuple[str, ...] = ()) -> str:
    """A log with one GPU; of each instance the uncorrected errors."""
    log = ElementTree.Element("nvidia_smi_log")
    ElementTree.SubElement(log, "driver_version").text = version
    ElementTree.SubElement(log, "cuda_version").text = cuda
    gpu = ElementTree.SubElement(log, "gpu")
    for path, text in tags.items():
        place = gpu
        for name in path.split("/"):
            found = place.find(name)
            place = ElementTree.SubElement(place, name) if found is None else found
        place.text = text
    for errors in instances:
        device = ElementTree.SubElement(gpu.find("mig_devices") or _made(gpu), "mig_device")
        count = ElementTree.SubElement(ElementTree.SubElement(device, "ecc_error_count"), "volatile_count")
        ElementTree.SubElement(count, "sram_uncorrectable").text = errors
    return ElementTree.tostring(log, encoding="unicode")


def _made(gpu: ElementTree.Element) -> ElementTree.Element:
    found = gpu.find("mig_devices")
    return ElementTree.SubElement(gpu, "mig_devices") if found is None else found


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
    ("telegraf: rtx-3080-v13.xml", "595.58.03", "13.2", RTX_595, (), 1, [(Grade.FAIL, FULL)]),
    ("telegraf: quadro-p400.xml", "418.43", "10.1", QUADRO_418, (), 1, []),
]


@pytest.mark.parametrize(
    ("source", "version", "cuda", "tags", "instances", "devices", "told"),
    RECORDED,
    ids=[r[0] for r in RECORDED],
)
def test_a_machine_that_somebody_published_is_read_and_nothing_is_held_against_it_wrongly(
    source, version, cuda, tags, instances, devices, told
):
    read = nvidia_smi.gpus(document(version, cuda, tags, instances))
    assert (read["driver"], read["cuda"]) == (version, cuda)
    reading = {"n1": {"found": True, "code": 0, "given": [], **read}}
    said = [
        (one.verdict, one.said) for check in CHECKS for _, one in check.judge(asked(gpus=devices), reading)
    ]
    assert said == told
    more = [one for _, one in gpus.judge(asked(gpus=devices + 1), reading)]
    assert [one.said for one in more] == [f"the driver sees {devices} of {devices + 1} GPUs"]


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


@pytest.mark.parametrize(("source", "tags", "told"), FABRICS, ids=[one[0] for one in FABRICS])
def test_the_fabric_of_a_machine_that_somebody_reported_is_judged_as_it_was(source, tags, told):
    read = nvidia_smi.gpus(document("580.1", "13.0", {"product_name": "NVIDIA GB200", **tags}))
    found = fabric.judge(asked(), {"n1": {"found": True, "given": [], **read}})
    assert [(one.verdict, one.said) for _, one in found] == told


def test_errors_of_an_instance_are_errors_of_its_gpu():
    (ill,) = nvidia_smi.gpus(document("510.47.03", "11.6", A100_MIG, ("0", "2")))["gpus"]
    assert ill["uncorrected"] == 2.0
    (_, found), *_ = gpu_errors.judge(asked(), {"n1": {"found": True, "given": [], "gpus": [ill]}})
    assert (found.verdict, found.said) == (
        Grade.FAIL,
        "GPU 0: 2 uncorrected memory errors since the driver's start (limit 0)",
    )


@pytest.mark.parametrize(
    ("said", "verdict"),
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
def test_what_the_driver_asks_for_is_believed_and_what_it_does_not_say_is_no_fault(said, verdict):
    read = nvidia_smi.gpus(document("580.1", "13.0", {"gpu_recovery_action": said}))
    found = [one.verdict for _, one in gpu_errors.judge(asked(), {"n1": {"given": [], **read}})]
    assert found == ([] if verdict is None else [verdict])
