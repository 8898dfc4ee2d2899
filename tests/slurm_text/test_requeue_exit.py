"""Which exit codes make Slurm queue a job again, read from its configuration."""

from __future__ import annotations

import pytest

from clusterrun.slurm_text.requeue_exit import may_requeue

# As Slurm 22.05 prints them.
CONFIGURATION = (
    "ReconfigFlags           = (null)\nRequeueExit             = {}\nRequeueExitHold         = {}\n"
)


@pytest.mark.parametrize(
    ("requeue", "hold", "codes"),
    [
        ("(null)", "(null)", set()),
        ("99", "(null)", {99}),
        ("1-3,120", "(null)", {1, 2, 3, 120}),
        ("(null)", "254-255", {254, 255}),
        ("1-127", "128-255", set(range(1, 256))),
    ],
)
def test_the_codes_are_those_of_both_settings(requeue: str, hold: str, codes: set[int]) -> None:
    configuration = CONFIGURATION.format(requeue, hold)
    assert {code for code in range(1, 256) if may_requeue(configuration, code)} == codes


def test_an_unknown_configuration_may_list_every_code() -> None:
    assert may_requeue("", 1) and may_requeue("RequeueExit = (null)\n", 1)
