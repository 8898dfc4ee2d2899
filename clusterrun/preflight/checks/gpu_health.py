"""What nvidia-smi told of each GPU, judged: memory in use, errors, PCIe, clocks, NVSwitch fabric, driver.

Judges of one reading, that of ``gpus``; each is a line at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from clusterrun.model.frozen import frozen
from clusterrun.model.limits import chosen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.checks import gpus
from clusterrun.preflight.majority import outlier_findings, vote
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import number, rows, text, words

Gpu = Mapping[str, object]
Told = Iterator[tuple[Grade, str, str]]
"""Of one GPU: how bad, what is said, the remedy."""


@frozen
class GpuJudge:
    NAME: str
    judge: Callable[[RunNeeds, Readings], Findings]
    OF: str = gpus.NAME


def _of_each(
    name: str,
    look: Callable[[int, Gpu, Mapping[str, float]], Told],
    which: Callable[[object], gpus.Numbered] = gpus.given,
) -> GpuJudge:
    def judge(request: RunNeeds, readings: Readings) -> Findings:
        limits = chosen(request.limits)
        for node, reading in readings.items():
            for index, gpu in which(reading):
                for grade, said, remedy in look(index, gpu, limits):
                    yield node, Finding(name, grade, said, remedy)

    return GpuJudge(name, judge)


def _below_others(readings: Readings, field: str, share: float) -> Iterator[tuple[str, str, str]]:
    """Nodes on which the lowest value is less than ``share`` of the usual one, with both."""
    lowest: dict[str, str] = {}
    for node, reading in readings.items():
        numbers = [value for _, gpu in gpus.given(reading) if (value := number(gpu, field))]
        if numbers:
            lowest[node] = f"{min(numbers):.0f}"
    found = vote(lowest)
    for node in found.outliers:
        if float(lowest[node]) < share * float(found.majority):
            yield node, lowest[node], found.majority


_SYSTEM = ("nvidia-cuda-mps", "nv-hostengine", "nvidia-persistenced", "dcgm", "Xorg", "gnome-shell")
_LEFT = "a process outlived its job: kill it, or ask who owns it"
_UNSEEN = (
    "its process is gone or in another container, or it is page cache (on GH200 and GB200 GPU memory is a "
    "NUMA node): nvidia-smi shows processes; training may run out of GPU memory"
)
_DESKTOP = "a desktop uses this GPU: training may run out of GPU memory"


def _memory(index: int, gpu: Gpu, limits: Mapping[str, float]) -> Told:
    """Fail if compute processes hold ``gpu_memory_fail`` of a GPU or more. Warn of any other use.

    Memory without a compute process is no fault of the node. It belongs to a desktop, to a process that this
    container does not see, or to the page cache of a GPU whose memory is a NUMA node.
    """
    grade, message = gpus.memory_in_use(gpu, limits)
    programs = [
        process
        for process in rows(gpu, "processes")
        if text(process, "kind") != "G" and not any(name in text(process, "command") for name in _SYSTEM)
    ]
    if not programs and grade is Grade.PASS:
        return
    compute = [process for process in programs if "G" not in text(process, "kind").split("+")]
    amounts = [number(process, "used") for process in compute]
    held = sum(amount for amount in amounts if amount is not None)
    if None in amounts:  # the driver does not say how much a process in another container holds
        held = number(gpu, "used") or 0.0
    has_failed = held >= limits["gpu_memory_fail"] * (number(gpu, "memory") or float("inf"))
    users = ", ".join(_describe_process(process) for process in programs[:4])
    message += f" by {users}" if users else ", by no process that can be seen"
    remedy = _LEFT if compute else _DESKTOP if programs else _UNSEEN
    yield (Grade.FAIL if has_failed else Grade.WARN), f"GPU {index}: {message}", remedy


def _describe_process(process: Mapping[str, object]) -> str:
    """Return the name, id, user and memory of a process, as far as they are known."""
    pid, used = number(process, "pid"), number(process, "used")
    parts = (
        text(process, "command").rsplit("/", 1)[-1] or "a process",
        f"pid {pid:.0f}" if pid is not None else "",
        f"of {text(process, 'user')}" if text(process, "user") else "",
        f"{used:.0f} MiB" if used else "",
    )
    return " ".join(part for part in parts if part)


_RESET = "drain the node and reset the GPU (nvidia-smi -r) or reboot"
_GONE = "dmesg | grep -i xid on the node, then reset the GPU (nvidia-smi -r) or reboot; else reseat it"
_REPLACE = "have the GPU replaced"
_WATCH = "watch it: many corrected errors come before uncorrected ones"
_LICENSE = "systemctl status nvidia-gridd on the node: does it reach its license server?"
_NEEDED = ("Reset", "Reboot", "Recover")
_YES = (
    ("rows_failed", Grade.FAIL, "a row of memory could not be remapped", _REPLACE),
    ("sram_exceeded", Grade.FAIL, "more uncorrected SRAM errors than NVIDIA allows", _REPLACE),
    ("rows_pending", Grade.WARN, "a row of memory waits for a reset to be remapped", _RESET),
    ("pages_pending", Grade.WARN, "a page of memory waits for a reset to be retired", _RESET),
)
"""What the driver says by a Yes."""


def _errors(index: int, gpu: Gpu, limits: Mapping[str, float]) -> Told:
    """Fail if a GPU stopped or computes wrongly. Warn if it will soon, or if the driver contained the error.

    ``gpu_recovery_action`` None means that the GPU "can be immediately used again" after an uncorrected error
    (NVIDIA GPU Memory Error Management, Error Recovery and Response Flags).
    """
    it, since = f"GPU {index}:", "memory errors since the driver's start (limit"
    is_recovered = gpu.get("recovered") is True and not any(text(gpu, row[0]) == "Yes" for row in _YES)
    if text(gpu, "gone"):
        yield Grade.FAIL, f"{it} the driver says: {text(gpu, 'gone')}", _GONE
    uncorrected, corrected = number(gpu, "uncorrected") or 0, number(gpu, "corrected") or 0
    if uncorrected > 0:
        grade = Grade.WARN if is_recovered else Grade.FAIL
        yield grade, f"{it} {uncorrected:.0f} uncorrected {since} 0)", _RESET
    if corrected > limits["gpu_corrected"]:
        yield Grade.WARN, f"{it} {corrected:.0f} corrected {since} {limits['gpu_corrected']:.0f})", _WATCH
    for field, grade, said, remedy in _YES:
        if text(gpu, field) == "Yes":
            yield grade, f"{it} {said}", remedy
    if text(gpu, "license").startswith("Unlicensed"):
        said = f"{it} the license of this virtual GPU: {text(gpu, 'license')}; the driver slows it down"
        yield Grade.WARN, said, _LICENSE
    recovery = text(gpu, "recovery") or ("Reset" if text(gpu, "reset") == "Yes" else "")
    if recovery:
        needs = any(word in recovery for word in _NEEDED)  # of other words nobody knows yet how bad they are
        grade = Grade.FAIL if needs and recovery != "Drain P2P" else Grade.WARN
        yield grade, f"{it} the driver asks for: {recovery}", _RESET


_SEVERAL = 3
_LEAST_NODES, _LEAST_GPUS = 2, 4
"""With so many others that have more lanes, on other nodes or on this one, the slot is not built so."""
_RESEAT = "reseat the GPU or its riser; drain the node until then"


def _pcie(request: RunNeeds, readings: Readings) -> Findings:
    """Warn of lost lanes, and of a node whose links could be faster everywhere else.

    A slot may be built with fewer lanes than its GPU has: they are lost where most of its like have more.
    The generation of this moment is not judged: an idle GPU lowers it to save power.
    """
    given = {node: gpus.given(reading) for node, reading in readings.items()}
    lanes = Counter((i, number(gpu, "width") or 0.0) for there in given.values() for i, gpu in there)
    for node, there in given.items():
        for index, gpu in there:
            width, most = number(gpu, "width") or 0.0, number(gpu, "width_most") or 0.0
            if 0 < width < most and _lost(index, width, lanes, there, len(readings)):
                said = f"GPU {index}: PCIe has {width:.0f} lanes of {most:.0f}"
                grade = Grade.FAIL if width * 4 <= most else Grade.WARN
                yield node, Finding("pcie", grade, said, _RESEAT)
    for node, mine, usual in _below_others(readings, "generation_most", 1.0):
        said = f"PCIe reaches generation {mine} here, {usual} on the other nodes"
        yield node, Finding("pcie", Grade.WARN, said, _RESEAT)


def _lost(
    index: int, width: float, lanes: Mapping[tuple[int, float], int], there: gpus.Numbered, nodes: int
) -> bool:
    """Whether most of its like have more lanes: GPUs of its number, or, with few nodes, those of its node."""
    if nodes >= _SEVERAL:
        widths, least = {of: many for (i, of), many in lanes.items() if i == index}, _LEAST_NODES
    else:
        widths, least = Counter(number(gpu, "width") or 0.0 for _, gpu in there), _LEAST_GPUS
    more = sum(many for of, many in widths.items() if of > width)
    return more >= least and 2 * more > sum(widths.values())


_COOL = "look at the node's cooling (fans, inlet temperature, dust) and drain it until then"
_POWER = "look at the node's power supplies and the rack's power limit"
_REASONS = {
    "hw_thermal_slowdown": ("the GPU is too hot", _COOL),
    "hw_power_brake_slowdown": ("the machine's power brake is on", _POWER),
    "hw_slowdown": ("the hardware slows the clocks", _COOL),
    "sw_thermal_slowdown": ("the driver slows the clocks because of heat", _COOL),
}
_SET = {
    "watts_most": ("power limit", "W", "nvidia-smi -pl on that node"),
    "clock_set": ("application clock", "MHz", "nvidia-smi -rac on that node"),
}
_TOLERATED = 0.05


def _clocks(request: RunNeeds, readings: Readings) -> Findings:
    """Fail for a slowdown by the hardware, warn for one by the driver and for limits below the others'."""
    for node, reading in readings.items():
        for index, gpu in gpus.given(reading):
            slowed = [reason for reason in _REASONS if reason in words(gpu, "slowed")]
            if slowed:
                why, remedy = _REASONS[slowed[0]]
                grade = Grade.WARN if slowed[0] == "sw_thermal_slowdown" else Grade.FAIL
                degrees = number(gpu, "temperature")
                heat = "" if degrees is None else f", {degrees:.0f} °C"
                said = f"GPU {index}: {why} ({', '.join(slowed)}{heat})"
                yield node, Finding("clocks", grade, said, remedy)
    for field, (what, unit, remedy) in _SET.items():
        for node, mine, usual in _below_others(readings, field, 1 - _TOLERATED):
            said = f"the {what} is {mine} {unit} here, {usual} {unit} on the other nodes"
            yield node, Finding("clocks", Grade.WARN, said, remedy)


