"""What a rank runs if its run is a function: ``python -m clusterrun.training.function``; submitit calls it.

The function lies pickled in the run directory, and what it returns is put beside the rank's output. A
pickle runs code, so nothing is read that another user could have written.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from submitit.core import job_environment, submission, utils

from .script import here

CALL = "call.pkl"
NAME = "clusterrun"
MUCH = 1 << 30


class NotOurs(RuntimeError):
    """A pickle that another user may have written."""


class CallPaths(utils.JobPaths):
    """The files of a function's rank in its run directory, as submitit asks for them."""

    def __init__(self, run_dir: str, run_id: str, rank: int | None, attempt: int | None = None) -> None:
        super().__init__(run_dir, job_id=run_id, task_id=rank)
        self._run_dir, self._attempt = Path(run_dir), attempt

    @property
    def folder(self) -> Path:
        return self._run_dir

    @property
    def submission_file(self) -> Path:
        return self._run_dir / "script.sh"

    @property
    def submitted_pickle(self) -> Path:
        return self._run_dir / CALL

    @property
    def result_pickle(self) -> Path:
        return self._of_rank("result.pkl")

    @property
    def error_pickle(self) -> Path:
        """The exception that ended the call, if it can be pickled."""
        return self._of_rank("error.pkl")

    @property
    def stdout(self) -> Path:
        return self._of_rank("out")

    @property
    def stderr(self) -> Path:
        return self._of_rank("err")

    def _of_rank(self, ending: str) -> Path:
        attempts = self._run_dir / "attempts"
        number = self._attempt
        if number is None:
            names = os.listdir(attempts) if attempts.is_dir() else []
            number = max((int(name) for name in names if name.isdecimal()), default=0)
        return attempts / f"{number:03d}" / f"{self.task_id:05d}.{ending}"


class ClusterrunJobEnvironment(job_environment.JobEnvironment):
    _env = {
        "job_id": "CLUSTERRUN_RUN_ID",
        "num_tasks": "WORLD_SIZE",
        "num_nodes": "GROUP_WORLD_SIZE",
        "node": "GROUP_RANK",
        "global_rank": "RANK",
        "local_rank": "LOCAL_RANK",
    }

    @property
    def paths(self) -> CallPaths:
        place = here().place
        return CallPaths(place.run_dir, self.raw_job_id, place.rank, place.attempt)

    def _requeue(self, countdown: int) -> None:
        """The coordinator queues the run again once its ranks have ended with work left."""
        here().stopping = True
        here().progress(None, None)
        sys.exit(0)


def check_ours(path: Path) -> None:
    """Refuse a pickle that is not a plain file of ours, or that others may write. Raises ``NotOurs``."""
    found = os.lstat(path)
    ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    if not ours:
        seen = f"{path} is not a file that this user alone may write"
        raise NotOurs(f"{seen}: it is not opened, for a pickle runs code")


def _keep(error: Exception, path: Path) -> None:
    """Write the exception beside the rank's output. Without it there is still its traceback as text."""
    try:
        with utils.temporary_save_path(path) as temporary:
            utils.cloudpickle_dump(error, temporary)
    except Exception as refusal:  # noqa: BLE001 (an exception may hold anything)
        print(f"clusterrun: {type(error).__name__} cannot be pickled: {refusal}", file=sys.stderr)


def main() -> None:
    """Call the function of this run; what it raises ends the rank. Arguments: where its modules lie."""
    sys.path[:0] = sys.argv[1:]
    os.environ["SUBMITIT_EXECUTOR"] = NAME
    paths = CallPaths(here().place.run_dir, "", here().place.rank, here().place.attempt)
    check_ours(paths.folder / CALL)
    try:
        submission.process_job(paths.folder)
    except Exception as error:
        _keep(error, paths.error_pickle)
        raise
    size = paths.result_pickle.stat().st_size
    if size > MUCH:
        print(
            f"clusterrun: the result has {size / MUCH:.1f} GiB, and whoever asks for it reads all of it:"
            " better save it and return its path",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
