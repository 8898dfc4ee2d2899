"""Judge the document of a self-test of GPUs and list its findings, worst first. Reads no file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from clusterrun.model.preflight_report import WORST_FIRST, Finding, Grade, worst

FORMAT = 1
# The function of the shipped script in which its last rank stops.
STALLED_AT = "stalls_on_purpose"
_NUMBERED = re.compile(r"\(call \d+ of ")
# The last loss of a run that learns is below this part of its first loss.
LEAST_FALL = 0.9


def lines(document: dict[str, Any]) -> list[str]:
    results = findings(document)
    ranked = sorted(results, key=lambda finding: WORST_FIRST.index(finding.verdict))
    marks = {Grade.PASS: "ok", Grade.WARN: "WARN", Grade.FAIL: "FAIL", Grade.UNDETERMINED: "unknown"}
    listing = []
    for finding in ranked:
        listing.append(f"{marks[finding.verdict]:<8}{finding.check}: {finding.message}")
        listing += [f"        -> {finding.remedy}"] if finding.remedy else []
    odd = sum(finding.verdict is not Grade.PASS for finding in results)
    head = f"{odd} of {len(results)} findings are not as expected" if odd else "all is as expected"
    size = f"{document.get('nodes')} nodes with {document.get('gpus')} GPUs each"
    return [f"{grade(document).value.upper()}: {head} ({size})", *listing]


def grade(document: dict[str, Any]) -> Grade:
    return worst(tuple(finding.verdict for finding in findings(document)))


def findings(document: dict[str, Any]) -> list[Finding]:
    """Return the findings of every part. A part that was not reached is undetermined. Never raises."""
    results: list[Finding] = []
    for name, judge in _PARTS.items():
        try:
            results += list(judge(document))  # all of a part, or nothing
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            ended = document.get("ended")
            reason = ended if ended and isinstance(ended, str) else "the file does not hold it"
            results.append(Finding(name, Grade.UNDETERMINED, f"was not reached: {reason}", _LOOK))
    return results


_LOOK = "clusterrun logs and clusterrun diagnose, with the run ids in the file, say more"


def _devices(document: dict[str, Any]) -> Iterator[Finding]:
    devices, expected = document["devices"], int(document["gpus"])
    names, kinds = devices["names"], sorted(set(devices["names"]))
    inventory = f"{len(names)} × {', '.join(kinds) or 'nothing'}, torch {devices['torch']}"
    version = devices["cuda"] or devices["hip"] or "none"
    if devices["device"] != "cuda" or len(names) < expected:
        remedy = "install a build of torch for these GPUs; compare nvidia-smi -L with CUDA_VISIBLE_DEVICES"
        message = f"torch sees {inventory}, not {expected} GPUs (CUDA {version})"
        yield Finding("devices", Grade.FAIL, message, remedy)
        return
    yield Finding("devices", Grade.PASS, f"{inventory}, CUDA or HIP {version}, NCCL {devices['nccl']}")
    answered = [name for name, text in devices["listing"].items() if text and "no answer" not in text[:40]]
    if answered:
        yield Finding("driver", Grade.PASS, f"{', '.join(answered)} answered")
        return
    remedy = "put the driver's program on the PATH of the nodes: checks of memory, clocks and PCIe read it"
    yield Finding("driver", Grade.WARN, "neither nvidia-smi, amd-smi nor rocm-smi answered", remedy)


def _check(document: dict[str, Any]) -> Iterator[Finding]:
    report = document["check"]
    message = f"{report['verdict']} after {report['seconds']:.0f} s by {report['backend']}"
    yield Finding("check", Grade(report["verdict"]), message)
    if report["backend"] != "nccl":
        message = f"collectives were tested with {report['backend'] or 'nothing'}, not with NCCL"
        yield Finding("check", Grade.FAIL, message, "; ".join(report["notices"])[:300])
    for name, node in report["nodes"].items():
        for finding in node["findings"]:
            message = f"{name}: {finding['check']}: {_message(finding)}"
            yield Finding("check", Grade(finding["verdict"]), message, finding["remedy"])


def _message(entry: dict[str, Any]) -> str:
    """Return the message of a finding or of a diagnosis. Older files have it as ``said``."""
    return str(entry["message"] if "message" in entry else entry["said"])


def _sums(document: dict[str, Any]) -> Iterator[Finding]:
    if wrong := document["sums"]["wrong"]:
        remedy = "drain the node: what it computes or sends is wrong without any error"
        message = f"all-reduce is wrong: {', '.join(map(str, wrong))[:300]}"
        yield Finding("sums", Grade.FAIL, message, remedy)
    else:
        message = "all-reduces of int64, float32 and bfloat16 are exact on every rank"
        yield Finding("sums", Grade.PASS, message)


def _rates(document: dict[str, Any]) -> Iterator[Finding]:
    rates = {int(size): float(rate) for size, rate in document["rates"].items()}
    if int(document["ranks"]) < 2:
        yield Finding("bandwidth", Grade.PASS, "one rank: there is nothing to measure")
        return
    highest = max(rates.values())
    listing = ", ".join(f"{rate:.4g} GB/s with {size >> 20} MiB" for size, rate in sorted(rates.items()))
    tests = [test for test in document["check"]["tests"] if test["test"] == "set"]
    checked = max((test["gigabytes_per_second"] or 0.0 for test in tests), default=0.0)
    message = f"bus bandwidth {listing}; the check measured {checked:.4g}"
    findings_of_all = document["check"]["nodes"].get("", {"findings": []})["findings"]
    limits = [message for message in map(_message, findings_of_all) if "limit" in message]
    if highest <= 0:
        remedy = "set NCCL_DEBUG=INFO to see the transport that NCCL chooses"
        yield Finding("bandwidth", Grade.FAIL, message, remedy)
    elif checked and highest < 0.5 * checked:
        message = f"{message}: less than half under the agent"
        yield Finding("bandwidth", Grade.WARN, message, "compare the NCCL_* variables of both runs")
    else:
        yield Finding("bandwidth", Grade.WARN if limits else Grade.PASS, "; ".join([message, *limits]))


def _training(document: dict[str, Any]) -> Iterator[Finding]:
    training = document["training"]
    message = (
        f"DDP: loss {training['first']} to {training['last']} in {1000 * training['seconds']:.1f} ms a step"
    )
    if training["equal"] is not True:
        remedy = "drain the node whose sums are wrong; look for ranks that run other code"
        yield Finding("training", Grade.FAIL, f"{message}; the ranks' weights differ", remedy)
    elif not float(training["last"]) < LEAST_FALL * float(training["first"]):
        yield Finding("training", Grade.FAIL, f"{message}: it does not learn", "compare with --gpus 0")
    else:
        yield Finding("training", Grade.PASS, f"{message}; the same weights on every rank")


def _hang(document: dict[str, Any]) -> Iterator[Finding]:
    if int(document["ranks"]) < 2:
        yield Finding("hang", Grade.PASS, "one rank: no other would wait for it")
        return
    stalled, diagnosis = int(document["stall"]["rank"]), document["hang"]
    named = [culprit["rank"] for culprit in diagnosis["culprits"]]
    seconds = float(diagnosis["at"]) - float(document["stall"]["at"])
    after = f"{seconds:.0f} s after rank {stalled} stopped on purpose"
    if named != [stalled]:
        verdict = f"named rank {', '.join(map(str, named))}" if named else "named no rank"
        message = f"the diagnosis {after} {verdict}: {_message(diagnosis)}"
        yield Finding("hang", Grade.FAIL, message, "please report it with this file")
        return
    yield Finding("hang", Grade.PASS, f"{after} it was named: {_message(diagnosis)}")
    if STALLED_AT in json.dumps([diagnosis["groups"], diagnosis["culprits"]]):
        yield Finding("stacks", Grade.PASS, "the stalled rank's stack names its line")
    else:
        remedy = "ptrace may be forbidden: py-spy dump --pid on a node"
        yield Finding("stacks", Grade.WARN, "no stack shows the line of the stalled rank", remedy)
    if _NUMBERED.search(json.dumps([_message(diagnosis), diagnosis["evidence"]])):
        yield Finding("flight records", Grade.PASS, "the collective was identified by its number")
    else:
        message = "no collective was identified by its number: torch's flight records could not be read"
        yield Finding("flight records", Grade.WARN, message, "TORCH_FR_BUFFER_SIZE must not be 0")


_PARTS = {
    "devices": _devices,
    "check": _check,
    "sums": _sums,
    "bandwidth": _rates,
    "training": _training,
    "hang": _hang,
}
