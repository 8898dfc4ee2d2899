"""Describe a scaling study: subject, worlds, strategies. Pure, without runs and results."""

from __future__ import annotations

import enum
import hashlib
import json

from clusterrun.model.document import encode_set
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.spec import JobSpec

# The strategy of a script that gets none.
AS_IS = ""
# In these strategies one process computes everything. The others have one rank per device.
ONE_PROCESS = ("single", "dp")
STARTS_ITS_RANKS = "ddp-spawn"
KNOWN = ("single", "dp", "ddp", "ddp-spawn", "fsdp")


class Growth(enum.Enum):
    """The work that is constant while the world grows: that of all ranks (strong) or of each (weak)."""

    STRONG = "strong"
    WEAK = "weak"


@frozen
class Cell:
    """One configuration, which is run ``repeats`` times."""

    strategy: str
    world: int  # number of devices, or of CPU ranks without GPUs

    @property
    def name(self) -> str:
        """Return the cell as text: ``ddp × 4``."""
        if self.strategy == "single":
            return "single"
        return f"{self.strategy or 'ranks'} × {self.world}"

    @property
    def one_process(self) -> bool:
        """Return whether one process computes on all devices."""
        return self.strategy in ONE_PROCESS


@frozen
class StudySubject:
    """The measured job. Each cell decides the size of its spec."""

    spec: JobSpec
    growth: Growth
    reference: bool = False  # the shipped train.py, which has an option for its strategy
    content: str = ""  # a digest of the script; a changed script is another subject
    gpus_here: int = -1  # GPUs of this machine if the job runs on it, else -1

    @property
    def digest(self) -> str:
        """Eight characters that differ if two studies cannot share results.

        The time limit and the account of a run change no result.
        """
        spec = replace(
            self.spec,
            time=0,
            account="",
            qos="",
            # Values of variables are secrets. A change of one must still change the digest.
            environment=tuple(
                (name, hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest())
                for name, value in self.spec.environment
            ),
        )
        text = json.dumps([encode_set(spec), self.growth.value, self.content])
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def cells(strategies: tuple[str, ...], worlds: tuple[int, ...], gpus: int) -> tuple[Cell, ...]:
    """Return each configuration once, smallest world first.

    ``single`` runs at world 1, DataParallel at every larger world if there are GPUs. The other strategies
    run at world 1 only if ``single`` is not measured.
    """
    candidates = [
        Cell(strategy, world) for world in sorted(set(worlds)) for strategy in dict.fromkeys(strategies)
    ]
    chosen = [cell for cell in candidates if _makes_sense(cell, strategies, gpus)]
    if "dp" in strategies and not gpus:
        chosen.append(Cell("dp", 1))  # it runs as single, and the table says so
    if not chosen:
        options = f"--strategies {','.join(strategies)} with --worlds {','.join(map(str, worlds))}"
        raise BadInput(f"{options} leaves nothing to measure", "single needs world 1, dp a world above 1")
    return tuple(sorted(chosen, key=lambda cell: (cell.world, strategies.index(cell.strategy))))


def _makes_sense(cell: Cell, strategies: tuple[str, ...], gpus: int) -> bool:
    if cell.strategy == "single":
        return cell.world == 1
    if cell.strategy == "dp":
        return cell.world > 1 and gpus > 0
    return cell.world > 1 or "single" not in strategies


def read_worlds(text: str) -> tuple[int, ...]:
    """World sizes from ``1,2,4``. Raises ``BadInput``."""
    sizes = [word.strip() for word in text.split(",") if word.strip()]
    if not sizes or not all(word.isascii() and word.isdecimal() and int(word) > 0 for word in sizes):
        raise BadInput(f"--worlds {text!r} is not a list of world sizes", "write --worlds 1,2,4")
    return tuple(sorted({int(word) for word in sizes}))


def read_strategies(text: str, reference: bool) -> tuple[str, ...]:
    """Strategies from ``single,ddp``; the reference script knows only its own. Raises ``BadInput``."""
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    strange = [word for word in names if word not in KNOWN]
    if reference and strange:
        raise BadInput(f"there is no strategy {strange[0]!r}", f"there are: {', '.join(KNOWN)}")
    if not names:
        raise BadInput(f"--strategies {text!r} names none", f"for example: --strategies {','.join(KNOWN)}")
    return names


def worlds_up_to(most: int) -> tuple[int, ...]:
    """1, 2, 4, … and ``most`` itself."""
    powers = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    return tuple(sorted({*powers, most}))
