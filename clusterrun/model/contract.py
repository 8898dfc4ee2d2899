"""Define the names that two machines share: exit codes, environment, signals, limits.

It imports the standard library only.
"""

from __future__ import annotations

import enum
import signal
import sys

VERSION = "0.1.0"

# Version of every JSON document in a run directory. A newer one is refused.
FORMAT = 1

WIRE = 1

# The Python that compiled the bytecode of the packed program. Only this exact version may run it.
BYTECODE_TAG = f"{sys.implementation.cache_tag}-{sys.hexversion:08x}".encode()


class ExitCode(enum.IntEnum):
    """The exit codes of clusterrun commands."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNFIT = 3
    SCHEDULER = 4
    NO_SUCH_RUN = 5
    INTERRUPTED = 130


HOME_VARIABLE = "CLUSTERRUN_HOME"
# The cluster that commands use, as with ``--host``.
HOST_VARIABLE = "CLUSTERRUN_HOST"
# The user's name of this cluster, for a command that came over SSH.
TYPED_AT_VARIABLE = "CLUSTERRUN_TYPED_AT"
LAB_HOME_VARIABLE = "CLUSTERRUN_LAB_HOME"
# ``check --export`` sets them in a batch script.
FIT_VARIABLE, UNFIT_VARIABLE = "CLUSTERRUN_FIT_NODELIST", "CLUSTERRUN_UNFIT_NODELIST"
OPTION_VARIABLE_PREFIX = "CLUSTERRUN_"

RUN_ID_VARIABLE = "CLUSTERRUN_RUN_ID"
RUN_NAME_VARIABLE = "CLUSTERRUN_RUN_NAME"
RUN_DIR_VARIABLE = "CLUSTERRUN_RUN_DIR"
ATTEMPT_VARIABLE = "CLUSTERRUN_ATTEMPT"
# For ranks that run in a copy of the code (--snapshot): the project, its copy, the commit, and whether the
# files differ from it (0 or 1).
CODE_ORIGINAL_VARIABLE, CODE_COPY_VARIABLE = "CLUSTERRUN_CODE_ORIGINAL", "CLUSTERRUN_CODE_COPY"
GIT_COMMIT_VARIABLE, GIT_DIRTY_VARIABLE = "CLUSTERRUN_GIT_COMMIT", "CLUSTERRUN_GIT_DIRTY"
CODE_VARIABLES = (CODE_ORIGINAL_VARIABLE, CODE_COPY_VARIABLE, GIT_COMMIT_VARIABLE, GIT_DIRTY_VARIABLE)
# The companions of an agent. Work that may hang runs in them, never in the agent itself.
EXAMINER = "examiner"
OBSERVER = "observer"
# Added to the last lines of a rank if the kernel's count of out-of-memory kills has risen.
STARVED = "clusterrun: out of memory: the kernel ended a process of this job on this node"
# An agent's answer for an observer that does not run, because its ranks have not started or have ended.
NO_RANKS = "no ranks run on this node"
# The name of an agent's companion process, in that process and its children.
COMPANION_VARIABLE = "CLUSTERRUN_COMPANION"
NODE_VARIABLE = "CLUSTERRUN_NODE"
# Number and name of a simulated node, for its agent. The name stays in the environment of every rank.
NODE_NAME_VARIABLE = "CLUSTERRUN_NODE_NAME"
# Prefix of the name of a repeated question about every node's use.
TOP_ASK = "top"
# Users set it to 1 if their ranks do not train together. It suppresses the warning.
INDEPENDENT_VARIABLE = "CLUSTERRUN_INDEPENDENT"
# The process id of the rank beside which a command runs (`clusterrun exec`).
RANK_PID_VARIABLE = "CLUSTERRUN_RANK_PID"
# Set in steps that clusterrun starts beside the ranks of a job that it did not start.
BESIDE_VARIABLE = "CLUSTERRUN_BESIDE"
# The host list of the whole allocation, for agents of a step on some of its nodes. Such a step numbers only
# its own nodes. The agent takes its node number from this list.
NODES_VARIABLE = "CLUSTERRUN_NODES"
# PATH before the setup lines of the batch script. It shows whether they bring another Python.
PATH_BEFORE_VARIABLE = "CLUSTERRUN_PATH_BEFORE_SETUP"
# The directory to which the setup lines of the batch script changed; '' if they did not.
SETUP_CWD_VARIABLE = "CLUSTERRUN_SETUP_CWD"
# SLURM_SUBMIT_DIR of the job. srun of Slurm 20.11 replaces it by the directory in which srun itself runs.
SUBMIT_DIR_VARIABLE = "CLUSTERRUN_SUBMIT_DIR"
# ``<run id>.<epoch>`` in every process of a run. It identifies processes that outlive their attempt.
MARKER_VARIABLE = "CLUSTERRUN_STEP"
# The plan of a rehearsed run, for its ranks.
REHEARSAL_VARIABLE = "CLUSTERRUN_REHEARSAL"

# Git sets them for its hooks. They lead git to that repository, wherever it runs.
GIT_VARIABLES = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
)
# Inherited variables that would change a new submission. They are dropped before sbatch, with a notice.
SCRUBBED_PREFIXES = (
    *("SLURM_", "SBATCH_", "SRUN_", "PMIX_", "PMI_", "PET_", "TORCHELASTIC_"),
    *GIT_VARIABLES,
)

KEPT_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER")

TERMINATE_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# The notice of a time limit or a preemption that clusterrun requests from Slurm. NCCL's proxy uses USR1.
NOTICE_SIGNAL = signal.SIGUSR2
# Signals that users let Slurm send (``--sbatch signal=USR1@90``, ``scancel -s USR1``) to ranks that handle
# them. They end no process of clusterrun.
USERS_SIGNALS = (
    *(signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM),
    *(signal.SIGABRT, signal.SIGXCPU, signal.SIGURG),
)
# Signals from outside that clusterrun's processes on nodes catch, pass on or ignore.
OUTSIDE_SIGNALS = (*TERMINATE_SIGNALS, NOTICE_SIGNAL, *USERS_SIGNALS)

# How a run continues in another job: Slurm requeues the same job, or the next job waits already.
REQUEUE_WORDS = ("requeue", "chain")

HEARTBEAT_SECONDS = 5.0
# Counted from the sending of the last heartbeat that the coordinator acknowledged.
LEASE_SECONDS = 20.0
# Silence after which the coordinator marks a node as lost. The node counts as dead only after a lease.
LOST_SECONDS = 12.0
# Upper bound on the kill after a lease expires. Lease and kill take far less than SlurmdTimeout and the
# requeue delay.
KILL_SECONDS = 3.0
# Time for killed processes to end before others start. A driver needs seconds to take the contexts of eight
# GPUs apart, and a GPU that accepts one process is busy until then. The agent sends no heartbeat meanwhile.
TEARDOWN_SECONDS = LOST_SECONDS / 2
# A node that was stopped while its lease expired stops its ranks and asks for this long. Then it kills
# them. The nodes of a suspended job are resumed one after the other.
AWAKE_SECONDS = 10.0
# From TERM (and CONT) to KILL of the other ranks after a rank failed, in a run with restarts. They often hang
# in a collective, and a restart waits for their end.
GRACE_SECONDS = 8.0
# From TERM to KILL when a run is ended. It equals Slurm's default of ``KillWait``. Local runs use it too.
KILL_WAIT_SECONDS = 30.0
# Limit on processes that ranks with exit code 0 leave behind. Then they get a TERM, and a KILL after the
# kill wait. Uploads of results need the time, and a daemon must not keep the nodes longer.
FINISH_SECONDS = 60.0
# Limit on filters of a failed rank's output (``exec > >(tee …)``). The pipe holds at most 64 KiB.
DRAIN_SECONDS = 5.0
# Longest interval between two writes of the coordinator's state.
STATE_SECONDS = 10.0
# Number of last lines of a failed rank that are sent with the report of its end.
TAIL_LINES = 20
# From the launch of the agents until all must have joined.
JOIN_SECONDS = 120.0
# Largest factor on a limit for an overloaded machine: 10 minutes with ``JOIN_SECONDS``.
OVERLOAD_FACTOR = 5.0
# A machine that was overloaded for this share of a wait may be the reason that the wait took so long.
OVERLOAD_SHARE = 0.25
# Placeholders in the arguments that requeue a run: the bad nodes, and the job to wait for.
EXCLUDED_PLACE, DEPENDENCY_PLACE = "{excluded}", "{dependency}"
# Part of the reason of an end. Nobody sees whether a rank saves: a handler may only set a flag.
PERHAPS_SAVING = "perhaps while saving"
PROLOG_FAILS = "Slurm holds a job if the prolog of a node fails, or cancels it with no-requeue: see sinfo -R"
# Part of the reason of a time limit that a hang led to. More time would not help.
STALLED = "; no rank had made progress for "
# Part of the reason of a run that waits for its next job.
GOES_ON = "; the run goes on "
# Limit on how often a run requeues itself without its unfit nodes.
MOST_RESUBMITS = 3
# Part of the reason for a node on which the ranks' program could not be executed. A remedy follows it.
NO_START = "could not start its ranks"
# Reason for a node that sent nothing to the program that starts the agents.
NO_CONNECTION = "opened no connection"
# Reason for a node that stopped sending without closing its connection.
NO_HEARTBEAT = "no heartbeat for"
# Beginning of the reason for a node whose agent never joined. The launcher's message may follow in brackets.
NOT_JOINED = "its agent did not join within"
# Reasons for a node whose agent was connected before. The check then looks for a common cause of several
# such nodes.
AGENT_LOST, NOT_BACK = "its agent was lost", "it was lost and did not come back"
