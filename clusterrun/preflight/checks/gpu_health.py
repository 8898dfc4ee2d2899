"""Judge the reading of ``gpus``: memory in use, errors, PCIe, clocks, NVSwitch fabric and driver.

Each judge is a line at the end of the module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from clusterrun.model.frozen import frozen
from clusterrun.model.limits import chosen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.checks import gpus
from clusterrun.preflight.majority import outlier_findings, vote
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import number, rows, strings, text

Gpu = Mapping[str, object]
# Problems of one GPU: grade, message, remedy.
Problems = Iterator[tuple[Grade, str, str]]


@frozen
class GpuJudge:
    NAME: str
    judge: Callable[[RunNeeds, Readings], Findings]
    OF: str = gpus.NAME


def _of_each(
    name: str,
    find_problems: Callable[[int, Gpu, Mapping[str, float]], Problems],
    select_gpus: Callable[[object], gpus.Numbered] = gpus.job_gpus,
) -> GpuJudge:
    def judge(request: RunNeeds, readings: Readings) -> Findings:
        limits = chosen(request.limits)
        for node, reading in readings.items():
            for index, gpu in select_gpus(reading):
                for grade, message, remedy in find_problems(index, gpu, limits):
                    yield node, Finding(name, grade, message, remedy)

    return GpuJudge(name, judge)


def _below_others(readings: Readings, field: str, share: float) -> Iterator[tuple[str, str, str]]:
    """Yield (node, lowest value, usual value) if it is below ``share`` of its model's usual value."""
    lowest_by_model: dict[str, dict[str, str]] = {}
    for node, reading in readings.items():
        for _, gpu in gpus.job_gpus(reading):
            if value := number(gpu, field):
                lowest = lowest_by_model.setdefault(text(gpu, "name"), {})
                lowest[node] = f"{min(value, float(lowest.get(node, value))):.0f}"
    for lowest in lowest_by_model.values():
        result = vote(lowest)
        for node in result.outliers:
            if float(lowest[node]) < share * float(result.majority):
                yield node, lowest[node], result.majority


_SYSTEM = ("nvidia-cuda-mps", "nv-hostengine", "nvidia-persistenced", "dcgm", "Xorg", "gnome-shell")
_LEFT = "a process outlived its job: kill it, or ask who owns it"
_UNSEEN = (
    "its process is gone or in another container, or it is page cache (on GH200 and GB200 GPU memory is a "
    "NUMA node): nvidia-smi shows processes; training may run out of GPU memory"
)
_DESKTOP = "a desktop uses this GPU: training may run out of GPU memory"
# Memory in use without a process, MiB: the GPU's firmware (open-gpu-kernel-modules#357).
_FIRMWARE = 512.0
# The share of a virtual GPU that the hypervisor reserves and the driver reports as used.
_HYPERVISOR = 0.1


def memory_problems(index: int, gpu: Gpu, limits: Mapping[str, float]) -> Problems:
    """Fail if compute processes hold ``gpu_memory_fail`` of a GPU or more. Warn of any other use.

    Memory without a compute process is no fault of the node. It belongs to a desktop, to a process that this
    container does not see, or to the page cache of a GPU whose memory is a NUMA node.
    """
    programs = [
        process
        for process in rows(gpu, "processes")
        if text(process, "kind") != "G" and not any(name in text(process, "command") for name in _SYSTEM)
    ]
    grade, message = gpus.memory_in_use(gpu, limits)
    is_virtual = text(gpu, "virtualization") == "VGPU"
    reserved = max(_FIRMWARE, _HYPERVISOR * (number(gpu, "memory") or 0.0) if is_virtual else 0.0)
    if not programs and (grade is Grade.PASS or (number(gpu, "used") or 0.0) <= reserved):
        return
    compute = [process for process in programs if "G" not in text(process, "kind").split("+")]
    amounts = [number(process, "used") for process in compute]
    held = sum(amount for amount in amounts if amount is not None)
    # The driver does not report the memory of a process in another container.
    if None in amounts:
        held = number(gpu, "used") or 0.0
    has_failed = held >= limits["gpu_memory_fail"] * (number(gpu, "memory") or float("inf"))
    descriptions = []
    for process in programs[:4]:
        pid, used = number(process, "pid"), number(process, "used")
        parts = (
            text(process, "command").rsplit("/", 1)[-1] or "a process",
            f"pid {pid:.0f}" if pid is not None else "",
            f"of {text(process, 'user')}" if text(process, "user") else "",
            f"{used:.0f} MiB" if used else "",
        )
        descriptions.append(" ".join(part for part in parts if part))
    users = ", ".join(descriptions)
    message += f" by {users}" if users else ", by no process that can be seen"
    remedy = _LEFT if compute else _DESKTOP if programs else _UNSEEN
    yield (Grade.FAIL if has_failed else Grade.WARN), f"GPU {index}: {message}", remedy


