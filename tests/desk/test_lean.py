"""The laws of loading submitit in part: less is loaded, and nothing is missing for who asks."""

from __future__ import annotations

import json
import subprocess
import sys

LEAN = """
import json, sys
from clusterrun.backends import lean
slurm = lean.load("submitit.slurm.slurm")
seen = [name in sys.modules for name in ("asyncio", "submitit.helpers", "submitit.auto.auto")]
"""


def told(program: str) -> object:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)


def test_a_submission_loads_neither_asyncio_nor_the_other_backends() -> None:
    assert told(LEAN + "print(json.dumps(seen))") == [False, False, False]


def test_code_that_uses_submitit_afterwards_finds_all_of_it() -> None:
    program = """
import submitit
from submitit import AutoExecutor
import asyncio
print(json.dumps([
    submitit.SlurmExecutor is slurm.SlurmExecutor,
    AutoExecutor.__name__,
    submitit.helpers.__name__,
    submitit.core.core.asyncio.sleep is asyncio.sleep,
    hasattr(submitit, "nothing"),
]))
"""
    assert told(LEAN + program) == [True, "AutoExecutor", "submitit.helpers", True, False]


def test_where_submitit_or_asyncio_is_loaded_already_nothing_is_replaced() -> None:
    for first in ("import submitit", "import asyncio"):
        program = (
            f"{first}\nimport asyncio as before{LEAN}import asyncio\nprint(json.dumps(asyncio is before))"
        )
        assert told(program) is True
