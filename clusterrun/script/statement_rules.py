"""Decide what becomes of a statement of a batch script that stands before the command. A table of rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from clusterrun.model.frozen import frozen
from clusterrun.script.batch_scripts import IN_LOGS, PartOutcome
from clusterrun.script.interpreter_calls import ASSIGNMENT
from clusterrun.script.program_table import changes_shell
from clusterrun.script.shell_source import FILTERS, PRINTS, Statement

# Variables that clusterrun sets in every rank.
RENDEZVOUS = {
    *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK", "NNODES"),
    *("NPROC_PER_NODE", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
}
# Variables of Slurm that have the same value in the batch script of clusterrun: they describe the job, or its
# first node. Others count or place tasks, and a job of clusterrun has one task on each node.
_OF_JOB = re.compile(
    r"SLURM_(?:JOB_?ID|JOB_(?:NAME|NODELIST|NUM_NODES|PARTITION|ACCOUNT|QOS|USER|[UG]ID|RESERVATION|LICENSES"
    r"|START_TIME|END_TIME|GPUS)|NODELIST|NNODES|NODEID|SUBMIT_(?:DIR|HOST)|CLUSTER_NAME|RESTART_COUNT|CONF"
    r"|TMPDIR|GPUS_ON_NODE|CPUS_ON_NODE|JOB_CPUS_PER_NODE|MEM_PER_(?:NODE|CPU|GPU)|TOPOLOGY_ADDR|ARRAY_(?:JOB_ID|TASK_(?:ID|MIN|MAX|STEP|COUNT)))"
)

# Variables in which srun reads its options, without their prefix. Another ``SLURM_*`` of a script is its own.
_OPTIONS_OF_SRUN = re.compile(
    r"SLURM_(?:ACCOUNT|ACCTG_FREQ|BCAST\w*|CLUSTERS|COMPRESS|CONSTRAINT|CORE_SPEC|CPU_BIND\w*|CPU_FREQ_REQ|CPUS_PER_\w+"
    r"|DEBUG|DELAY_BOOT|DEPENDENCY|DIST\w*|EPILOG|EXACT|EXCLUSIVE|EXIT_\w+|EXPORT_ENV|GPU_\w+|GPUS\w*|GRES\w*|HINT"
    r"|IMMEDIATE|JOB_(?:ID|NAME|NUM_NODES)|KILL_BAD_EXIT|LABELIO|MEM_\w+|MPI_TYPE|NCORES_PER_SOCKET|NETWORK|NNODES"
    r"|NO_KILL|NPROCS|N?TASKS\w*|NUM_NODES|OPEN_MODE|OVERCOMMIT|OVERLAP|PARTITION|PMI\w*|PROFILE|PROLOG|QOS|REMOTE_CWD"
    r"|RESERVATION|RESV_PORTS|SEND_LIBS|SIGNAL|SPREAD_JOB|STD\w+MODE|STEP_\w+|TASK_(?:EPILOG|PROLOG)|THREAD\w*|TIMELIMIT"
    r"|TRES_\w+|UNBUFFEREDIO|USE_MIN_NODES|WAIT\w*|WCKEY|WHOLE|WORKING_DIR)"
)

# Variables that Slurm sets in each task of a step.
_OF_TASKS = re.compile(r"SLURM_(?:N?TASKS\w*|NPROCS|PROCID|LOCALID|NODEID|STEP\w+|TASK_PID|JOB_?ID|NNODES)")


def reason_of_trap(names: Sequence[str]) -> str:
    """Return why a ``trap`` is not in the line: it catches the end of the script, or signals alone."""
    catches_end = {"EXIT", "0"} & set(names[2:])
    return IS_TRAP_OF_SIGNAL if set(names[2:]) & _SIGNALS_OF_A_TRAP and not catches_end else _IS_TRAP_OF_END


def of_tasks(names: Iterable[str]) -> list[str]:
    """Return the variables of Slurm among ``names`` whose values may differ in a job of clusterrun."""
    return sorted(name for name in names if name.startswith("SLURM_") and not _OF_JOB.fullmatch(name))


# Reasons for a statement that is not in the line.
IS_OTHER_RUN = "it starts ranks or tasks too: submit it as a run of its own, and this one with --after RUN"
IS_BESIDE = "it runs beside the ranks: start it from the training script, or submit it as a run of its own"
IS_UNSURE = "convert does not know this program or function: give it as COMMAND, or as a --setup line"
_IS_NEUTRAL = "it may belong before COMMAND or behind it: give it as a --setup line, or run it afterwards"
IS_OF_LATER = "a later statement reads it that is not in the line"
IS_BEHIND = "it runs after the ranks: a run of its own with --after RUN, or clusterrun wait RUN && …"
IS_LATER_RUN = "it runs after the ranks: submit it as a run of its own with --after RUN"
IS_FALLBACK = "it runs only if the ranks fail: clusterrun wait RUN || …"
IS_TRAP_OF_SIGNAL = "a signal to the job reaches the ranks that handle it: clusterrun help signals"
_IS_TRAP_OF_END = "the script's own shell runs it: do it in the training script, or after clusterrun wait"
IS_LOCK = "it locks a file of the script's shell: --sbatch dependency=singleton starts one run at a time"
IS_FOR_HOSTS = "the launcher alone reads this list of nodes: clusterrun has its own"
QUEUES_JOB = (
    "it queues another job: clusterrun convert that script; --after RUN orders runs, --requeue continues one"
)
QUEUES_AGAIN = (
    "--max-restarts N restarts ranks that fail, and --requeue queues the run again after its time limit"
)
ONLY_PRINTS = "it only prints"
IS_COMPUTED = "--{} reads a variable of the script or its job: write its value into the line"
IS_OPTION = (
    "it looks like an option of the command above: a backslash at the end of that line would join them"
)
HAS_NO_ARGUMENTS = "the line has no arguments of the batch script: clusterrun convert SCRIPT ARGUMENTS"
NEEDS_ARGUMENTS = "it reads an argument of the batch script: clusterrun convert SCRIPT ARGUMENTS"
WAITS = "it depends on a program that is not in the line"
IS_OTHER_BRANCH = "another branch starts it: submit it as a run of its own"
TAKES_PLACE = "its program takes the place of the script: submit it as a run of its own"
# Reasons for statements with programs that depend on the command.
OTHER_PROGRAMS = (IS_OTHER_RUN, IS_LATER_RUN, IS_FALLBACK, IS_BESIDE, WAITS, IS_OTHER_BRANCH, TAKES_PLACE)


@frozen
class Facts:
    """A statement, and how the rest of the script uses it."""

    statement: Statement
    is_read: bool  # whether the command, or a setup line behind it, reads a variable that it sets
    is_read_by_setup: bool  # whether a setup line behind it reads such a variable
    sets_launcher: bool  # whether the value of a variable that it sets is a part of a launcher's command line
    requeues: bool  # whether it prepares the requeue of the job
    launches: bool  # whether it starts processes through a launcher, more than one task on one node
    is_exported: bool = False  # whether ``set -a`` exports the variables that it sets
    is_beside: bool = False  # whether it starts a training of its own that runs beside the command
    is_unsure: bool = False  # whether its program may be the command of the script
    is_behind_unsure: bool = False  # whether such a program is before it
    # Whether it waits, maybe for a program in the background that the line does not start.
    waits: bool = False
    is_in_other_folder: bool = False  # whether a statement before it changes the folder
    is_for_hosts: bool = False  # whether it writes the list of nodes that a launcher reads
    is_other_branch: bool = False  # whether the script ends with it, if a test succeeds

    @property
    def words(self) -> tuple[str, ...]:
        commands = self.statement.commands
        is_block = bool(self.statement.bodies) or self.statement.kind == "function_definition"
        return commands[0].names if commands and not is_block else ()

    @property
    def is_assignment(self) -> bool:
        """Return whether it sets variables of its shell alone."""
        if self.is_exported:
            return False
        is_local = self.statement.text.startswith(("local ", "declare -a ", "declare -A "))
        is_document = self.statement.kind == "redirected_statement" and self.name in (
            "read",
            "mapfile",
            "readarray",
        )
        return self.statement.kind == "variable_assignment" or is_local or is_document or self._only_sets

    @property
    def is_inherited(self) -> bool:
        """Return whether it sets a variable that the job may have in its environment: programs see it."""
        statement = self.statement
        return statement.kind == "variable_assignment" and any(map(_INHERITED.fullmatch, statement.sets))

    @property
    def _only_sets(self) -> bool:
        """Return whether it is a condition, a list or a loop that only sets variables of its shell."""
        statement = self.statement
        names = {command.program for command in statement.commands if command.names}
        is_block = bool(statement.sets) and (statement.kind == "list" or bool(statement.bodies))
        sets_alone = names <= {"test", "true", ":", *PRINTS} and not self.writes
        return is_block and sets_alone and not _EXPORTS.search(statement.text)

    @property
    def name(self) -> str:
        return self.words[0] if self.words else ""

    @property
    def trap(self) -> tuple[str, ...]:
        """Return the words of the ``trap`` in it, also behind ``&&`` or in a block; () for a function."""
        commands = self.statement.commands if self.statement.kind != "function_definition" else ()
        return next((command.names for command in commands if command.names[:1] == ("trap",)), ())

    @property
    def argument(self) -> str:
        return self.words[1] if len(self.words) > 1 else ""

    def is_read_by_srun(self, name: str) -> bool:
        """Return whether Slurm's commands read an option in the variable ``name`` of the statement."""
        if name.startswith(("SRUN_", "SBATCH_")):
            return "export" in self.statement.text
        return _OPTIONS_OF_SRUN.fullmatch(name) is not None and bool(of_tasks([name]))

    @property
    def writes(self) -> bool:
        """Return whether a command of it, or the whole block or pipeline, writes to a file."""
        return self.statement.kind == "redirected_statement" or any(
            command.redirections or "tee" in command.names or "eval" in command.names
            for command in self.statement.commands
        )

    @property
    def redirects_output(self) -> bool:
        """Return whether it is an ``exec`` that redirects the output of the script."""
        redirections = [text for command in self.statement.commands for text in command.redirections]
        # ``exec {FD}>FILE`` opens a file.
        is_output = all(re.match(r"[12&]?>", text) for text in redirections) and not _OPENS.match(
            self.statement.text
        )
        return self.name == "exec" and not self.argument and is_output

    @property
    def prepares_shell(self) -> bool:
        """Return whether its commands, if it has any, do nothing but change the shell."""
        names = {command.program for command in self.statement.commands if command.names}
        is_function = self.statement.kind == "function_definition"
        leaves = re.search(r"\bdeactivate\b", self.statement.text) is not None
        return is_function or (not leaves and self.statement.only_reads and all(map(changes_shell, names)))

    @property
    def only_prints(self) -> bool:
        names = {command.program for command in self.statement.commands if command.names}
        is_print = self.statement.is_plain and self.name in PRINTS and names <= {*PRINTS, *FILTERS}
        changes = self.statement.sets or _CHANGES.match(self.statement.text)
        return is_print and not (self.writes or changes) and self.statement.only_reads


