"""The list of checks: whole, quick to read, and not to be brought down by anything that a node may send."""

from __future__ import annotations

import importlib
import json
import pkgutil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterrun.model.preflight_report import Finding
from clusterrun.preflight import checks, registry
from clusterrun.preflight.checks.folders import FolderCheck
from clusterrun.preflight.checks.gpu_health import GpuJudge
from clusterrun.preflight.tasks import GroupResult, LocalAnswer, ProbeReading, TorchStarted
from clusterrun.preflight.untrusted import entries, number, rows, strings, text
from tests.preflight.checks import values
from tests.preflight.checks.values import ASKED, FAIL, UNDETERMINED, WARN, answer, asked, gpus

FILES = {
    name: importlib.import_module(f"{checks.__name__}.{name}")
    for _, name, _ in pkgutil.iter_modules(checks.__path__)
}
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def test_every_file_is_in_the_list_and_every_name_is_its_files() -> None:
    listed = [*registry.CHECKS, *registry.SECONDARY_JUDGES]
    several = {"folders": FolderCheck, "gpu_health": GpuJudge}
    parts = [var for name, kind in several.items() for var in vars(FILES[name]).values() if type(var) is kind]
    own = {name: module for name, module in FILES.items() if name not in several}
    assert {id(var) for var in listed} == {id(var) for var in (*own.values(), *parts)}
    assert {check.NAME for check in listed} == {
        *(name.replace("_", "-") for name in own),
        *(part.NAME for part in parts),
    }
    assert {second.OF for second in registry.SECONDARY_JUDGES} <= {c.NAME for c in registry.CHECKS} | {
        "torch",
        "product",
        "burn",
    }


@pytest.mark.parametrize("check", registry.CHECKS, ids=lambda check: check.NAME)
def test_a_late_answer_has_the_checks_own_message(check) -> None:
    assert isinstance(check.LATE, Finding)
    longest = {"gpus": 62, "nvlink": 62, "check-command": 30}.get(check.NAME, 15)
    assert (check.LATE.check, 0 < check.LIMIT <= longest) == (check.NAME, True)
    late = LocalAnswer((ProbeReading(check.NAME, "", late=True, why="waits in rpc_wait_bit_killable"),))
    message = f"{check.LATE.message} (waits in rpc_wait_bit_killable)"
    assert registry.findings(ASKED, {"n1": late}, {}, {}) == {
        "n1": (Finding(check.NAME, check.LATE.verdict, message, check.LATE.remedy),)
    }


def test_no_node_is_blamed_if_nvidia_smi_is_late_on_every_node() -> None:
    late, well = LocalAnswer((ProbeReading("gpus", "", late=True),)), answer(gpus=gpus())
    everywhere = registry.findings(ASKED, {"n1": late, "n2": late}, {}, {})
    assert {node: [entry.verdict for entry in message] for node, message in everywhere.items()} == {
        "": [WARN]
    }
    assert set(registry.findings(ASKED, {"n1": late, "n2": well}, {}, {})) == {"n1"}
    assert set(registry.findings(ASKED, {"n1": late}, {}, {})) == {"n1"}
    overloaded = ProbeReading("nvlink", "", "this node is overloaded")
    for links in (ProbeReading("nvlink", "", late=True), overloaded):
        both = LocalAnswer((*late.readings, links))
        (result,) = registry.findings(ASKED, {"n1": both, "n2": well}, {}, {})["n1"]
        assert (result.check, result.verdict) == ("gpus", FAIL)


@pytest.mark.parametrize("check", registry.CHECKS, ids=lambda check: check.NAME)
def test_every_probe_reads_this_machine_and_its_judge_accepts_the_facts(check, tmp_path) -> None:
    current = asked(run_dir=str(tmp_path), home=str(tmp_path), cwd=str(tmp_path), gpus=0, ranks=1)
    reading = json.loads(json.dumps(check.probe(current), allow_nan=False))
    results = [entry for _, entry in check.judge(current, {"n1": reading, "n2": reading})]
    assert [entry.message for entry in results if entry.verdict == FAIL] == [], (
        "this machine itself is unfit by it"
    )


