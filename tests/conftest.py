"""What holds for every test: the last line says how many were skipped, and why."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
from hypothesis import settings

pytest_plugins = ["tests.lab_fixture"]
# How long an example takes is the machine's business, not a law of the code.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
# The nodes are checked where a test is about that, and asks for it.
os.environ["CLUSTERRUN_PREFLIGHT"] = "off"
# A suite that was started in the background has Ctrl-C ignored, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def why(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The reason a test gave for being skipped."""
    place = report.longrepr
    return str(place[2] if isinstance(place, tuple) else place).removeprefix("Skipped: ")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or config.option.collectonly or hasattr(config, "workerinput"):
        return
    reasons = Counter(why(report) for report in reporter.stats.get("skipped", ()))
    told = "; ".join(f"{count} × {reason}" for reason, count in reasons.most_common())
    print(f"skipped: {reasons.total()}" + (f" ({told})" if told else ""))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever brings up a lab is marked so: `-m lab` picks it, for instance to run it on another Slurm."""
    for item in items:
        if "make_lab" in getattr(item, "fixturenames", ()):
            item.add_marker("lab")
