"""Read NVIDIA's GPUs through its management library, in a separate process because the library may hang.

Names and layouts are those of nvml.h, unchanged since the library's first versions. A value that a GPU
does not report is ``UNKNOWN``. ``Gpus`` raises ``OSError`` if the library cannot be loaded or does not start.
"""

from __future__ import annotations

import ctypes

from clusterrun.model.usage import UNKNOWN, GpuUse

LIBRARY = "libnvidia-ml.so.1"
_CORE_SENSOR = 0
_LONGEST_UUID = 96


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Gpus:
    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
            code = self._library.nvmlInit_v2()
        except (OSError, AttributeError) as error:
            raise OSError(f"{library} cannot be loaded: {error}") from error
        if code:
            raise OSError(f"{library} does not start: error {code}")

    def look(self) -> tuple[GpuUse, ...]:
        count = ctypes.c_uint()
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return ()
        return tuple(self._read(index) for index in range(count.value))

    def _read(self, index: int) -> GpuUse:
        device = ctypes.c_void_p()
        if self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)):
            return GpuUse(index, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)
        use, memory = _Utilization(), _Memory()
        watts, celsius = ctypes.c_uint(), ctypes.c_uint()
        library = self._library
        busy = library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(use)) == 0
        held = library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0
        power = library.nvmlDeviceGetPowerUsage(device, ctypes.byref(watts)) == 0
        heat = library.nvmlDeviceGetTemperature(device, _CORE_SENSOR, ctypes.byref(celsius)) == 0
        limit = ctypes.c_uint()
        # An old library has no such function.
        read_limit = getattr(library, "nvmlDeviceGetEnforcedPowerLimit", None)
        limited = read_limit is not None and read_limit(device, ctypes.byref(limit)) == 0
        uuid = ctypes.create_string_buffer(_LONGEST_UUID)
        named = library.nvmlDeviceGetUUID(device, uuid, ctypes.c_uint(_LONGEST_UUID)) == 0
        return GpuUse(
            index,
            float(use.gpu) if busy else UNKNOWN,
            float(memory.used) if held else UNKNOWN,
            float(memory.total) if held else UNKNOWN,
            watts.value / 1000 if power else UNKNOWN,
            float(celsius.value) if heat else UNKNOWN,
            uuid.value.decode("ascii", "replace") if named else "",
            float(use.memory) if busy else UNKNOWN,
            limit.value / 1000 if limited else UNKNOWN,
        )
