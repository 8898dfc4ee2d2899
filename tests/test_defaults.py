"""The option table holds the defaults, and every other place has the same ones."""

from __future__ import annotations

from clusterrun.config.settings import settle
from clusterrun.config.spec_fields import spec_of
from clusterrun.model.duration import parse
from clusterrun.model.option_table import CONFIGURABLE, DURATIONS
from clusterrun.model.orders import Preflight, Survival, WatchOrders
from clusterrun.model.spec import JobSpec
from clusterrun.script.plan import MachineFacts, plan

NO_FIELDS = {"env", "follow", "wait", "slurm-every", "trust", "requeue"}
"""Options that are no field of a spec by their own name, or whose False forbids what the site does."""


def test_the_default_spec_equals_the_table_of_options() -> None:
    message = {
        name.replace("-", "_"): value.value for name, value in settle([]).items() if name not in NO_FIELDS
    }
    assert spec_of(("x",), "/", message) == JobSpec(("x",), "/")


def test_default_orders_equal_the_orders_of_a_plan() -> None:
    orders = plan(JobSpec(("x",), "/"), "r", "t", "/r", MachineFacts(slurm=True, python="/p")).orders
    assert orders.watch == WatchOrders(on=True)
    assert orders.survival == Survival()
    assert orders.preflight.budget == Preflight().budget == JobSpec(("x",), "/").preflight_budget


def test_a_continuing_job_gets_notice_at_the_time_of_the_table() -> None:
    spec = JobSpec(("x",), "/", requeue=True)
    survival = plan(spec, "r", "t", "/r", MachineFacts(slurm=True, python="/p")).orders.survival
    assert survival.notice == Survival().notice == spec.notice


def test_a_default_has_the_type_of_its_row() -> None:
    kinds = {"number": int, "gpus": int, "nodes": int, "switch": bool, "list": tuple}
    strays = [o.name for o in CONFIGURABLE.values() if type(o.default) is not kinds.get(o.kind, str)]
    assert strays == []
    for option in CONFIGURABLE.values():
        if option.kind in DURATIONS and option.default:
            assert parse(str(option.default), DURATIONS[option.kind]) > 0
