"""Declares the JSON document of `submit`."""

from __future__ import annotations

from clusterrun.model.container import RUNTIMES
from clusterrun.model.spec import Cluster
from clusterrun.reports.view import BOOLEAN, OBJECT, TEXT, View, ViewField, many, one_of

PYTHON = View(
    "The ranks' interpreter.",
    ViewField("path", "Its path; empty where the job finds it."),
    ViewField("why", "The reason for the choice."),
    ViewField("by_setup", "The job looks for it after the lines of `--setup`.", BOOLEAN),
    ViewField("before", "`PATH` is compared with this one.", is_required=False),
)
CONTAINER = View(
    "The container of the ranks.",
    ViewField("image", "The image: a path, or a name."),
    ViewField("runtime", "The program that starts it.", one_of(RUNTIMES)),
    ViewField(
        "mounts",
        "All mounts, also those that clusterrun adds.",
        many(
            View(
                "One mount.",
                ViewField("source", "A path of the host."),
                ViewField("target", "The path inside."),
                ViewField("read_only", "It cannot be written inside.", BOOLEAN),
            )
        ),
    ),
)
SUBMISSION = View(
    "The output of `submit --json`, also with `--dry-run`.",
    ViewField("run_id", "The run, as every other command takes it."),
    ViewField("job_id", "Slurm's job, or the process of a local run; empty in a dry run."),
    ViewField("name", "The run's name."),
    ViewField("cluster", "The scheduler of the run.", one_of((Cluster.SLURM, Cluster.LOCAL))),
    ViewField("run_dir", "The run directory."),
    ViewField("command", "COMMAND as it was typed.", many(TEXT, "One word.")),
    ViewField("python", "`--dry-run` only. The ranks' interpreter.", PYTHON, is_required=False),
    ViewField("script", "`--dry-run` only. The batch script; empty for a local run.", is_required=False),
    ViewField(
        "argv",
        "`--dry-run` only. The command that would submit it.",
        many(TEXT, "One word."),
        is_required=False,
    ),
    ViewField(
        "survival", "`--dry-run` only. The budgets of restarts, as they will hold.", OBJECT, is_required=False
    ),
    ViewField(
        "container",
        "`--dry-run` with `--container` only. The container of the ranks.",
        CONTAINER,
        is_required=False,
    ),
)
