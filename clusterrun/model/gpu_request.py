"""Parse GPU requests of users: a number, or a type and a number."""

from __future__ import annotations

import re

from clusterrun.model.errors import BadInput

# ``8``, ``h100:8``, ``a100_3g.20gb:2``, ``1g.10gb:2``, ``2080_ti:1`` or ``3090:2``.
_WORDS = r"(?a)(?:(?P<kind>(?=[^:]*[A-Za-z]|\d{3,}:)[A-Za-z0-9][A-Za-z0-9_.+-]*):)?(?P<count>\d{1,5})"


def read(text: str, where: str = "--gpus") -> tuple[int, str]:
    """Return the number of GPUs and their type ('': any) in ``8`` or ``h100:8``. Raises ``BadInput``."""
    match = re.fullmatch(_WORDS, text.strip())
    if match is None:
        remedy = "give the GPUs per node, with their type if it matters: --gpus 8, --gpus h100:8"
        raise BadInput(f"{where} {text!r}: not a number of GPUs", remedy)
    count = int(match["count"])
    return count, (match["kind"] or "") if count else ""


def as_text(count: int, kind: str) -> str:
    return f"{kind}:{count}" if count and kind else str(count or "")


def from_gres(text: str) -> str:
    """Return ``--gres gpu[:TYPE][:COUNT]`` in the form of ``--gpus``. Raises ``BadInput``."""
    parts = [part.strip() for part in text.split(",")]
    of_gpus = [part for part in parts if part.partition(":")[0] == "gpu"]
    others = ",".join(part for part in parts if part not in of_gpus)
    gpus = [_gpus(part.partition(":")[2]) for part in of_gpus]
    if len(gpus) == 1 and not others:
        return gpus[0]
    total = gpus[0] if len(gpus) == 1 else sum(read(count, "--gres")[0] for count in gpus)
    options = [f"--gpus {total}"] if gpus else []
    other_items = others if len(gpus) == 1 else text
    remedy = f"give {' '.join([*options, f'--sbatch gres={other_items}'])}"
    raise BadInput(f"--gres {text}: --gres takes one kind of GPU and nothing else", remedy)


def _gpus(rest: str) -> str:
    """Return the type and number after ``gpu:``. A missing number means one GPU, as in Slurm."""
    if not rest:
        return "1"
    return rest if ":" in rest or rest.isdecimal() else f"{rest}:1"
