"""Every name that two machines share: exit codes, environment, signals, limits; standard library only."""

from __future__ import annotations

import enum
import signal
import sys

VERSION = "0.1.0"

FORMAT = 1
"""Version of every JSON document in a run directory; a newer one is refused, never guessed."""

WIRE = 1

BYTECODE_TAG = f"{sys.implementation.cache_tag}-{sys.hexversion:08x}".encode()
"""The Python that compiled the bytecode of the packed program: exactly this version may run it."""


class ExitCode(enum.IntEnum):
    """What a clusterrun command exits with."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNFIT = 3
    SCHEDULER = 4
    NO_SUCH_RUN = 5
    INTERRUPTED = 130


HOME_VARIABLE = "CLUSTERRUN_HOME"
HOST_VARIABLE = "CLUSTERRUN_HOST"
"""Names the cluster that commands run on, as ``--host`` does."""
TYPED_AT_VARIABLE = "CLUSTERRUN_TYPED_AT"
"""Set for a command that came over SSH: what its user calls this cluster."""
LAB_HOME_VARIABLE = "CLUSTERRUN_LAB_HOME"
OPTION_VARIABLE_PREFIX = "CLUSTERRUN_"

RUN_ID_VARIABLE = "CLUSTERRUN_RUN_ID"
RUN_NAME_VARIABLE = "CLUSTERRUN_RUN_NAME"
RUN_DIR_VARIABLE = "CLUSTERRUN_RUN_DIR"
ATTEMPT_VARIABLE = "CLUSTERRUN_ATTEMPT"
# Set for ranks that run in a copy of the code (--snapshot): the project and the copy of it; the commit, and
# whether the files differ from it (0 or 1).
CODE_ORIGINAL_VARIABLE, CODE_COPY_VARIABLE = "CLUSTERRUN_CODE_ORIGINAL", "CLUSTERRUN_CODE_COPY"
GIT_COMMIT_VARIABLE, GIT_DIRTY_VARIABLE = "CLUSTERRUN_GIT_COMMIT", "CLUSTERRUN_GIT_DIRTY"
CODE_VARIABLES = (
    CODE_ORIGINAL_VARIABLE,
    CODE_COPY_VARIABLE,
    GIT_COMMIT_VARIABLE,
    GIT_DIRTY_VARIABLE,
)
EXAMINER = "examiner"
OBSERVER = "observer"
"""The companions of an agent: what may hang is done in them, never in the agent itself."""
COMPANION_VARIABLE = "CLUSTERRUN_COMPANION"
"""Set in an agent's companion process and all below it, to its name."""
NODE_VARIABLE = "CLUSTERRUN_NODE"
NODE_NAME_VARIABLE = "CLUSTERRUN_NODE_NAME"
"""Number and name of a simulated node, for its agent; the name stays in the environment of every rank."""
TOP_ASK = "top"
"""How the name of a question begins that wants every node's use, often, for a while."""
INDEPENDENT_VARIABLE = "CLUSTERRUN_INDEPENDENT"
"""Set to 1 by users whose ranks are not meant to train together: nobody is warned that they do not."""
RANK_PID_VARIABLE = "CLUSTERRUN_RANK_PID"
"""The process id of the rank beside which a command runs (`clusterrun exec`)."""
NODES_VARIABLE = "CLUSTERRUN_NODES"
"""The host list of the whole allocation, for agents of a step that does not stand on all of it: a step
numbers its own nodes, and an agent its node by the place of its name here."""
PATH_BEFORE_VARIABLE = "CLUSTERRUN_PATH_BEFORE_SETUP"
"""PATH as the batch script found it: by it the Python is known that its setup lines bring."""
# The directory to which the setup lines of the batch script changed; empty if they did not.
SETUP_CWD_VARIABLE = "CLUSTERRUN_SETUP_CWD"
MARKER_VARIABLE = "CLUSTERRUN_STEP"
"""Set in every process of a run to ``<run id>.<epoch>``: by it what was left behind is found."""
REHEARSAL_VARIABLE = "CLUSTERRUN_REHEARSAL"
"""The plan of a run that is rehearsed, as its ranks read it."""

SCRUBBED_PREFIXES = ("SLURM_", "SBATCH_", "SRUN_", "PMIX_", "PMI_", "PET_", "TORCHELASTIC_")
"""Inherited variables that would steer a new submission; dropped before sbatch, and said."""

KEPT_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER")

TERMINATE_SIGNALS = (signal.SIGTERM, signal.SIGINT)
NOTICE_SIGNAL = signal.SIGUSR2
"""The notice of a time limit or a preemption that clusterrun asks Slurm for. NCCL's proxy takes USR1."""
USERS_SIGNALS = (signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM)
"""Signals that users let Slurm send (``--sbatch signal=USR1@90``, ``scancel -s USR1``), for ranks that catch
them; they end nothing."""

REQUEUE_WORDS = ("requeue", "chain")
"""How a run goes on in another job: Slurm queues the same one again, or the next one waits already."""

HEARTBEAT_SECONDS = 5.0
LEASE_SECONDS = 20.0
"""Counted from the sending of the last heartbeat that the coordinator acknowledged."""
LOST_SECONDS = 12.0
"""Silence after which the coordinator calls a node lost (but not yet dead: that takes a lease)."""
KILL_SECONDS = 3.0
"""Upper bound on the kill after a lease ran out; lease + kill is far below SlurmdTimeout + requeue delay."""
AWAKE_SECONDS = 10.0
"""A node that stood still while its lease ran out stops its ranks and asks for so long; then it kills them.
The nodes of a suspended job are woken one after the other."""
GRACE_SECONDS = 8.0
"""From TERM (and CONT) to KILL of the other ranks after a rank failed. They often hang in a collective, and a
restart waits for their end."""
KILL_WAIT_SECONDS = 30.0
"""From TERM to KILL when a run is ended: Slurm's default of ``KillWait``, which local runs use too."""
# How long processes may go on that ranks with exit code 0 left on a node. Then they get a TERM, and a KILL
# after the kill wait. Uploads of results need it, and a daemon must not keep the nodes for longer.
FINISH_SECONDS = 60.0
# How long filters of a failed rank's output (``exec > >(tee …)``) may go on; the pipe holds at most 64 KiB.
DRAIN_SECONDS = 5.0
STATE_SECONDS = 10.0
"""The coordinator writes its state at least this often while it lives."""
TAIL_LINES = 20
"""How many of the last lines of a failed rank travel with the news of its end."""
JOIN_SECONDS = 120.0
"""From the launch of the agents until all must have joined."""
# An overloaded machine gets at most so many times the limit more: 10 minutes with ``JOIN_SECONDS``.
OVERLOAD_FACTOR = 5.0
EXCLUDED_PLACE, DEPENDENCY_PLACE = "{excluded}", "{dependency}"
"""In the arguments that queue a run once more: where its bad nodes go, and the job that it is to wait for."""
SHAPE_MARK = "shape="
"""In the comment of a job of a run with several shapes: before the number of its own."""
KILLED_WHILE_SAVING = "killed while saving: the handler of SIGTERM was still running after"
"""In the reason of an end, which closes with it and the seconds."""
MOST_RESUBMITS = 3
"""How often a run queues itself anew without its unfit nodes."""
NO_CONNECTION = "opened no connection"
"""Said of a node from which nothing came to the program that starts the agents."""
NO_HEARTBEAT = "no heartbeat for"
"""Said of a node that fell silent, and did not close its connection."""
AGENT_LOST, NOT_BACK = "its agent was lost", "it was lost and did not come back"
"""Said of a node whose agent was there before; the check then asks whether several such share a cause."""