@frozen
class Rule:
    """One row of the table."""

    applies: Callable[[Facts], bool]
    outcome: PartOutcome
    reason: str  # the reason that a user reads


_NAMES_OF_SIGNALS = ("TERM", "INT", "USR1", "USR2", "HUP", "QUIT", "ALRM", "CONT")
_SIGNALS_OF_A_TRAP = {
    *_NAMES_OF_SIGNALS,
    *(f"SIG{name}" for name in _NAMES_OF_SIGNALS),
    *("1", "2", "3", "10", "12", "14", "15"),
}
# Variables that the environment of a job often has.
_INHERITED = re.compile(
    r"(?:LIBRARY_|C|MAN|MODULE|PKG_CONFIG_|CMAKE_PREFIX_)?PATH|(?:LD_|PYTHON)\w+|HOME|TMPDIR|TE?MP"
    r"|(?:XDG|LC|CUDA|OMP|MKL|NCCL|HF|TORCH|WANDB)_\w+|LANG|DISPLAY|SHELL|TERM|USER"
)
# It reads the result of the statement before it: nothing of its own runs in front.
READS_RESULT = re.compile(r"(?!\w+\s*\(\)|function\b)(?:(?!\|\||&&|[;\n])[^#])*(?:\$\?|\bPIPESTATUS\b)")
# ``nvidia-smi -pm 1`` changes the GPUs, and ``-f FILE`` writes.
_CHANGES = re.compile(r"nvidia-smi(?:\s.*)?\s--?(?:pm|c|r?ac|[lr]gc|pl|gom|mig|e|f|filename|\w+-mode)\b")
_OPENS = re.compile(r"exec\s+\{")
_EXPORTS = re.compile(r"\b(?:export|declare|typeset|readonly|local)\b")
ALLEXPORT = re.compile(r"set\s+([-+])(?:a\b|o\s+allexport)")
_NEEDLESS, _UNTRANSLATED = PartOutcome.NEEDLESS, PartOutcome.UNTRANSLATED

