"""Run a function as a rank: ``python -m clusterrun.training.function``; submitit calls it.

The pickled function lies in the run directory, and its result is stored beside the rank's output. A pickle
runs code, so a file that another user could have written is never read.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from submitit.core import job_environment, submission, utils

from .script import current_script

CALL = "call.pkl"
NAME = "clusterrun"
MUCH = 1 << 30


class NotOurs(RuntimeError):
    """A pickle that another user may have written."""


class CallPaths(utils.JobPaths):
    """The files of a function's rank in its run directory, under the names that submitit uses."""

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
        """Return the exception that ended the call, if it can be pickled."""
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
        place = current_script().place
        return CallPaths(place.run_dir, self.raw_job_id, place.rank, place.attempt)

    def _requeue(self, countdown: int) -> None:
        """End this rank. The coordinator queues the run again if ranks end with work left."""
        current_script().stopping = True
        current_script().progress(None, None)
        sys.exit(0)


def check_ours(path: Path) -> None:
    """Refuse a pickle that is not a regular file of this user, or that others may write.

    Raises ``NotOurs``.
    """
    status = os.lstat(path)
    is_private = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
    if not is_private:
        problem = f"{path} is not a file that this user alone may write"
        raise NotOurs(f"{problem}: it is not opened, for a pickle runs code")


def _keep(error: Exception, path: Path) -> None:
    """Write the exception beside the rank's output.

    If it cannot be pickled, its traceback remains as text.
    """
    try:
        with utils.temporary_save_path(path) as temporary:
            utils.cloudpickle_dump(error, temporary)
    except Exception as refusal:  # noqa: BLE001 (an exception may hold anything)
        print(f"clusterrun: {type(error).__name__} cannot be pickled: {refusal}", file=sys.stderr)


def main() -> None:
    """Call the function of this run; an exception ends the rank. The arguments are paths of its modules."""
    sys.path[:0] = sys.argv[1:]
    os.environ["SUBMITIT_EXECUTOR"] = NAME
    paths = CallPaths(
        current_script().place.run_dir, "", current_script().place.rank, current_script().place.attempt
    )
    check_ours(paths.folder / CALL)
    try:
        submission.process_job(paths.folder)
    except Exception as error:
        _keep(error, paths.error_pickle)
        raise
    size = paths.result_pickle.stat().st_size
    if size > MUCH:
        print(
            f"clusterrun: the result has {size / MUCH:.1f} GiB, and every reader loads all of it:"
            " save it to a file and return its path",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