_RESET = "drain the node and reset the GPU (nvidia-smi -r) or reboot"
_GONE = "dmesg | grep -i xid on the node, then reset the GPU (nvidia-smi -r) or reboot; else reseat it"
_REPLACE = "have the GPU replaced"
_WATCH = "watch it: many corrected errors come before uncorrected ones"
_LICENSE = "systemctl status nvidia-gridd on the node: does it reach its license server?"
_NEEDED = ("Reset", "Reboot", "Recover")
# Fields for which the driver reports Yes or No.
_YES = (
    ("rows_failed", Grade.FAIL, "a row of memory could not be remapped", _REPLACE),
    ("sram_exceeded", Grade.FAIL, "more uncorrected SRAM errors than NVIDIA allows", _REPLACE),
    ("rows_pending", Grade.WARN, "a row of memory waits for a reset to be remapped", _RESET),
    ("pages_pending", Grade.WARN, "a page of memory waits for a reset to be retired", _RESET),
    ("channel_pending", Grade.WARN, "a channel of memory waits for a reset to be repaired", _RESET),
    ("tpc_pending", Grade.WARN, "a part of the processor waits for a reset to be repaired", _RESET),
)


def error_problems(index: int, gpu: Gpu, limits: Mapping[str, float]) -> Problems:
    """Fail if a GPU stopped or computes wrongly. Warn if it will soon, or if the driver contained the error.

    ``gpu_recovery_action`` None means that the GPU "can be immediately used again" after an uncorrected error
    (NVIDIA GPU Memory Error Management, Error Recovery and Response Flags).
    """
    subject, since = f"GPU {index}:", "memory errors since the driver's start (limit"
    is_recovered = gpu.get("recovered") is True and not any(text(gpu, row[0]) == "Yes" for row in _YES)
    if text(gpu, "gone"):
        yield Grade.FAIL, f"{subject} the driver says: {text(gpu, 'gone')}", _GONE
    uncorrected, corrected = number(gpu, "uncorrected") or 0, number(gpu, "corrected") or 0
    if uncorrected > 0:
        grade = Grade.WARN if is_recovered else Grade.FAIL
        yield grade, f"{subject} {uncorrected:.0f} uncorrected {since} 0)", _RESET
    if corrected > limits["gpu_corrected"]:
        yield (
            Grade.WARN,
            f"{subject} {corrected:.0f} corrected {since} {limits['gpu_corrected']:.0f})",
            _WATCH,
        )
    for field, grade, message, remedy in _YES:
        if text(gpu, field) == "Yes":
            yield grade, f"{subject} {message}", remedy
    if text(gpu, "license").startswith("Unlicensed"):
        message = (
            f"{subject} the license of this virtual GPU: {text(gpu, 'license')}; the driver slows it down"
        )
        yield Grade.WARN, message, _LICENSE
    recovery = text(gpu, "recovery") or ("Reset" if text(gpu, "reset") == "Yes" else "")
    if recovery:
        # The severity of other actions is unknown.
        needs = any(action in recovery for action in _NEEDED)
        grade = Grade.FAIL if needs and recovery != "Drain P2P" else Grade.WARN
        yield grade, f"{subject} the driver asks for: {recovery}", _RESET


_SEVERAL = 3
# Lanes are lost if at least this many GPUs have more, on other nodes or on this node. Else the slot may be
# built with fewer lanes.
_LEAST_NODES, _LEAST_GPUS = 2, 4
_RESEAT = "reseat the GPU or its riser; drain the node until then"


