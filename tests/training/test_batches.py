"""One global batch on any number of ranks."""

from __future__ import annotations

import os

import pytest

from clusterrun import training
from clusterrun.training import script
from clusterrun.training.script import steps_of
from clusterrun.training.surroundings import surroundings


@pytest.mark.parametrize(
    "global_batch, batch, world, steps", [(256, 8, 4, 8), (256, 8, 32, 1), (256, 1, 1, 256), (6, 2, 3, 1)]
)
def test_every_world_makes_the_same_step(global_batch: int, batch: int, world: int, steps: int) -> None:
    assert steps_of(global_batch, batch, world) == steps
    assert steps * batch * world == global_batch


@pytest.mark.parametrize("near, requested", [("240 and 264", (256, 8, 3)), ("are 24", (10, 8, 3))])
def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_that_do(
    near: str, requested: tuple[int, int, int]
) -> None:
    with pytest.raises(ValueError, match=near):
        steps_of(*requested)
    for wrong in ((0, 1, 1), (8, 0, 1)):
        with pytest.raises(ValueError, match="one sample or more"):
            steps_of(*wrong)


def test_the_world_is_the_world_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert surroundings({"WORLD_SIZE": "6"}).world == 6
    assert surroundings({}).world == surroundings({"WORLD_SIZE": "x"}).world == 1
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "6")
    monkeypatch.setattr(training, "_current_script", lambda: script.Script(surroundings(os.environ)))
    assert training.accumulation(96, batch=4) == 4
