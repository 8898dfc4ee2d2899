"""GPUs as people ask for them: a number, or a type and a number; knows no scheduler's syntax beyond that."""

from __future__ import annotations

import re

from clusterrun.model.errors import BadInput

_WORDS = r"(?a)(?:(?P<kind>[A-Za-z][A-Za-z0-9_.+-]*|\d+g\.[A-Za-z0-9_.+-]+):)?(?P<count>\d{1,5})"
"""``8``, ``h100:8``, ``a100_3g.20gb:2`` or ``1g.10gb:2``."""


def read(text: str, where: str = "--gpus") -> tuple[int, str]:
    """How many GPUs, and of which type ('': any), in ``8`` or ``h100:8``. Raises ``BadInput``."""
    found = re.fullmatch(_WORDS, text.strip())
    if found is None:
        remedy = "give the GPUs per node, with their type if it matters: --gpus 8, --gpus h100:8"
        raise BadInput(f"{where} {text!r}: not a number of GPUs", remedy)
    count = int(found["count"])
    return count, (found["kind"] or "") if count else ""


def said(count: int, kind: str) -> str:
    return f"{kind}:{count}" if count and kind else str(count or "")


def from_gres(text: str) -> str:
    """What ``--gres gpu[:TYPE][:COUNT]`` asks for, as ``--gpus`` takes it. Raises ``BadInput``."""
    parts = [part.strip() for part in text.split(",")]
    of_gpus = [part for part in parts if part.partition(":")[0] == "gpu"]
    others = ",".join(part for part in parts if part not in of_gpus)
    gpus = [_gpus(part.partition(":")[2]) for part in of_gpus]
    if len(gpus) == 1 and not others:
        return gpus[0]
    several = sum(read(one, "--gres")[0] for one in gpus)
    asked = [f"--gpus {gpus[0] if len(gpus) == 1 else several}"] if gpus else []
    rest = others if len(gpus) == 1 else text
    remedy = f"give {' '.join([*asked, f'--sbatch gres={rest}'])}"
    raise BadInput(f"--gres {text}: --gres takes one kind of GPU and nothing else", remedy)


def _gpus(rest: str) -> str:
    """What stands behind ``gpu:``; Slurm takes one GPU where no number is said."""
    if not rest:
        return "1"
    return rest if ":" in rest or rest.isdecimal() else f"{rest}:1"
