"""Functions as runs, with their results: submitit's interface, so that code for it needs one word changed.

    executor = clusterrun.Executor()                 # or submitit.AutoExecutor(folder, cluster="clusterrun")
    executor.update_parameters(nodes=2, gpus=8, time="2h")
    job = executor.submit(train, lr=0.1)
    job.results()                                    # of every rank

The function is pickled into the run directory, which is the user's alone, and a rank runs
``clusterrun.training.function``. A list of calls is one array, as a sweep is.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from submitit.core import core, utils

from clusterrun import api
from clusterrun.config import python_options
from clusterrun.config.spec_fields import spec_of
from clusterrun.model.errors import BadInput, ClusterrunError
from clusterrun.model.record import RunStatus
from clusterrun.model.states import State
from clusterrun.operations.context import Context, Tell, quiet
from clusterrun.operations.submit import Files
from clusterrun.operations.sweep import new_sweep, start
from clusterrun.operations.wait import RunWait
from clusterrun.runs.sweep_records import SweepRecord
from clusterrun.training.function import CALL, NAME, CallPaths, check_ours

ENTRY = ("-m", "clusterrun.training.function")
GIGABYTE = 1024**3
log = logging.getLogger("clusterrun")
# A function's time limit if none was given: submitit's own default.
DEFAULT_MINUTES = 5


class NotSubmitted(BadInput, RuntimeError):
    """A call that cannot be sent as it is."""


class ClusterrunJob(core.Job[Any]):
    """A call as a run: its id, its state, what it printed and what it returned."""

    # A result is read whole: a larger one is not, unless somebody raises this.
    max_result_size_gb = 8.0

    def __init__(
        self, folder: str | Path, job_id: str, tasks: Sequence[int] = (0,), context: Context | None = None
    ) -> None:
        """``job_id`` is the run id; ``folder`` counts for nothing, the run directory has everything."""
        self._context: Context | None = context or Context()
        self._watch: RunWait | None = None
        super().__init__(folder, job_id, tasks[:1])
        if len(tasks) > 1:
            self._tasks = tuple(tasks)
            self._sub_jobs = [type(self)(folder, job_id, (rank,), context) for rank in tasks]
        self._paths = CallPaths(self.run.run_dir, self.job_id, tasks[0])

    def _register_in_watcher(self) -> None:
        """Every run has its own files; nothing is asked for all of them beforehand."""

    @property
    def run(self) -> api.Run:
        """The run, with all that a run has: ``job.run.diagnose()``."""
        return api.run(self.job_id, self._known())

    def _known(self) -> Context:
        if self._context is None:
            self._context = Context()
        return self._context

    def _status(self) -> RunStatus:
        if self._watch is None:
            self._watch = RunWait(self._known(), self.job_id, quiet)
        return self._watch.look()

    @property
    def state(self) -> str:
        return self._status().state.value

    def get_info(self, mode: str = "force") -> dict[str, str]:
        status = self._status()
        return {"jobState": status.state.value, "reason": status.reason}

    def done(self, force_check: bool = False) -> bool:
        """Whether there is a result, or none will come any more."""
        if self._sub_jobs:
            return all(job.done() for job in self._sub_jobs)
        if self._status().state.ended or (self._watch is not None and self._watch.over()):
            return True
        return not self.run.record.spec.restarts and self.paths.result_pickle.exists()

    def cancel(self, check: bool = True) -> None:
        self.run.cancel()
        self._watch = None  # what was seen before is old

    def _get_outcome_and_result(self) -> tuple[str, Any]:
        path = self.paths.result_pickle
        if not path.exists():
            status = self._status()
            state, rank = status.state.value, self.paths.task_id
            message = f"{self.job_id} is {state} and rank {rank} has returned nothing"
            message += f": {status.reason}" if status.reason else ""
            lines = (message, (self.stderr() or "").strip()[-2000:], f"clusterrun diagnose {self.job_id}")
            raise utils.UncompletedJobError("\n".join(filter(None, lines)))
        check_ours(path)
        size, most = path.stat().st_size / GIGABYTE, self.max_result_size_gb
        if size > most:
            message = (
                f"the result in {path} has {size:.3g} GiB and would be read whole: up to {most:g} GiB are"
            )
            remedy = f"return the path of what is large; or say type(job).max_result_size_gb = {size + 1:.0f}"
            raise utils.UncompletedJobError(f"{message}\n{remedy}")
        try:
            outcome: tuple[str, Any] = utils.pickle_load(path)
        except (MemoryError, EOFError, pickle.UnpicklingError, AttributeError, ImportError) as error:
            message = (
                f"the result in {path} ({size:.3g} GiB) cannot be read here: {type(error).__name__}: {error}"
            )
            raise utils.UncompletedJobError(message) from error
        return outcome

    def exception(self) -> Any:
        """submitit's error, or None; its ``__cause__`` is what the function raised, if that can be read."""
        raised = super().exception()
        assert isinstance(self._paths, CallPaths)
        path = self._paths.error_pickle
        if isinstance(raised, utils.FailedJobError) and not self._sub_jobs and path.exists():
            try:
                check_ours(path)
                cause = utils.pickle_load(path)
            except Exception as error:  # noqa: BLE001 (a class that only the ranks have)
                log.warning("what %s raised cannot be read here: %s", self.job_id, error)
            else:
                raised.__cause__ = cause if isinstance(cause, BaseException) else None
        return raised

    def submission(self) -> utils.DelayedSubmission:
        check_ours(self.paths.submitted_pickle)
        return utils.DelayedSubmission.load(self.paths.submitted_pickle)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_context": None, "_watch": None}


