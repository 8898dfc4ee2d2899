"""Read the GPUs in a separate process, within a time limit. A driver that hangs blocks only that process."""

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
# Pause before the next request after the driver did not answer.
AGAIN_SECONDS = 60.0
# These variables name the GPUs of a job. HIP obeys the first one too.
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


class GpuWatch:
    """The GPUs of this node that ``names`` selects, in the form of ``visible_to`` (None: all)."""

    def __init__(
        self, path: str, names: frozenset[str] | None = None, open_look: Callable[[str], Look] | None = None
    ) -> None:
        self.reason = ""
        self._path, self._names = path, names
        self._open_look = open_look or best_look
        self._pid = 0
        self._ask = self._answer = -1
        self._not_before = 0.0

    def look(self) -> tuple[GpuUse, ...]:
        """Return the use of the GPUs; () if there are none or the driver fails.

        ``reason`` then has the reason.
        """
        if self._names == frozenset() or time.monotonic() < self._not_before:
            return ()
        try:
            gpus = self._request()
        except (OSError, ValueError, BadDocument) as error:
            self._give_up(f"the GPUs could not be read: {error}")
            return ()
        if gpus is None:
            self._give_up(f"the GPUs' driver gave no answer within {LATE_SECONDS:g} s")
            return ()
        self.reason = ""
        if self._names is None:
            return gpus
        numbers, beginnings = self._names, tuple(self._names)
        return tuple(gpu for gpu in gpus if str(gpu.index) in numbers or gpu.uuid.startswith(beginnings))

    def close(self) -> None:
        if not self._pid:
            return
        os.close(self._ask)
        os.close(self._answer)
        os.kill(self._pid, signal.SIGKILL)
        # A process that hangs in the driver cannot be waited for. Init reaps it.
        os.waitpid(self._pid, os.WNOHANG)
        self._pid = 0

    def _request(self) -> tuple[GpuUse, ...] | None:
        """Return the answer of the reading process; None if it does not answer in time."""
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
                raise ValueError("the process that reads them has ended")
            data += portion
        return tuple(decode(GpuUse, document) for document in json.loads(data))

    def _give_up(self, why: str) -> None:
        self.reason, self._not_before = why, time.monotonic() + AGAIN_SECONDS
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
    """Return a function that reads NVIDIA's library, nvidia-smi or AMD's driver: the first that works."""
    from clusterrun.monitor import amdgpu_sysfs
    from clusterrun.monitor.nvml import Gpus  # only the reading process needs ctypes

    try:
        return Gpus().look
    except OSError:
        return lambda: nvidia_smi(path) or amdgpu_sysfs.look()


def visible_to(devices: str | None) -> frozenset[str] | None:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` names; None if that is unknown.

    Each is a number, or a UUID or its beginning.
    """
    names = frozenset(name.strip() for name in (devices or "").split(","))
    # The name of a MIG instance does not tell its GPU.
    if devices is None or any(name.startswith("MIG-") for name in names):
        return None
    return frozenset(name for name in names if name.isdecimal() or name.startswith("GPU-"))
