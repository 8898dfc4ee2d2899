"""Read how a job ended, from the lines that Slurm and the launchers of ranks print at an end; pure."""

from __future__ import annotations

import copy
import enum
import re
import signal

from clusterrun.model.frozen import frozen, replace
from clusterrun.model.phrases import code_in_words


class EndKind(enum.Enum):
    """How ranks or the job ended. A smaller value explains more."""

    NODE = 1
    MEMORY = 2
    START = 3
    CONTAINER = 4
    SIGNAL = 5
    EXIT = 6
    TIME_LIMIT = 7
    PREEMPTED = 8
    CANCELLED = 9
    REQUEUED = 10
    OUTSIDE = 11
    ENDED_BY_OTHERS = 12


@frozen
class EndLine:
    """One line about an end."""

    kind: EndKind
    words: str  # what happened, as a sentence without the ranks
    line: str
    ranks: tuple[int, ...] = ()
    node: str = ""
    order: int = 0  # its place among all lines
    is_report: bool = False  # a launcher names the rank; a task of srun may be a launcher


_TASKS = re.compile(r"srun: error: (\S+): tasks? ([\d,-]+): (.*)")
_CANCELLED = re.compile(
    r"\*\*\* (JOB|STEP) \S+ (?:ON (\S+) )?CANCELLED AT \S+"
    r"(?: DUE (?i:TO) (.*?))?,? *(?:SEE SLURMCTLD.*)?\*\*\*"
)
_CONTAINER = re.compile(r"slurmstepd\S*: error: pyxis: (.*)")
# The command in that line is always that of the last rank, whichever rank failed.
_DEEPSPEED = re.compile(r"sigkill_handler\] .* exits with return code = (-?\d+)")
_COMPOSER = re.compile(
    r"(?:Global rank|launcher:Rank) (\d+) (?:\(PID \d+\) exited with|crashed with exit) code (-?\d+)"
)
# horovodrun with gloo: a shell's code, which is above 128 for a program that a signal ended.
_HOROVOD = re.compile(r"^Process (\d+) exit with status code (\d+)\.")
_MPI_SIGNAL = re.compile(r"process rank (\d+) with PID \d+ on node (\S+) exited on (signal \d+ \(.*?\))")
# Intel MPI and MPICH: the rank on one line, its end on the next.
_HYDRA_RANK = re.compile(r"^=\s+(?:RANK (\d+) )?PID (\d+) RUNNING AT (\S+)")
_HYDRA_END = re.compile(r"^=\s+(?:KILLED BY SIGNAL: (\d+ \(.*\))|EXIT (?:CODE|STATUS): (\d+))")
_POD = re.compile(r"^(?:Name|Node): {2,}([\w.-]+)")
_JAX = re.compile(
    r"/job:\w+/replica:\d+/task:(\d+) has been set to ERROR in coordination service: \w+: (.*?\.)"
)
# torchrun and srun, when a person, a closed terminal or a scheduler ends them.
_DEATH_SIGNAL = re.compile(
    r"Received (?:Signals\.)?(\w+) death signal|(?:closing signal |via Signals\.)(SIGINT|SIGHUP)\b"
    r"|[Rr]eceived (SIG(?:TERM|INT|HUP))\b|\*\*\* (SIG(?:TERM|INT|HUP)) received at"
)
# torchrun speaks of the ranks that it has started, or failed itself before it could start them.
_OF_TORCHRUN = re.compile(
    r"elastic[./](?:multiprocessing[./]api|rendezvous)\b|/torch/distributed/(?:run|launcher/api)\.py"
)
_INTERRUPTED = re.compile(r"^srun: (?:forcing job termination|interrupt \()")
# The words of a shell on the end of a program by a signal.
_BY_SHELL = (
    r"Killed|Segmentation fault|Aborted|Bus error|Illegal instruction|Floating point exception"
    r"|Trace/breakpoint trap"
)
_ONLY_BY_SHELL = re.compile(rf"^(?:{_BY_SHELL}|Terminated)(?: ?\(core dumped\))?$")
# The words of any program on the end of another process: a code or a signal behind a verb.
_ENDED_WITH = re.compile(
    r"(?i)\b(?:exit(?:ed|s)?|terminated|returned|failed|finished|crashed|died|killed|ended|aborted"
    r"|encountered)\b.{0,40}?"
    r"(?:\b(?:exit[ _]?|return[ _]?)?(?:code|status)[ :=]{0,3}(?P<code>-?\d{1,3})\b(?!\.\d)"
    r"|\bsignal\W{1,3}(?P<number>\d{1,2})\b|\b(?P<name>SIG(?!NAL)[A-Z]{3,4})\b)"
    r"|\bSignal (?P<raised>\d{1,2}) raised\b|\bSIG[A-Z]{3,4}\((?P<handled>\d{1,2})\), PID: "
    # absl's handler
    r"|\*\*\* (?P<received>SIG[A-Z]{3,4}) received at "
)
# The handlers of Open MPI and UCX, in the process that crashed.
_CRASHED = re.compile(
    r"^\[(?P<node>[\w.-]+):(?P<pid>\d+)(?::\d+)*\] .*?\b(?:Signal: [\w ]+ \(|Caught signal )(?P<number>\d+)"
)
_WORDS_OF_ENDS = (" code", "exitcode", "_code", " status", "signal", "Signal", "SIG")
# The answer of a server has a code too, and a program may announce how it treats a signal.
_OF_NO_END = re.compile(r"(?i)https?\b|\burl\b|request|\bwill be\b")
_RANK = re.compile(r"(?i)(?<!local_)(?<!local )\brank\W{0,3}(\d{1,5})\b")
_LOCAL_RANK = re.compile(r"local_rank(?:: |=| )(\d+)")
# The number that mp.spawn gives to a process.
_PROCESS = re.compile(r"\b[Pp]rocess (\d{1,3}) (?:terminated|exited)\b")
_EXIT_CODE = re.compile(r"Exited with exit code (\d+)")
# Open MPI puts a message between two lines of dashes.
_MPI_RULE = re.compile(r"^-{74}$")
_MPI_WORDS = re.compile(r"(?i)\b(?:mpi(?:run|exec)|open mpi|orte|prte|pmix|slots|daemon)\b|\bMPI_")
_MPI_ENDS = re.compile(
    r"Primary job|(?:mpi|prte)\w+(?:\.real)? (?:noticed|detected)|MPI_ABORT was|WARNING|By default"
)
_MPI_PEER = re.compile(r"unexpectedly disconnected.*Peer host:\s+(\S+)")
_MPI_LOST = re.compile(r"lost communication with a remote daemon.*Remote daemon: \S+ on node (\S+)")
_MPI_NAME = re.compile(r"^\s*Process name: \[\[\d+,\d+\],(\d+)\]")
_MPI_CODE = re.compile(r"^\s*Exit code: +(\d+)")
MOST_MESSAGE_LINES = 30
MOST_MESSAGE = 300
NOT_STARTED = (EndKind.START, EndKind.CONTAINER)
WHOLE_JOB = (EndKind.NODE, EndKind.TIME_LIMIT, EndKind.PREEMPTED, EndKind.CANCELLED, EndKind.REQUEUED)
_ENDED = ("Terminated", "Killed")
_SIGNALS = re.compile(
    r"(?i)segmentation fault|aborted|illegal instruction|bus error|floating point|core dumped|killed|trap"
)
_REASONS = {
    "TIME LIMIT": EndKind.TIME_LIMIT,
    "PREEMPTION": EndKind.PREEMPTED,
    "NODE FAILURE": EndKind.NODE,
    "JOB REQUEUE": EndKind.REQUEUED,
}
_SENTENCES = {
    EndKind.CANCELLED: "the job was cancelled",
    EndKind.MEMORY: "a process of the job ran out of the job's memory",
    EndKind.TIME_LIMIT: "Slurm ended the job at its time limit",
    EndKind.PREEMPTED: "the job was preempted: its nodes were given to another job",
    EndKind.NODE: "a node of the job failed",
    EndKind.REQUEUED: "the job was requeued: it starts again",
}
_OF_STATES = {
    "TIMEOUT": EndKind.TIME_LIMIT,
    "DEADLINE": EndKind.TIME_LIMIT,
    "OUT_OF_MEMORY": EndKind.MEMORY,
    "NODE_FAIL": EndKind.NODE,
    "BOOT_FAIL": EndKind.NODE,
    "PREEMPTED": EndKind.PREEMPTED,
    "CANCELLED": EndKind.CANCELLED,
}
OF_SCRIPT = "the batch script failed"
_SCHEDULER = "the scheduler ended the job"
# Lines that name a kind of end by themselves: the pattern, the kind, and what happened.
_ROWS = tuple(
    (re.compile(pattern), kind, words)
    for pattern, kind, words in (
        # LSF, PBS and Grid Engine.
        (
            r"PBS: job killed: (?:walltime|cput)|^TERM_(?:RUN|CPU)LIMIT: "
            r"|exceed(?:s|ed) job hard limit \"?(?:h_rt|h_cpu)",
            EndKind.TIME_LIMIT,
            "the scheduler ended the job at its time limit",
        ),
        (
            r"PBS: job killed: [pv]*mem\b|^TERM_(?:MEM|SWAP|SWAPLIMIT|MEMLIMIT): "
            r"|exceed(?:s|ed) job hard limit \"?(?:h_vmem|h_data|h_rss|mem)",
            EndKind.MEMORY,
            "the scheduler killed the job because it reached its memory limit",
        ),
        (
            # A line of kubectl's description of a pod, or of its table of pods.
            r"^(?:(?P<node>\S+) +\d+/\d+ +|Reason: +(?P<described>))OOMKilled\b",
            EndKind.MEMORY,
            "Kubernetes killed a container because it reached its memory limit",
        ),
        (r"^TERM_PREEMPT: ", EndKind.PREEMPTED, _SENTENCES[EndKind.PREEMPTED]),
        (r"^TERM_REQUEUE_\w+: ", EndKind.REQUEUED, _SENTENCES[EndKind.REQUEUED]),
        (
            r"PBS: job killed: node \d+ \((?P<node>[\w.-]+)\) (?P<why>requested job \w+.*)",
            EndKind.NODE,
            "node {node} {why}",
        ),
        (
            r"(?:PBS: |^TERM_(?!UNKNOWN)\w+: )(?P<why>job killed.*)",
            EndKind.CANCELLED,
            "the scheduler ended the job: {why}",
        ),
        (
            r"(?i)slurmstepd\S*: error: Detected \d+ oom[-_]kill event|exceeded (?:job|step) memory limit",
            EndKind.MEMORY,
            "Slurm killed a process because memory ran out",
        ),
        (r"(?:srun|salloc): error: Node failure on (?P<node>\S+)", EndKind.NODE, "node {node} failed"),
        (
            r"\*\*\* JOB \d+ STEPD TERMINATED ON (?P<node>\S+) .*NOT ENDING WITH SIGNALS",
            EndKind.NODE,
            "processes on node {node} did not end when Slurm killed them, as if a file system or GPU hung",
        ),
        # A node answers "No such process" if another node has already ended the step.
        (
            r"^srun: error: Task launch for \S+ failed on node (?P<node>[^\s:]+): "
            r"(?P<why>(?!No such process).*)",
            EndKind.NODE,
            "node {node} could not start its tasks: {why}",
        ),
        (
            r"^srun: error: (?P<why>timeout waiting for task launch.*)",
            EndKind.NODE,
            "a node did not start its tasks: {why}",
        ),
        # slurmstepd sends it to srun, which still waits.
        (
            r"slurmstepd-(?P<node>\S+): error: Failed to send MESSAGE_\w+: "
            r"(?P<why>Connection timed out|No route to host)",
            EndKind.NODE,
            "node {node} could not reach the node of srun: {why}",
        ),
        (
            r"ssh: (?:connect to host|Could not resolve hostname) (?P<node>[^\s:]+)(?: port \d+)?: "
            r"(?P<why>.*)",
            EndKind.NODE,
            "node {node} cannot be reached by ssh: {why}",
        ),
        (
            r"^srun: (?:fatal: |error: (?=Unable to (?:create step|confirm allocation|allocate resources)"
            r"|Invalid |task \d+ launch failed)|(?=unrecognized option|invalid option))(?P<why>.*)",
            EndKind.START,
            "srun could not start the ranks: {why}",
        ),
        # Slurm's own copy of the batch script.
        (
            r"slurmstepd\S*: error: execve\(\): (?P<why>.*/slurm_script:.*)",
            EndKind.NODE,
            "a node lost the script of the job: {why}",
        ),
        (
            r"\[proxy:\S+@(?P<node>[^\]\s]+)\] .*execvp error on file (?P<why>.*)",
            EndKind.START,
            "mpiexec could not start a program: {why}",
        ),
        (
            r"slurmstepd\S*: error: execve\(\): (?P<why>.*)",
            EndKind.START,
            "the command could not be started: {why}",
        ),
        (
            r"slurmstepd\S*: error: (?P<why>container_[pg]_\w+.*)",
            EndKind.NODE,
            "a node could not prepare the job's own /tmp: {why}",
        ),
        (
            r"(?P<why>The application appears to have been direct launched using \S+|PMI2_Init failed"
            r"|An error occurred in MPI_Init\w*)",
            EndKind.START,
            "MPI could not be initialized: {why}",
        ),
        (r"^(?P<why>[Uu]nknown option:? -\S+)$", EndKind.START, "Python could not be started: {why}"),
        # apptainer and singularity fill the level of a message up to nine characters.
        (r"^FATAL:   (?P<why>\S.*)", EndKind.CONTAINER, "the container could not be started: {why}"),
        (
            r"^\S*slurm_script: line \d+: (?P<why>\S+: .+|syntax error.*)$",
            EndKind.START,
            f"{OF_SCRIPT}: {{why}}",
        ),
        (
            r"^\S*(?:slurm_script|bash|sh)\S*: (?:line )?\d+: "
            r"(?P<why>\S+: (?:command not found|not found|No such file or directory|Permission denied))$",
            EndKind.START,
            f"{OF_SCRIPT}: {{why}}",
        ),
        (
            rf"line \d+: +\d+ (?P<why>{_BY_SHELL})\b",
            EndKind.SIGNAL,
            "a program of the batch script ended: {why}",
        ),
        # Handlers of programs that Slurm preempts or ends.
        *(
            (rf"Caught signal \S+ on (?P<node>\S+): this job is {end}", kind, _SENTENCES[kind])
            for end, kind in (("preempted", EndKind.PREEMPTED), ("timed-out", EndKind.TIME_LIMIT))
        ),
        (r"MPI_ABORT was invoked on rank (?P<rank>\d+)", EndKind.EXIT, "called MPI_Abort"),
    )
)


