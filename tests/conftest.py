"""What holds for every test: time limits of examples, no check of nodes, and Ctrl-C as on a terminal."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings

pytest_plugins = ["tests.lab_fixture", "tests.sshd_fixture", "tests.closing"]
# How long an example takes is the machine's business, not a law of the code.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
# The nodes are checked where a test is about that, and asks for it.
os.environ["CLUSTERRUN_PREFLIGHT"] = "off"
# Programs that tests start compile the package once. Otherwise each start costs 100 ms more.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A suite that was started in the background has Ctrl-C ignored, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever brings up a lab is marked so: `-m lab` picks it, for instance to run it on another Slurm."""
    for item in items:
        if "make_lab" in getattr(item, "fixturenames", ()):
            item.add_marker("lab")
