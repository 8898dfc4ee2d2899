"""List all options: names, kinds, help, defaults, and their effect with and without Slurm."""

from __future__ import annotations

from clusterrun.model import contract
from clusterrun.model.container import RUNTIMES
from clusterrun.model.frozen import frozen, replace

# The kinds of options that are durations, with the seconds that a bare number counts.
DURATIONS = {"time": 60, "seconds": 1}

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

Value: TypeAlias = "str | int | bool | tuple[str, ...]"


GROUPS = {
    "resources": "Resources",
    "slurm": "Slurm",
    "environment": "Environment",
    "check": "Check of the nodes",
    "restarts": "Restarts and hangs",
    "output": "Output",
}


# Without Slurm it has no effect, and a notice says so.
IGNORED = "ignored"
# It requires Slurm. Without Slurm nothing is started on this machine.
REFUSED = "refused"


@frozen
class Option:
    """One option of a command."""

    name: str  # without dashes
    # ``text``, ``number``, ``switch`` (on or off), ``list`` (of strings, repeatable), ``gpus`` (a number,
    # or TYPE:NUMBER), ``nodes`` (a number, or MIN-MAX), or one of ``DURATIONS``
    kind: str
    help: str
    metavar: str = ""
    default: Value = ""
    choices: tuple[str, ...] = ()
    group: str = "resources"  # one of ``GROUPS``
    common: bool = False  # listed in ``--help``; the others are listed in ``--help-all``
    otherwise: str = ""  # the default as text, if ``default`` does not show it
    short: str = ""  # one-letter alias
    also: tuple[str, ...] = ()  # long aliases
    least: int = 0  # the least value of a number
    sbatch: bool = False  # passed to sbatch, which knows it by the same name
    queued: bool = False  # only a job that is not queued yet can have it, so ``run`` refuses it
    here: str = ""  # its effect without Slurm: '' (unchanged), ``IGNORED`` or ``REFUSED``

    @property
    def field(self) -> str:
        """Return the option's name in Python: as a keyword, and as a field of a spec."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        return contract.OPTION_VARIABLE_PREFIX + self.name.upper().replace("-", "_")

    @property
    def holds(self) -> str:
        """Return the default as text; '' if there is none."""
        return self.otherwise or ("" if self.default in ("", (), False) else str(self.default))


def _option(names: str, kind: str, help_: str, metavar: str = "", default: Value = "", **more: Any) -> Option:
    """Return an option. ``names`` holds its name, then its aliases."""
    name, *others = names.split()
    short, also = (
        [alias for alias in others if len(alias) == 2],
        [alias for alias in others if len(alias) > 2],
    )
    return Option(name, kind, help_, metavar, default, short="".join(short), also=tuple(also), **more)


def _switch(name: str, help_: str, **more: Any) -> Option:
    return _option(name, "switch", help_, default=False, **more)


def _list(name: str, help_: str, metavar: str, **more: Any) -> Option:
    return Option(name, "list", help_, metavar, (), **more)


def _choice(name: str, help_: str, choices: tuple[str, ...], default: str = "", **more: Any) -> Option:
    return Option(name, "text", help_, default=default, choices=choices, **more)


def _sbatch(name: str, help_: str, metavar: str, kind: str = "text", **more: Any) -> Option:
    """Return an option that is passed to sbatch for a job that is not queued yet."""
    fields = {"sbatch": True, "queued": True, "here": IGNORED, **more}
    return _option(name, kind, help_, metavar, **fields)


def _text(name: str, help_: str, metavar: str, **more: Any) -> Option:
    return _option(name, "text", help_, metavar, **more)


def _number(name: str, help_: str, metavar: str, default: int = 0, **more: Any) -> Option:
    return Option(name, "number", help_, metavar, default, **more)


def _seconds(name: str, help_: str, default: str, **more: Any) -> Option:
    return Option(name, "seconds", help_, "TIME", default, **more)


def _of(group: str, *options: Option) -> tuple[Option, ...]:
    return tuple(replace(option, group=group) for option in options)


_SIZE = (
    _option("nodes -N", "nodes", "Nodes that train; MIN-MAX: what is free.", "N", 1, common=True, least=1),
    _option(
        "gpus --gpus-per-node",
        "gpus",
        "GPUs per node, one rank each: 8, or h100:8.",
        "[TYPE:]G",
        0,
        common=True,
    ),
    _choice(
        "gpus-from",
        "Source of the GPUs: slurm (requested from it), or node (whole nodes, unknown to Slurm).",
        ("slurm", "node"),
        "slurm",
        here=IGNORED,
    ),
    _number("ranks-per-node", "Ranks per node without GPUs.", "R", common=True, otherwise="1"),
    _number("cpus-per-rank", "CPU cores per rank.", "C", common=True, otherwise="the GPU's share, else 1"),
    _sbatch("mem", "Memory per node: 64G.", "SIZE", common=True, otherwise="the partition's"),
    _sbatch(
        "time -t",
        "Time limit: 90m, 2h, 1d12h, D-HH:MM:SS, or minutes.",
        "TIME",
        "time",
        common=True,
        otherwise="the partition's",
        here="",
    ),
    _sbatch(
        "time-min",
        "Least time with which the job may start if other jobs leave less than --time.",
        "TIME",
        "time",
        otherwise="--time",
    ),
    _number("spares", "More nodes, which replace unfit ones before ranks start.", "K"),
)
_SLURM = _of(
    "slurm",
    _sbatch("partition -p", "Slurm partition.", "NAME", common=True, otherwise="the cluster's", here=REFUSED),
    _sbatch("account -A", "Slurm account.", "NAME", common=True, otherwise="your default one", here=REFUSED),
    _sbatch("qos -q", "Slurm quality of service.", "NAME", otherwise="the account's", here=REFUSED),
    _sbatch("reservation", "Slurm reservation.", "NAME", here=REFUSED),
    _sbatch("constraint -C", "Features that nodes must have.", "LIST", here=REFUSED),
    _sbatch("exclude -x", "Nodes to exclude.", "NODES", queued=False),
    _sbatch("nodelist -w", "Nodes that the job must have.", "NODES", queued=False, here=REFUSED),
    _text("name -J --job-name", "Name of the run.", "NAME", common=True, otherwise="the script's"),
    _list(
        "sbatch", "Any other sbatch option: nice=10.", "KEY[=VALUE]", common=True, queued=True, here=REFUSED
    ),
    _list("srun", "Any other srun option: cpu-bind=cores.", "KEY[=VALUE]", here=REFUSED),
    _text(
        "template",
        "Your own sbatch template.",
        "FILE",
        otherwise="the shipped one",
        queued=True,
        here=IGNORED,
    ),
    _choice(
        "cluster",
        "Where to run; auto: on Slurm if its programs are installed, else here.",
        ("auto", "slurm", "local"),
        "auto",
        queued=True,
    ),
)
_ENVIRONMENT = _of(
    "environment",
    _list("setup", "Shell line to run first, once: 'module load cuda'.", "LINE", common=True),
    _list("env", "Variable for ranks; KEY alone: as in this shell.", "KEY[=VALUE]", common=True),
    _text(
        "python",
        "The ranks' interpreter.",
        "PATH",
        otherwise="what --setup activates, else the active environment's, else ours",
    ),
    _text("container", "Container image that ranks run in.", "IMAGE", otherwise="none"),
    _list("mount", "With --container: a folder to mount there.", "SRC[:DST[:ro]]"),
    _choice(
        "container-runtime",
        "Container runtime: pyxis, apptainer, charliecloud, podman or slurm.",
        RUNTIMES,
        metavar="NAME",
        otherwise="what is here and takes the image",
    ),
)
RESOURCES = (*_SIZE, *_SLURM, *_ENVIRONMENT)

# Options of every command that starts with a pre-flight check.
PREFLIGHT = _of(
    "check",
    _seconds("preflight-budget", "Time that the pre-flight check may take.", "60s"),
    _list(
        "preflight-limit", "A limit of the pre-flight check; see clusterrun help preflight.", "NAME=NUMBER"
    ),
    _list(
        "check-command",
        "Your own check, a shell command on every node. If it fails its last line is the reason.",
        "CMD",
    ),
    _switch("avoid-bad", "Exclude nodes that were unfit lately.", queued=True, here=IGNORED),
    _seconds("bad-since", "Age up to which a finding counts for --avoid-bad.", "7d", queued=True),
)

_FORM = (
    _switch("per-node", "Start COMMAND once per node, not once per rank."),
    _choice(
        "numa-binding",
        "Bind each rank to processors near its GPU, as torchrun --numa-binding does.",
        ("node", "socket", "exclusive", "core-complex"),
        metavar="HOW",
        otherwise="no binding",
    ),
    _switch("elastic", "With --nodes MIN-MAX: each job of the run may have more or fewer.", queued=True),
)
_CODE = _of(
    "environment",
    _switch("snapshot", "Copy the code into the run directory, and run the copy in that directory."),
    _list(
        "snapshot-include",
        "With --snapshot: also copy PATH, which git ignores (a link if it is large).",
        "PATH",
    ),
    _text("input", "Standard input of each rank; -: that of this command.", "FILE", otherwise="empty"),
)
_CHECK = _of(
    "check",
    _choice(
        "preflight",
        "Check the nodes first: full, quick or off.",
        ("full", "quick", "off"),
        metavar="LEVEL",
        common=True,
        otherwise="full for several nodes, else quick",
    ),
    _choice(
        "on-unfit",
        "If too few nodes are fit: end, or queue the run again without the unfit ones.",
        ("fail", "resubmit"),
        "fail",
        queued=True,
        here=IGNORED,
    ),
)
_RESTARTS = _of(
    "restarts",
    _number(
        "max-restarts",
        "Restarts after failures without progress.",
        "N",
        -1,
        common=True,
        otherwise="0; 3 with --spares or --requeue",
    ),
    _switch(
        "requeue",
        "Start the run again after time limit or preemption.",
        common=True,
        queued=True,
        here=IGNORED,
    ),
    _choice(
        "requeue-by",
        "How to continue: Slurm queues the job again, or the next one is queued when this one starts.",
        contract.REQUEUE_WORDS,
        otherwise="requeue",
        queued=True,
    ),
    _number("max-preemptions", "With --requeue: most preemptions.", "N", 20, queued=True),
    _number("max-time-limits", "With --requeue: most time limits.", "N", 20, queued=True),
    _seconds(
        "notice", "With --requeue: time from the notice to the end of the job.", "120s", least=30, queued=True
    ),
    _seconds(
        "kill-wait",
        "At the end of the run: time from SIGTERM to SIGKILL, in which ranks can save.",
        "",
        otherwise="Slurm's KillWait, less a margin; 30s in local runs",
    ),
    _number("no-progress", "End after K failed attempts in a row without progress; 0: never.", "K", 3),
    _seconds("hang-after", "Time without progress that counts as a hang; off: no detection of hangs.", "10m"),
    _choice(
        "on-hang",
        "If a run hangs: report the cause, restart all ranks, or end the run.",
        ("report", "restart", "kill"),
        "report",
    ),
)
_OUTPUT = _of(
    "output",
    _switch("follow -f", "Show what the ranks print, until the run has ended.", common=True),
    _switch("wait", "Return when the run has ended, with its exit code."),
    _list("notify", "Send a message at failure, hang and end: slack://…, https://…, mailto:….", "URL"),
    _text("on-event", "Shell line that gets each event of the run as JSON on its stdin.", "CMD"),
)
# Options of ``submit`` alone that a configuration file may set.
SUBMISSION = (*_FORM, *_CODE, *_CHECK, *_RESTARTS, *_OUTPUT)

EVERY = (*RESOURCES, *PREFLIGHT, *SUBMISSION)

TRUST = _list(
    "trust", "Configuration files (or folders) to read although other users may write them.", "PATH"
)

# Settings of a site that are no option of a command.
SITE = (
    TRUST,
    _number("slurm-every", "Seconds for which one answer of squeue serves all of a user's commands.", "S", 2),
)

CONFIGURABLE = {option.name: option for option in (*EVERY, *SITE)}