_LOOK = "nvidia-smi -q -i {} on the node says under Fabric, Health what is wrong; tell its administrators"
_RESTART = "systemctl restart nvidia-fabricmanager on the node; if that does not help: reboot"


def _fabric(index: int, gpu: Gpu, limits: Mapping[str, float]) -> Told:
    """Fail where a GPU with a fabric has not joined it, warn where this is ill; without one nothing."""
    state, status = text(gpu, "fabric"), text(gpu, "fabric_status")
    if state in ("Not Started", "In Progress"):
        yield Grade.FAIL, f"GPU {index} has not joined the NVSwitch fabric: {state}", _RESTART
    elif state == "Completed" and status not in ("Success", ""):
        yield Grade.FAIL, f"GPU {index} could not join the NVSwitch fabric: {status}", _RESTART
    elif (health := text(gpu, "fabric_health")) not in ("Healthy", ""):
        said = f"the driver calls the NVSwitch fabric of GPU {index} {health}"
        yield Grade.WARN, said, _LOOK.format(index)


# A driver that stays loaded answers nvidia-smi -q in about a second with eight GPUs.
SLOW_DRIVER_SECONDS = 5.0
_ONE_KIND = "ask for one kind of node (--constraint or --partition): every step waits for the slowest GPU"
_ECC = "nvidia-smi -e 1 (or 0) on that node, then reboot it: without ECC wrong bits go unnoticed"
_EQUAL = (
    ("the NVIDIA driver", "driver", "install the same driver on every node, or leave the node out"),
    ("the kind of GPU", "name", _ONE_KIND),
    ("ECC of the GPUs' memory", "ecc", _ECC),
)


