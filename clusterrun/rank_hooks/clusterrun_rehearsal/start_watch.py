"""What a rank does, seen from inside while `clusterrun rehearse` runs it: a line of JSON per optimizer step.

The prelude loads it where ``CLUSTERRUN_REHEARSAL`` holds a plan (JSON); it writes to
``attempts/NNN/00003.rehearsal.jsonl``. Nothing of the script is copied: tensors are reduced to a checksum
where they lie. Lines, by their ``t``:

    step    one outermost ``Optimizer.step()``: checksums of parameters, state, buffers, averages; learning
            rates; random states; rows of the model's inputs and of batches; the loss
    save    a checkpoint file that was written: by which name, size, seconds, line of the script
    load    a file that was read    remove    one that was deleted    call    a state_dict, or its loading
    error   the exception that ended the rank    end    its end, and whether the limit of steps ended it

The plan's ``strikes`` are carried out here where only the rank knows the moment: it kills itself between two
steps, lets the kernel end it in the middle of a write (RLIMIT_FSIZE), or lets a write be refused.
"""

from __future__ import annotations

import atexit
import json
import os
import sys

from .rank_watch import RankWatch
from .torch_import import TorchImport


def begin(folder: str, rank: int, run_dir: str) -> None:
    """Watch this rank; torch is hooked as soon as the script has imported it."""
    watch = RankWatch(json.loads(os.environ["CLUSTERRUN_REHEARSAL"]), folder, rank, run_dir)
    sys.addaudithook(watch.audit)
    sys.excepthook = watch.failed
    atexit.register(watch.at_exit)
    after = {"torch": watch.install, "safetensors": watch.files.wrap_safetensors}
    sys.meta_path.insert(0, TorchImport(after, watch.trace.is_blind))
