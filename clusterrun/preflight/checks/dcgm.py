"""Report what DCGM says of the GPUs' health, where an administrator lets it watch them."""

from __future__ import annotations

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.probes.run_program import answer
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import strings

NAME = "dcgm"
LIMIT = 12.0
LATE = Finding(NAME, Grade.UNDETERMINED, "dcgmi gave no answer within 12 s", "systemctl status nvidia-dcgm")
_SECONDS = 8.0
_REMEDY = "dcgmi health -g 0 -c on the node; drain it and run dcgmi diag -r 3"
_BAD = ("Warning", "Failure")
_MOST = 4


def probe(request: RunNeeds) -> object:
    """Return the problems that DCGM found since an administrator let it watch the GPUs.

    It only reads. Without a service, or without watches, there are no problems to report.
    """
    return {"problems": problems(answer("dcgmi", "health", "-g", "0", "-c", seconds=_SECONDS).out)}


def problems(table: str) -> list[str]:
    """Return the messages in DCGM's table: ``GPU 0, PCIe system: Detected more than 8 PCIe replays…``."""
    result: list[str] = []
    gpu = system = ""
    is_bad = False
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 2 or set(line.strip()) <= set("+-=|"):
            continue
        name, value = cells[0].lstrip("-> ").strip(), cells[1]
        if name.isdecimal():
            gpu, system = f"GPU {name}", ""
        elif name and value in ("Healthy", *_BAD):
            system, is_bad = name, value in _BAD
        elif not name and value and is_bad and gpu:
            result.append(f"{gpu}, {system}: {value}")
            is_bad = False  # the next lines continue this message
    return result[:_MOST]


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Warn of each problem that DCGM reports. Tests of this check decide whether the node is fit."""
    for node, reading in readings.items():
        for problem in strings(reading, "problems"):
            yield node, Finding(NAME, Grade.WARN, problem, _REMEDY)
