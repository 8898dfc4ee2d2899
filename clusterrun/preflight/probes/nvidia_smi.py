"""Reads what ``nvidia-smi -q -x`` prints, of old and new drivers; knows its tags and judges nothing.

One call tells everything, and a driver that does not know a thing leaves its tag out: no list of
fields is sent that an older driver would refuse as a whole.
"""

from __future__ import annotations

import re

from clusterrun.model.frozen import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_TEXTS = {
    "name": ("product_name",),
    "uuid": ("uuid",),
    "mig": ("mig_mode/current_mig",),
    "ecc": ("ecc_mode/current_ecc",),
    "persistence": ("persistence_mode",),
    "license": ("vgpu_software_licensed_product/license_status", "grid_licensed_product/license_status"),
    "pages_pending": ("retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
    "rows_pending": ("remapped_rows/remapped_row_pending",),
    "rows_failed": ("remapped_rows/remapped_row_failure",),
    "sram_exceeded": ("ecc_errors/aggregate/sram_threshold_exceeded",),
    "recovery": ("gpu_recovery_action",),
    "reset": ("gpu_reset_status/reset_required",),
    "fabric": ("fabric/state",),
    "fabric_status": ("fabric/status",),
    "fabric_health": ("fabric/health/summary",),
}
_NUMBERS = {
    "memory": ("fb_memory_usage/total",),
    "used": ("fb_memory_usage/used",),
    "minor": ("minor_number",),
    "width": ("pci/pci_gpu_link_info/link_widths/current_link_width",),
    "width_most": ("pci/pci_gpu_link_info/link_widths/max_link_width",),
    "generation_most": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",),
    "temperature": ("temperature/gpu_temp",),
    "clock_set": ("applications_clocks/graphics_clock",),
    "watts_most": ("gpu_power_readings/current_power_limit", "power_readings/power_limit"),
}
GONE = ("GPU is lost", "GPU requires reset")
"""What the driver writes in place of values that it cannot ask a GPU for (nvmlErrorString)."""
_NOTHING = (
    *GONE,
    *("N/A", "Not Supported", "Unknown Error", "None", "GPU access blocked", "Insufficient Permissions"),
    *("Requested functionality has been deprecated", "Function Not Found", "ERR!"),
)
"""How the driver says that it says nothing; 570 calls some old fields deprecated."""
_COMPLAINT = re.compile(
    r"(?:WARNING: infoROM is corrupted at|Unable to determine the device handle for) .*", re.I
)
_ROOT = "nvidia_smi_log"
_OF_INSTANCES = "mig_devices/mig_device/ecc_error_count/volatile_count/sram_uncorrectable"
"""Of a divided GPU (MIG) the errors stand with its instances, and those of the whole are N/A."""
_MOST_PROCESSES, _MOST_COMPLAINTS = 32, 8
_SLOW = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
_REASONS = ("clocks_event_reasons/clocks_event_reason_", "clocks_throttle_reasons/clocks_throttle_reason_")
"""What holds the clocks down; drivers before 535 spoke of throttling."""
_UNCORRECTED = (
    "sram_uncorrectable",
    "sram_uncorrectable_parity",
    "sram_uncorrectable_secded",
    "dram_uncorrectable",
    "double_bit/total",
)
_CORRECTED = ("sram_correctable", "dram_correctable", "single_bit/total")


def gpus(xml: str) -> dict[str, Any]:
    """``{"driver": …, "cuda": …, "gpus": [{…}]}`` from what was printed. Raises ``ValueError``."""
    from xml.etree import ElementTree  # only in the probe's process

    # What the program says of a GPU that is ill stands before, behind or within the document.
    start, end = xml.find(f"<{_ROOT}>"), xml.rfind(f"</{_ROOT}>")
    try:
        log = ElementTree.fromstring(xml[start : end + len(_ROOT) + 3] if 0 <= start < end else "")
    except ElementTree.ParseError as error:
        raise ValueError(f"no XML: {error}") from error
    return {
        "driver": _text(log, "driver_version"),
        "cuda": _text(log, "cuda_version"),
        "gpus": [_gpu(gpu) for gpu in log.iter("gpu")],
    }


def complaints(printed: str) -> list[str]:
    """What the program says of GPUs that it cannot read, or not whole."""
    return list(dict.fromkeys(line.strip() for line in _COMPLAINT.findall(printed)))[:_MOST_COMPLAINTS]


def _gpu(gpu: Element) -> dict[str, Any]:
    texts = {name: _first(_text(gpu, path) for path in paths) for name, paths in _TEXTS.items()}
    plain = ((one.text or "").strip().strip("[]") for one in gpu.iter())
    texts["gone"] = _first(said for said in plain if said in GONE)
    numbers = {name: _first(_number(gpu, path) for path in paths) for name, paths in _NUMBERS.items()}
    return {
        **{name: value for name, value in {**texts, **numbers}.items() if value is not None and value != ""},
        # The driver of 570 and newer says None if the GPU needs no recovery. Older drivers have no such tag.
        "recovered": (gpu.findtext("gpu_recovery_action") or "").strip() == "None",
        "instances": len(gpu.findall("mig_devices/mig_device")),
        "slowed": [
            reason for reason in _SLOW if "Active" in (_text(gpu, path + reason) for path in _REASONS)
        ],
        "uncorrected": _sum(gpu, "ecc_errors/volatile", _UNCORRECTED)
        + sum(_number(one, ".") or 0.0 for one in gpu.findall(_OF_INSTANCES)),
        "corrected": _sum(gpu, "ecc_errors/volatile", _CORRECTED),
        "processes": [_process(one) for one in gpu.findall("processes/process_info")[:_MOST_PROCESSES]],
    }


def _process(one: Element) -> dict[str, Any]:
    return {
        "pid": _number(one, "pid"),
        "kind": _text(one, "type"),
        "command": _text(one, "process_name"),
        "used": _number(one, "used_memory"),
    }


def _sum(gpu: Element, where: str, names: tuple[str, ...]) -> float:
    return sum(_number(gpu, f"{where}/{name}") or 0.0 for name in names)


def _first(found: Any) -> Any:
    return next((value for value in found if value not in (None, "")), None)


def _text(element: Element, path: str) -> str:
    """The text at ``path``; empty where the driver says nothing, or says that it cannot."""
    said = (element.findtext(path) or "").strip()
    return "" if said.strip("[]").startswith(_NOTHING) else said


def _number(element: Element, path: str) -> float | None:
    """The number at ``path`` without its unit: ``81559 MiB``, ``16x``, ``700.00 W``."""
    said = _text(element, path).split()
    try:
        return float(said[0].rstrip("x")) if said else None
    except ValueError:
        return None
