"""Every path of a run: who needs a file asks here; knows names only, touches no disk.

Scripts rely on the layout; each file has one writer:

    record.json      what was asked, and what the scheduler answered   (the client, at submit)
    orders.json      what the nodes are to do, 0600: it holds the environment   (the client, at submit)
    script.sh        the batch script as submitted   (the client)
    stdin            the standard input of each rank, if it was passed on   (the client)
    agent.pyz        the node-side program, one file   (the client)
    shapes/0/        orders.json and script.sh of one of several shapes   (the client); the first that starts
                     makes orders.json above a link to its own
    snapshot/        the code as it was, if asked for   (the client)
    snapshot.txt     the commit it was at, and what differed from it   (the client)
    checked.json     on what its pre-flight depends   (the client)
    cancel           left by whoever cancelled the run   (the client)
    state.json       how far the run is   (the coordinator)
    reserve          room for the last state of a run that fills the disk   (the coordinator)
    successor.json   the job in which the run goes on   (the coordinator)
    next.json        the job that is queued and waits for the end of this one   (the coordinator)
    left.json        what agents do whose coordinator is gone   (one of them)
    save_now         touched by whoever wants a checkpoint at once   (the user)
    prelude/         what the Python of ranks loads first, where they are watched   (the coordinator)
    asks/            questions to the coordinator of a live run   (the client)
    ended.json       the last word on a run that was seen ended   (the client)
    job.out          what the batch step itself printed, setup lines included
    attempts/000/    one per start of the ranks; a number is taken once
        coordinator.log
        00003.out 00003.err     what rank 3 printed
        00003.error.json        the traceback of rank 3, where its program left one
        preflight.json          what the pre-flight check found   (the coordinator)
        notice.json             the job is to end soon: why, and when   (the coordinator)
        progress.json           the newest step and checkpoint, where the script says them   (rank 0)
        results.json            what the script reported   (rank 0)
        hooks.log               what the commands of --on-event printed   (the coordinator)
        node-0001.examiner.log  what the examiner of node 1 had to say; .observer.log: its observer;
                                .container.log: what started the container of its ranks
        node-0001.samples       what node 1 and its ranks used, a line of JSON each 10 s   (the observer)
        node-0001.now           the same now, while somebody looks   (the observer)
        node-0001.stacks        where the ranks of node 1 stood when they were told to end   (the agent)
        node-0001.index         which byte of which file was there when, for merging by time
"""

from __future__ import annotations

import os

from clusterrun.model.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_SHAPES = "shapes"


def of_shape(path: str) -> tuple[str, int]:
    """The run directory that the folder of a shape is in, and which shape; ``path`` and -1 for any other."""
    above, number = os.path.split(path)
    run_dir, name = os.path.split(above)
    return (run_dir, int(number)) if name == _SHAPES and number.isdecimal() else (path, -1)


class _Below:
    """A file, or a folder, of this name in the folder that its owner's only field names."""

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
    left = _Below("left.json")
    save_now = _Below("save_now")
    asks = _Below("asks")
    prelude = _Below("prelude")
    ended = _Below("ended.json")
    job_output = _Below("job.out")
    attempts = _Below("attempts")

    def shape(self, number: int) -> RunPaths:
        """The orders and the script of one of several shapes of the run."""
        return RunPaths(os.path.join(self.run_dir, _SHAPES, str(number)))

    def attempt(self, epoch: int) -> AttemptPaths:
        return AttemptPaths(os.path.join(self.attempts, f"{epoch:03d}"))


def _numbered(name: str) -> Callable[[AttemptPaths, int], str]:
    """The file of a rank, or of a node, of that number."""
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

    out = _numbered("{:05d}.out")
    err = _numbered("{:05d}.err")
    error = _numbered("{:05d}.error.json")
    samples = _numbered("node-{:04d}.samples")
    now = _numbered("node-{:04d}.now")
    stacks = _numbered("node-{:04d}.stacks")
    index = _numbered("node-{:04d}.index")

    def sidecar_log(self, node: int, companion: str) -> str:
        """``node`` counts the nodes of the allocation."""
        return os.path.join(self.folder, f"node-{node:04d}.{companion}.log")

    def beside(self, name: str) -> str:
        return os.path.join(self.folder, name)
