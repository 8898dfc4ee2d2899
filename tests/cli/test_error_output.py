"""What is said of a mistyped or foreign option."""

from __future__ import annotations

from clusterrun.cli.error_output import PASSED_ON
from clusterrun.model.option_table import CONFIGURABLE


def test_no_option_of_ours_is_told_as_one_that_only_sbatch_knows() -> None:
    assert {*PASSED_ON} & {*CONFIGURABLE} == set()