def alike(check: Any) -> st.SearchStrategy[Any]:
    """Draw readings of the right form with wrong values, and readings without a form."""
    keys = sorted(
        {
            *values.gpus()["gpus"][0],
            *values.gpus(),
            "path",
            "free",
            "size",
            "error",
            "variables",
            "interfaces",
        }
    )
    keys += [
        "xids",
        "xid",
        "ago",
        "bus",
        "installed",
        "versions",
        "devices",
        "up",
        "rates",
        "fingerprint",
        "speeds",
        "gpu",
    ]
    keys += [
        "state",
        "rate",
        "first",
        "later",
        "symbol_error",
        "link_downed",
        "memlock",
        "soft",
        "hard",
        "usable",
        "rdma",
    ]
    inner = JSON | st.lists(st.dictionaries(st.sampled_from(keys), JSON, max_size=6), max_size=3)
    inner |= st.lists(st.tuples(st.sampled_from(["torch", "cuda", "product"]), JSON).map(list), max_size=3)
    inner |= st.sampled_from([True, "Yes", "4: ACTIVE", "ib0", -1, 1e308, 10**400, "cuda 4096: 1"])
    return JSON | st.dictionaries(st.sampled_from(keys) | st.text(max_size=4), inner, max_size=8)


@pytest.mark.parametrize(
    "check", [*registry.CHECKS, *registry.SECONDARY_JUDGES], ids=lambda check: check.NAME
)
@settings(max_examples=25)
@given(data=st.data())
def test_no_reading_whatever_brings_a_judge_down(check, data) -> None:
    readings = data.draw(st.dictionaries(st.sampled_from(["n1", "n2", "n3", "n4"]), alike(check), max_size=4))
    result = list(check.judge(ASKED, readings))
    assert {node for node, _ in result} <= {*readings, ""}
    assert all(len(entry.message) < 1500 and entry.message.isprintable() for _, entry in result)


@given(JSON, st.sampled_from(["a", ""]))
def test_parts_of_anything_have_their_kind_or_are_empty(value, name) -> None:
    assert isinstance(number(value, name), float | None)
    assert (type(text(value, name)), type(entries(value)), type(rows(value)), type(strings(value))) == (
        str,
        dict,
        list,
        list,
    )


def test_a_failed_probe_is_undetermined_with_the_reason() -> None:
    failed = LocalAnswer((ProbeReading("cpus", "", why="OSError: no"), ProbeReading("home", "{")))
    assert registry.findings(ASKED, {"n1": failed}, {}, {}) == {
        "n1": (
            Finding("cpus", UNDETERMINED, "could not be read: OSError: no", ""),
            Finding("home", UNDETERMINED, "could not be read: the answer is no JSON", ""),
        )
    }


def test_readings_of_unknown_checks_are_passed_over() -> None:
    assert registry.findings(ASKED, {"n1": answer(of_a_newer_version=1)}, {}, {}) == {}
    assert registry.check_named("of-a-newer-version") is None


def test_a_failed_judge_is_reported_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from clusterrun.preflight.checks import cpus

    def broken(needs: object, readings: object) -> object:
        raise ZeroDivisionError("of this test")

    monkeypatch.setattr(cpus, "judge", broken)
    result = registry.findings(
        ASKED, {"n1": answer(cpus=1, shared_memory={"size": 0, "free": 0})}, {}, {}, {}
    )
    assert {
        node: [(entry.check, entry.verdict) for entry in message] for node, message in result.items()
    } == {"": [("cpus", UNDETERMINED)], "n1": [("shared-memory", FAIL)]}


def test_all_facts_are_judged_together() -> None:
    local = {node: answer(gpus=values.gpus()) for node in ("n1", "n2", "n3")}
    local["n3"] = answer(gpus=values.gpus(rows_failed="Yes"))
    warm = {
        n: TorchStarted(True, 1.0, backend="nccl", devices=8, versions=(("torch", "2.13"),))
        for n in ("n1", "n2")
    }
    warm["n3"] = TorchStarted(True, 1.0, backend="nccl", devices=7, versions=(("torch", "2.13"),))
    products = {n: GroupResult(1, True, "done", 1.0, fingerprint="cuda 1: a") for n in ("n1", "n2")}
    products["n3"] = GroupResult(1, True, "done", 1.0, fingerprint="cuda 1: b")
    result = registry.findings(ASKED, local, warm, products)
    assert {node: [entry.check for entry in message] for node, message in result.items()} == {
        "n3": ["gpu-errors", "torch", "product"]
    }


def test_slow_products_are_named_to_be_measured_again() -> None:
    fast = GroupResult(1, True, "done", 1.0, rates=(("product", 60.0),), fingerprint="cuda 1: a")
    slow = GroupResult(1, True, "done", 2.0, rates=(("product", 30.0),), fingerprint="cuda 1: a")
    assert registry.slow_products(ASKED, {"n1": fast, "n2": fast, "n3": slow}) == ("n3",)
