"""A watched rank reports files that are written and deleted, by any call."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterrun.monitor.rank_instrumentation import REHEARSED
from clusterrun.rank_hooks.clusterrun_rehearsal.checkpoint_files import hearing
from clusterrun.rank_hooks.clusterrun_rehearsal.checksums import (
    Generator,
    TensorDigest,
    numpy_place,
    numpy_words,
    python_place,
    python_words,
)
from clusterrun.rank_hooks.clusterrun_rehearsal.start_watch import message_of
from clusterrun.rehearse.rank_trace import Start, read

HOOKS = Path(__file__).parents[2] / "clusterrun/rank_hooks"
WATCHED = """
import os, shutil, sys, tempfile
hooks, attempt, run, path = sys.argv[1:]
sys.path.insert(0, hooks)
from clusterrun_rehearsal import start_watch
start_watch.begin(attempt, 0, run)
"""


def test_ranks_that_are_rehearsed_get_every_file_of_the_hook() -> None:
    assert sorted(REHEARSED) == sorted(str(p.relative_to(HOOKS)) for p in HOOKS.glob("*/*.py"))


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
    clear = "shutil.rmtree(os.path.dirname(path) + '0', ignore_errors=True)\n"
    message = watched(tmp_path, clear + remove, path)
    assert not path.exists() and message.dropped(str(path))
    assert not message.dropped(f"{path.parent}0/optimizer.pt")


def watched(folder: Path, does: str, path: Path, number: int = 0, plan: str = "{}") -> Start:
    """Return the ranks' trace of a program that does this with ``path``."""
    attempt = folder / f"{number:03d}"
    attempt.mkdir(parents=True, exist_ok=True)
    arguments = (
        sys.executable,
        "-c",
        WATCHED + does,
        str(HOOKS),
        str(attempt),
        str(folder / "run"),
        str(path),
    )
    result = subprocess.run(
        arguments,
        env={"CLUSTERRUN_REHEARSAL": plan, "CLUSTERRUN_ATTEMPT": str(number), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return read(str(attempt))


def test_a_temporary_file_is_a_checkpoint_after_its_rename(tmp_path: Path) -> None:
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


def test_a_file_of_bytes_may_be_a_checkpoint_whatever_it_is_called(tmp_path: Path) -> None:
    """Opened under a name that says nothing, then moved; or kept under such a name, and read and removed."""
    does = """
os.chdir(os.path.dirname(path))
watch = sys.excepthook.__self__
watch.trace.step = 1
def write(name, content):
    with open(name, "wb") as file:
        file.write(content)
write("a.pkl.w", bytes(7))
os.replace("a.pkl.w", "a.pkl")
write("state", bytes(7))
write("notes", b"step 1")
watch.files.settle()
watch.trace.step = 0
open("state", "rb").close()
os.remove("state")
os.remove("notes")
"""
    message = watched(tmp_path, does, tmp_path / "a.pkl").ranks[0]
    assert [(os.path.basename(save.path), bool(save.temp), save.sure) for save in message.saves] == [
        ("a.pkl", True, True),
        ("state", False, False),
        ("notes", False, False),
    ]
    assert [save.text for save in message.saves] == [False, False, True]
    assert [os.path.basename(path) for path, _ in message.loads] == ["state"]
    assert [os.path.basename(path) for path in message.removes] == ["state", "notes"]


@pytest.mark.parametrize("mode, content", [("wb", b"new"), ("ab", b"oldnew"), ("r+b", b"new")])
def test_a_file_of_the_user_that_the_copy_links_to_is_not_written(
    tmp_path: Path, mode: str, content: bytes
) -> None:
    original = tmp_path / "project" / "last.pt"
    original.parent.mkdir()
    original.write_bytes(b"old")
    path = tmp_path / "copy" / "last.pt"
    path.parent.mkdir()
    path.symlink_to(original)
    does = f"""
os.chdir(os.path.dirname(path))
with open("last.pt", {mode!r}) as file:
    file.write(b"new")
"""
    (saved,) = watched(tmp_path, does, path).ranks[0].saves
    assert (original.read_bytes(), path.read_bytes(), path.is_symlink()) == (b"old", content, False)
    assert saved.path == str(path)


def test_a_module_that_is_saved_whole_contains_no_hook(tmp_path: Path) -> None:
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
    message = watched(tmp_path, does, tmp_path / "model.pt").ranks[0]
    assert [(len(entry.rows), message.blind) for entry in message.steps] == [(2, ""), (2, "")]


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
    message = watched(tmp_path, does, tmp_path / "store").ranks[0]
    assert message.blind == "" and message.steps[0].state not in (0, message.steps[1].state)
    assert list(message.before.values())[1] == (message.steps[0].parameters, message.steps[0].state)


TRAINED = """
import threading, torch
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
def step(optimizer=optimizer):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def test_averages_in_a_list_and_counts_of_a_plateau_are_observed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    does = """
mean = [p.detach().clone() for p in model.parameters()]
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
step()
mean[0].mul_(0.5)
plateau.step(1.0)
plateau.step(2.0)
step()
"""
    message = watched(tmp_path, TRAINED + does, tmp_path / "x").ranks[0]
    assert len({step.averages for step in message.steps}) == 2 and message.steps[0].averages
    assert [step.schedulers[0][1:3] for step in message.steps] == [[float("inf"), 0], [1.0, 1]]


def test_a_teacher_is_a_single_average_while_its_student_is_partly_frozen(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    does = """
import copy, torch
net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
teacher = copy.deepcopy(net).requires_grad_(False)
head = torch.optim.SGD(net[1].parameters(), lr=0.1)
net(torch.ones(2, 4)).sum().backward()
head.step()
"""
    message = watched(tmp_path, does, tmp_path / "x").ranks[0]
    assert [len(step.averages) for step in message.steps] == [1]


def test_the_state_of_an_optimizer_is_not_taken_for_an_average_of_weights(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    does = """
one = torch.nn.Linear(3, 3, bias=False)
alone = torch.optim.Adam(one.parameters())
one(torch.ones(1, 3)).sum().backward()
alone.step()
"""
    message = watched(tmp_path, TRAINED + does, tmp_path / "x").ranks[0]
    assert [step.averages for step in message.steps] == [()]


def test_an_optimizer_has_the_same_name_in_every_start_and_a_step_that_creates_its_state_does_not_count(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    does = """
other = torch.optim.Adam(model[0].parameters(), lr=0.1)
alike = torch.optim.Adam(model[0].parameters(), lr=0.1)
def _init_optim_state(one):
    step(one)
_init_optim_state(optimizer)
for one in (other, alike, optimizer):
    step(one)
"""
    message = watched(tmp_path, TRAINED + does, tmp_path / "x").ranks[0]
    first, second, third = message.before
    assert [entry.optimizer for entry in message.steps] == [first, second, third]
    assert second == first + 1 and message.shared == (second, third)
    again = watched(tmp_path / "again", TRAINED + "step()\n", tmp_path / "x").ranks[0]
    assert list(again.before) == [third]


def test_a_threads_file_is_seen_though_it_is_removed_at_once(tmp_path: Path) -> None:
    does = """
import threading
watch = sys.excepthook.__self__
watch.trace.step = 1
def write():
    with open(path, "wb") as file:
        file.write(bytes(7))
thread = threading.Thread(target=write)
thread.start()
thread.join()
watch.files.settle()
os.remove(path)
"""
    path = tmp_path / "state.pt"
    seen = watched(tmp_path, does, path)
    assert ([save.size for save in seen.ranks[0].saves], seen.dropped(str(path))) == ([7], True)


def test_a_threads_file_belongs_to_the_step_of_its_state(tmp_path: Path) -> None:
    """The file may get its name steps later. A file written in place is reported after its last change."""
    pytest.importorskip("torch")
    does = """
step()
state = model.state_dict()
step()
step()
written, go = threading.Event(), threading.Event()
def write():
    torch.save(state, path + ".tmp")
    written.set()
    go.wait(60)
    os.replace(path + ".tmp", path)
thread = threading.Thread(target=write)
thread.start()
assert written.wait(60)
step()
go.set()
thread.join()
step()
"""
    message = watched(tmp_path, TRAINED + does, tmp_path / "a.pt").ranks[0]
    assert [(save.step, os.path.basename(save.path), bool(save.temp)) for save in message.saves] == [
        (1, "a.pt", True)
    ]


def test_files_that_safetensors_writes_and_reads_are_seen(tmp_path: Path) -> None:
    """It opens them in Rust. A module of ours stands in for it: two functions, taken when it is imported."""
    (tmp_path / "safetensors.py").write_text(
        "def serialize_file(tensors, filename, metadata=None):\n    open(filename, 'x').write('a')\n"
        "def safe_open(filename, framework):\n    return framework\n"
    )
    does = """
sys.path.insert(0, os.path.dirname(path))
from safetensors import safe_open, serialize_file
assert safe_open(path, framework="pt") == "pt"
watch = sys.excepthook.__self__
watch.trace.step = 3
serialize_file({}, path + ".part")
os.replace(path + ".part", path)
"""
    path = tmp_path / "model.safetensors"
    message = watched(tmp_path, does, path).ranks[0]
    assert [(save.step, save.path, save.sure) for save in message.saves] == [(3, str(path), True)]
    assert [save for save, _ in message.loads] == [str(path)]


def test_a_restart_counts_the_steps_of_the_run(tmp_path: Path) -> None:
    """And one state of random numbers has one checksum: that of None is another one in each process."""
    pytest.importorskip("torch")
    does = """
import random, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
begin = 0
if os.path.exists(path):
    begin, weights = torch.load(path)
    model.load_state_dict(weights)
for step in range(begin, 4 if begin == 0 else 100):
    random.seed(step)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if step == 2:
        torch.save((step + 1, model.state_dict()), path)
"""
    first = watched(tmp_path, does, tmp_path / "model.pt").ranks[0]
    second = watched(tmp_path, does, tmp_path / "model.pt", 1, '{"steps": 6}').ranks[0]
    assert (first.last, second.last, second.end) == (4, 3, "limit")
    assert second.steps[0].random["python"] == first.steps[3].random["python"]


def test_a_random_state_read_in_place_equals_the_reported_state() -> None:
    numpy = pytest.importorskip("numpy")
    retained = random.getstate(), numpy.random.get_state()
    result = Generator(python_words, python_place)
    array = Generator(numpy_words, numpy_place)
    bits = numpy.random.mtrand._rand._bit_generator
    try:
        observed = set()
        for number in range(8):
            for owner, value, ask in (
                (random._inst, result, python_words),  # type: ignore[attr-defined]
                (bits, array, numpy_words),
            ):
                assert bytes(value.words(owner)) == ask()
                observed.add(bytes(value.words(owner)))
            assert result._memory is not None and array._memory is not None
            random.seed(number)
            numpy.random.seed(number)
            random.random()
            numpy.random.random(700 if number % 2 else 1)
        assert len(observed) == 16
        numpy.random.set_state(numpy.random.RandomState(1).get_state())
        assert bytes(array.words(bits)) == numpy_words()
    finally:
        random.setstate(retained[0])
        numpy.random.set_state(retained[1])


def test_a_generator_that_cannot_be_read_in_place_reports_its_state() -> None:
    """One generator was put in another's place; the other is of an unknown type."""
    messages = [b"one", b"two", b"three"]
    entry = Generator(lambda: messages.pop(0), lambda owner: (id(owner), 16))
    first, second = object(), object()
    assert [entry.words(owner) for owner in (first, first, second)] == [b"one", b"two", b"three"]
    numpy = pytest.importorskip("numpy")
    with pytest.raises(ValueError):
        numpy_place(numpy.random.PCG64(1))


def test_an_audit_hook_gets_its_own_events_only() -> None:
    heard: list[Any] = []
    hears = hearing(("open",), lambda *said: heard.append(said))
    for event in ("open", "builtins.id", "os.rename"):
        hears(event, (event,))
    assert heard == [("open", ("open",))]


def test_a_digest_tells_any_change_of_a_tensor_wherever_it_moves() -> None:
    torch = pytest.importorskip("torch")
    digest = TensorDigest(torch)
    whole = torch.arange(5000.0)
    parameter = torch.nn.Parameter(whole.clone())
    at_first = digest.fresh(parameter)
    parameter.data[4999] += 1
    changed = digest.fresh(parameter)
    parameter.data = whole.clone()
    assert digest.fresh(parameter) == at_first != changed
    parameter.data = parameter.data[:4000]
    assert digest.fresh(parameter) == digest.fresh(whole[:4000].clone()) != at_first
    square = torch.arange(9.0).reshape(3, 3)
    assert digest.fresh(square.t()) == digest.fresh(square.t().contiguous()) != digest.fresh(square)
    assert digest.fresh(torch.empty(0)) == 0
    both, other = [whole, square], [whole, square.t()]
    assert digest.of_set(both) == digest.of_set(both[::-1]) != digest.of_set(other)
    assert digest.of(both) != digest.of(both[::-1])


@pytest.mark.parametrize("width", [3, 2000])
def test_each_sample_of_a_batch_has_its_checksum(width: int) -> None:
    """Small ones are copied at once, large ones are read where they lie."""
    torch = pytest.importorskip("torch")
    digest = TensorDigest(torch)
    batch = torch.arange(4.0 * width).reshape(4, width)
    rows = digest.rows(batch)
    assert [rows[at : at + 8] for at in range(0, 32, 8)] == [digest.rows(row[None]) for row in batch]
    assert len(rows) == 32 and digest.rows(batch.flip(0)) == "".join(
        digest.rows(row[None]) for row in batch.flip(0)
    )
    assert len(digest.rows(torch.zeros(513, 1))) == 8


def test_a_step_reports_rare_changes_and_values_that_are_not_numbers(tmp_path: Path) -> None:
    """A learning rate in a tensor is changed in its place; a loss may be no number."""
    pytest.importorskip("torch")
    does = """
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, at): return torch.full((4,), float(at))
model = torch.nn.Linear(4, 1)
rate = torch.tensor(0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
for at, batch in enumerate(torch.utils.data.DataLoader(Data(), batch_size=2)):
    (model(batch).sum() * (float("nan") if at == 1 else 1.0)).backward()
    optimizer.step()
    rate.mul_(0.5)
"""
    message = watched(tmp_path, does, tmp_path / "x").ranks[0]
    assert message.blind == ""
    assert [step.rates[0][0] for step in message.steps] == [0.5, 0.25, 0.125]
    assert [step.loss is not None and math.isnan(step.loss) for step in message.steps] == [False, True, True]
    assert [[order for _, _, order in step.batches] for step in message.steps] == [
        [(0, 1)],
        [(2, 3)],
        [(4, 5)],
    ]
    assert [[name for name, _, _ in step.batches] for step in message.steps] == 3 * [["Data:6"]]
    assert [len(step.rows) for step in message.steps] == [2, 2, 2]
    assert len({row for step in message.steps for row in step.rows}) == 6
    assert message.steps[0].batches[0][1] == message.steps[0].rows


def test_changes_of_weights_between_steps_are_reported(tmp_path: Path) -> None:
    """It limits them, makes the optimizer anew, loads under other names, and sets a generator's state."""
    pytest.importorskip("torch")
    does = """
import random, torch
net = torch.nn.Linear(2, 2)
net.load_state_dict({"module.weight": torch.zeros(2, 2), "bias": torch.zeros(2)}, strict=False)
random.setstate(random.getstate())
with torch.random.fork_rng():
    torch.manual_seed(0)
for turn in range(4):
    if turn % 2 == 0:
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    if turn == 1:
        net.weight.data.clamp_(-0.1, 0.1)
"""
    message = watched(tmp_path, does, tmp_path / "none").ranks[0]
    ((n, optimizer, weights),) = message.moved
    assert (n, [optimizer], len(message.steps)) == (2, list(message.before), 4)
    assert weights not in {step.parameters for step in message.steps}
    assert message.partial[1:] == (1, 1, "module.weight")
    assert [what for what, method, _ in message.calls if method == "set"] == ["python"]


def test_an_exception_that_quotes_a_traceback_is_reported_by_the_quoted_exception() -> None:
    quoted = (
        "CheckpointException ranks:[0]\nTraceback (most recent call last): (RANK 0)\n  File a.py\n    x()\n"
    )
    assert (
        message_of(RuntimeError(f"{quoted}OSError: no step-10/.metadata\n"))
        == "OSError: no step-10/.metadata"
    )
    assert message_of(RuntimeError("one\ntwo")) == "one\ntwo"