def judge_pcie(request: RunNeeds, readings: Readings) -> Findings:
    """Warn of lost lanes, and of a node whose maximum PCIe generation is below the usual one.

    A slot may be built with fewer lanes than its GPU has. Lanes are lost if most comparable GPUs have more.
    The current generation is not judged: an idle GPU lowers it to save power.
    """
    gpus_by_node = {node: gpus.job_gpus(reading) for node, reading in readings.items()}
    lanes = Counter(
        (text(gpu, "name"), index, number(gpu, "width") or 0.0)
        for node_gpus in gpus_by_node.values()
        for index, gpu in node_gpus
    )
    for node, node_gpus in gpus_by_node.items():
        for index, gpu in node_gpus:
            width, most = number(gpu, "width") or 0.0, number(gpu, "width_most") or 0.0
            if 0 < width < most and _lost(index, gpu, lanes, node_gpus):
                message = f"GPU {index}: PCIe has {width:.0f} lanes of {most:.0f}"
                grade = Grade.FAIL if width * 4 <= most else Grade.WARN
                yield node, Finding("pcie", grade, message, _RESEAT)
    for node, mine, usual in _below_others(readings, "generation_most", 1.0):
        message = f"PCIe reaches generation {mine} here, {usual} on the other nodes"
        yield node, Finding("pcie", Grade.WARN, message, _RESEAT)


def _lost(
    index: int, gpu: Gpu, lanes: Mapping[tuple[str, int, float], int], node_gpus: gpus.Numbered
) -> bool:
    """Return whether most GPUs of the same model and index have more lanes. Few nodes: those of the node."""
    model, width, least = text(gpu, "name"), number(gpu, "width") or 0.0, _LEAST_NODES
    widths = {key[2]: count for key, count in lanes.items() if key[:2] == (model, index)}
    if sum(widths.values()) < _SEVERAL:
        comparable = [other for _, other in node_gpus if text(other, "name") == model]
        widths, least = Counter(number(other, "width") or 0.0 for other in comparable), _LEAST_GPUS
    wider = sum(count for lanes_of_gpu, count in widths.items() if lanes_of_gpu > width)
    return wider >= least and 2 * wider > sum(widths.values())


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


def slowdown(reasons: Sequence[str]) -> tuple[Grade, str, str]:
    """Return grade, cause and remedy of the reasons for low clocks. The first one in ``_REASONS`` counts."""
    reason = next(name for name in _REASONS if name in reasons)
    why, remedy = _REASONS[reason]
    return (Grade.WARN if reason == "sw_thermal_slowdown" else Grade.FAIL), why, remedy


def judge_clocks(request: RunNeeds, readings: Readings) -> Findings:
    """Fail for a slowdown by hardware. Warn for one by the driver, and for lower limits than usual.

    One sample of an idle GPU is a warning: its clocks are low anyway. The matrix product shows a slow GPU.
    """
    for node, reading in readings.items():
        for index, gpu in gpus.job_gpus(reading):
            slowed = [reason for reason in _REASONS if reason in strings(gpu, "slowed")]
            if slowed:
                grade, why, remedy = slowdown(slowed)
                grade = Grade.WARN if gpu.get("idle") is True else grade
                degrees = number(gpu, "temperature")
                heat = "" if degrees is None else f", {degrees:.0f} °C"
                message = f"GPU {index}: {why} ({', '.join(slowed)}{heat})"
                yield node, Finding("clocks", grade, message, remedy)
    for field, (subject, unit, remedy) in _SET.items():
        for node, mine, usual in _below_others(readings, field, 1 - _TOLERATED):
            message = f"the {subject} is {mine} {unit} here, {usual} {unit} on the other nodes"
            yield node, Finding("clocks", Grade.WARN, message, remedy)


_LOOK = "nvidia-smi -q -i {} on the node says under Fabric, Health what is wrong; tell its administrators"
_RESTART = "systemctl restart nvidia-fabricmanager on the node; if that does not help: reboot"


def fabric_problems(index: int, gpu: Gpu, limits: Mapping[str, float]) -> Problems:
    """Fail if a GPU with a fabric has not joined it. Warn if the fabric is not healthy."""
    state, status = text(gpu, "fabric"), text(gpu, "fabric_status")
    if state in ("Not Started", "In Progress"):
        yield Grade.FAIL, f"GPU {index} has not joined the NVSwitch fabric: {state}", _RESTART
    elif state == "Completed" and status not in ("Success", ""):
        yield Grade.FAIL, f"GPU {index} could not join the NVSwitch fabric: {status}", _RESTART
    elif (health := text(gpu, "fabric_health")) not in ("Healthy", ""):
        message = f"the driver calls the NVSwitch fabric of GPU {index} {health}"
        yield Grade.WARN, message, _LOOK.format(index)