def _of_shell(code: int) -> int:
    """Return the code of a process, negative for a signal, by the code that a shell reports."""
    return 128 - code if 128 < code < 160 else code


def end_in_words(line: str, order: int, rank: int = -1) -> EndLine | None:
    """Return the end of a process that a line of ``rank`` tells of in any words; None if there is none."""
    stripped = line.strip()
    if _ONLY_BY_SHELL.match(stripped):
        kind = EndKind.OUTSIDE if stripped.startswith("Terminated") else EndKind.SIGNAL
        return EndLine(kind, f"a program ended: {stripped}", stripped, (rank,) * (rank >= 0), order=order)
    if not any(word in line for word in _WORDS_OF_ENDS):
        return None
    if crash := _CRASHED.search(line):
        message = f"process {crash['pid']} {code_in_words(-int(crash['number']))}"
        return EndLine(EndKind.SIGNAL, message, line.strip(), (), crash["node"], order)
    if not (match := _ENDED_WITH.search(line)):
        return None
    code = int(match["code"] or 0)
    if number := match["number"] or match["raised"] or match["handled"]:
        code = -int(number)
    elif name := match["name"] or match["received"]:
        code = -int(getattr(signal, name.upper(), 0))
    code = _of_shell(code)
    if code == 0 or not -64 < code < 256 or _OF_NO_END.search(line):
        return None
    ranks = tuple(int(rank) for rank in _RANK.findall(line)[:1])
    process = _PROCESS.search(line)
    who = f"process {process[1]}" if process else "a process"
    message = code_in_words(code) if ranks else f"{who} {code_in_words(code)}"
    if local := _LOCAL_RANK.search(line):
        message = f"a rank {code_in_words(code)}, with local rank {local[1]}"
    kind = EndKind.EXIT if code > 0 else EndKind.SIGNAL
    kind = EndKind.OUTSIDE if code == -signal.SIGTERM else kind
    return EndLine(kind, message, line.strip(), ranks, order=order, is_report=bool(ranks))


