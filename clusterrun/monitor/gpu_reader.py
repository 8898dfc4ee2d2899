"""Asks a process of its own about the GPUs, with a limit: a driver that hangs costs that process only."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable

from clusterrun.model.document import BadDocument, decode, encode
from clusterrun.model.usage import GpuUse
from clusterrun.monitor.external_tools import nvidia_smi
from clusterrun.runtime.processes import fork

Look = Callable[[], "tuple[GpuUse, ...]"]
LATE_SECONDS = 3.0
AGAIN_SECONDS = 60.0
"""After a driver that did not answer: how long it is left alone."""
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""What names the GPUs of a job; HIP obeys the first one too."""


class GpuWatch:
    """The GPUs of this node that are ``wanted``, as ``visible_to`` names them (None: all)."""

    def __init__(
        self, path: str, wanted: frozenset[str] | None = None, open_look: Callable[[str], Look] | None = None
    ) -> None:
        self.said = ""
        self._path, self._wanted = path, wanted
        self._open_look = open_look or best_look
        self._pid = 0
        self._ask = self._answer = -1
        self._not_before = 0.0

    def look(self) -> tuple[GpuUse, ...]:
        """The GPUs now; () where there are none, or where the driver does not answer: ``said`` says so."""
        if self._wanted == frozenset() or time.monotonic() < self._not_before:
            return ()
        try:
            found = self._asked()
        except (OSError, ValueError, BadDocument) as error:
            self._give_up(f"the GPUs could not be asked: {error}")
            return ()
        if found is None:
            self._give_up(f"the GPUs' driver gave no answer within {LATE_SECONDS:g} s")
            return ()
        self.said = ""
        return tuple(gpu for gpu in found if self._wanted is None or _is_named(gpu, self._wanted))

    def close(self) -> None:
        if not self._pid:
            return
        os.close(self._ask)
        os.close(self._answer)
        os.kill(self._pid, signal.SIGKILL)
        # One that hangs in the driver cannot be waited for; init takes it when it ends.
        os.waitpid(self._pid, os.WNOHANG)
        self._pid = 0

    def _asked(self) -> tuple[GpuUse, ...] | None:
        if not self._pid:
            self._start()
        os.write(self._ask, b"?")
        until, data = time.monotonic() + LATE_SECONDS, b""
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([self._answer], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return None
            portion = os.read(self._answer, 1 << 16)
            if not portion:
                raise ValueError("the process that asks has ended")
            data += portion
        return tuple(decode(GpuUse, one) for one in json.loads(data))

    def _give_up(self, why: str) -> None:
        self.said, self._not_before = why, time.monotonic() + AGAIN_SECONDS
        self.close()

    def _start(self) -> None:
        questions, self._ask = os.pipe()
        self._answer, answers = os.pipe()

        def serve() -> None:
            os.close(self._ask)
            os.close(self._answer)
            look = self._open_look(self._path)
            while os.read(questions, 1):
                os.write(answers, json.dumps([encode(gpu) for gpu in look()]).encode() + b"\n")

        self._pid = fork(serve)
        os.close(questions)
        os.close(answers)


def best_look(path: str) -> Look:
    """NVIDIA's library where it can be loaded, else its program, else what AMD's driver tells."""
    from clusterrun.monitor import amdgpu_sysfs
    from clusterrun.monitor.nvml import Gpus  # only the process that asks needs ctypes

    try:
        return Gpus().look
    except OSError:
        return lambda: nvidia_smi(path) or amdgpu_sysfs.look()


def visible_to(devices: str | None) -> frozenset[str] | None:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` names: numbers and UUIDs, or their beginnings; None: unknown."""
    words = frozenset(word.strip() for word in (devices or "").split(","))
    # Of instances (MIG) the GPUs cannot be told from their names.
    if devices is None or any(word.startswith("MIG-") for word in words):
        return None
    return frozenset(word for word in words if word.isdecimal() or word.startswith("GPU-"))


def _is_named(gpu: GpuUse, names: frozenset[str]) -> bool:
    return any(name == str(gpu.index) or gpu.uuid.startswith(name) for name in names)
