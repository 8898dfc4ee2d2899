"""Settings of all tests: no time limit of examples, no check of nodes, and Ctrl-C as on a terminal."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings

pytest_plugins = ["tests.lab_fixture", "tests.sshd_fixture", "tests.closing", "tests.notify.servers"]
# The time of an example depends on the machine.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
# Tests of the check enable it themselves.
os.environ["CLUSTERRUN_PREFLIGHT"] = "off"
# Programs that tests start compile the package once. Otherwise each start costs 100 ms more.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A shell starts background programs with Ctrl-C ignored, and their children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that needs a lab, so that `-m lab` selects it."""
    for item in items:
        if "make_lab" in getattr(item, "fixturenames", ()):
            item.add_marker("lab")
