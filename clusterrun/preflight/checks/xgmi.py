"""Find AMD GPUs with fewer xGMI links up than others."""

from __future__ import annotations

import os
import re

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.checks import amd_gpus
from clusterrun.preflight.majority import vote
from clusterrun.preflight.probes.run_program import answer
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.thresholds import MINORITY
from clusterrun.preflight.untrusted import entries, text

NAME = "xgmi"
LIMIT = 15.0
LATE = Finding(
    NAME,
    Grade.UNDETERMINED,
    f"amd-smi xgmi gave no answer within {LIMIT:g} s",
    "time amd-smi xgmi on the node: does it answer?",
)
LATE_WITH = amd_gpus.NAME
_SECONDS = 7.0
# ROCm 7.1 and later, and ROCm 6.3 to 7.0.
_TABLES = ("--source-status", "--link-status")
# ``GPU0   0000:08:00.0  U  U  U  U  D  U  D  X``: up, down, disabled.
_ROW = re.compile(r"\s*GPU(\d+)\s+[\da-fA-F]+:[\da-fA-F:.]+((?:\s+[UDX])+)\s*$", re.MULTILINE)
_REMEDY = (
    "amd-smi xgmi and dmesg | grep -i xgmi on the node; reset the GPUs (amd-smi reset --gpureset) or reboot; "
    "else have it repaired"
)


def probe(request: RunNeeds) -> object:
    """Return the states of the links of each GPU by its number, such as ``UUUUDUDX``."""
    if not os.path.exists(amd_gpus.DEVICE):
        return {}
    for table in _TABLES:
        states = of_text(answer("amd-smi", "xgmi", table, seconds=_SECONDS).out)
        if states:
            return states
    return {}


def of_text(out: str) -> dict[str, str]:
    """Return the states by GPU number. A machine that shows no link as up does not report its links."""
    states = {number: "".join(letters.split()) for number, letters in _ROW.findall(out)}
    return states if any("U" in letters for letters in states.values()) else {}


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Warn about a GPU with fewer links up than the same GPU of most nodes, or than most GPUs of its node.

    Healthy machines have links that are down by design. GPUs of one node may have different numbers of links.
    A node with fewer links at most of its GPUs is another model.
    """
    links = {
        node: {gpu: text(reading, gpu).count("U") for gpu in entries(reading)}
        for node, reading in readings.items()
        if entries(reading)
    }
    # A GPU is compared with the same GPU of other nodes, or of few nodes with the other GPUs of its node.
    is_between_nodes = len(links) >= MINORITY
    compared: dict[str, dict[str, int]] = {}
    for node, counts in links.items():
        for gpu, count in counts.items():
            group, member = (gpu, node) if is_between_nodes else (node, gpu)
            compared.setdefault(group, {})[member] = count
    fewer: dict[tuple[str, str], int] = {}
    for group, counts in compared.items():
        result = vote({member: str(count) for member, count in counts.items()})
        for member in result.outliers:
            if counts[member] < int(result.majority):
                place = (member, group) if is_between_nodes else (group, member)
                fewer[place] = int(result.majority)
    for (node, gpu), usual in fewer.items():
        if 2 * sum(other == node for other, _ in fewer) <= len(links[node]):
            message = f"GPU {gpu}: {links[node][gpu]} xGMI links are up, {usual} is usual"
            yield node, Finding(NAME, Grade.WARN, message, _REMEDY)
