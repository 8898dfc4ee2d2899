"""Write the JSON schemas of documents to docs/schemas, from the views that render them: `make schemas`."""

from __future__ import annotations

import json
from pathlib import Path

from clusterrun.cli.advise import ADVICE
from clusterrun.cli.bench_study import STUDY
from clusterrun.cli.clean import CLEAN
from clusterrun.cli.config import CONFIGURATION
from clusterrun.cli.convert import CONVERSION
from clusterrun.cli.diagnose import DIAGNOSIS, LOG_DIAGNOSIS
from clusterrun.cli.forward import FORWARD
from clusterrun.cli.free_gpus import FREE_GPUS
from clusterrun.cli.lab import LAB_STATUS
from clusterrun.cli.nodes import NODES
from clusterrun.cli.queue_forecast import PLAN
from clusterrun.cli.status_view import ALL_JOBS, STATUS
from clusterrun.cli.submit import SUBMISSION
from clusterrun.cli.sweep import RESULTS, STARTED, SWEEPS
from clusterrun.cli.top import TOP
from clusterrun.model.states import State
from clusterrun.notify.event_message import EVENTS
from clusterrun.rehearse.rehearsal_report import REHEARSAL
from clusterrun.reports.json_document import REPORT
from clusterrun.reports.view import INTEGER, NUMBER, TEXT, View, ViewField, many, one_of, optional

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "schemas"
DRAFT = "https://json-schema.org/draft/2020-12/schema"

# The coordinator writes this document on a node.
EVENT = View(
    "The standard input of the command of `--on-event`.",
    ViewField("event", "What happened.", one_of(EVENTS)),
    ViewField("run_id", "The run."),
    ViewField("name", "Its name."),
    ViewField("job_id", "The job."),
    ViewField("attempt", "The attempt.", INTEGER),
    ViewField("state", "The run's state.", one_of(State)),
    ViewField("reason", "As in `status`; of a hang, the diagnosis; of a restart, why it was started."),
    ViewField("nodes", "The nodes that train.", many(TEXT, "A node.")),
    ViewField(
        "failure",
        "The first failure of the attempt.",
        optional(
            View(
                "The first failure of the attempt.",
                ViewField("rank", "The rank; null if a node failed.", optional(INTEGER)),
                ViewField("node", "The node."),
                ViewField("why", "The failure as a sentence."),
                ViewField("error", "The error that it printed, else its last line; '' without one."),
                ViewField("place", "The innermost line of your code in its traceback; '' if there is none."),
            )
        ),
    ),
    ViewField("exit_code", "The exit code of the job; null until the run has ended.", optional(INTEGER)),
    ViewField("started_at", "When the run started, in seconds since the epoch.", optional(NUMBER)),
    ViewField("run_dir", "The run directory."),
    ViewField("at", "Seconds since the epoch.", NUMBER),
)

SCHEMAS = {
    "advise": ("clusterrun bench advise --json", ADVICE),
    "bench": ("clusterrun bench scaling --json", STUDY),
    "clean": ("clusterrun clean --json", CLEAN),
    "config": ("clusterrun config show --json", CONFIGURATION),
    "convert": ("clusterrun convert --json", CONVERSION),
    "diagnose": ("clusterrun diagnose --json", DIAGNOSIS),
    "diagnose-log": ("clusterrun diagnose --log --json", LOG_DIAGNOSIS),
    "event": ("an event of --on-event", EVENT),
    "forward": ("clusterrun forward --json", FORWARD),
    "jobs": ("clusterrun status --all-jobs --json", ALL_JOBS),
    "gpus": ("clusterrun gpus --json", FREE_GPUS),
    "lab-status": ("clusterrun lab status --json", LAB_STATUS),
    "nodes": ("clusterrun nodes --json", NODES),
    "plan": ("clusterrun plan --json", PLAN),
    "rehearse": ("clusterrun rehearse --json", REHEARSAL),
    "report": ("clusterrun report --json, clusterrun check --json", REPORT),
    "status": ("clusterrun status --json, clusterrun wait --json", STATUS),
    "submit": ("clusterrun submit --json", SUBMISSION),
    "sweep": ("clusterrun sweep --json", STARTED),
    "sweep-list": ("clusterrun sweep list --json", SWEEPS),
    "sweep-results": ("clusterrun sweep results --json", RESULTS),
    "top": ("clusterrun top --json", TOP),
}


def text(name: str) -> str:
    """Return the content of a schema's file."""
    title, view = SCHEMAS[name]
    schema = {"$schema": DRAFT, "title": title, **view.schema}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    for name in SCHEMAS:
        (FOLDER / f"{name}.json").write_text(text(name), encoding="utf-8")


if __name__ == "__main__":
    main()
