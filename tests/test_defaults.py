"""The option table holds the defaults, and every other place has the same ones."""

from __future__ import annotations

from clusterrun.config.settings import settle
from clusterrun.config.spec_fields import spec_of
from clusterrun.model.duration import parse
from clusterrun.model.option_table import CONFIGURABLE, DURATIONS
from clusterrun.model.orders import Preflight, Survival, WatchOrders
from clusterrun.model.spec import JobSpec
from clusterrun.script.plan import MachineFacts, plan

NO_FIELDS = {"env", "follow", "wait", "slurm-every", "trust"}
"""Options that are no field of a spec by their own name."""


def test_a_spec_of_which_nothing_is_said_is_the_one_that_the_table_describes() -> None:
    message = {
        name.replace("-", "_"): value.value for name, value in settle([]).items() if name not in NO_FIELDS
    }
    assert spec_of(("x",), "/", message) == JobSpec(("x",), "/")


def test_orders_of_which_nothing_is_said_are_those_that_a_plan_makes() -> None:
    orders = plan(JobSpec(("x",), "/"), "r", "t", "/r", MachineFacts(slurm=True, python="/p")).orders
    assert orders.watch == WatchOrders(on=True)
    assert orders.survival == Survival()
    assert orders.preflight.budget == Preflight().budget == JobSpec(("x",), "/").preflight_budget


def test_a_job_that_goes_on_hears_of_its_end_as_long_before_as_the_table_says() -> None:
    spec = JobSpec(("x",), "/", requeue=True)
    survival = plan(spec, "r", "t", "/r", MachineFacts(slurm=True, python="/p")).orders.survival
    assert survival.notice == Survival().notice == spec.notice


def test_a_default_is_of_the_kind_that_its_row_names() -> None:
    kinds = {"number": int, "gpus": int, "nodes": int, "switch": bool, "list": tuple}
    strays = [o.name for o in CONFIGURABLE.values() if type(o.default) is not kinds.get(o.kind, str)]
    assert strays == []
    for option in CONFIGURABLE.values():
        if option.kind in DURATIONS and option.default:
            assert parse(str(option.default), DURATIONS[option.kind]) > 0
