"""What a run really has, where it asked for a choice: the shape and the nodes of its newest world."""

from __future__ import annotations

from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import replace
from clusterrun.model.record import RunRecord, RunState
from clusterrun.model.spec import JobSpec
from clusterrun.runs.store import Store


def formed(spec: JobSpec, state: RunState | None, shape: int | None = None) -> JobSpec:
    """``spec`` with the nodes of its newest world, as far as one was formed.

    Of several shapes it is the one that the run began in, and before that the first.
    """
    spec = spec.shaped(shape or 0) if spec.shapes else spec
    worlds = [attempt.nodes for attempt in state.attempts if attempt.nodes] if state else []
    return replace(spec, nodes=len(worlds[-1]), min_nodes=0) if spec.min_nodes and worlds else spec


def spec_of(record: RunRecord, store: Store) -> JobSpec:
    """The same, for the run of ``record``; a state that cannot be read changes nothing."""
    if not (record.spec.min_nodes or record.spec.shapes):
        return record.spec
    try:
        return formed(record.spec, store.state(record.run_id), store.shape(record.run_id))
    except ClusterrunError:
        return record.spec