class EndLines:
    """Collects the lines about ends, in their order."""

    def __init__(self) -> None:
        self.ends: list[EndLine] = []
        self._mpi_rank, self._mpi_node, self._mpi_process = -1, "", ""
        # deepspeed or mp.spawn: each task of srun starts several ranks.
        self._tasks_are_launchers = False
        self._is_terminating = False
        # Whether Slurm ended the job for a reason of its own: ranks that end after that are no cause.
        self._is_job_ended = False
        self._container: list[str] = []
        # The pod that kubectl describes, or its node.
        self._pod = ""
        # The lines of a message of Open MPI, until it ends.
        self._message: list[str] | None = None

    @property
    def is_in_message(self) -> bool:
        """Return whether the newest line belongs to a message of Open MPI."""
        return bool(self._message)

    def hear(self, order: int, text: str) -> bool:
        """Read one line. Return whether it is about an end."""
        end = self._read(text)
        if end is None:
            return False
        is_of_scheduler = _SCHEDULER in end.words or _CANCELLED.search(text) is not None
        explains = is_of_scheduler or end.kind is EndKind.MEMORY or (end.kind is EndKind.NODE and end.node)
        if self._is_job_ended and not explains:
            end = replace(end, kind=EndKind.ENDED_BY_OTHERS)
        self._is_job_ended = self._is_job_ended or (end.kind in WHOLE_JOB and _SCHEDULER in end.words)
        self.ends.append(replace(end, order=order))
        return True

    def note_state(self, word: str, nodes: str) -> None:
        """Add the end of the job that Slurm's state of it means."""
        if kind := _OF_STATES.get(word):
            where = f" on {nodes}" if nodes else ""
            line = f"Slurm's state of the job is {word}"
            self.ends.append(EndLine(kind, f"{_SENTENCES[kind]}{where}", line))

    def taken(self, begin: int, last: int) -> EndLines:
        """Remove the ends behind ``begin`` up to ``last``, which are of an earlier run, and return them."""
        run = copy.copy(self)
        run.ends = [end for end in self.ends if begin < end.order <= last]
        self.ends = [end for end in self.ends if not begin < end.order <= last]
        self._is_terminating = self._is_job_ended = False
        return run

    def _read(self, text: str) -> EndLine | None:
        line = text.strip()
        if end := self._of_mpi_message(line):
            return end
        if match := _POD.match(line):
            self._pod = match[1]
        self._tasks_are_launchers = self._tasks_are_launchers or _OF_TORCHRUN.search(text) is not None
        if match := _TASKS.search(text):
            return self._of_tasks(match, line)
        if "Terminating StepId" in text or "Job step aborted" in text or "Terminating job step" in text:
            self._is_terminating = True
            return None
        if match := _CANCELLED.search(text):
            return self._of_cancel(match, line)
        for pattern, kind, words in _ROWS:
            if match := pattern.search(line):
                groups = match.groupdict()
                ranks = (int(groups["rank"]),) if groups.get("rank") else ()
                is_of_pod = groups.pop("described", None) is not None
                node = self._pod if is_of_pod else groups.get("node") or ""
                return EndLine(kind, words.format(**groups), line, ranks, node)
        if match := _CONTAINER.search(text):
            self._container.append(match[1])
            inner = [message.strip() for message in self._container if message.startswith("  ")]
            # The hook of a container only says that a command of it failed.
            inner = [message for message in inner if "exited with" not in message] or inner
            message = (inner or self._container)[-1 if inner else 0]
            self.ends = [end for end in self.ends if end.kind is not EndKind.CONTAINER]
            return EndLine(EndKind.CONTAINER, f"the container could not be started: {message}", line)
        if ("signal" in text or "SIG" in text) and (match := _DEATH_SIGNAL.search(text)):
            name = next(filter(None, match.groups()))
            number = int(name) if name.isdecimal() else int(getattr(signal, name, signal.SIGTERM))
            message = code_in_words(-number).removeprefix("was killed by ")
            return EndLine(EndKind.OUTSIDE, f"a process was ended from outside, by {message}", line)
        if _INTERRUPTED.match(line):
            self._is_terminating = True
            message = "srun was interrupted (Ctrl-C, or a signal from outside), and ended its ranks"
            return EndLine(EndKind.OUTSIDE, message, line)
        if match := _DEEPSPEED.search(text):
            self._tasks_are_launchers = True
            code = int(match[1])
            kind = EndKind.EXIT if code >= 0 else EndKind.SIGNAL
            kind = EndKind.OUTSIDE if code == -signal.SIGTERM else kind
            return EndLine(kind, f"a rank of deepspeed {code_in_words(code)}", line)
        if "torch.multiprocessing.spawn.Process" in text:
            self._tasks_are_launchers = True
            return None
        if match := _JAX.search(text):
            rank = int(match[1])
            return EndLine(EndKind.EXIT, f"is lost to jax: {match[2]}", line, (rank,), is_report=True)
        if match := _COMPOSER.search(text) or _HOROVOD.match(line):
            rank, code = int(match[1]), int(match[2])
            code = _of_shell(code)
            kind = EndKind.EXIT if code >= 0 else EndKind.SIGNAL
            kind = EndKind.ENDED_BY_OTHERS if code == -signal.SIGTERM else kind
            return EndLine(kind, code_in_words(code), line, (rank,), is_report=True)
        if match := _MPI_SIGNAL.search(text):
            return _by_signal(match, line)
        # LSF speaks of the batch script.
        if (match := _EXIT_CODE.fullmatch(line.rstrip("."))) and int(match[1]):
            return end_in_words(line, 0)
        if match := _HYDRA_RANK.match(line):
            self._tasks_are_launchers = True
            self._mpi_rank, self._mpi_node = int(match[1] or -1), match[3]
            self._mpi_process = "" if match[1] else f"process {match[2]} "
        elif (match := _HYDRA_END.match(line)) and self._mpi_node:
            ranks = (self._mpi_rank,) if self._mpi_rank >= 0 else ()
            message = f"was ended by signal {match[1]}" if match[1] else f"exited with code {match[2]}"
            kind = EndKind.SIGNAL if match[1] or int(match[2]) > 128 else EndKind.EXIT
            end = EndLine(kind, self._mpi_process + message, line, ranks, self._mpi_node)
            self._mpi_rank, self._mpi_node = -1, ""
            return end
        if match := _MPI_NAME.match(text):
            self._mpi_rank = int(match[1])
        elif (match := _MPI_CODE.match(text)) and self._mpi_rank >= 0:
            first, self._mpi_rank = self._mpi_rank, -1
            return EndLine(EndKind.EXIT, f"exited with code {match[1]}", line, (first,))
        return None

    def _of_mpi_message(self, line: str) -> EndLine | None:
        """Return the end that a message of Open MPI reports, at the line of dashes below it."""
        if not _MPI_RULE.match(line):
            if self._message is not None:
                self._message.append(line)
                self._message = self._message if len(self._message) < MOST_MESSAGE_LINES else None
            return None
        lines, self._message = self._message or [], [] if self._message is None else None
        message = " ".join(lines)
        if (match := _MPI_SIGNAL.search(message)) and not any(map(_MPI_SIGNAL.search, lines)):
            return _by_signal(match, message[:MOST_MESSAGE])
        if peer := _MPI_PEER.search(message):
            sentence = f"an MPI process of node {peer[1]} ended: another one lost the connection to it"
            return EndLine(EndKind.EXIT, sentence, message[:MOST_MESSAGE], node=peer[1])
        if lost := _MPI_LOST.search(message):
            sentence = f"mpirun lost node {lost[1]}: the node failed, or cannot be reached"
            return EndLine(EndKind.NODE, sentence, message[:MOST_MESSAGE], node=lost[1])
        if not _MPI_WORDS.search(message) or _MPI_ENDS.match(message):
            return None
        first = message.partition("Either ")[0][:MOST_MESSAGE].strip()
        return EndLine(EndKind.START, f"mpirun could not start the ranks: {first}", message[:MOST_MESSAGE])

    def _of_cancel(self, match: re.Match[str], line: str) -> EndLine:
        """Return the end of a job or step that Slurm has cancelled."""
        self._is_terminating = True
        cause = (match[3] or "").rstrip(", ")
        kind = next((kind for word, kind in _REASONS.items() if cause.startswith(word)), EndKind.CANCELLED)
        # scancel prints a line of the step and one of the job. Its signal may reach a launcher before.
        of_cancel = (EndKind.CANCELLED, EndKind.OUTSIDE, EndKind.ENDED_BY_OTHERS)
        causes = [end for end in self.ends if end.kind not in of_cancel]
        if match[1] == "STEP":  # a step also ends if its srun does, and scancel sends SIGTERM
            causes += [end for end in self.ends if end.kind is EndKind.OUTSIDE and "SIGTERM" not in end.words]
        if kind is EndKind.CANCELLED and causes:
            kind = EndKind.ENDED_BY_OTHERS
        # A failed rank ends a step, and never the job.
        is_of_job = kind is not EndKind.CANCELLED or match[1] == "JOB"
        self._is_job_ended |= kind is not EndKind.ENDED_BY_OTHERS and is_of_job
        return EndLine(kind, _SENTENCES.get(kind, "the job was cancelled"), line)

    def _of_tasks(self, tasks: re.Match[str], line: str) -> EndLine:
        node, ranks, what = tasks[1], _ranks(tasks[2]), tasks[3].strip()
        if self._tasks_are_launchers:
            ranks = ()
        if what == "Out Of Memory":
            return EndLine(EndKind.MEMORY, "ran out of the job's memory", line, ranks, node)
        if what.startswith(_ENDED) and self._is_terminating:
            return EndLine(EndKind.ENDED_BY_OTHERS, what, line, ranks, node)
        if _SIGNALS.search(what):
            return EndLine(EndKind.SIGNAL, f"ended: {what}", line, ranks, node)
        if what.startswith("Terminated"):
            return EndLine(EndKind.ENDED_BY_OTHERS, what, line, ranks, node)
        code = int(match[1]) if (match := _EXIT_CODE.match(what)) else 0
        if (number := -_of_shell(code)) > 0:
            is_ended = number == signal.SIGTERM and self._is_terminating
            kind = EndKind.ENDED_BY_OTHERS if is_ended else EndKind.SIGNAL
            return EndLine(kind, f"exited with exit code {code}: signal {number}", line, ranks, node)
        return EndLine(EndKind.EXIT, what[:1].lower() + what[1:], line, ranks, node)


def _by_signal(match: re.Match[str], line: str) -> EndLine:
    """Return the end of a rank by the words of mpirun."""
    return EndLine(EndKind.SIGNAL, f"was ended by {match[3]}", line, (int(match[1]),), match[2])


def _ranks(text: str) -> tuple[int, ...]:
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            ranks += range(int(first), min(int(last or first), int(first) + 65535) + 1)
    return tuple(ranks)
