"""What the coordinator uses of preflight/ and monitor/, passed in: a run without them loads neither."""

from __future__ import annotations

from clusterrun.model.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.coordinator.hang_monitor import Watch
    from clusterrun.coordinator.preflight_gate import Examine


@frozen
class Collaborators:
    """``examine`` makes the pre-flight of an attempt, ``watch`` the detector over its ranks.

    ``names`` are the nodes of the allocation in order, as the scheduler tells them; empty: it does not.
    ``job_id`` is this job's, empty without a scheduler.
    """

    examine: Examine | None = None
    watch: Watch | None = None
    names: tuple[str, ...] = ()
    job_id: str = ""
