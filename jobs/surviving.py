"""Save checkpoints, report progress, and end early on request.

This uses `clusterrun.training`, which works with and without a launcher. The package is imported from an
installation, or from its folder beside this one or inside it. Without it, training writes no checkpoints.
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
# Copied into this folder; as installed, beside `clusterrun/jobs`; in a checkout.
COPIES = (HERE / "training", HERE.parent / "training", HERE.parent / "clusterrun" / "training")
NAME = "clusterrun_training"


def room() -> Any:
    """Return the package `clusterrun.training`; None if it is missing."""
    try:
        from clusterrun import training
    except ImportError:
        return next((loaded(copy) for copy in COPIES if (copy / "__init__.py").is_file()), None)
    return training


def loaded(folder: Path) -> Any:
    """Return the package in this folder, imported under its own name."""
    if NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None and spec.loader is not None
        sys.modules[NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[NAME])
    return sys.modules[NAME]


class Keeper:
    """Saves checkpoints, and decides when training ends."""

    def __init__(self, options: argparse.Namespace, world: World) -> None:
        self._world = world
        self._every = options.checkpoint_every
        self._room = room()
        self.stopped = False
        if options.checkpoint_dir and self._room is None:
            raise RuntimeError(
                "--checkpoint-dir needs clusterrun.training: pip install clusterrun, or copy its folder "
                f"clusterrun/training into {HERE}"
            )
        self._kept = self._room.Checkpoints(options.checkpoint_dir) if options.checkpoint_dir else None

    def resumed(self) -> dict[str, Any] | None:
        """Return the state to resume from, the same on every rank; None if there is none."""
        state: dict[str, Any] | None = self._kept.latest() if self._kept else None
        if state:
            say(self._world, f"resuming after step {state['step']}")
        else:
            say(self._world, "no checkpoint to resume from: starting anew")
        return state

    def stepped(self, step: int, last: int, state: Callable[[], dict[str, Any]]) -> None:
        """Report a step, and save a checkpoint if one is due. Every rank must call it.

        ``stopped`` becomes true if training must end: on every rank after the same step.
        """
        if self._room is None:
            return
        self._room.progress(step)
        if self._kept is None:
            return  # ending without a checkpoint would lose the training
        save = self._room.save_now()
        stop = self._room.should_stop()
        if save or stop or step == last or step % self._every == 0:
            self._kept.save({**state(), "step": step}, step)
        self.stopped = stop and step < last
