"""What a rank under watch says of files that are written and deleted, by whichever call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterrun.rehearse.rank_trace import Life, read

HOOK = Path(__file__).parents[2] / "clusterrun/rank_hooks/clusterrun_rehearsal.py"
WATCHED = """
import os, shutil, sys, tempfile
hook, attempt, run, path = sys.argv[1:]
space = {"__name__": "clusterrun_rehearsal"}
exec(compile(open(hook).read(), hook, "exec"), space)
space["begin"](attempt, 0, run)
"""


@pytest.mark.parametrize(
    "remove",
    [
        "os.remove(path)",
        "os.unlink(os.path.basename(path), dir_fd=os.open(os.path.dirname(path), os.O_RDONLY))",
        "shutil.rmtree(os.path.dirname(path))",
    ],
)
def test_a_checkpoint_that_is_deleted_is_seen(tmp_path: Path, remove: str) -> None:
    path = tmp_path / "checkpoint-4" / "optimizer.pt"
    path.parent.mkdir()
    path.touch()
    told = watched(tmp_path, remove, path)
    assert not path.exists() and told.dropped(str(path))


def watched(folder: Path, does: str, path: Path) -> Life:
    """What the ranks' trace says of a program that does this with ``path``."""
    attempt = folder / "attempt"
    attempt.mkdir(exist_ok=True)
    words = (sys.executable, "-c", WATCHED + does, str(HOOK), str(attempt), str(folder / "run"), str(path))
    done = subprocess.run(
        words,
        env={"CLUSTERRUN_REHEARSAL": "{}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return read(str(attempt))


def test_a_temporary_file_is_a_checkpoint_once_it_has_the_name_of_one(tmp_path: Path) -> None:
    """As Lightning writes, by fsspec: nothing in the first name says that it is a checkpoint."""
    does = """
def whole(final):
    number, name = tempfile.mkstemp(dir=os.path.dirname(path))
    with open(number, "wb") as file:
        file.write(bytes(10))
    shutil.move(name, final)
whole(path + ".log")
whole(path)
"""
    path = tmp_path / "epoch=1.ckpt"
    (saved,) = watched(tmp_path, does, path).ranks[0].saves
    assert (saved.path, saved.size, saved.nth, bool(saved.temp)) == (str(path), 10, 2, True)


def test_a_module_that_is_saved_whole_holds_nothing_of_the_watch(tmp_path: Path) -> None:
    """As torch's word_language_model saves it. A state of None, as ZeRO has of others' shards, is borne."""
    pytest.importorskip("torch")
    does = """
import copy, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
step()
torch.save(model, path)
for other in (torch.load(path, weights_only=False), copy.deepcopy(model)):
    assert not other._forward_pre_hooks, other._forward_pre_hooks
optimizer.state[model.bias] = None
step()
"""
    told = watched(tmp_path, does, tmp_path / "model.pt").ranks[0]
    assert [(len(one.rows), told.blind) for one in told.steps] == [(2, ""), (2, "")]


def test_the_state_of_a_zero_optimizer_is_that_of_its_shard(tmp_path: Path) -> None:
    """It keeps none of its own until one is loaded: that was taken for a state that is not restored."""
    pytest.importorskip("torch")
    does = """
import torch, torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer as Zero
dist.init_process_group("gloo", init_method="file://" + path, rank=0, world_size=1)
model = torch.nn.Linear(4, 1)
def made():
    return Zero(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.1)
def step(optimizer):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
first, second = made(), made()
step(first)
first.consolidate_state_dict(0)
second.load_state_dict(first.state_dict())
step(second)
"""
    told = watched(tmp_path, does, tmp_path / "store").ranks[0]
    assert told.blind == "" and told.steps[0].state not in (0, told.steps[1].state)
    assert told.before[1] == (told.steps[0].parameters, told.steps[0].state)
