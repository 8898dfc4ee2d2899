"""Runs train.py several times in one process, so that torch is imported once.

Its last argument is a JSON list of `[port, arguments]`; port 0 is a run without a launcher. In the
arguments `{rank}` is the number of this rank. `RUN_DIR=FOLDER` sets the run directory of a run under
clusterrun, in its attempt 0.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import random
import sys
import traceback

import torch

import train
from clusterrun.training import script

OF_RUN = "RUN_DIR="
RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def one(arguments: list[str]) -> dict[str, object]:
    """Return the output of a run and its end."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            train.main(arguments)
        except SystemExit as end:
            code = end.code
        except Exception:  # noqa: BLE001 - however a run ends, the next one follows
            traceback.print_exc()
            code = 1
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def of_run(argument: str) -> bool:
    return argument.startswith(OF_RUN)


def main() -> None:
    """Do all runs one after another. Print their outputs as one JSON list."""
    threads, result = torch.get_num_threads(), []
    placed = {name: os.environ[name] for name in RANK if name in os.environ}
    for port, arguments in json.loads(sys.argv[-1]):
        for name in RANK:
            os.environ.pop(name, None)
        if port:
            os.environ.update({**placed, "MASTER_PORT": str(port)})
        torch.set_num_threads(threads)
        torch.manual_seed(random.getrandbits(60))
        os.environ.pop("CLUSTERRUN_RUN_DIR", None)
        for argument in filter(of_run, arguments):
            os.environ["CLUSTERRUN_RUN_DIR"] = argument.removeprefix(OF_RUN)
        # Each of them is what a process of its own would be.
        script._current.clear()
        requested = [argument for argument in arguments if not of_run(argument)]
        result.append(one([argument.replace("{rank}", placed.get("RANK", "")) for argument in requested]))
        torch.use_deterministic_algorithms(False)
        gc.collect()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
