"""A launcher of hydra: with ``hydra/launcher=clusterrun`` the jobs of a multirun are runs, and one array."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.core.singleton import Singleton
from hydra.core.utils import (
    JobReturn,
    JobStatus,
    configure_log,
    filter_overrides,
    run_job,
    setup_globals,
    simple_stdout_log_config,
)
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from clusterrun.config import python_options

if TYPE_CHECKING:
    from clusterrun.executor import ClusterrunJob

log = logging.getLogger(__name__)
OPTIONS = {option.field: None for option in python_options.SUBMIT}
"""`hydra.launcher.nodes=2`: those of `clusterrun submit`; None says nothing."""

ConfigStore.instance().store(
    group="hydra/launcher",
    name="clusterrun",
    node={
        "_target_": "hydra_plugins.clusterrun_launcher.ClusterrunLauncher",
        "_convert_": "all",
        "detach": False,
        "at_most": None,
        **OPTIONS,
    },
    provider="clusterrun",
)


class OneJob:
    """A job of the multirun as its ranks call it, with all that hydra knows of it."""

    def __init__(self, context: HydraContext, task: TaskFunction, config: DictConfig) -> None:
        self.context, self.task, self.config = context, task, config
        self.singletons = Singleton.get_state()

    def __call__(self) -> JobReturn:
        """Run it. What it raises ends the rank, so that the run has failed and can be diagnosed."""
        first = os.environ["RANK"] == "0"  # it alone writes the log and the configuration
        Singleton.set_state(self.singletons)
        setup_globals()
        with open_dict(self.config.hydra):
            self.config.hydra.job.id = os.environ["CLUSTERRUN_RUN_ID"]
            if not first:
                self.config.hydra.output_subdir = None
                simple_stdout_log_config()
        done = run_job(
            hydra_context=self.context,
            task_function=self.task,
            config=self.config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
            configure_logging=first,
        )
        _ = done.return_value
        return done

    def checkpoint(self) -> Any:
        """It is called again after a time limit or a preemption, with ``requeue``."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class ClusterrunLauncher(Launcher):
    """Queues the jobs of a multirun as one array of runs and waits for what they return."""

    def __init__(self, detach: bool = False, at_most: int | None = None, **options: Any) -> None:
        """``detach``: return once they are queued. ``options`` are those of `clusterrun submit`."""
        self._detach = detach
        self._options = {name: value for name, value in options.items() if value is not None}
        self._at_most = at_most
        self._config = DictConfig({})
        self._context: HydraContext | None = None
        self._task: TaskFunction | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """What hydra tells before it launches."""
        self._context, self._task, self._config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run a job for each of ``job_overrides``. A wrong override is an error before anything is queued."""
        setup_globals()
        hydra = self._config.hydra
        configure_log(hydra.hydra_logging, hydra.verbose)
        Path(str(hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        calls = [self._call(list(one), initial_job_idx + at) for at, one in enumerate(job_overrides)]
        jobs = self._submitted(calls)
        for at, (job, overrides) in enumerate(zip(jobs, job_overrides)):
            log.info(
                "\t#%d : %s : %s", initial_job_idx + at, " ".join(filter_overrides(overrides)), job.job_id
            )
        name = jobs[0].run.name.rpartition(".")[0] if len(jobs) > 1 else jobs[0].run.name
        if self._detach:
            log.info("queued: clusterrun status %s", shlex.quote(name))
            return [
                JobReturn(overrides=call.config.hydra.overrides.task, status=JobStatus.COMPLETED)
                for call in calls
            ]
        try:
            return [_returned(job, call.config) for job, call in zip(jobs, calls)]
        except KeyboardInterrupt:
            log.warning("the runs go on: clusterrun status %s", shlex.quote(name))
            raise

    def _call(self, overrides: list[str], number: int) -> OneJob:
        assert self._context is not None and self._task is not None
        config = self._context.config_loader.load_sweep_config(self._config, overrides)
        with open_dict(config.hydra.job):
            config.hydra.job.num = number
        return OneJob(self._context, self._task, config)

    def _submitted(self, calls: Sequence[OneJob]) -> list[ClusterrunJob]:
        from clusterrun.executor import ClusterrunExecutor  # hydra loads this file at each of its starts

        options = {"name": str(self._config.hydra.job.name), **self._options}
        if self._at_most:
            options["at_most"] = self._at_most
        executor = ClusterrunExecutor(tell=log.info, **options)
        with executor.batch():
            return [executor.submit(call) for call in calls]  # type: ignore[misc]


def _returned(job: ClusterrunJob, config: DictConfig) -> JobReturn:
    """What rank 0 returned; where a rank failed, what it said, as hydra raises it."""
    failed = job.exception()
    if failed is None:
        found: JobReturn = job.results()[0]
        return found
    log.error("clusterrun diagnose %s", job.job_id)
    failure = JobReturn(overrides=config.hydra.overrides.task, cfg=config, status=JobStatus.FAILED)
    failure.return_value = failed
    return failure
