"""Write the XML document of `nvidia-smi -q -x`, for the stand-in of `nvidia-smi`.

Tags and their order are those of driver 550 (nvsmi_device_v12.dtd). Tags that no program reads are left out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

SRAM = ("sram_correctable", "sram_uncorrectable_parity", "sram_uncorrectable_secded")

# Tags below `gpu`, each with the field of the query and its unit, or with its text.
# A value with the unit `?` is written as Yes or No.
FIELDS = {
    "product_name": "name",
    "product_architecture": "Hopper",
    "persistence_mode": "persistence_mode",
    "mig_mode/current_mig": "mig.mode.current",
    "mig_mode/pending_mig": "mig.mode.current",
    "mig_devices": "None",
    "serial": "serial",
    "uuid": "uuid",
    "minor_number": "index",
    "vbios_version": "vbios_version",
    "gpu_reset_status/reset_required": "No",
    "gpu_recovery_action": "gpu_recovery_action",
    "pci/pci_bus_id": "pci.bus_id",
    "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "pcie.link.gen.max",
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen": "pcie.link.gen.current",
    "pci/pci_gpu_link_info/link_widths/max_link_width": "pcie.link.width.max x",
    "pci/pci_gpu_link_info/link_widths/current_link_width": "pcie.link.width.current x",
    "pci/replay_counter": "0",
    "performance_state": "pstate",
    **{
        f"clocks_event_reasons/clocks_event_reason_{reason}": f"clocks_event_reasons.{reason}"
        for reason in (
            *("gpu_idle", "sw_power_cap", "hw_slowdown"),
            *("hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"),
        )
    },
    "fb_memory_usage/total": "memory.total MiB",
    "fb_memory_usage/reserved": "memory.reserved MiB",
    "fb_memory_usage/used": "memory.used MiB",
    "fb_memory_usage/free": "memory.free MiB",
    "compute_mode": "compute_mode",
    "utilization/gpu_util": "utilization.gpu %",
    "utilization/memory_util": "utilization.memory %",
    "ecc_mode/current_ecc": "ecc.mode.current",
    **{f"ecc_errors/volatile/{name}": "0" for name in SRAM},
    "ecc_errors/volatile/dram_correctable": "ecc.errors.corrected.volatile.total",
    "ecc_errors/volatile/dram_uncorrectable": "ecc.errors.uncorrected.volatile.total",
    **{f"ecc_errors/aggregate/{name}": "0" for name in SRAM},
    "ecc_errors/aggregate/dram_correctable": "ecc.errors.corrected.aggregate.total",
    "ecc_errors/aggregate/dram_uncorrectable": "ecc.errors.uncorrected.aggregate.total",
    "ecc_errors/aggregate/sram_threshold_exceeded": "No",
    "retired_pages/pending_retirement": "retired_pages.pending",
    "remapped_rows/remapped_row_corr": "remapped_rows.correctable",
    "remapped_rows/remapped_row_unc": "remapped_rows.uncorrectable",
    "remapped_rows/remapped_row_pending": "remapped_rows.pending ?",
    "remapped_rows/remapped_row_failure": "remapped_rows.failure ?",
    "temperature/gpu_temp": "temperature.gpu C",
    "gpu_power_readings/power_draw": "power.draw W",
    "gpu_power_readings/current_power_limit": "power.limit W",
    "gpu_power_readings/default_power_limit": "power.max_limit W",
    "clocks/sm_clock": "clocks.current.sm MHz",
    "clocks/mem_clock": "clocks.current.memory MHz",
    "max_clocks/sm_clock": "clocks.max.sm MHz",
    "max_clocks/mem_clock": "clocks.max.memory MHz",
    "fabric/state": "fabric.state",
    "fabric/status": "fabric.status",
    "processes": "",
}


def log(driver: str, cuda: str, gpus: Sequence[Mapping[str, object]]) -> str:
    """Return the document for `gpus`. Each GPU is a mapping of query fields to values."""
    document = Element("nvidia_smi_log")
    SubElement(document, "timestamp").text = time.strftime("%a %b %e %H:%M:%S %Y")
    SubElement(document, "driver_version").text = driver
    SubElement(document, "cuda_version").text = cuda
    SubElement(document, "attached_gpus").text = str(len(gpus))
    for values in gpus:
        gpu = SubElement(document, "gpu", id=str(values["pci.bus_id"]))
        for path, field in FIELDS.items():
            *above, tag = path.split("/")
            parent = gpu
            for name in above:
                element = parent.find(name)
                parent = SubElement(parent, name) if element is None else element
            field_name, _, unit = field.partition(" ")
            value = str(values.get(field_name, field_name))
            if unit == "?":
                text = "Yes" if value not in ("0", "N/A") else "No"
            elif unit == "x":
                text = value + unit
            else:
                text = f"{value} {unit}".rstrip()
            SubElement(parent, tag).text = text
    indent(document, "\t")
    text = tostring(document, encoding="unicode", short_empty_elements=False)
    return f'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n{text}'
