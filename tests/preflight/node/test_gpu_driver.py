"""The process that keeps GPUs initialized during a check; the devices are fake files."""

from __future__ import annotations

import os
from pathlib import Path

from clusterrun import proc
from clusterrun.preflight.node.gpu_driver import hold_driver
from tests.preflight.node.test_forked_call import eventually, is_gone


def test_a_machine_without_devices_needs_no_process(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert hold_driver(str(tmp_path)) is None


def test_fake_devices_stay_open_until_the_process_is_killed(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    child = hold_driver(str(tmp_path))
    assert child is not None

    def opened() -> set[str]:
        paths = proc.descriptors(child.pid).values()
        return {os.path.basename(path) for path in paths if path.startswith(str(tmp_path))}

    eventually(lambda: opened() == {"nvidia0", "nvidia1"})
    child.kill()
    eventually(lambda: child.code() is not None)
    assert is_gone(child.pid)


def test_a_fake_device_that_cannot_be_opened_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").mkdir()
    (tmp_path / "nvidia1").touch()
    child = hold_driver(str(tmp_path))
    assert child is not None
    eventually(lambda: child.lines() == [b'{"value": 1}'])
    child.kill()