def _driver(request: RunNeeds, readings: Readings) -> Findings:
    """Warn of a node with another driver, of other GPUs than most have, and of a driver that loads slowly."""
    for node, reading in readings.items():
        seconds = number(reading, "seconds") or 0.0
        modes = {text(gpu, "persistence") for gpu in rows(reading, "gpus")}
        if seconds > SLOW_DRIVER_SECONDS and "Disabled" in modes:
            message = f"persistence mode is off and nvidia-smi took {seconds:.0f} s: ranks start as slowly"
            yield node, Finding("driver", Grade.WARN, message, gpus.PERSISTENCE)
    for what, field, remedy in _EQUAL:
        values = {}
        for node, reading in readings.items():
            kinds = {text(gpu, field) for gpu in rows(reading, "gpus")} - {""}
            values[node] = text(reading, field) or ", ".join(sorted(kinds))
        known = {node: value for node, value in values.items() if value}
        yield from outlier_findings("driver", what, known, Grade.WARN, remedy)


MEMORY = _of_each("gpu-memory", _memory)
ERRORS = _of_each("gpu-errors", _errors, gpus.suspects)
PCIE = GpuJudge("pcie", _pcie)
CLOCKS = GpuJudge("clocks", _clocks)
FABRIC = _of_each("fabric", _fabric)
DRIVER = GpuJudge("driver", _driver)
