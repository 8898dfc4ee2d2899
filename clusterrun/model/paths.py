"""Define every path of a run. Touches no disk.

Scripts of users rely on the layout. Each file has one writer:

    record.json      the request, and the scheduler's answer   (the client, at submit)
    orders.json      the orders for the nodes, 0600 because of the environment   (the client, at submit)
    script.sh        the batch script as submitted   (the client)
    stdin            the standard input of each rank, if it is a copy   (the client)
    agent.pyz        the node-side program, one file   (the client)
    snapshot/        a copy of the code, if requested   (the client)
    snapshot.txt     its commit, and the differences from it   (the client)
    checked.json     the facts that its pre-flight depends on   (the client)
    cancel           requests the cancellation of the run   (the command that cancels)
    state.json       the progress of the run   (the coordinator)
    reserve          room for the last state of a run that fills the disk   (the coordinator)
    successor.json   the job in which the run continues   (the coordinator)
    next.json        the queued job that waits for the end of this one   (the coordinator)
    left.json        the actions of agents that lost their coordinator   (one of them)
    save_now         requests a checkpoint at once   (the user)
    prelude/         modules that the Python of watched ranks loads first   (the coordinator)
    asks/            questions to the coordinator of a live run   (the client)
    ended.json       the final status of an ended run   (the client)
    job.out          output of the batch step itself, setup lines included
    attempts/000/    one per start of the ranks; a number is used once
        coordinator.log
        00003.out 00003.err     output of rank 3
        00003.error.json        the traceback of rank 3, if its program wrote one
        preflight.json          the result of the pre-flight check   (the coordinator)
        notice.json             the reason and time of the job's coming end   (the coordinator)
        progress.json           the newest step and checkpoint, if the script reports them   (rank 0)
        results.json            results that the script reported   (rank 0)
        hooks.log               output of the commands of --on-event   (the coordinator)
        notify.log              messages of --notify that were not delivered   (the coordinator)
        node-0001.examiner.log  output of the examiner of node 1; .observer.log: of its observer;
                                .container.log: of the program that starts the container of its ranks
        node-0001.samples       usage of node 1 and its ranks, a line of JSON each 10 s   (the observer)
        node-0001.now           the current usage, while a command shows it   (the observer)
        node-0001.stacks        stacks of the ranks of node 1 at the request to end   (the agent)
        node-0001.index         sizes of the output files over time, for merging by time
"""

from __future__ import annotations

import os

from clusterrun.model.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class _Below:
    """A file or folder of this name, in the folder that the owner's only field holds."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: RunPaths | AttemptPaths, kind: type) -> str:
        (folder,) = vars(owner).values()
        return os.path.join(folder, self._name)


@frozen
class RunPaths:
    """The files of one run below its run directory (an absolute path)."""

    run_dir: str

    record = _Below("record.json")
    orders = _Below("orders.json")
    input = _Below("stdin")
    script = _Below("script.sh")
    agent = _Below("agent.pyz")
    snapshot = _Below("snapshot")
    snapshot_note = _Below("snapshot.txt")
    checked_for = _Below("checked.json")
    cancel = _Below("cancel")
    state = _Below("state.json")
    reserve = _Below("reserve")
    successor = _Below("successor.json")
    next = _Below("next.json")
    orphan_report = _Below("left.json")
    save_now = _Below("save_now")
    asks = _Below("asks")
    prelude = _Below("prelude")
    ended = _Below("ended.json")
    job_output = _Below("job.out")
    attempts = _Below("attempts")

    def attempt(self, epoch: int) -> AttemptPaths:
        return AttemptPaths(os.path.join(self.attempts, f"{epoch:03d}"))


def _numbered(name: str) -> Callable[[AttemptPaths, int], str]:
    """Return a property for the file of a rank or node number."""
    return lambda attempt, number: os.path.join(attempt.folder, name.format(number))


@frozen
class AttemptPaths:
    folder: str

    coordinator_log = _Below("coordinator.log")
    preflight = _Below("preflight.json")
    notice = _Below("notice.json")
    progress = _Below("progress.json")
    results = _Below("results.json")
    hooks_log = _Below("hooks.log")
    notify_log = _Below("notify.log")

    out = _numbered("{:05d}.out")
    err = _numbered("{:05d}.err")
    error = _numbered("{:05d}.error.json")
    samples = _numbered("node-{:04d}.samples")
    now = _numbered("node-{:04d}.now")
    stacks = _numbered("node-{:04d}.stacks")
    index = _numbered("node-{:04d}.index")

    def sidecar_log(self, node: int, companion: str) -> str:
        """Return the log of a companion. ``node`` is an index in the allocation."""
        return os.path.join(self.folder, f"node-{node:04d}.{companion}.log")

    def beside(self, name: str) -> str:
        return os.path.join(self.folder, name)