_CLIQUE = (
    "nvidia-imex-ctl -N on these nodes: /etc/nvidia-imex/nodes_config.cfg must list the same nodes on all"
)


def judge_fabrics(request: RunNeeds, readings: Readings) -> Findings:
    """Judge the fabric of each GPU, and compare the cliques of nodes in one NVLink domain (IMEX)."""
    yield from _of_each("fabric", fabric_problems).judge(request, readings)
    clique_by_domain: dict[str, dict[str, str]] = {}
    for node, reading in readings.items():
        for _, gpu in gpus.job_gpus(reading)[:1]:
            domain, clique = text(gpu, "domain"), text(gpu, "clique")
            if clique and domain.strip("0-"):
                clique_by_domain.setdefault(domain, {})[node] = clique
    for domain, cliques in clique_by_domain.items():
        subject = f"the NVLink clique of domain {domain}"
        yield from outlier_findings("fabric", subject, cliques, Grade.WARN, _CLIQUE)


# A driver that stays loaded answers nvidia-smi -q in about a second with eight GPUs.
SLOW_DRIVER_SECONDS = 5.0
_ONE_KIND = "ask for one kind of node (--constraint or --partition): every step waits for the slowest GPU"
_ECC = "nvidia-smi -e 1 (or 0) on that node, then reboot it: without ECC wrong bits go unnoticed"
_COMPUTE_MODE = "nvidia-smi -c 0 on that node (an administrator): no program may use a GPU in this mode"
_EQUAL = (
    ("the NVIDIA driver", "driver", "install the same driver on every node, or leave the node out"),
    ("the kind of GPU", "name", _ONE_KIND),
    ("ECC of the GPUs' memory", "ecc", _ECC),
    ("the compute mode of the GPUs", "compute_mode", "nvidia-smi -c 0 on that node, as on the others"),
)


def judge_driver(request: RunNeeds, readings: Readings) -> Findings:
    """Warn of a node with another driver, of other GPUs than most have, and of a driver that loads slowly."""
    for node, reading in readings.items():
        seconds = number(reading, "seconds") or 0.0
        modes = {text(gpu, "persistence") for gpu in rows(reading, "gpus")}
        if seconds > SLOW_DRIVER_SECONDS and "Disabled" in modes:
            message = f"persistence mode is off and nvidia-smi took {seconds:.0f} s: ranks start as slowly"
            yield node, Finding("driver", Grade.WARN, message, gpus.PERSISTENCE)
        for index, gpu in gpus.job_gpus(reading):
            if text(gpu, "compute_mode") == "Prohibited":
                message = f"the compute mode of GPU {index} is Prohibited"
                yield node, Finding("driver", Grade.FAIL, message, _COMPUTE_MODE)
    for subject, field, remedy in _EQUAL:
        values_by_model: dict[str, dict[str, str]] = {}
        for node, reading in readings.items():
            # Models differ in their defaults of ECC and compute mode.
            model = _values(reading, "name") if field in ("ecc", "compute_mode") else ""
            if value := _values(reading, field):
                values_by_model.setdefault(model, {})[node] = value
        for values in values_by_model.values():
            yield from outlier_findings("driver", subject, values, Grade.WARN, remedy)


def _values(reading: object, field: str) -> str:
    """Return the value of a node's driver, or the values of its GPUs."""
    of_gpus = {text(gpu, field) for gpu in rows(reading, "gpus")} - {""}
    return text(reading, field) or ", ".join(sorted(of_gpus))


MEMORY = _of_each("gpu-memory", memory_problems)
ERRORS = _of_each("gpu-errors", error_problems, gpus.suspects)
PCIE = GpuJudge("pcie", judge_pcie)
CLOCKS = GpuJudge("clocks", judge_clocks)
FABRIC = GpuJudge("fabric", judge_fabrics)
DRIVER = GpuJudge("driver", judge_driver)
