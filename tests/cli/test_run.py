"""Which options `run` takes: what the command line says, and of a configuration what is no job's."""

from __future__ import annotations

from typing import Any

import click
import pytest

from clusterrun.cli.run import OF_A_JOB, _here, refuse_job_options, run
from clusterrun.config.settings import Source, settle
from clusterrun.model.errors import BadInput
from tests.cli.conftest import CommandLine


@pytest.mark.parametrize(
    "given, named",
    [
        ({"time": "5m", "requeue": True}, "--time, --requeue are options"),
        ({"avoid_bad": False}, "--avoid-bad is an option"),
        ({"sbatch": ("exclusive",)}, "--sbatch is an option"),
        ({"sbatch": (), "nodes": 2, "preflight": "off", "time": None}, ""),
    ],
)
def test_what_only_a_queued_job_can_have_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    if not named:
        refuse_job_options(given)
        return
    with pytest.raises(BadInput, match=f"^{named}"):
        refuse_job_options(given)


def test_a_configuration_for_submit_says_nothing_of_the_allocation_and_all_of_the_ranks() -> None:
    file = Source(
        "clusterrun.toml", (("nodes", 8), ("partition", "gpu"), ("env", ("A=1",)), ("follow", False))
    )
    found = _here(settle([Source("command line", (("gpus", 2),)), file]), {"gpus"})
    values = {name: found[name].value for name in ("nodes", "partition", "env", "gpus", "follow")}
    assert values == {"nodes": 1, "partition": "", "env": ("A=1",), "gpus": 2, "follow": False}


def test_the_help_shows_no_option_that_is_refused(clusterrun: CommandLine) -> None:
    text = clusterrun("run", "--help-all").out
    options = {one.name: one for one in run.params if isinstance(one, click.Option)}
    assert all(name.replace("-", "_") in options for name in OF_A_JOB)
    assert [name for name in OF_A_JOB if f"--{name} " in text] == []
    assert all(f"--{name} " in text for name in ("nodes", "gpus", "preflight", "max-restarts", "env"))
