"""Find NVLinks that are inactive or slow on a GPU but not on others, and links with errors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from clusterrun.model.limits import chosen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.checks import gpus
from clusterrun.preflight.probes.run_program import answer
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import number, rows, text

NAME = "nvlink"
LIMIT = 62.0
LATE = Finding(
    NAME,
    Grade.UNDETERMINED,
    f"nvidia-smi nvlink gave no answer within {LIMIT:g} s",
    "nvidia-smi nvlink --status on the node: does it answer?",
)
LATE_WITH = gpus.NAME
_ONE = 30.0
_GPU = re.compile(r"GPU (\d+):(?: (.*) \(UUID: ([^)]+)\))?")
_LINK = re.compile(r"\s+Link (\d+): (<inactive>|([\d.]+) GB/s)")
_NO_LINK = re.compile(r"(?i).*all links are inactive")
# Error counts. Errors of lanes before correction and corrected words (Blackwell) do not match.
_ERRORS = re.compile(r"\s+Link (\d+): (?:\w[\w ]* Errors|Total Link recovery events): (\d+)", re.I)
_SLOWER = 0.9
_REMEDY = (
    "dmesg | grep -i -e nvlink -e xid, then reset the GPUs (nvidia-smi -r) or reboot; else replace the GPU"
)
_BRIDGED = "unless these are cards without a bridge"


def probe(request: RunNeeds) -> object:
    """Return the link speeds in GB/s (0 if inactive) and the errors of each GPU of the job."""
    status = answer("nvidia-smi", "nvlink", "--status", seconds=_ONE)
    errors = answer("nvidia-smi", "nvlink", "-e", seconds=_ONE)
    gpu_rows = of_text(status.out, errors.out)
    numbered = [(int(number(row, "gpu") or 0), row) for row in gpu_rows]
    return [row for _, row in gpus.among(gpus.names(), numbered)]


def of_text(status: str, errors: str) -> list[dict[str, object]]:
    """Return one row per GPU with links, from the output of both commands."""
    speeds: dict[int, dict[str, float]] = {}
    models: dict[int, str] = {}
    uuids: dict[int, str] = {}
    gpu = -1
    for line in status.splitlines():
        head, link = _GPU.match(line), _LINK.match(line)
        if head:
            gpu = int(head[1])
            models[gpu], uuids[gpu] = head[2] or "", head[3] or ""
        if _NO_LINK.match(line) and gpu >= 0:
            speeds.setdefault(gpu, {})
        if link:
            speeds.setdefault(gpu, {})[link[1]] = float(link[3] or 0)
    counted: Counter[int] = Counter()
    for line in errors.splitlines():
        head, error = _GPU.match(line), _ERRORS.match(line)
        gpu = int(head[1]) if head else gpu
        if error:
            counted[gpu] += int(error[2])
    return [
        {
            "gpu": index,
            "uuid": uuids.get(index, ""),
            "model": models.get(index, ""),
            "speeds": list(links.values()),
            "errors": counted[index],
        }
        for index, links in speeds.items()
    ]


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Fail if a GPU has fewer active links than most GPUs of its model. Warn of slow links and of errors."""
    links_by_model: dict[str, list[tuple[str, Mapping[str, object], list[float]]]] = {}
    for node, reading in readings.items():
        for row in rows(reading):
            links_by_model.setdefault(text(row, "model"), []).append((node, row, _speeds(row)))
    most_errors = chosen(request.limits)["link_errors"]
    for gpus_of_model in links_by_model.values():
        active_links = [sum(speed > 0 for speed in speeds) for _, _, speeds in gpus_of_model]
        counts = Counter(active_links)
        usual_count = max(counts, key=lambda count: (counts[count], count))
        most_have_links = 2 * counts[usual_count] > len(gpus_of_model)
        fastest = max((speed for _, _, speeds in gpus_of_model for speed in speeds), default=0.0)
        without_links: dict[str, list[str]] = {}
        for (node, gpu, speeds), active in zip(gpus_of_model, active_links):
            index = f"{number(gpu, 'gpu') or 0:.0f}"
            name = f"GPU {index}"
            if active == 0 and most_have_links and usual_count:
                without_links.setdefault(node, []).append(index)
            elif active < usual_count and active:
                message = f"{name} has {active} active NVLinks, {usual_count} is usual"
                yield node, Finding(NAME, Grade.FAIL, message, _REMEDY)
            slow = sum(0 < speed < _SLOWER * fastest for speed in speeds)
            if slow and 2 * slow <= len(speeds):
                message = f"{slow} NVLinks of {name} are slower than {fastest:g} GB/s"
                yield node, Finding(NAME, Grade.WARN, message, _REMEDY)
            errors = number(gpu, "errors") or 0.0
            if errors > most_errors:
                message = f"{errors:.0f} NVLink errors of {name} (limit {most_errors:.0f})"
                yield node, Finding(NAME, Grade.WARN, message, _REMEDY)
        for node, indices in without_links.items():
            # Bridges join cards in pairs: an even number of cards without a link may have no bridge.
            may_lack_bridge = len(indices) % 2 == 0
            message = f"GPU {', '.join(indices)}: no active NVLink, {usual_count} is usual"
            remedy = f"{_BRIDGED}: {_REMEDY}" if may_lack_bridge else _REMEDY
            yield node, Finding(NAME, Grade.WARN if may_lack_bridge else Grade.FAIL, message, remedy)


def _speeds(row: Mapping[str, object]) -> list[float]:
    listed = row.get("speeds")
    numbers = [number(speed) for speed in listed] if isinstance(listed, list) else []
    return [speed for speed in numbers if speed is not None]
