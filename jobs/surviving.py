"""What outlives this process: checkpoints, how far it is, and when to end early; knows no model.

It asks the training room, `clusterrun.training`, which works under any launcher and under none. It is
taken from where clusterrun is installed, or from its folder, beside this one or copied into it; where
there is none, training goes on without checkpoints and without being asked.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ranks import World, say

HERE = Path(__file__).resolve().parent
COPIES = (HERE / "training", HERE.parent / "training", HERE.parent / "clusterrun" / "training")
"""Copied into this folder; as installed, beside `clusterrun/jobs`; in a checkout."""
NAME = "clusterrun_training"


def room() -> Any:
    """The training room, or None."""
    try:
        from clusterrun import training
    except ImportError:
        return next((loaded(copy) for copy in COPIES if (copy / "__init__.py").is_file()), None)
    return training


def loaded(folder: Path) -> Any:
    """The package in this folder, under a name of its own."""
    if NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None and spec.loader is not None
        sys.modules[NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[NAME])
    return sys.modules[NAME]


class Keeper:
    """Keeps what a later process needs, and hears whether this one is to end."""

    def __init__(self, options: argparse.Namespace, world: World) -> None:
        self._world = world
        self._every = options.checkpoint_every
        self._room = room()
        self.stopped = False
        if options.checkpoint_dir and self._room is None:
            raise RuntimeError(
                "--checkpoint-dir needs the training room: pip install clusterrun, or copy its folder "
                f"clusterrun/training into {HERE}"
            )
        self._kept = self._room.Checkpoints(options.checkpoint_dir) if options.checkpoint_dir else None

    def resumed(self) -> dict[str, Any] | None:
        """The state to go on from, if there is one; the same on every rank."""
        state: dict[str, Any] | None = self._kept.latest() if self._kept else None
        done = (
            f"resuming after step {state['step']}" if state else "no checkpoint to resume from: starting anew"
        )
        say(self._world, done)
        return state

    def stepped(self, done: int, last: int, state: Callable[[], dict[str, Any]]) -> None:
        """A step was taken; every rank gives its pieces of the state where it is to be written.

        ``stopped`` is set where training is to end here: on every rank after the same step.
        """
        if self._room is None:
            return
        self._room.progress(done)
        if self._kept is None:
            return  # to end without a checkpoint would lose all
        wanted = self._room.save_now()
        stop = self._room.should_stop()
        if wanted or stop or done == last or done % self._every == 0:
            self._kept.save({**state(), "step": done}, done)
        self.stopped = stop and done < last
