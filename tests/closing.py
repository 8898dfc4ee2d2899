"""The last lines of a session: how many tests were skipped and why, and which passed only when run again."""

from __future__ import annotations

from collections import Counter

import pytest


def why(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the reason of a skipped test."""
    place = report.longrepr
    return str(place[2] if isinstance(place, tuple) else place).removeprefix("Skipped: ")


def skipped(stats: dict[str, list[pytest.TestReport]]) -> str:
    reasons = Counter(why(report) for report in stats.get("skipped", ()))
    message = "; ".join(f"{count} × {reason}" for reason, count in reasons.most_common())
    return f"skipped: {sum(reasons.values())}" + (f" ({message})" if message else "")


def saved(stats: dict[str, list[pytest.TestReport]]) -> str:
    """Return a line with the tests that passed only when they ran again."""
    failed = {report.nodeid for kind in ("failed", "error") for report in stats.get(kind, ())}
    again = dict.fromkeys(report.nodeid for report in stats.get("rerun", ()))
    names = [name for name in again if name not in failed]
    return f"passed only when run again: {len(names)}" + (f" ({', '.join(names)})" if names else "")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or config.option.collectonly or hasattr(config, "workerinput"):
        return
    print(skipped(reporter.stats))
    print(saved(reporter.stats))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Forbid a second run where hypothesis found a counterexample, because that is a fact."""
    if not config.pluginmanager.has_plugin("rerunfailures"):
        return
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.flaky(reruns=0))
