"""Variables of the shell that set an option of sbatch and none of clusterrun. A notice names our option."""

from __future__ import annotations

import pytest

from clusterrun.model.spec import JobSpec
from clusterrun.script.environment import not_obeyed

SHELL = {
    "PATH": "/bin",
    "SBATCH_PARTITION": "gpu",
    "SLURM_ACCOUNT": "proj7",
    "SBATCH_WAIT": "1",
    "SBATCH_QOS": "",
}


@pytest.mark.parametrize(
    ("environment", "spec", "message"),
    [
        (
            SHELL,
            JobSpec(("x.py",), "/p"),
            "SBATCH_PARTITION, SLURM_ACCOUNT of this shell are not used: --partition gpu --account proj7",
        ),
        (
            SHELL,
            JobSpec(("x.py",), "/p", account="mine"),
            "SBATCH_PARTITION of this shell is not used: --partition gpu",
        ),
        (SHELL, JobSpec(("x.py",), "/p", account="mine", partition="big"), ""),
        (
            {"SBATCH_SIGNAL": "B:USR1@60", "SBATCH_EXCLUSIVE": "user"},
            JobSpec(("x.py",), "/p", sbatch=("exclusive",)),
            "SBATCH_SIGNAL of this shell is not used: --sbatch signal=B:USR1@60",
        ),
        ({"SBATCH_GRES": "gpu:2"}, JobSpec(("x.py",), "/p", gpus=4), ""),
        ({"PATH": "/bin"}, JobSpec(("x.py",), "/p"), ""),
    ],
)
def test_a_request_of_the_shell_is_reported_without_an_option(environment, spec, message) -> None:
    assert not_obeyed(environment, spec) == message
