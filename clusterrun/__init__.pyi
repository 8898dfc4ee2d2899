"""The public names with every option. Made by `make stub` from clusterrun/model/option_table.py."""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from os import PathLike
from typing import Literal

from clusterrun.api import Run as Run
from clusterrun.api import find as find
from clusterrun.api import run as run
from clusterrun.api import statuses as statuses
from clusterrun.api import sweep as sweep
from clusterrun.executor import ClusterrunExecutor as Executor
from clusterrun.model.errors import ClusterrunError as ClusterrunError
from clusterrun.model.states import State as State
from clusterrun.operations.context import Context as _Context

__version__: str
__all__ = ["ClusterrunError", "Executor", "Run", "State"]
__all__ += ["check", "find", "run", "statuses", "submit", "sweep"]

def submit(
    *command: str | PathLike[str],
    cwd: str | PathLike[str] = ...,
    context: _Context | None = None,
    tell: Callable[[str], None] = ...,
    nodes: int | str | None = None,
    gpus: int | str | None = None,
    gpus_from: Literal["slurm", "node"] | None = None,
    ranks_per_node: int | None = None,
    cpus_per_rank: int | None = None,
    mem: str | None = None,
    time: float | str | timedelta | None = None,
    time_min: float | str | timedelta | None = None,
    spares: int | None = None,
    partition: str | None = None,
    account: str | None = None,
    qos: str | None = None,
    reservation: str | None = None,
    constraint: str | None = None,
    exclude: str | None = None,
    nodelist: str | None = None,
    name: str | None = None,
    sbatch: str | Iterable[str] | None = None,
    srun: str | Iterable[str] | None = None,
    template: str | PathLike[str] | None = None,
    cluster: Literal["auto", "slurm", "local"] | None = None,
    setup: str | Iterable[str] | None = None,
    env: Mapping[str, str] | Iterable[str] | None = None,
    python: str | PathLike[str] | None = None,
    container: str | None = None,
    mount: str | Iterable[str] | None = None,
    container_runtime: Literal["pyxis", "apptainer", "charliecloud", "podman", "slurm"] | None = None,
    preflight_budget: float | str | timedelta | None = None,
    preflight_limit: Mapping[str, float] | Iterable[str] | None = None,
    check_command: str | Iterable[str] | None = None,
    avoid_bad: bool | None = None,
    bad_since: float | str | timedelta | None = None,
    per_node: bool | None = None,
    numa_binding: Literal["node", "socket", "exclusive", "core-complex"] | None = None,
    elastic: bool | None = None,
    snapshot: bool | None = None,
    snapshot_include: str | Iterable[str] | None = None,
    input: str | None = None,
    preflight: Literal["full", "quick", "off"] | None = None,
    on_unfit: Literal["fail", "resubmit"] | None = None,
    max_restarts: int | None = None,
    requeue: bool | None = None,
    requeue_by: Literal["requeue", "chain"] | None = None,
    max_preemptions: int | None = None,
    max_time_limits: int | None = None,
    notice: float | str | timedelta | None = None,
    kill_wait: float | str | timedelta | None = None,
    no_progress: int | None = None,
    hang_after: float | str | timedelta | None = None,
    on_hang: Literal["report", "restart", "kill"] | None = None,
    notify: str | Iterable[str] | None = None,
    on_event: str | None = None,
    after: Run | str | Iterable[Run | str] | None = None,
) -> Run:
    r"""Submit ``command`` and return its run at once.

    ``command`` is a script, ``"-m", "module"`` or a program, with its arguments, one word each. Options are
    those of the command line: a time is a number of seconds or text ("2h"), ``env`` a mapping, ``after``
    a run or several. ``tell`` gets each notice as a sentence. Raises ``ClusterrunError``.

    Options:
        nodes: Nodes that train; MIN-MAX: what is free. (default: 1)
        gpus: GPUs per node, one rank each: 8, or h100:8.
        gpus_from: Source of the GPUs: slurm (requested from it), or node (whole nodes, unknown to
            Slurm). One of "slurm", "node". (default: slurm)
        ranks_per_node: Ranks per node without GPUs. (default: 1)
        cpus_per_rank: CPU cores per rank. (default: the GPU's share, else 1)
        mem: Memory per node: 64G. (default: the partition's)
        time: Time limit: 90m, 2h, 1d12h, D-HH:MM:SS, or minutes. (default: the partition's)
        time_min: Least time with which the job may start if other jobs leave less than --time.
            (default: --time)
        spares: More nodes, which replace unfit ones before ranks start.
        partition: Slurm partition. (default: the cluster's)
        account: Slurm account. (default: your default one)
        qos: Slurm quality of service. (default: the account's)
        reservation: Slurm reservation.
        constraint: Features that nodes must have.
        exclude: Nodes to exclude.
        nodelist: Nodes that the job must have.
        name: Name of the run. (default: the script's)
        sbatch: Any other sbatch option: nice=10.
        srun: Any other srun option: cpu-bind=cores.
        template: Your own sbatch template. (default: the shipped one)
        cluster: Where to run; auto: on Slurm if its programs are installed, else here. One of "auto",
            "slurm", "local". (default: auto)
        setup: Shell line to run first, once: 'module load cuda'.
        env: Variable for ranks; KEY alone: as in this shell.
        python: The ranks' interpreter. (default: what --setup activates, else the active
            environment's, else ours)
        container: Container image that ranks run in. (default: none)
        mount: With --container: a folder to mount there.
        container_runtime: Container runtime: pyxis, apptainer, charliecloud, podman or slurm. One of
            "pyxis", "apptainer", "charliecloud", "podman", "slurm". (default: what is here and takes
            the image)
        preflight_budget: Time that the pre-flight check may take. (default: 60s)
        preflight_limit: A limit of the pre-flight check; see clusterrun help preflight.
        check_command: Your own check, a shell command on every node. If it fails its last line is the
            reason.
        avoid_bad: Exclude nodes that were unfit lately.
        bad_since: Age up to which a finding counts for --avoid-bad. (default: 7d)
        per_node: Start COMMAND once per node, not once per rank.
        numa_binding: Bind each rank to processors near its GPU, as torchrun --numa-binding does. One
            of "node", "socket", "exclusive", "core-complex". (default: no binding)
        elastic: With --nodes MIN-MAX: each job of the run may have more or fewer.
        snapshot: Copy the code into the run directory, and run the copy in that directory.
        snapshot_include: With --snapshot: also copy PATH, which git ignores (a link if it is large).
        input: Standard input of each rank; -: that of this command. (default: empty)
        preflight: Check the nodes first: full, quick or off. One of "full", "quick", "off". (default:
            full for several nodes, else quick)
        on_unfit: If too few nodes are fit: end, or queue the run again without the unfit ones. One of
            "fail", "resubmit". (default: fail)
        max_restarts: Restarts after failures without progress. (default: 0; 3 with --spares or
            --requeue)
        requeue: Start the run again after time limit or preemption.
        requeue_by: How to continue: Slurm queues the job again, or the next one is queued when this
            one starts. One of "requeue", "chain". (default: requeue)
        max_preemptions: With --requeue: most preemptions. (default: 20)
        max_time_limits: With --requeue: most time limits. (default: 20)
        notice: With --requeue: time from the notice to the end of the job. (default: 120s)
        kill_wait: At the end of the run: time from SIGTERM to SIGKILL, in which ranks can save.
            (default: Slurm's KillWait, less a margin; 30s in local runs)
        no_progress: End after K failed attempts in a row without progress; 0: never. (default: 3)
        hang_after: Time without progress that counts as a hang; off: no detection of hangs. (default:
            10m)
        on_hang: If a run hangs: report the cause, restart all ranks, or end the run. One of "report",
            "restart", "kill". (default: report)
        notify: Send a message at failure, hang and end: slack://…, https://…, mailto:….
        on_event: Shell line that gets each event of the run as JSON on its stdin.
        after: Start when these runs have succeeded.
    """