class ClusterrunExecutor(core.Executor):
    """Submits calls as runs. Parameters are the options of ``clusterrun.submit``, with their defaults."""

    job_class = ClusterrunJob

    def __init__(
        self,
        folder: str | Path = "",
        max_num_timeout: int = 3,
        max_pickle_size_gb: float = 1.0,
        context: Context | None = None,
        tell: Tell = quiet,
        **parameters: Any,
    ) -> None:
        """``folder`` is there for submitit's interface: everything lies in the runs' own directories."""
        super().__init__(folder or os.getcwd())
        self.max_num_timeout = max_num_timeout
        self.max_pickle_size_gb = max_pickle_size_gb
        self._context = context or Context()
        self._tell = tell
        self.update_parameters(**parameters)

    @classmethod
    def affinity(cls) -> int:
        """It is used where it is asked for."""
        return 0

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return {option.field for option in python_options.SUBMIT} | {"at_most"}

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        # The parameters of submitit's ``AutoExecutor`` under our names.
        parameters = dict(kwargs)
        if "timeout_min" in parameters:
            parameters["time"] = f"{parameters.pop('timeout_min')}m"
        if "mem_gb" in parameters:
            parameters["mem"] = f"{int(parameters.pop('mem_gb') * 1024)}M"
        tasks, gpus = parameters.pop("tasks_per_node", None), parameters.pop("gpus_per_node", None)
        if gpus is not None:
            parameters["gpus"] = gpus
        if "cpus_per_task" in parameters:
            parameters["cpus_per_rank"] = parameters.pop("cpus_per_task")
        if parameters.pop("stderr_to_stdout", False):
            self._tell("stderr_to_stdout is ignored: job.stderr() has what was printed as errors")
        if gpus and tasks == 1:
            parameters["per_node"] = True
        elif tasks is not None:
            parameters["ranks_per_node"] = tasks
        options = {name: value for name, value in parameters.items() if name != "at_most"}
        python_options.check("submit", options, python_options.SUBMIT)
        self.parameters.update(parameters)

    def _internal_process_submissions(self, delayed_submissions: Sequence[Any]) -> list[Any]:
        options = {name: value for name, value in self.parameters.items() if name != "at_most"}
        calls = list(delayed_submissions)
        name = options.pop("name", None) or _name(calls[0])
        # The user's script may import modules from its own folder, so ranks look there too.
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        folder = os.path.dirname(os.path.abspath(main)) if main else ""
        command = (*ENTRY, folder) if folder and sys.path[0] == folder != os.getcwd() else ENTRY
        spec = spec_of(command, os.getcwd(), {**options, "name": name}, self._context.environ)
        if spec.min_nodes:
            raise BadInput(f"nodes={spec.nodes_asked!r}: a job has one result for each rank", "give nodes=4")
        import cloudpickle

        contents: list[bytes] = []
        for call in calls:
            call.set_timeout(spec.time / 60 or DEFAULT_MINUTES, self.max_num_timeout)
            try:
                contents.append(cloudpickle.dumps(call, pickle.HIGHEST_PROTOCOL))
            except Exception as error:
                message = f"{_name(call)} cannot be sent to the ranks: {type(error).__name__}: {error}"
                remedy = "open files, locks, sockets and the like where the function runs, not before"
                raise NotSubmitted(message, remedy) from error
            if len(contents[0]) * len(calls) > self.max_pickle_size_gb * GIGABYTE:
                size = len(contents[0]) * len(calls) / GIGABYTE
                message = f"{len(calls)} calls of {_name(call)} are about {size:.3g} GiB with their arguments"
                raise NotSubmitted(message, "pass paths, not data; or raise executor.max_pickle_size_gb")
        files = [[(CALL, content)] for content in contents]
        if len(files) == 1:
            ids = [api.launch(spec, self._context, self._tell, files[0]).run_id]
        else:
            record = new_sweep(spec, [()] * len(files), self.parameters.get("at_most") or 0, self._context)
            ids = self._started(record, files).run_ids
        ranks = range(spec.nodes if spec.per_node else spec.world_size)
        return [self.job_class(self.folder, run_id, tuple(ranks), self._context) for run_id in ids]

    def _started(self, sweep: SweepRecord, files: Sequence[Files]) -> SweepRecord:
        """All calls queued: where a limit holds some back, this waits until there is room for them."""
        record = start(sweep, self._context, self._tell, files, patient=False)
        if record.waiting:
            log.warning(
                "%s: %d calls are queued; a limit on your jobs holds %d back, which are queued as others end",
                record.name, len(record.run_ids), len(record.waiting),
            )  # fmt: skip
            record = start(record, self._context, self._tell, files)
        return record


def _name(call: Any) -> str:
    function = call.function
    named = getattr(function, "__name__", "") or type(getattr(function, "func", function)).__name__
    return named.strip("<>") or "call"


__all__ = ["NAME", "ClusterrunError", "ClusterrunExecutor", "ClusterrunJob", "NotSubmitted", "State"]
