"""No object of a live machine leads back to itself, and no constructor takes much, or what calls back."""

from __future__ import annotations

import ast
import enum
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import trace_story
from benchmarks.simulator.world import World

PACKAGE = Path(__file__).resolve().parents[2] / "clusterrun"
MOST_PARAMETERS = 6
MOST_MOVES = 26
"""It was 98. Only to shrink: ``python -m benchmarks.trace_story`` prints them."""
# It was 243 moves and 1,074 calls.
MOST_MOVES_OF_A_PAIR, MOST_CALLS_OF_A_PAIR = 60, 600
OURS = ("clusterrun.coordinator", "clusterrun.agent", "clusterrun.preflight", "clusterrun.monitor")
HOOKS = {
    "agent/orphaned_job.py OrphanedJob renew",
    "agent/rank_processes.py RankProcesses instrumented",
    "coordinator/io/event_hook.py EventHook note",
    "coordinator/io/launcher.py Launcher happened",
    "coordinator/io/run_directory.py ReportFiles note",
    "coordinator/io/scheduler.py Scheduler happened",
    "coordinator/io/scheduler.py Scheduler note",
    "coordinator/io/run_directory.py StateWriter note",
    "coordinator/io/supervisor.py _Supervisor coordinate",
    "coordinator/preflight_gate.py PreflightGate make_session",
    "coordinator/world_formation.py WorldFormation make_session",
    "runtime/machine_driver.py MachineDriver now",
}
"""Callbacks that constructors of the nodes' machines may take: a clock, a log, a queue of events, a maker of
pre-flights. None is a method of the object that holds the constructed object. The list may only shrink."""


def stateful(value: Any) -> bool:
    """Return whether a value is a mutable object of ours, or holds one implicitly."""
    if isinstance(value, (enum.Enum, type, types.ModuleType)) or hasattr(type(value), "__fields__"):
        return False
    return type(value).__module__.startswith(OURS)


def held(value: Any) -> Iterator[Any]:
    """Yield the values that an object, a container, a bound method or a closure refers to."""
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
        yield from value
    elif isinstance(value, types.MethodType):
        yield value.__self__
    elif isinstance(value, types.FunctionType):
        yield from (cell.cell_contents for cell in value.__closure__ or ())
    elif isinstance(value, types.GeneratorType) and value.gi_frame is not None:
        yield from value.gi_frame.f_locals.values()
    elif stateful(value):
        yield from vars(value).values() if hasattr(value, "__dict__") else ()
        names = (name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()))
        yield from (getattr(value, name) for name in names if hasattr(value, name))


def cycles(root: Any) -> list[str]:
    """Return the chains of attributes that lead from a stateful object back to it."""
    actual: list[str] = []
    result: set[int] = set()
    above: list[Any] = []

    def visit(value: Any) -> None:
        if any(value is entry for entry in above):
            start = next(number for number, entry in enumerate(above) if entry is value)
            ring = [entry for entry in (*above[start:], value) if stateful(entry)]
            if ring:
                actual.append(" -> ".join(type(entry).__name__ for entry in ring))
            return
        if id(value) in result:
            return
        above.append(value)
        for entry in held(value):
            visit(entry)
        above.pop()
        result.add(id(value))

    visit(root)
    return actual


def machines(seed: int) -> Iterator[Any]:
    """Yield the machines of a simulated world, again and again while it lives."""
    world = World(seed)
    world.submit(world.nodes[: world.scenario.allocated])
    for second in range(1, 60):
        world.clock.run(float(second))
        for coordinator in world.coordinators:
            yield coordinator.machine
            yield from (agent.machine for agent in coordinator.agents)


class Knot:
    """Two objects; the second calls the first back."""

    __module__ = "clusterrun.coordinator.tests"

    def __init__(self) -> None:
        self.name = "a"
        self.calls = [lambda: self.name]


def test_a_knot_would_be_found() -> None:
    assert cycles(Knot()) == ["Knot -> Knot"]


def test_no_object_of_a_live_machine_leads_back_to_itself() -> None:
    observed: set[str] = set()
    for seed in range(12):
        for machine in machines(seed):
            assert cycles(machine) == []
            observed |= {type(var).__name__ for var in vars(getattr(machine, "_lifecycle", machine)).values()}
    assert observed >= {
        "LiveAttempt",
        "RestartPolicy",
        "Shutdown",
        "Termination",
        "WorldFormation",
        "Ranks",
        "Sidecars",
    }


def constructors() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not place.startswith("lab/"):
                for entry in node.body:
                    if isinstance(entry, ast.FunctionDef) and entry.name == "__init__":
                        yield f"{place} {node.name}", entry


def parameters(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs][1:]


def test_constructors_have_at_most_six_parameters() -> None:
    most = {name: len(parameters(entry)) for name, entry in constructors()}
    assert {name: count for name, count in most.items() if count > MOST_PARAMETERS} == {}


def test_constructors_of_the_nodes_machines_take_no_callbacks_but_a_few_hooks() -> None:
    places = ("agent/", "coordinator/", "protocol/", "runtime/")
    calls = ("Callable",)
    taken = {
        f"{name} {parameter.arg}"
        for name, created in constructors()
        if name.startswith(places)
        for parameter in parameters(created)
        if parameter.annotation is not None
        and any(word in ast.unparse(parameter.annotation) for word in calls)
    }
    assert taken == HOOKS


def test_the_end_of_a_rank_reaches_the_end_of_its_run_through_few_files() -> None:
    trace = trace_story.Trace()
    trace_story.story(trace)
    assert len(trace.moves) <= MOST_MOVES, trace.moves


def test_a_pair_answer_that_ends_a_round_passes_through_few_files() -> None:
    check = trace_story.PairRound()
    check.outcome()
    assert 0 < len(check.longest.moves) <= MOST_MOVES_OF_A_PAIR, check.longest.moves
    assert check.longest.calls <= MOST_CALLS_OF_A_PAIR
