"""List the options of launchers: torchrun, accelerate, deepspeed, mpirun, srun.

Each row says whether the option takes a value, and the option of clusterrun that replaces it.

Sources: the options of torch 2.13, accelerate 1.15, deepspeed 0.19, Open MPI 5 and Slurm 26.05.
"""

from __future__ import annotations

from collections.abc import Iterator

from clusterrun.model.frozen import frozen
from clusterrun.model.option_table import CONFIGURABLE
from clusterrun.script.sbatch_table import OPTIONS as SBATCH
from clusterrun.script.sbatch_table import SRUN_ALONE, SRUN_REFUSED

# Roles: how clusterrun reads an option.
NODES, PER_NODE, TOTAL, GPUS_PER_NODE = "nodes", "per node", "total", "gpus per node"
RESTARTS = "restarts"
GPUS_PER_TASK = "gpus per task"
NUMBERS = (NODES, PER_NODE, TOTAL, RESTARTS, GPUS_PER_TASK)
# clusterrun does the same without an option.
NEEDLESS = "needless"
# Only the launcher itself can do it.
OWN = "own"
MODULE = "module"  # the word behind it is a module
ON_CPUS = "on CPUs"
VARIABLE = "variable"  # the value is NAME=VALUE, or NAME
VARIABLES = "variables"  # the value is NAME=VALUE,NAME=VALUE
SETS = "sets "  # followed by the variable that it sets
OURS = "ours "  # followed by our option
SRUN = "srun"  # passed on by --srun
CHDIR = "chdir"  # a setup line changes to it
FOLDER = "folder"  # COMMAND changes to it
OUTPUT = "output"  # it says where the output goes
STEP = "step"  # it gives the step a part of the job
PLACES = "places"  # it places or binds tasks
INCLUDE = "include"  # the value is HOST:GPU,GPU
UPPER = "upper "  # followed by the variable that it sets, in capitals


@frozen
class LauncherOption:
    """One option of a launcher."""

    values: int  # words that follow it
    role: str  # one of the roles above


def _rows(*rows: str) -> Iterator[tuple[str, LauncherOption]]:
    """Yield the options in ``rows``: the role, a colon, names; a name with ``*`` takes no value."""
    for row in rows:
        role, _, names = row.partition(": ")
        for name in names.split():
            values = 0 if name.endswith("*") else 2 if name.endswith("2") else 1
            yield name.rstrip("*2"), LauncherOption(values, role)