# The first rule that applies decides. A statement that no rule applies to becomes a setup line.
RULES = (
    Rule(lambda facts: facts.statement.is_broken, _UNTRANSLATED, "convert cannot read this shell code"),
    Rule(lambda facts: facts.statement.text.startswith("-"), _UNTRANSLATED, IS_OPTION),
    Rule(
        lambda facts: facts.name == "eval" and "clusterrun check --export" in facts.statement.text,
        _NEEDLESS,
        "submit checks the nodes itself, before the ranks start",
    ),
    Rule(
        lambda facts: facts.requeues,
        PartOutcome.OPTION,
        "--requeue in the line queues the run again unless all ranks exit 0, --max-time-limits N times at "
        "most, and restarts failed ranks",
    ),
    Rule(
        lambda facts: (
            any(
                [name for name in command.names if not ASSIGNMENT.match(name)][:1] == ["sbatch"]
                for command in facts.statement.commands
            )
            or re.search(r"(?:\$\(|`) *sbatch\b", facts.statement.text) is not None
        ),
        _UNTRANSLATED,
        QUEUES_JOB,
    ),
    Rule(
        lambda facts: (
            bool(facts.statement.sets)
            and facts.statement.kind != "function_definition"
            and facts.statement.sets <= RENDEZVOUS
            and not facts.is_read_by_setup
        ),
        _NEEDLESS,
        "clusterrun sets it in every rank",
    ),
    Rule(
        lambda facts: facts.statement.sets == {"SRUN_CPUS_PER_TASK"},
        _NEEDLESS,
        "srun alone reads it: the line has its value, if it is known",
    ),
    Rule(
        lambda facts: bool(READS_RESULT.match(facts.statement.text)),
        _UNTRANSLATED,
        "it reads the result of the command before it, and each setup line is checked in between",
    ),
    Rule(
        lambda facts: bool(facts.statement.sets) and all(map(facts.is_read_by_srun, facts.statement.sets)),
        _UNTRANSLATED,
        "srun reads it, and clusterrun has a step of its own: give the option as --srun KEY=VALUE",
    ),
    Rule(
        lambda facts: (
            not (facts.is_read or facts.is_inherited)
            and (facts.is_assignment or facts.sets_launcher)
            and facts.statement.only_reads
        ),
        _NEEDLESS,
        "nothing in the line reads the variable: where a value of it is used, the line has that",
    ),
    Rule(
        lambda facts: (
            facts.statement.kind != "function_definition"
            and any(
                command.names[:1] == ("set",) and "--" in command.names
                for command in facts.statement.commands
            )
        ),
        _UNTRANSLATED,
        "it sets the arguments of the script: write their values where it reads them",
    ),
    Rule(
        lambda facts: facts.name == "set" and not ALLEXPORT.match(facts.statement.text),
        _NEEDLESS,
        "it is for the script's own shell; a failed --setup line ends the run",
    ),
    Rule(
        lambda facts: ".deepspeed_env" in facts.statement.text,
        _UNTRANSLATED,
        "deepspeed's launcher reads that file: give each line of it as --env NAME=VALUE",
    ),
    Rule(lambda facts: facts.is_for_hosts, _NEEDLESS, IS_FOR_HOSTS),
    Rule(
        lambda facts: bool(facts.trap) and reason_of_trap(facts.trap) == IS_TRAP_OF_SIGNAL,
        _UNTRANSLATED,
        IS_TRAP_OF_SIGNAL,
    ),
    Rule(lambda facts: bool(facts.trap), _UNTRANSLATED, _IS_TRAP_OF_END),
    Rule(
        # A block with a lock of its own can be a setup line.
        lambda facts: (
            not facts.statement.bodies
            and any(
                command.names[:1] == ("flock",) and any(map(str.isdecimal, command.names))
                for command in facts.statement.commands
            )
        ),
        _UNTRANSLATED,
        IS_LOCK,
    ),
    Rule(
        lambda facts: (
            facts.statement.kind == "unset_command"
            and any(_OF_TASKS.fullmatch(word) or word in RENDEZVOUS for word in facts.statement.text.split())
        ),
        _UNTRANSLATED,
        "clusterrun or Slurm sets it again in every rank: begin COMMAND with env -u NAME",
    ),
    Rule(lambda facts: facts.only_prints, _NEEDLESS, ONLY_PRINTS),
    Rule(
        lambda facts: (
            facts.name == "cd"
            and facts.argument.strip('"${}') in ("SLURM_SUBMIT_DIR", "PWD")
            and not facts.is_in_other_folder
        ),
        _NEEDLESS,
        "ranks start in that folder",
    ),
    Rule(lambda facts: facts.name == "shift", _NEEDLESS, "the arguments after it are in the line"),
    Rule(
        lambda facts: facts.name == "exit" and facts.statement.is_plain, _UNTRANSLATED, "the script ends here"
    ),
    Rule(lambda facts: facts.redirects_output, _NEEDLESS, IN_LOGS),
    Rule(
        lambda facts: (
            facts.statement.kind != "function_definition"
            and any(
                command.names[:1] == ("exec",) and len(command.names) > 1
                for command in facts.statement.commands
            )
        ),
        _UNTRANSLATED,
        TAKES_PLACE,
    ),
    Rule(lambda facts: facts.is_unsure, _UNTRANSLATED, IS_UNSURE),
    Rule(lambda facts: facts.is_beside, _UNTRANSLATED, IS_BESIDE),
    Rule(lambda facts: facts.waits, _UNTRANSLATED, WAITS),
    Rule(lambda facts: facts.launches and facts.is_other_branch, _UNTRANSLATED, IS_OTHER_BRANCH),
    Rule(lambda facts: facts.launches, _UNTRANSLATED, IS_OTHER_RUN),
    Rule(
        lambda facts: (
            (facts.statement.is_plain or "$?" in facts.statement.text)
            and facts.name != "eval"
            and any(command.program.startswith("$") for command in facts.statement.commands)
        ),
        _UNTRANSLATED,
        IS_UNSURE,
    ),
    Rule(lambda facts: facts.is_behind_unsure and not facts.prepares_shell, _UNTRANSLATED, _IS_NEUTRAL),
)


def rule_for(facts: Facts) -> Rule | None:
    """Return the first rule that applies; None: the statement becomes a setup line."""
    return next((rule for rule in RULES if rule.applies(facts)), None)
