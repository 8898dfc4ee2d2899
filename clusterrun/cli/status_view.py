"""Declare the columns and the JSON document of `status`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from clusterrun.cli import terminal
from clusterrun.model.duration import clock_time, spoken
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import Any, fields
from clusterrun.model.record import RunStatus
from clusterrun.model.states import Phase, State
from clusterrun.model.visible import visible
from clusterrun.operations.all_jobs import JobLine
from clusterrun.operations.context import Context
from clusterrun.reports.view import INTEGER, NUMBER, TEXT, TIME, Kind, View, ViewField, many, one_of, optional

_PAINT = {State.RUNNING: "green", State.PENDING: "yellow", State.COMPLETED: "", State.UNKNOWN: "magenta"}
# A time of 0 or None and a negative count were never reported.
MOMENT = optional(TIME, lambda moment: not moment)
COUNT = optional(INTEGER, lambda count: count < 0)
# A longer error is cut in the table.
ERROR_CHARACTERS = 120
ROUNDED = Kind(NUMBER.schema, lambda number: round(number, 4))


def _size(status: RunStatus, now: float) -> str:
    ranks_per_node = status.world_size // status.nodes if status.nodes else 0
    return f"{status.nodes}×{ranks_per_node}"


def _time(status: RunStatus, now: float) -> str:
    began = status.started_at or status.submitted_at
    ended = status.ended_at or now
    return spoken(ended - began) if began else ""


def reason_of(status: RunStatus, now: float) -> str:
    error = status.error[:ERROR_CHARACTERS] + ("…" if len(status.error) > ERROR_CHARACTERS else "")
    event, separator, rest = status.reason.partition("; ")
    time_of_day = f" at {clock_time(status.failed_at, now)}" if status.failed_at else ""
    reason = f"{event}{time_of_day}{separator}{rest}"
    step = f"step {status.step}" if status.step >= 0 and status.phase is Phase.TRAINING else ""
    error = "" if status.error in status.reason else error
    return "; ".join(filter(None, (status.point, reason, error, step)))


CAUSES = (
    *("", "first", "failure", "node", "hang", "port", "coordinator", "preemption", "time-limit"),
    *("requeue", "unfit", "overload"),
)
# The rules about restarts, each with its evidence and what follows.
DECISIONS = {
    "": "",
    "failure": "it may not recur: restart",
    "node": "a node was lost: restart, with a spare if there is one",
    "hang": "nothing moved: restart",
    "port": "the port was taken: restart with another one",
    "overload": "a node was lost before ranks started, under overload: restart",
    "too-few": "too few nodes are left in this job: --requeue continues in another, --spares keeps one ready",
    "budget": "--max-restarts is used up: the run ends",
    "no-progress": "--no-progress is used up: the run ends",
    "own-text": "the script's own text is wrong, on every node: the run ends",
    "usage": "the script refuses its arguments: the run ends",
    "environment": "a module or a program is missing on every node: the run ends",
    "host-memory": "the same work needs the same memory: the run ends",
    "gpu-memory": "the same batch needs the same memory: the run ends",
    "hardware": "a fault of a GPU, a link or a driver: restart without the node",
    "network": "NCCL lost a peer: restart, after a check of the node's links",
    "same-error": "the same error as in the attempt before, without progress: the run ends",
}
FAILURE = View(
    "Its first failure.",
    ViewField("rank", "The rank; null if a node failed.", COUNT),
    ViewField("node", "The node."),
    ViewField("code", "The exit code; negative for a signal.", INTEGER),
    ViewField("why", "The failure as a sentence."),
    ViewField("at", "When.", MOMENT),
    ViewField("error", "The error that ended the rank, as printed; empty if it printed none."),
    ViewField("place", "The line of the user's code in its traceback."),
)
ATTEMPT = View(
    "One start of all ranks.",
    ViewField("attempt", "Its number, from 0.", INTEGER, lambda attempt: attempt.epoch),
    ViewField("cause", "Why it was made, as one word.", one_of(CAUSES)),
    ViewField("reason", "Why it was made, as a sentence."),
    ViewField("nodes", "The nodes that train, in rank order.", many(TEXT, "A node.")),
    ViewField("job_id", "The job it was made in."),
    ViewField("started_at", "When it began.", MOMENT),
    ViewField("ended_at", "When it ended; null while it lives.", MOMENT),
    ViewField("outcome", "How it ended; empty while it lives."),
    ViewField("step", "The highest step that it reported.", COUNT),
    ViewField("checkpoint", "The newest checkpoint that it reported.", COUNT),
    ViewField("failure", "Its first failure.", optional(FAILURE)),
    ViewField("ranks_at", "When all its ranks ran.", MOMENT),
    ViewField(
        "decision",
        "The [rule](survive.md#decisions) that decided what followed from its failure.",
        one_of(DECISIONS),
    ),
)
TRACKER = View(
    "A link in a rank's log.",
    ViewField("tool", "The tracker: `W&B`, `MLflow`, …"),
    ViewField("url", "The link, as it was printed: foreign text."),
    ViewField("rank", "The rank that printed it.", INTEGER),
)
END_REPORT = View(
    "Times in seconds, memory in bytes; null: not measured.",
    ViewField("queue", "Seconds in the queue, before the first job and between jobs.", ROUNDED),
    ViewField("allocated", "Seconds in which the run had its nodes.", ROUNDED),
    ViewField("check", "Seconds of pre-flight checks, a part of `allocated`.", ROUNDED),
    ViewField("between", "Seconds between two attempts in one allocation, a part of `allocated`.", ROUNDED),
    ViewField("nodes", "Nodes, spares too.", INTEGER),
    ViewField("start", "Seconds in which ranks were started, a part of `allocated`.", optional(ROUNDED)),
    ViewField("ranks", "Seconds in which ranks ran, a part of `allocated`.", optional(ROUNDED)),
    ViewField(
        "steps",
        "Seconds between the first and the last step that the script reported, a part of `ranks`.",
        optional(ROUNDED),
    ),
    ViewField(
        "counted",
        "Seconds in steps that no later attempt had to repeat, a part of `steps`.",
        optional(ROUNDED),
    ),
    ViewField("goodput", "`counted` / `allocated`.", optional(ROUNDED)),
    ViewField("cores_mean", "Cores of a node that its ranks used on average.", optional(ROUNDED)),
    ViewField("cores_most", "The most in one sample.", optional(ROUNDED)),
    ViewField("cores_asked", "Cores of a node that were asked for.", optional(INTEGER)),
    ViewField("memory_most", "The most bytes that the ranks of a node had at once.", optional(ROUNDED)),
    ViewField("memory_asked", "Bytes of a node that were asked for.", optional(INTEGER)),
    ViewField("gpus", "GPUs that were looked at.", optional(INTEGER)),
    ViewField("gpus_idle", "GPUs that were never busy.", optional(INTEGER)),
    ViewField("gpu_busy_mean", "The share of the time in which GPUs were busy.", optional(ROUNDED)),
    ViewField("gpu_busy_most", "The highest of a node in one sample.", optional(ROUNDED)),
    ViewField(
        "gpu_memory_most", "The share of its memory that the fullest GPU had taken.", optional(ROUNDED)
    ),
    ViewField("gpu_joules", "Joules that the GPUs counted.", optional(ROUNDED)),
    ViewField(
        "node_joules",
        "Joules that Slurm measured on all nodes (ConsumedEnergy of the accounting).",
        optional(ROUNDED),
    ),
    ViewField("smaller", "Options that would have been enough.", many(TEXT, "An option with its value.")),
)
RUN = View(
    "One run.",
    ViewField("run_id", "The run.", header="RUN"),
    ViewField(
        "job_id",
        "Slurm's newest job of the run, or the process of a local one; empty while it is being submitted.",
        header="JOB",
        spare=2,
    ),
    ViewField("name", "Its name."),
    ViewField("cluster", "The scheduler of the run.", one_of(("slurm", "local"))),
    ViewField("state", "`UNKNOWN` never means ended.", one_of(State), header="STATE"),
    ViewField("phase", "The current phase.", one_of(Phase), header="PHASE", spare=1),
    ViewField("reason", "Why it waits, how it ended, or what is odd, as a sentence."),
    ViewField("nodes", "Nodes that train.", INTEGER),
    ViewField("gpus_per_node", "GPUs on each; 0 for CPU ranks.", INTEGER),
    ViewField("world_size", "Ranks.", INTEGER),
    ViewField("nodelist", "The nodes, folded as Slurm does; empty until they are known."),
    ViewField("attempt", "The newest attempt, from 0.", INTEGER),
    ViewField("submitted_at", "When it was submitted.", MOMENT),
    ViewField("started_at", "When its first job started.", MOMENT),
    ViewField("ended_at", "When it ended.", MOMENT),
    ViewField("exit_code", "Null until it has ended.", optional(INTEGER)),
    ViewField("run_dir", "The run directory."),
    ViewField("step", "The highest step that any attempt reported.", COUNT),
    ViewField("checkpoint", "The newest checkpoint that any attempt reported.", COUNT),
    ViewField("heard_at", "When the coordinator last wrote: at least every 10 s while it lives.", MOMENT),
    ViewField("gpu_type", "The type of GPU that was asked for; empty for any."),
    ViewField("sweep", "The sweep that the run is a point of; empty for none."),
    ViewField("point", "Its point in words, `lr=0.1 seed=3`; empty without a sweep."),
    ViewField(
        "error", "The error of the failed rank in one line, or `printed last: …`; empty without output."
    ),
    ViewField("attempts", "Only for runs that were named: oldest first.", many(ATTEMPT), is_required=False),
    ViewField(
        "trackers",
        "Only for runs that were named: the links that trackers printed.",
        many(TRACKER),
        is_required=False,
    ),
    ViewField(
        "end_report",
        "Only for runs that were named: what became of the time and resources; null while the run lives.",
        optional(END_REPORT),
        is_required=False,
    ),
    ViewField("size", kind=None, header="NODES", cell=_size, spare=3),
    ViewField("time", kind=None, header="TIME", cell=_time, spare=4),
    ViewField("reason", kind=None, header="REASON", cell=reason_of),
)


def _job_detail(job: JobLine, now: float) -> str:
    """Return the phase and the reason of a run, or where the job runs and what holds it up."""
    if job.run:
        return "; ".join(filter(None, (job.run.phase.value, reason_of(job.run, now))))
    return "; ".join(filter(None, (f"on {job.nodelist}" if job.nodelist else "", job.reason)))


JOB = View(
    "A Slurm job of this user.",
    ViewField("job_id", "The job, or an array that waits.", header="JOB"),
    ViewField("name", "Its name.", header="NAME", cell=lambda job, now: visible(job.name)),
    ViewField("state", "Its state.", one_of(State), header="STATE"),
    ViewField("nodes", "How many nodes it has or waits for.", INTEGER, header="NODES"),
    ViewField("nodelist", "Its nodes, folded as Slurm does; empty while it waits."),
    ViewField("started_at", "When it started.", MOMENT),
    ViewField("ends_at", "When its time limit ends it.", MOMENT),
    ViewField("reason", "Why it waits, or what holds it up."),
    ViewField("run", "The run that it is; null if clusterrun did not start it.", optional(RUN)),
    ViewField(
        "time",
        kind=None,
        header="TIME",
        cell=lambda job, now: spoken(now - job.started_at) if job.started_at else "",
        spare=2,
    ),
    ViewField(
        "run_id", kind=None, header="RUN", cell=lambda job, now: job.run.run_id if job.run else "", spare=1
    ),
    ViewField("detail", kind=None, header="DETAIL", cell=_job_detail),
)
ALL_JOBS = View(
    "The output of `status --all-jobs --json`.",
    ViewField("jobs", "The jobs that have not ended, the newest first.", many(JOB)),
)


STATUS = View(
    "The output of `status --json` and `wait --json`.",
    ViewField("runs", "The runs, in the order of the table.", many(RUN)),
)


def document(statuses: Iterable[RunStatus], context: Context | None = None) -> dict[str, Any]:
    """Return the JSON document. A ``context`` adds the attempts and the end report of each run."""
    runs = [{**fields(status), **(_details(context, status) if context else {})} for status in statuses]
    return STATUS.document({"runs": runs})


def _details(context: Context, status: RunStatus) -> dict[str, Any]:
    from clusterrun.logs.tracker_links import tracker_links
    from clusterrun.operations.run_details import end_report, ended_attempts

    try:
        state = context.store.state(status.run_id)
    except ClusterrunError:  # the reason of the run explains it
        state = None
    return {
        "attempts": ended_attempts(state, status) if state else (),
        "trackers": tracker_links(context.store.paths(status.run_id)),
        "end_report": end_report(context, status),
    }


def plain(statuses: Sequence[RunStatus], now: float) -> list[str]:
    return terminal.aligned(RUN.cells(statuses, now))


def drawn(statuses: Sequence[RunStatus], now: float, width: int, has_colours: bool) -> terminal.Drawing:
    """Draw a table for a terminal. Reasons are below their runs if the terminal is too narrow.

    The reason of a run that completed is omitted in that case.
    """
    styles = {"STATE": [_PAINT.get(status.state, "red") for status in statuses]} if has_colours else {}
    completed = [index for index, status in enumerate(statuses) if status.state is State.COMPLETED]
    return terminal.drawn(
        RUN.cells(statuses, now), RUN.spare, width, has_colours, styles, is_last_below=True, silent=completed
    )


def show(statuses: Sequence[RunStatus], now: float) -> None:
    """Print the table. On a terminal, live and newest runs come last, next to the prompt."""
    if not sys.stdout.isatty():
        print("\n".join(plain(statuses, now)))
        return
    oldest_first = statuses[::-1]
    ended = [status for status in oldest_first if status.state.ended]
    live = [status for status in oldest_first if not status.state.ended]
    terminal.put(drawn([*ended, *live], now, terminal.columns(), terminal.coloured(sys.stdout)))
