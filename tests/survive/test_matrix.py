"""The matrix of faults leaves out no pair that can meet; its runs on the lab are among the figures."""

from __future__ import annotations

import itertools

from benchmarks.cells import FAULTS, PHASES, SENSELESS, VICTIMS, Cell, cells, cover


def test_every_two_values_that_can_meet_do_so_in_the_cover() -> None:
    chosen = cover()
    assert {pair for cell in cells() for pair in cell.pairs} == {
        pair for entry in chosen for pair in entry.pairs
    }
    assert len(set(chosen)) == len(chosen) < len(cells())


def test_every_rule_leaves_something_out_and_no_value_altogether() -> None:
    remote = {value for cell in cells() for value in (cell.phase, cell.fault, cell.victim)}
    assert remote == {*PHASES, *FAULTS, *VICTIMS}
    every = [Cell(*values) for values in itertools.product(PHASES, FAULTS, VICTIMS)]
    assert all(any(rule(cell) for cell in every) for rule in SENSELESS.values())
