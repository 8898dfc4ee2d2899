"""The self-test of GPUs: a check and a short run with a hang, and what both found as one document."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Any

from clusterrun import __version__, shipped
from clusterrun.api import Run, launch
from clusterrun.bench.runner import rank0_output
from clusterrun.local.gpus import count_gpus
from clusterrun.model.document import encode
from clusterrun.model.errors import BadInput, ClusterrunError
from clusterrun.model.frozen import replace
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.operations.context import Context, Tell
from clusterrun.operations.wait import RunWait
from clusterrun.reports.json_document import REPORT
from clusterrun.reports.selftest_findings import FORMAT
from clusterrun.slurm import partition_limits

NAME = "selftest-gpu"
HANG_SECONDS = 15
# Time limit of the second run. It takes a minute, or more if GPUs load slowly.
LONGEST_SECONDS = 900
_LINE = re.compile(r"^selftest (\w+) (\{.*\})$", re.MULTILINE)


def with_gpus(spec: JobSpec, context: Context) -> JobSpec:
    """Return ``spec`` with all GPUs of a node if it requests none. Raise ``BadInput`` if there are none."""
    is_local = spec.cluster is Cluster.LOCAL or (
        spec.cluster is Cluster.AUTO and bool(context.client().why_not())
    )
    if is_local:
        available = count_gpus(context.environ) // spec.allocated
        where = f"this machine has {available}" if spec.gpus and available else "this machine has none"
    else:
        offer = None if spec.gpus else partition_limits.target_partition(spec, context.client().partitions())
        available = spec.gpus or (offer.gpus if offer else 0)
        where = "Slurm reports none in that partition"
    requested = spec.gpus or available
    if 0 < requested <= available:
        return replace(spec, gpus=requested)
    raise BadInput(
        f"the self-test needs {requested or 'some'} GPUs on a node, and {where}",
        "say where they are, on a login node: clusterrun check --selftest-gpu --gpus 8 --partition NAME",
    )


def measure(spec: JobSpec, context: Context, tell: Tell) -> dict[str, Any]:
    """Make both runs, one after the other, and return all that they found. Raises ``ClusterrunError``."""
    values_by_name: dict[str, Any] = {
        "format": FORMAT,
        "clusterrun": __version__,
        "made_at": context.clock.now(),
        "nodes": spec.nodes,
        "gpus": spec.gpus,
        "ranks": spec.world_size,
    }
    tell("1 of 2: the check of the nodes, about a minute")
    checked = _ended(spec, context, tell)
    values_by_name["check_run"] = checked.run_id
    try:
        values_by_name["check"] = REPORT.document(checked.report())
    except ClusterrunError as error:
        values_by_name["ended"] = error.seen
    tell("2 of 2: sums, bandwidth, training, and a rank that stops on purpose, about a minute")
    ran = _ended(training(spec), context, tell)
    values_by_name["run"], values_by_name["state"] = ran.run_id, ran.status().state.value
    for name, values in _LINE.findall(rank0_output(context, ran.run_id)):
        values_by_name[name] = json.loads(values)
    diagnosis = ran.diagnose()
    hang = {**encode(diagnosis), "verdict": diagnosis.verdict.value}
    values_by_name["hang" if "stall" in values_by_name else "failed"] = hang
    if "stall" not in values_by_name and "ended" not in values_by_name and spec.world_size > 1:
        values_by_name["ended"] = diagnosis.message
    return values_by_name


def training(spec: JobSpec) -> JobSpec:
    """Return the run that trains and hangs, on what ``spec`` checks."""
    script = os.path.join(shipped.folder("jobs"), "gpu_selftest.py")
    return replace(
        spec,
        command=(script,),
        name=NAME,
        alone=False,
        all_pairs=False,
        table=False,
        burn=0,
        preflight="off",
        spares=0,
        max_restarts=0,
        hang_after=HANG_SECONDS,
        on_hang="kill",
        time=LONGEST_SECONDS,
    )


def _ended(spec: JobSpec, context: Context, tell: Tell) -> Run:
    run = launch(spec, context, tell)
    RunWait(context, run.run_id, tell, logs_are_shown=True).wait(None)
    return run


def hidden(text: str, names: Iterable[str], context: Context) -> str:
    """Return ``text`` without the names of nodes and of the user: ``node0``, ``node1``, ``user``."""
    user = os.path.basename(context.environ.get("HOME", "").rstrip("/"))
    nodes = list(dict.fromkeys(name for name in names if name))
    replacements = [(name, f"node{nodes.index(name)}") for name in sorted(nodes, key=len, reverse=True)]
    if len(user) > 1:
        replacements.append((user, "user"))
    for before, after in replacements:
        text = re.sub(rf"(?<![A-Za-z0-9-]){re.escape(before)}(?![A-Za-z0-9])", after, text)
    return text


def text_of(selftest: dict[str, Any], context: Context, anonymous: bool) -> str:
    """Return the document as it is kept: the home as ``~``, and without names where that is wanted."""
    home = context.environ.get("HOME", "").rstrip("/")
    text = json.dumps(selftest, indent=1)
    text = text.replace(home + "/", "~/") if len(home) > 1 else text
    checked = selftest.get("check") or {}
    return (
        hidden(text, (*checked.get("nodes", ()), *checked.get("world", ())), context) if anonymous else text
    )
