"""The options of a submission and where each value comes from; knows no command line and no scheduler."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from clusterrun.model import contract
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen

Value = str | int | bool | tuple[str, ...]


@frozen
class Option:
    """One option: its name without dashes, what kind of value it takes, and what holds when nobody says.

    ``kind`` is ``text``, ``number``, ``switch`` (on or off) or ``list`` (of strings, repeatable).
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
    Option("cpus-per-rank", "number", "CPU cores per rank.", "C", 0),
    Option("spares", "number", "More nodes, to take the place of unfit ones before ranks start.", "K", 0),
    Option("time", "text", "Time limit: Slurm's formats, or 90m, 2h, 1d12h.", "TIME"),
    Option("partition", "text", "Slurm partition.", "NAME"),
    Option("account", "text", "Slurm account.", "NAME"),
    Option("qos", "text", "Slurm quality of service.", "NAME"),
    Option("reservation", "text", "Slurm reservation.", "NAME"),
    Option("constraint", "text", "Features that nodes must have.", "LIST"),
    Option("exclude", "text", "Nodes to keep off.", "NODES"),
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
    Option("python", "text", "The ranks' interpreter (default: the one clusterrun runs in).", "PATH"),
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
    Option("preflight-budget", "text", "Time that the pre-flight check may take.", "TIME", "60s"),
    Option(
        "preflight-limit",
        "list",
        "A limit of the pre-flight check, as docs/preflight.md names them. Repeatable.",
        "NAME=NUMBER",
        (),
    ),
    Option("avoid-bad", "switch", "Keep off nodes that were lately found unfit.", "", False),
    Option("bad-since", "text", "How old a finding may be to count for --avoid-bad.", "TIME", "7d"),
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
    Option("snapshot", "switch", "Copy the code into the run directory and run the copy.", "", False),
    Option("max-restarts", "number", "Restarts of all ranks after a failure, inside the allocation.", "N", 0),
    Option(
        "requeue", "switch", "Let Slurm queue the job again after a preemption or a node failure.", "", False
    ),
    Option("hang-after", "text", "Time without any progress that is a hang; off: none is.", "TIME", "10m"),
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

UNSAID_IS_ZERO = ("ranks-per-node", "cpus-per-rank")
"""A zero there means that nobody said anything: what holds then depends on other options."""

SITE = (
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


@frozen
class Setting:
    """The value of one option and the place that decided it."""

    name: str
    value: Value
    origin: str


@frozen
class Source:
    """One place where values come from: what to call it, and its values by option name."""

    origin: str
    values: tuple[tuple[str, Value], ...]


def settle(sources: Iterable[Source]) -> dict[str, Setting]:
    """Every configurable option with its value and origin; ``sources`` strongest first.

    The strongest source that has an option decides it. Lists add up, the weakest source first, so
    that a command line adds to the ``setup`` lines or ``env`` of a profile.
    """
    strongest = list(sources)
    return {option.name: _settled(option, strongest) for option in CONFIGURABLE.values()}


def _settled(option: Option, sources: list[Source]) -> Setting:
    found = [(dict(s.values)[option.name], s.origin) for s in sources if option.name in dict(s.values)]
    if not found:
        return Setting(option.name, option.default, "built-in")
    if option.kind != "list":
        return Setting(option.name, found[0][0], found[0][1])
    items = tuple(item for value, _ in reversed(found) if isinstance(value, tuple) for item in value)
    return Setting(option.name, items, " + ".join(origin for _, origin in reversed(found)))


def from_environment(environ: Mapping[str, str]) -> list[Source]:
    """A source for each option that ``CLUSTERRUN_*`` variables set; lists have one item per line."""
    return [
        Source(o.variable, ((o.name, read_value(o, environ[o.variable], o.variable)),))
        for o in CONFIGURABLE.values()
        if environ.get(o.variable)
    ]


def read_value(option: Option, given: Any, where: str) -> Value:
    """``given`` (text, or what TOML held) as a value of ``option``. Raises ``BadInput`` naming ``where``."""
    reader = {"list": _list, "switch": _switch, "number": _number, "text": _text}[option.kind]
    value = reader(given)
    if value is None or (option.choices and value not in option.choices):
        wanted = {
            "list": "a list of strings",
            "switch": "true or false",
            "number": "a whole number",
            "text": "a string",
        }
        choices = " or ".join(option.choices)
        raise BadInput(f"{where}: {given!r} is not {choices or wanted[option.kind]}")
    return value


def _text(given: Any) -> str | None:
    return None if isinstance(given, (bool, list, dict)) else str(given)


def _number(given: Any) -> int | None:
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    text = given.strip() if isinstance(given, str) else ""
    return int(text) if text.lstrip("-").isdecimal() and text.isascii() else None


def _switch(given: Any) -> bool | None:
    if isinstance(given, bool):
        return given
    words = {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
    }
    return words.get(given.strip().lower()) if isinstance(given, str) else None


def _list(given: Any) -> tuple[str, ...] | None:
    if isinstance(given, str):
        return tuple(line for line in given.splitlines() if line)
    whole = isinstance(given, list) and all(isinstance(item, str) for item in given)
    return tuple(given) if whole else None


def misspelt(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each ``CLUSTERRUN_*`` variable that is none of ours but looks much like one."""
    import difflib

    ours = {option.variable for option in CONFIGURABLE.values()} | {contract.HOME_VARIABLE, PROFILE_VARIABLE}
    said = []
    for name in sorted(environ):
        if name.startswith(contract.OPTION_VARIABLE_PREFIX) and name not in ours | RESERVED:
            near = difflib.get_close_matches(name, ours, n=1, cutoff=0.85)
            said += [f"{name} is set but means nothing; did you mean {near[0]}?"] if near else []
    return said


PROFILE_VARIABLE = contract.OPTION_VARIABLE_PREFIX + "PROFILE"
RESERVED = frozenset(
    (
        contract.RUN_ID_VARIABLE,
        contract.RUN_NAME_VARIABLE,
        contract.RUN_DIR_VARIABLE,
        contract.ATTEMPT_VARIABLE,
        contract.MARKER_VARIABLE,
        contract.NODE_VARIABLE,
        contract.NODE_NAME_VARIABLE,
    )
)
"""Set by clusterrun itself in the processes of a run."""


def home(environ: Mapping[str, str]) -> str:
    """``$CLUSTERRUN_HOME``, or ``~/.clusterrun``, as an absolute path."""
    return os.path.abspath(os.path.expanduser(environ.get(contract.HOME_VARIABLE) or "~/.clusterrun"))
