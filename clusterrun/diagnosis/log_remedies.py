"""Find the remedy for an error or an end in the log of a job that clusterrun did not start; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clusterrun.diagnosis.end_lines import EndKind
from clusterrun.diagnosis.known_errors import ROWS, meaning
from clusterrun.diagnosis.verdict import Culprit

TOO_MANY_REMEDY = (
    "give every rank the number of all ranks as WORLD_SIZE, and start each once; end what was left over, and"
    " remove an old file of the store"
)
NATIVE_REMEDY = (
    "native code crashed there: ulimit -c unlimited and gdb show why; do that library, torch, CUDA and the"
    " driver fit together?"
)
NOT_LOADED_REMEDY = (
    'load the environment in the batch script: eval "$(conda shell.bash hook)" before conda activate;'
    " module avail lists the modules of this cluster"
)
ENDED_WITHOUT_ERROR_REMEDY = (
    "see the other files of the job (srun -o, torchrun --log-dir), its exit code"
    " (sacct -j JOB -o JobID,State,ExitCode,MaxRSS), and dmesg on the nodes"
)
NOTHING_REMEDY = f"if the job still runs: clusterrun diagnose JOB; else {ENDED_WITHOUT_ERROR_REMEDY}"
ENDED_REMEDY = (
    "kill, timeout or scancel ended it, often because the job hung: sacct -j JOB -o State,End shows when;"
    " the next time, type clusterrun diagnose JOB while it hangs"
)
_MEMORY_REMEDY = (
    "ask for more with --mem (LSF: -M, PBS: -l mem, Kubernetes: limits.memory), use fewer data-loader"
    " workers, or a smaller batch"
)
REMEDIES = {
    EndKind.NODE: "sinfo -R shows why; submit again with --exclude for that node",
    EndKind.MEMORY: _MEMORY_REMEDY,
    EndKind.START: "correct the command, load its environment before it (module load, source …/activate), or"
    " put it where every node sees it",
    EndKind.CONTAINER: "start the image once by hand (enroot import, apptainer exec): name, access, mounts",
    EndKind.SIGNAL: "run once with PYTHONFAULTHANDLER=1 to see the line; dmesg on the node shows faults",
    EndKind.EXIT: "see what that rank printed last; srun -l and torchrun --tee 3 mark lines with the rank",
    EndKind.TIME_LIMIT: "ask for more with --time (LSF: -W, PBS: -l walltime), and save checkpoints",
    EndKind.PREEMPTED: "submit with --requeue and load the newest checkpoint",
    EndKind.CANCELLED: "mostly scancel does so: sacct -j JOB -o State,End shows when (LSF: bhist -l JOB)",
    EndKind.REQUEUED: "squeue -j JOB shows its next start, which appends to the same log file",
    EndKind.OUTSIDE: ENDED_REMEDY,
    EndKind.ENDED_BY_OTHERS: "see the ranks that ended first",
}
_SENDERS = {
    "SIGHUP|Hangup": "its terminal or ssh session closed: sbatch, tmux or setsid outlive it",
    "SIGINT|KeyboardInterrupt": "somebody pressed Ctrl-C, or scancel --signal=INT sent it",
}
# Commands and options in remedies, and what stands for them in a job that clusterrun did not start.
_FOREIGN = (
    (re.compile(r"--env (\w+=)"), r"export \1"),
    (re.compile(r"clusterrun exec -- "), "ssh NODE "),
    (re.compile(r"clusterrun logs --rank N shows what it did last"), "see the end of every rank's log"),
    (re.compile(r"clusterrun logs --rank (\S+) shows what it did last"), r"see the end of rank \1's log"),
    (
        re.compile(
            r"clusterrun diagnose while it hangs, or a --hang-after below .* time-out, shows its line"
        ),
        "clusterrun diagnose JOB while it hangs shows its line",
    ),
    (re.compile(r"where submit was called, or --setup .*"), "where sbatch was called, or cd goes"),
    (re.compile(r" in --setup\b"), " in the batch script"),
    (re.compile(r" with --env$"), ""),
    (re.compile(r"clusterrun submit --avoid-bad, and"), "leave the node out (sbatch --exclude), and"),
    (re.compile(r" \(--python names it\)"), ""),
    (re.compile(r"--python names another interpreter"), "or start it with another Python"),
    (re.compile(r"clusterrun logs --tail 5"), "the end of every rank's log"),
    (re.compile(r"\(--exclude\)"), "(sbatch --exclude)"),
)


def foreign(remedy: str) -> str:
    """Return a remedy in words for a job that clusterrun did not start."""
    for row in ROWS:
        if row.elsewhere:
            remedy = remedy.replace(row.remedy, row.elsewhere)
    for pattern, replacement in _FOREIGN:
        remedy = pattern.sub(replacement, remedy)
    return remedy


def with_names(remedy: str, job: str, culprits: Sequence[Culprit]) -> str:
    """Return a remedy with the number of the job and the only node of ``culprits``, if they are known."""
    remedy = re.sub(r"\bJOB\b(?! while)", job, remedy) if job else remedy
    nodes = {culprit.node for culprit in culprits} - {""}
    return re.sub(r"\bNODE\b", min(nodes), remedy) if len(nodes) == 1 else remedy


def remedy_of_end(kind: EndKind, message: str) -> str:
    """Return the remedy for an end, by its message or its signal if that has few causes."""
    if kind is EndKind.SIGNAL and ("SIGKILL" in message or "Killed" in message):
        return f"often memory ran out: dmesg on the node shows OOM kills; then {_MEMORY_REMEDY}"
    for name, remedy in _SENDERS.items():
        if re.search(name, message):
            return remedy
    is_of_process = kind in (EndKind.SIGNAL, EndKind.START, EndKind.CONTAINER, EndKind.EXIT)
    row = meaning(message) if is_of_process else None
    is_by_signal = kind is EndKind.SIGNAL and row is not None and row.consequence
    return foreign(row.remedy) if row and not is_by_signal else REMEDIES[kind]
