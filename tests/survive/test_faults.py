"""Whatever is done to a training, it ends with the weights of an undisturbed one, and nothing of it is left.

All faults share one lab and run side by side, each on nodes of its own: a test waits for its outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lab_fixture import MakeLab
from tests.survive.faults import FAULTS, Grounds, controller_away
from tests.survive.site import PATIENT, Site

pytestmark = pytest.mark.lab

AT_ONCE, SIZE = 5, 6
ALWAYS = (
    "node_killed_with_a_spare",
    "coordinator_killed",
    "node_killed_and_nobody_may_go_on",
    "failure_during_a_restart",
    "run_directory_gone",
    "suspended",
    "disk_full_at_a_checkpoint",
    "file_system_in_trouble_everywhere",
    "file_system_in_trouble_for_ranks_alone",
    "checkpoint_damaged",
    "srun_killed",
    "rank_killed",
    "agent_interrupted",
    "always_crashing",
    "scancel_of_a_chain",
    "scancel_in_a_restart",
)
"""The others are among the figures: `python -m benchmarks faults`."""

Outcome = Callable[[str], str]


@pytest.fixture(scope="module")
def outcome(
    request: pytest.FixtureRequest, make_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outcome]:
    """Yield the function that returns the failure of a fault. All selected faults start at once."""
    expected = [
        item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")
    ]
    lab = make_lab(nodes=AT_ONCE * SIZE, gpus=1, settings=dict(PATIENT))
    site = Site(lab, tmp_path_factory.mktemp("survive"))
    grounds = Grounds(site, SIZE, AT_ONCE)
    with ThreadPoolExecutor(AT_ONCE) as people:
        begun: dict[str, Future[str]] = {
            name: people.submit(grounds.run, FAULTS[name]) for name in ALWAYS if name in expected
        }

        def answer(name: str) -> str:
            requested = begun.pop(name, None) or people.submit(grounds.run, FAULTS[name])
            return requested.result()

        yield answer
    site.patrol.stop()
    lab.down()


@pytest.mark.parametrize("name", ALWAYS)
def test_a_disturbed_training_ends_as_an_undisturbed_one_or_with_a_reason(
    outcome: Outcome, name: str
) -> None:
    assert outcome(name) == ""


def test_runs_do_not_notice_that_the_controller_is_away(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(nodes=6, gpus=0)
    site = Site(lab, tmp_path)
    assert Grounds(site, 6, 1).run(lambda ground: controller_away(ground, 8.0)) == ""
    site.patrol.stop()
    lab.down()
