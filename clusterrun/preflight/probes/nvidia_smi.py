"""Parse the output of ``nvidia-smi -q -x`` from old and new drivers.

One call reports everything. A driver omits the tags that it does not know. A list of fields would make an
older driver refuse the whole query.
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
    "compute_mode": ("compute_mode",),
    "clique": ("fabric/cliqueId",),
    "domain": ("fabric/clusterUuid",),
    "virtualization": ("gpu_virtualization_mode/virtualization_mode",),
    "license": ("vgpu_software_licensed_product/license_status", "grid_licensed_product/license_status"),
    "pages_pending": ("retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
    "rows_pending": ("remapped_rows/remapped_row_pending",),
    "rows_failed": ("remapped_rows/remapped_row_failure",),
    "sram_exceeded": ("ecc_errors/aggregate/sram_threshold_exceeded",),
    "channel_pending": ("ecc_errors/channel_repair_pending",),
    "tpc_pending": ("ecc_errors/tpc_repair_pending",),
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
    "watts": (
        "gpu_power_readings/instant_power_draw",
        "gpu_power_readings/power_draw",
        "power_readings/power_draw",
    ),
    "clock_now": ("clocks/sm_clock", "clocks/graphics_clock"),
    "clock_set": ("applications_clocks/graphics_clock",),
    "watts_most": ("gpu_power_readings/current_power_limit", "power_readings/power_limit"),
}
# The driver writes these in place of values that the GPU does not return (nvmlErrorString).
GONE = ("GPU is lost", "GPU requires reset")
# Texts in place of a missing value. Driver 570 reports some old fields as deprecated.
_NOTHING = (
    *GONE,
    *("N/A", "Not Supported", "Unknown Error", "None", "GPU access blocked", "Insufficient Permissions"),
    *("Requested functionality has been deprecated", "Function Not Found", "ERR!"),
)
_COMPLAINT = re.compile(
    r"(?:WARNING: infoROM is corrupted at|Unable to determine the device handle for) .*", re.I
)
_ROOT = "nvidia_smi_log"
# In MIG mode the instances have the error counts, and those of the whole GPU are N/A.
_INSTANCE_ERRORS = "mig_devices/mig_device/ecc_error_count/volatile_count/sram_uncorrectable"
_MOST_PROCESSES, _MOST_COMPLAINTS = 32, 8
_SLOW = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
# Reasons for low clocks. Drivers before 535 call them throttle reasons.
_IDLE = "gpu_idle"
_REASONS = ("clocks_event_reasons/clocks_event_reason_", "clocks_throttle_reasons/clocks_throttle_reason_")
_UNCORRECTED = (
    "sram_uncorrectable",
    "sram_uncorrectable_parity",
    "sram_uncorrectable_secded",
    "dram_uncorrectable",
    "double_bit/total",
)
_CORRECTED = ("sram_correctable", "dram_correctable", "single_bit/total")


def gpus(xml: str) -> dict[str, Any]:
    """Return ``{"driver": …, "cuda": …, "gpus": [{…}]}``. Raise ``ValueError`` if the output is no XML."""
    from xml.etree import ElementTree  # Loaded only in the probe's process.

    # nvidia-smi prints messages about a faulty GPU before, after or inside the document.
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
    """Return the messages of nvidia-smi about GPUs that it cannot read or not completely."""
    return list(dict.fromkeys(line.strip() for line in _COMPLAINT.findall(printed)))[:_MOST_COMPLAINTS]


def _gpu(gpu: Element) -> dict[str, Any]:
    """Return the readings of one GPU. Texts and numbers that the driver does not report are left out."""
    readings: dict[str, Any] = {}
    for name, paths in _TEXTS.items():
        readings[name] = _first(_text(gpu, path) for path in paths)
    for name, paths in _NUMBERS.items():
        readings[name] = _first(_number(gpu, path) for path in paths)
    all_texts = [(element.text or "").strip().strip("[]") for element in gpu.iter()]
    readings["gone"] = _first(text for text in all_texts if text in GONE)
    readings = {name: value for name, value in readings.items() if value is not None}

    # The driver of 570 and newer says None if the GPU needs no recovery. Older drivers have no such tag.
    readings["recovered"] = (gpu.findtext("gpu_recovery_action") or "").strip() == "None"
    readings["bus"] = gpu.get("id", "").lower()
    readings["instances"] = len(gpu.findall("mig_devices/mig_device"))
    readings["slowed"] = [reason for reason in _SLOW if _is_active(gpu, reason)]
    readings["idle"] = _is_active(gpu, _IDLE)
    of_instances = sum(_number(element, ".") or 0.0 for element in gpu.findall(_INSTANCE_ERRORS))
    readings["uncorrected"] = _errors(gpu, _UNCORRECTED) + of_instances
    readings["corrected"] = _errors(gpu, _CORRECTED)
    readings["processes"] = [
        {
            "pid": _number(process, "pid"),
            "kind": _text(process, "type"),
            "command": _text(process, "process_name"),
            "used": _number(process, "used_memory"),
        }
        for process in gpu.findall("processes/process_info")[:_MOST_PROCESSES]
    ]
    return readings


def _is_active(gpu: Element, reason: str) -> bool:
    """Return whether ``reason`` lowers the clocks now."""
    return "Active" in [_text(gpu, path + reason) for path in _REASONS]


def _errors(gpu: Element, names: tuple[str, ...]) -> float:
    return sum(_number(gpu, f"ecc_errors/volatile/{name}") or 0.0 for name in names)


def _first(values: Any) -> Any:
    """Return the first value that the driver reports; None if there is none."""
    return next((value for value in values if value not in (None, "")), None)


def _text(element: Element, path: str) -> str:
    """Return the text at ``path``, or '' if the driver reports no value."""
    value = (element.findtext(path) or "").strip()
    return "" if value.strip("[]").startswith(_NOTHING) else value


def _number(element: Element, path: str) -> float | None:
    """Return the number at ``path`` without its unit: ``81559 MiB``, ``16x``, ``700.00 W``."""
    parts = _text(element, path).split()
    try:
        return float(parts[0].rstrip("x")) if parts else None
    except ValueError:
        return None
