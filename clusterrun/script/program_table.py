"""Say which programs of a batch script are tools, and how each of them changes the shell or the files."""

from __future__ import annotations

from enum import Flag, auto


class Trait(Flag):
    """A property of a program. A tool has no ``RUNS``: it is never the command of a script by elimination."""

    TOOL = 0
    PRINTS = auto()
    FILTERS = auto()  # it prints what it reads
    READS = auto()  # it changes nothing
    IN_SHELL = auto()  # it changes the shell that runs it
    REPEATABLE = auto()  # a second run changes nothing
    WORK = auto()  # it is the work of a script that starts nothing else
    RUNS = auto()  # it runs a program of the user
    WRAPS = auto()  # it starts the command behind its own options, which each rank can do too
    PREPARES = auto()  # the run ends if it fails: what follows needs the shell that it prepares


_READER = Trait.READS | Trait.REPEATABLE
_PRINTER = Trait.PRINTS | _READER
_FILTER = Trait.FILTERS | _READER
_SETTER = Trait.IN_SHELL | Trait.REPEATABLE
_ROWS = (
    (
        "echo printf date hostname nvidia-smi rocm-smi free uptime env printenv which pwd whoami clear",
        _PRINTER,
    ),
    ("sort uniq grep head tail awk tr cut wc cat tac rev nl column paste", _FILTER),
    ("sed", Trait.FILTERS | Trait.READS),
    ("id ls basename dirname realpath readlink seq shuf expr bc nproc uname", _READER),
    ("getent lscpu df stat comm type jq host nslookup ip ss", _READER),
    ("[ [[ test true : command", _READER),
    ("scontrol squeue sacct sinfo ifconfig netstat", Trait.READS),
    ("cd", _READER | Trait.IN_SHELL | Trait.PREPARES),
    ("source . export pushd module ml spack", _SETTER | Trait.PREPARES),
    ("popd ulimit umask unset hash eval set shopt trap read mapfile readarray shift break return", _SETTER),
    ("conda mamba micromamba", _SETTER | Trait.RUNS | Trait.WRAPS | Trait.PREPARES),
    ("alias local declare typeset continue kill", Trait.IN_SHELL),
    ("wait exit mkdir ln unzip chmod touch sleep sbcast", Trait.REPEATABLE),
    ("pip pip3 rsync tar cp", Trait.REPEATABLE | Trait.WORK),
    ("jupyter jupyter-lab ray make cmake git wget curl nvcc", Trait.WORK),
    ("ts rm mv find tee ldd gcc g++ sbatch scancel seff flock", Trait.TOOL),
    ("python python3", Trait.READS | Trait.RUNS),
    ("Rscript julia java perl ruby matlab octave bash sh zsh", Trait.RUNS),
    ("singularity apptainer shifter podman podman-hpc docker enroot", Trait.RUNS | Trait.WRAPS),
    ("ch-run charliecloud uv poetry pdm pixi pipenv hatch", Trait.RUNS | Trait.WRAPS),
    ("papermill parallel", Trait.RUNS),
)
TRAITS = {program: traits for programs, traits in _ROWS for program in programs.split()}


def with_trait(trait: Trait) -> tuple[str, ...]:
    """Return the programs that have ``trait``."""
    return tuple(program for program, traits in TRAITS.items() if trait in traits)


def is_tool(program: str) -> bool:
    return program in TRAITS and Trait.RUNS not in TRAITS[program]


def changes_shell(program: str) -> bool:
    return Trait.IN_SHELL in TRAITS.get(program, Trait.TOOL)