_TORCHRUN = dict(
    _rows(
        "nodes: nnodes",
        "per node: nproc-per-node nproc",
        "restarts: max-restarts",
        "module: m* module*",
        "needless: rdzv-backend rdzv-endpoint rdzv-id rdzv-conf standalone* node-rank master-addr "
        "master-port local-addr start-method use-env* monitor-interval role logs-specs "
        "no-python* event-log-handler",
        "own: run-path*",
        "output: log-dir redirects r tee t local-ranks-filter",
    )
)
_ACCELERATE = dict(
    _rows(
        "nodes: num-machines",
        "total: num-processes",
        "restarts: max-restarts",
        "module: m* module*",
        "on CPUs: cpu*",
        "needless: machine-rank main-process-ip main-process-port rdzv-backend rdzv-conf multi-gpu* "
        "monitor-interval role no-python* quiet* q* same-network* main-training-function",
        "output: log-dir tee",
        "sets ACCELERATE_MIXED_PRECISION: mixed-precision",
        "upper ACCELERATE_DYNAMO_BACKEND: dynamo-backend",
        "sets ACCELERATE_GRADIENT_ACCUMULATION_STEPS: gradient-accumulation-steps",
        "sets OMP_NUM_THREADS: num-cpu-threads-per-process",
        "own: use-fsdp* use-deepspeed* use-megatron-lm* use-parallelism-config* tpu* mps* debug* use-xla* "
        "use-mps-device* enable-cpu-affinity* downcast-bf16* zero3-init-flag* zero3-save-16bit-model* "
        "aws-access-key-id",
    )
)
_DEEPSPEED = dict(
    _rows(
        "nodes: num-nodes",
        "per node: num-gpus num-accelerators",
        "module: module*",
        "needless: hostfile H master-addr master-port launcher launcher-args no-ssh* node-rank ssh-port "
        "no-local-rank* no-python* force-multi* no-ssh-check* save-pid* enable-each-rank-log",
        "include: include",
        "own: bind-cores-to-rank* elastic-training*",
    )
)
_MPIRUN = dict(
    _rows(
        "total: np n c",
        "per node: npernode ppn N ntasks-per-node",
        "needless: hostfile machinefile H host hosts f allow-run-as-root* oversubscribe* tag-output* quiet* "
        "q* timestamp-output* report-bindings* prefix merge-stderr-to-stdout* l* iface launcher bootstrap "
        "with-ft",
        "variable: x genv2 env2",
        "places: bind-to map-by rank-by cpu-set",
        "own: mca2 gmca2 timeout display-map* nooversubscribe* wdir o",
    )
)
_SRUN = {
    **{
        name: LauncherOption(
            1 if option.takes == "required" else 0,
            OURS + name if name in CONFIGURABLE else OWN if option.refused else SRUN,
        )
        for name, option in SBATCH.items()
    },
    **{name: LauncherOption(1, OWN) for name in SRUN_REFUSED},
    **{name: LauncherOption(1, SRUN) for name in SRUN_ALONE},
    **dict(
        _rows(
            "nodes: nodes",
            "total: ntasks",
            "per node: ntasks-per-node tasks-per-node",
            "gpus per node: gpus-per-node gres",
            "variables: export",
            "ours container: container-image",
            "ours mount: container-mounts",
            "gpus per task: gpus-per-task",
            "srun: container-name container-save container-env container-mount-home* "
            "no-container-mount-home* container-remap-root* container-writable*",
            "folder: container-workdir",
            "own: gpus pty* "
            "ntasks-per-gpu multi-prog* bcast* immediate* no-allocate* send-libs* test-only* help* version*",
            "chdir: chdir",
            "output: output error",
            "ours input: input",
            "ours cpus-per-rank: cpus-per-task",
            "ours time: time",
            "ours partition: partition",
            "ours account: account",
            "ours mem: mem",
            "needless: label* unbuffered* kill-on-bad-exit* quit-on-interrupt* quiet* verbose* wait "
            "open-mode job-name overlap* exact* exclusive* jobid oversubscribe* whole* overcommit* "
            "preserve-env* disable-status*",
            "step: cpus-per-gpu mem-per-cpu mem-per-gpu",
            "places: cpu-bind mem-bind gpu-bind distribution accel-bind* ntasks-per-core",
            "own: hint",
            "srun: mpi network compress*",
        )
    ),
}
SRUN_LETTERS = {
    **{option.short: name for name, option in SBATCH.items() if option.short},
    "l": "label",
    "u": "unbuffered",
    "E": "preserve-env",
    "I": "immediate",
    "K": "kill-on-bad-exit",
    "W": "wait",
    "X": "disable-status",
}
_BY_PROGRAM = {
    "torchrun": _TORCHRUN,
    "accelerate": _ACCELERATE,
    "deepspeed": _DEEPSPEED,
    "srun": _SRUN,
    "sbatch": {
        name: LauncherOption(1 if option.takes == "required" else 0, OWN) for name, option in SBATCH.items()
    },
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "ibrun", "horovodrun"), _MPIRUN),
}


def launcher_options(program: str) -> dict[str, LauncherOption]:
    """Return the options of a launcher by name, with dashes for underscores; empty for an unknown one."""
    if program.startswith("python -m torch."):
        program = "torchrun"
    elif program.startswith("python -m "):
        program = program.removeprefix("python -m ").partition(".")[0]
    return _BY_PROGRAM.get(program, {})