def check(
    context: _Context | None = None,
    tell: Callable[[str], None] = ...,
    *,
    nodes: int | str | None = None,
    gpus: int | str | None = None,
    gpus_from: Literal["slurm", "node"] | None = None,
    ranks_per_node: int | None = None,
    cpus_per_rank: int | None = None,
    mem: str | None = None,
    time: float | str | timedelta | None = None,
    time_min: float | str | timedelta | None = None,
    spares: int | None = None,
    partition: str | None = None,
    account: str | None = None,
    qos: str | None = None,
    reservation: str | None = None,
    constraint: str | None = None,
    exclude: str | None = None,
    nodelist: str | None = None,
    name: str | None = None,
    sbatch: str | Iterable[str] | None = None,
    srun: str | Iterable[str] | None = None,
    template: str | PathLike[str] | None = None,
    cluster: Literal["auto", "slurm", "local"] | None = None,
    setup: str | Iterable[str] | None = None,
    env: Mapping[str, str] | Iterable[str] | None = None,
    python: str | PathLike[str] | None = None,
    container: str | None = None,
    mount: str | Iterable[str] | None = None,
    container_runtime: Literal["pyxis", "apptainer", "charliecloud", "podman", "slurm"] | None = None,
    preflight_budget: float | str | timedelta | None = None,
    preflight_limit: Mapping[str, float] | Iterable[str] | None = None,
    check_command: str | Iterable[str] | None = None,
    avoid_bad: bool | None = None,
    bad_since: float | str | timedelta | None = None,
    preflight: Literal["full", "quick", "off"] | None = None,
    all_pairs: bool | None = None,
) -> Run:
    r"""Check nodes without training on them: ``check(nodes=4).wait()``, then ``Run.report()``.

    Options are those of the command line. ``tell`` gets each notice as a sentence.
    Raises ``ClusterrunError``.

    Options:
        nodes: Nodes that train; MIN-MAX: what is free. (default: 1)
        gpus: GPUs per node, one rank each: 8, or h100:8.
        gpus_from: Source of the GPUs: slurm (requested from it), or node (whole nodes, unknown to
            Slurm). One of "slurm", "node". (default: slurm)
        ranks_per_node: Ranks per node without GPUs. (default: 1)
        cpus_per_rank: CPU cores per rank. (default: the GPU's share, else 1)
        mem: Memory per node: 64G. (default: the partition's)
        time: Time limit: 90m, 2h, 1d12h, D-HH:MM:SS, or minutes. (default: the partition's)
        time_min: Least time with which the job may start if other jobs leave less than --time.
            (default: --time)
        spares: More nodes, which replace unfit ones before ranks start.
        partition: Slurm partition. (default: the cluster's)
        account: Slurm account. (default: your default one)
        qos: Slurm quality of service. (default: the account's)
        reservation: Slurm reservation.
        constraint: Features that nodes must have.
        exclude: Nodes to exclude.
        nodelist: Nodes that the job must have.
        name: Name of the run. (default: the script's)
        sbatch: Any other sbatch option: nice=10.
        srun: Any other srun option: cpu-bind=cores.
        template: Your own sbatch template. (default: the shipped one)
        cluster: Where to run; auto: on Slurm if its programs are installed, else here. One of "auto",
            "slurm", "local". (default: auto)
        setup: Shell line to run first, once: 'module load cuda'.
        env: Variable for ranks; KEY alone: as in this shell.
        python: The ranks' interpreter. (default: what --setup activates, else the active
            environment's, else ours)
        container: Container image that ranks run in. (default: none)
        mount: With --container: a folder to mount there.
        container_runtime: Container runtime: pyxis, apptainer, charliecloud, podman or slurm. One of
            "pyxis", "apptainer", "charliecloud", "podman", "slurm". (default: what is here and takes
            the image)
        preflight_budget: Time that the pre-flight check may take. (default: 60s)
        preflight_limit: A limit of the pre-flight check; see clusterrun help preflight.
        check_command: Your own check, a shell command on every node. If it fails its last line is the
            reason.
        avoid_bad: Exclude nodes that were unfit lately.
        bad_since: Age up to which a finding counts for --avoid-bad. (default: 7d)
        preflight: Check the nodes first: full, quick or off. One of "full", "quick", "off". (default:
            full for several nodes, else quick)
        all_pairs: Test every pair of nodes: as many rounds as nodes.
    """
