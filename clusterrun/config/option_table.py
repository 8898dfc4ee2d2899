"""The table of options: names, kinds, help and what holds when nobody says; knows no place of a value."""

from __future__ import annotations

from clusterrun.model import contract
from clusterrun.model.frozen import frozen

DURATIONS = {"time": 60, "seconds": 1}
"""The kinds of options that are lengths of time, each with the seconds that a bare number counts."""

Value = str | int | bool | tuple[str, ...]


@frozen
class Option:
    """One option: its name without dashes, what kind of value it takes, and what holds when nobody says.

    ``kind`` is ``text``, ``number``, ``switch`` (on or off), ``list`` (of strings, repeatable), or one of
    ``DURATIONS``.
    """

    name: str
    kind: str
    help: str
    metavar: str = ""
    default: Value = ""
    choices: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return contract.OPTION_VARIABLE_PREFIX + self.name.upper().replace("-", "_")


RESOURCES = (
    Option("nodes", "number", "Nodes that train.", "N", 1),
    Option("gpus", "number", "GPUs per node, one rank each; 0 for CPU ranks.", "G", 0),
    Option("ranks-per-node", "number", "CPU ranks per node, with --gpus 0 (default 1).", "R", 0),
    Option(
        "cpus-per-rank",
        "number",
        "CPU cores per rank (default: with GPUs the share of the node, else 1).",
        "C",
        0,
    ),
    Option("spares", "number", "More nodes, to take the place of unfit ones before ranks start.", "K", 0),
    Option("time", "time", "Time limit: Slurm's formats, or 90m, 2h, 1d12h, or minutes.", "TIME"),
    Option("partition", "text", "Slurm partition.", "NAME"),
    Option("account", "text", "Slurm account.", "NAME"),
    Option("qos", "text", "Slurm quality of service.", "NAME"),
    Option("reservation", "text", "Slurm reservation.", "NAME"),
    Option("constraint", "text", "Features that nodes must have.", "LIST"),
    Option("exclude", "text", "Nodes to exclude.", "NODES"),
    Option("nodelist", "text", "Nodes to be on.", "NODES"),
    Option("mem", "text", "Memory per node, as sbatch takes it (never set unless asked).", "SIZE"),
    Option("name", "text", "Name of the run (default: the script's).", "NAME"),
    Option("sbatch", "list", "Any other sbatch option, without dashes. Repeatable.", "KEY[=VALUE]", ()),
    Option("srun", "list", "Any other srun option, without dashes. Repeatable.", "KEY[=VALUE]", ()),
    Option(
        "setup",
        "list",
        "Shell line to run first on the node, e.g. 'module load cuda'. Repeatable.",
        "LINE",
        (),
    ),
    Option(
        "env",
        "list",
        "Variable for the ranks; KEY alone takes its value from here. Repeatable.",
        "KEY[=VALUE]",
        (),
    ),
    Option(
        "python",
        "text",
        "The ranks' interpreter (default: what --setup activates, else the active environment's, else ours).",
        "PATH",
    ),
    Option("template", "text", "Your own sbatch template.", "FILE"),
    Option(
        "cluster",
        "text",
        "Where to run; auto: Slurm where its programs are, else this machine.",
        "",
        "auto",
        ("auto", "slurm", "local"),
    ),
)
"""Options of every command that asks for nodes."""

PREFLIGHT = (
    Option("preflight-budget", "seconds", "Time that the pre-flight check may take.", "TIME", "60s"),
    Option(
        "preflight-limit",
        "list",
        "A limit of the pre-flight check, as docs/preflight.md names them. Repeatable.",
        "NAME=NUMBER",
        (),
    ),
    Option("avoid-bad", "switch", "Keep off nodes that were lately found unfit.", "", False),
    Option("bad-since", "seconds", "How old a finding may be to count for --avoid-bad.", "TIME", "7d"),
)
"""Options of every command that starts with a pre-flight check."""

SUBMISSION = (
    Option(
        "preflight",
        "text",
        "Check the nodes before ranks start (default: full for several nodes, else quick).",
        "",
        "",
        ("full", "quick", "off"),
    ),
    Option(
        "on-unfit",
        "text",
        "With too few fit nodes: end, or queue the run again without the unfit ones.",
        "",
        "fail",
        ("fail", "resubmit"),
    ),
    Option("per-node", "switch", "Start COMMAND once per node, not once per rank.", "", False),
    Option(
        "snapshot", "switch", "Copy the code into the run directory and run the copy, in the copy.", "", False
    ),
    Option(
        "snapshot-include",
        "list",
        "With --snapshot: take PATH along, which git ignores (linked to where it is large). Repeatable.",
        "PATH",
        (),
    ),
    Option(
        "max-restarts",
        "number",
        "Restarts after failures, as long as nothing gets further (default 0; 3 with --spares or --requeue).",
        "N",
        -1,
    ),
    Option(
        "requeue",
        "switch",
        "Go on in another job after a time limit, a preemption or the loss of the job.",
        "",
        False,
    ),
    Option(
        "requeue-by",
        "text",
        "How: Slurm queues the same job again (default), or the next one is queued when this one starts.",
        "",
        "",
        contract.REQUEUE_WORDS,
    ),
    Option("max-preemptions", "number", "With --requeue: how many preemptions are survived.", "N", 20),
    Option("max-time-limits", "number", "With --requeue: how many time limits are survived.", "N", 20),
    Option(
        "notice", "seconds", "With --requeue: how long before its end the job hears of it.", "TIME", "120s"
    ),
    Option(
        "no-progress", "number", "End after K failed attempts in a row that got no further; 0: never.", "K", 3
    ),
    Option("on-event", "text", "Shell line that gets each event of the run as JSON on its stdin.", "CMD"),
    Option("hang-after", "seconds", "Time without any progress that is a hang; off: none is.", "TIME", "10m"),
    Option(
        "on-hang",
        "text",
        "With a run that hangs: say who is to blame, restart all ranks, or end it.",
        "",
        "report",
        ("report", "restart", "kill"),
    ),
    Option("follow", "switch", "Show what the ranks print until the run has ended.", "", False),
    Option("wait", "switch", "Return when the run has ended, with its exit code.", "", False),
)
"""Options of ``submit`` alone that can stand in a configuration."""

UNSAID = {"ranks-per-node": 0, "cpus-per-rank": 0, "max-restarts": -1}
"""The number that stands there where nobody said anything: what holds then depends on other options."""

TRUST = Option(
    "trust",
    "list",
    "Configuration files, or folders of them, to read though another user may write them.",
    "PATH",
    (),
)

SITE = (
    TRUST,
    Option(
        "slurm-every",
        "number",
        "Seconds for which one answer of squeue serves all of a user's commands.",
        "S",
        2,
    ),
)
"""What a site may set that is no option of a command."""

CONFIGURABLE = {option.name: option for option in RESOURCES + PREFLIGHT + SUBMISSION + SITE}
