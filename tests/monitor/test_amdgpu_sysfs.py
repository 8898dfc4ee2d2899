"""AMD's GPUs in the files of their kernel driver, laid out as the kernel documents them."""

from __future__ import annotations

from pathlib import Path

from clusterrun.local.gpus import count_gpus
from clusterrun.model.usage import UNKNOWN, GpuUse
from clusterrun.monitor.amdgpu_sysfs import look


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def machine(folder: Path) -> tuple[Path, Path]:
    """Make a processor and two partitions of a GPU, as the kernel lists them. The second has no sensors."""
    nodes, drm = folder / "nodes", folder / "drm"
    write(nodes / "0/properties", "cpu_cores_count 96\nsimd_count 0\ndrm_render_minor 0\n")
    write(nodes / "10/properties", "simd_count 304\ndrm_render_minor 136\nunique_id 0\n")
    gpu = "cpu_cores_count 0\nsimd_count 1216\ndrm_render_minor 128\nunique_id 8545839612354526934\n"
    write(nodes / "2/properties", gpu)
    device = drm / "renderD128/device"
    write(device / "gpu_busy_percent", "87\n")
    write(device / "mem_info_vram_used", "121344000\n")
    write(device / "mem_info_vram_total", "206141652992\n")
    write(device / "hwmon/hwmon7/power1_input", "542000000\n")
    write(device / "hwmon/hwmon7/temp1_input", "N/A\n")
    write(device / "hwmon/hwmon7/temp2_input", "71000\n")
    write(drm / "renderD136/device/mem_info_vram_used", "0\n")
    return nodes, drm


def test_gpus_are_read_in_rocm_order_with_unknown_for_missing_values(tmp_path: Path) -> None:
    nodes, drm = machine(tmp_path)
    assert look(str(nodes), str(drm)) == (
        GpuUse(0, 87.0, 121344000.0, 206141652992.0, 542.0, 71.0, "GPU-7698ebd981da7ed6"),
        GpuUse(1, UNKNOWN, 0.0, UNKNOWN, UNKNOWN, UNKNOWN, ""),
    )


def test_a_machine_without_amds_driver_has_none(tmp_path: Path) -> None:
    assert look(str(tmp_path / "nodes"), str(tmp_path)) == ()


def test_a_run_on_this_machine_counts_them(tmp_path: Path) -> None:
    nodes, _ = machine(tmp_path)
    elsewhere = {"driver": str(tmp_path), "places": ()}
    observed = {"PATH": str(tmp_path)}
    (tmp_path / "drv").mkdir()
    elsewhere["driver"] = str(tmp_path / "drv")
    assert count_gpus(observed, amd_nodes=str(nodes), **elsewhere) == 2
    assert count_gpus(observed, amd_nodes=str(tmp_path / "none"), **elsewhere) == 0
