"""What the file of a self-test of GPUs says that is not as expected, worst first; pure, knows no file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from clusterrun.model.preflight_report import WORST_FIRST, Finding, Grade, worst

FORMAT = 1
STALLED_AT = "stalls_on_purpose"
"""The function of the shipped script in which its last rank stops."""
_NUMBERED = re.compile(r"\(\d+ of ")
LEAST_FALL = 0.9
"""Of the first loss; the last one of a run that learns is lower."""


def lines(document: dict[str, Any]) -> list[str]:
    found = findings(document)
    ranked = sorted(found, key=lambda one: WORST_FIRST.index(one.verdict))
    marks = {Grade.PASS: "ok", Grade.WARN: "WARN", Grade.FAIL: "FAIL", Grade.UNDETERMINED: "unknown"}
    shown = []
    for one in ranked:
        shown.append(f"{marks[one.verdict]:<8}{one.check}: {one.said}")
        shown += [f"        -> {one.remedy}"] if one.remedy else []
    odd = sum(one.verdict is not Grade.PASS for one in found)
    head = "all is as expected" if not odd else f"{odd} of {len(found)} findings are not as expected"
    size = f"{document.get('nodes')} nodes with {document.get('gpus')} GPUs each"
    return [f"{grade(document).value.upper()}: {head} ({size})", *shown]


def grade(document: dict[str, Any]) -> Grade:
    return worst(tuple(one.verdict for one in findings(document)))


def findings(document: dict[str, Any]) -> list[Finding]:
    """Of every part what was seen; what was not reached is undetermined. Never raises."""
    found: list[Finding] = []
    for name, judge in _PARTS.items():
        try:
            found += list(judge(document))  # all of a part, or nothing
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            ended = document.get("ended")
            why = ended if ended and isinstance(ended, str) else "the file does not hold it"
            found.append(Finding(name, Grade.UNDETERMINED, f"was not reached: {why}", _LOOK))
    return found


_LOOK = "clusterrun logs and clusterrun diagnose, with the run ids in the file, say more"


def _devices(document: dict[str, Any]) -> Iterator[Finding]:
    seen, wanted = document["devices"], int(document["gpus"])
    names, kinds = seen["names"], sorted(set(seen["names"]))
    what = f"{len(names)} × {', '.join(kinds) or 'nothing'}, torch {seen['torch']}"
    version = seen["cuda"] or seen["hip"] or "none"
    if seen["device"] != "cuda" or len(names) < wanted:
        remedy = "install a build of torch for these GPUs; compare nvidia-smi -L with CUDA_VISIBLE_DEVICES"
        said = f"torch sees {what}, not {wanted} GPUs (CUDA {version})"
        yield Finding("devices", Grade.FAIL, said, remedy)
        return
    yield Finding("devices", Grade.PASS, f"{what}, CUDA or HIP {version}, NCCL {seen['nccl']}")
    answered = [name for name, text in seen["listing"].items() if text and "no answer" not in text[:40]]
    if answered:
        yield Finding("driver", Grade.PASS, f"{', '.join(answered)} answered")
        return
    remedy = "put the driver's program on the PATH of the nodes: checks of memory, clocks and PCIe read it"
    yield Finding("driver", Grade.WARN, "neither nvidia-smi, amd-smi nor rocm-smi answered", remedy)


def _check(document: dict[str, Any]) -> Iterator[Finding]:
    report = document["check"]
    said = f"{report['verdict']} after {report['seconds']:.0f} s by {report['backend']}"
    yield Finding("check", Grade(report["verdict"]), said)
    if report["backend"] != "nccl":
        said = f"collectives were tested with {report['backend'] or 'nothing'}, not with NCCL"
        yield Finding("check", Grade.FAIL, said, "; ".join(report["notices"])[:300])
    for name, node in report["nodes"].items():
        for one in node["findings"]:
            said = f"{name}: {one['check']}: {one['said']}"
            yield Finding("check", Grade(one["verdict"]), said, one["remedy"])


def _sums(document: dict[str, Any]) -> Iterator[Finding]:
    if wrong := document["sums"]["wrong"]:
        remedy = "drain the node: what it computes or sends is wrong without any error"
        said = f"all-reduce is wrong: {', '.join(map(str, wrong))[:300]}"
        yield Finding("sums", Grade.FAIL, said, remedy)
    else:
        said = "all-reduces of int64, float32 and bfloat16 are exact on every rank"
        yield Finding("sums", Grade.PASS, said)


def _rates(document: dict[str, Any]) -> Iterator[Finding]:
    rates = {int(size): float(rate) for size, rate in document["rates"].items()}
    if int(document["ranks"]) < 2:
        yield Finding("bandwidth", Grade.PASS, "one rank: there is nothing to measure")
        return
    most = max(rates.values())
    shown = ", ".join(f"{rate:.4g} GB/s with {size >> 20} MiB" for size, rate in sorted(rates.items()))
    sets = [one for one in document["check"]["tests"] if one["test"] == "set"]
    measured = max((one["gigabytes_per_second"] or 0.0 for one in sets), default=0.0)
    told = f"bus bandwidth {shown}; the check measured {measured:.4g}"
    known = [one["said"] for one in document["check"]["nodes"].get("", {"findings": []})["findings"]]
    slow = [said for said in known if "limit" in said]
    if most <= 0:
        remedy = "NCCL_DEBUG=INFO says which way NCCL takes"
        yield Finding("bandwidth", Grade.FAIL, told, remedy)
    elif measured and most < 0.5 * measured:
        said = f"{told}: less than half under the agent"
        yield Finding("bandwidth", Grade.WARN, said, "compare the NCCL_* variables of both runs")
    else:
        yield Finding("bandwidth", Grade.WARN if slow else Grade.PASS, "; ".join([told, *slow]))


def _training(document: dict[str, Any]) -> Iterator[Finding]:
    seen = document["training"]
    said = f"DDP: loss {seen['first']} to {seen['last']} in {1000 * seen['seconds']:.1f} ms a step"
    if seen["equal"] is not True:
        remedy = "drain the node whose sums are wrong; look for ranks that run other code"
        yield Finding("training", Grade.FAIL, f"{said}; the ranks' weights differ", remedy)
    elif not float(seen["last"]) < LEAST_FALL * float(seen["first"]):
        yield Finding("training", Grade.FAIL, f"{said}: it does not learn", "compare with --gpus 0")
    else:
        yield Finding("training", Grade.PASS, f"{said}; the same weights on every rank")


def _hang(document: dict[str, Any]) -> Iterator[Finding]:
    if int(document["ranks"]) < 2:
        yield Finding("hang", Grade.PASS, "one rank: no other would wait for it")
        return
    stalled, found = int(document["stall"]["rank"]), document["hang"]
    named = [one["rank"] for one in found["culprits"]]
    seconds = float(found["at"]) - float(document["stall"]["at"])
    after = f"{seconds:.0f} s after rank {stalled} stopped on purpose"
    if named != [stalled]:
        whom = f"named rank {', '.join(map(str, named))}" if named else "named no rank"
        said = f"the diagnosis {after} {whom}: {found['said']}"
        yield Finding("hang", Grade.FAIL, said, "please report it with this file")
        return
    yield Finding("hang", Grade.PASS, f"{after} it was named: {found['said']}")
    if STALLED_AT in json.dumps([found["groups"], found["culprits"]]):
        said = "the stalled rank's stack names the line where it stood"
        yield Finding("stacks", Grade.PASS, said)
    else:
        remedy = "ptrace may be forbidden: py-spy dump --pid on a node"
        yield Finding("stacks", Grade.WARN, "no stack shows where the stalled rank stood", remedy)
    if _NUMBERED.search(json.dumps([found["said"], found["evidence"]])):
        yield Finding("flight records", Grade.PASS, "the collective was told by its number")
    else:
        said = "no collective was told by its number: torch's flight records could not be read"
        yield Finding("flight records", Grade.WARN, said, "TORCH_FR_BUFFER_SIZE must not be 0")


_PARTS = {
    "devices": _devices,
    "check": _check,
    "sums": _sums,
    "bandwidth": _rates,
    "training": _training,
    "hang": _hang,
}
