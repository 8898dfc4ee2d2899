"""Faults of ranks that really run torch over gloo, each named exactly by what the observers see.

Importing torch takes most of the time: one group of four ranks on two nodes plays one fault after the other.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun.diagnosis.verdict import Diagnosis, Verdict
from tests.monitor.stage import Stage, staged, until

PLAYERS = """
dist.init_process_group("gloo")

def together():
    dist.all_reduce(torch.ones(4))

def there(name):
    return os.path.exists(os.path.join(os.environ["FLAGS"], name))

def wait_for(name):
    while not there(name):
        time.sleep(0.02)

def spin(name):
    while not there(name):
        pass

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, place):
        return read_item()

def read_item():
    wait_for(f"free-{number}")
    return torch.ones(1)

def steps(pause):
    go_on = torch.ones(1)
    while go_on.item():
        time.sleep(pause)
        go_on.fill_(rank == 0 and not there(f"free-{number}"))
        dist.all_reduce(go_on)

def play(name):
    if name == "stopped":
        together()
    elif name == "loop":
        spin(f"free-{number}") if rank == 1 else None
        together()
    elif name == "skip":
        together()
        if rank == 2:
            wait_for(f"free-{number}")
        together()
    elif name == "loader":
        if rank == 3:
            for batch in torch.utils.data.DataLoader(Slow(), num_workers=1):
                pass
        together()
    elif name == "file":
        wait_for(f"free-{number}")
    elif name == "slow":
        steps(0.3 if rank == 2 else 0.1)
    elif name == "steady":
        steps(0.5)

for number in range(1000):
    for step in range(80):
        together()  # what was played before is out of the flight recorder's newest records
    print("ready", number, flush=True)
    wait_for(f"play-{number}")
    with open(os.path.join(os.environ["FLAGS"], f"play-{number}")) as file:
        play(file.read())
"""


class Theatre:
    """Ranks that play one fault after the other."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.number = 0
        stage.ready("ready 0\n")

    def play(self, name: str) -> None:
        """Begin a fault."""
        draft = self.stage.folder / "draft"
        draft.write_text(name)
        draft.rename(self.stage.folder / f"play-{self.number}")

    def free(self) -> None:
        """End it, and wait until all ranks have come back."""
        (self.stage.folder / f"free-{self.number}").touch()
        self.number += 1
        self.stage.ready(f"ready {self.number}\n")


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    with staged(tmp_path_factory.mktemp("theatre"), PLAYERS, size=4, nodes=2) as stage:
        yield Theatre(stage)


def named(diagnosis: Diagnosis) -> tuple[Verdict, list[tuple[int, str]]]:
    return diagnosis.verdict, [(culprit.rank, culprit.node) for culprit in diagnosis.culprits]


def test_a_rank_that_is_stopped_in_a_collective_is_named(theatre: Theatre) -> None:
    pid = theatre.stage.ranks[1].pid
    os.kill(pid, signal.SIGSTOP)
    theatre.play("stopped")
    result = theatre.stage.diagnosis("stopped")
    os.kill(pid, signal.SIGCONT)
    theatre.free()
    assert named(result) == (Verdict.NEVER_ARRIVED, [(1, "n0")])
    assert (result.culprits[0].why, result.remedy) == (
        "it is stopped (SIGSTOP)",
        f"on n0: kill -CONT {pid}, or find out who stopped it",
    )


def test_a_rank_in_an_endless_loop_is_named_with_its_line_and_not_blamed(theatre: Theatre) -> None:
    theatre.play("loop")
    result = theatre.stage.diagnosis("loop")
    theatre.free()
    assert named(result) == (Verdict.UNDETERMINED, [])
    assert "(spin)" in result.message or "(there)" in result.message
    assert "for rank 1" in result.evidence[0]
    assert [group.ranks for group in result.groups] == ["1", "0,2-3"]


def test_a_rank_that_skips_an_all_reduce_is_named_with_its_own_call(theatre: Theatre) -> None:
    theatre.play("skip")
    result = theatre.stage.diagnosis("skip")
    theatre.free()
    assert named(result) == (Verdict.NEVER_ARRIVED, [(2, "n1")])
    assert result.culprits[0].why.startswith("it waits in user code at train.py:")
    # It looks for a file again and again. Between two looks the kernel shows that it sleeps.
    place, _, kernel = result.culprits[0].why.partition(", ")
    assert place.endswith(("(wait_for)", "(there)")) and (not kernel or kernel.startswith("in a sleep"))


def test_a_rank_that_waits_for_its_data_loader_is_named_with_the_workers_line(theatre: Theatre) -> None:
    theatre.play("loader")
    result = theatre.stage.diagnosis("loader")
    theatre.free()
    assert named(result) == (Verdict.NEVER_ARRIVED, [(3, "n1")])
    assert result.culprits[0].why.startswith("it waits for its data-loader at train.py:")
    assert "; worker " in result.culprits[0].why
    assert "(wait_for)" in result.culprits[0].why


def test_ranks_that_all_wait_for_a_file_have_no_culprit(theatre: Theatre) -> None:
    theatre.play("file")
    result = theatre.stage.diagnosis("file")
    theatre.free()
    assert named(result) == (Verdict.WAITING, [])
    # On a crowded machine one may be caught between two waits: their lines are not always one.
    assert result.message.startswith("all 4 ranks wait outside of collectives")


def test_a_rank_at_a_third_of_the_speed_is_slow_and_equal_ranks_are_healthy(theatre: Theatre) -> None:
    theatre.play("slow")
    result = until(
        lambda: (
            (got := theatre.stage.diagnosis(f"slow-{os.urandom(4).hex()}")).verdict is Verdict.SLOW and got
        ),
        "the slow rank; the first looks may be too early",
    )
    theatre.free()
    assert named(result) == (Verdict.SLOW, [(2, "n1")])
    theatre.play("steady")
    steady = theatre.stage.diagnosis("steady")
    theatre.free()
    assert named(steady) == (Verdict.NOTHING, [])


def test_ranks_that_call_different_collectives_are_reported_with_both_lines(tmp_path: Path) -> None:
    differs = """
    dist.init_process_group("gloo")
    for step in range(5):
        dist.all_reduce(torch.ones(4))
    print("ready", flush=True)
    if rank == 1:
        dist.barrier()
    else:
        dist.all_reduce(torch.ones(4))
    """
    with staged(tmp_path, differs, size=3) as stage:
        stage.ready()
        result = stage.diagnosis()
    assert named(result) == (Verdict.MISMATCH, [(1, "n0")])
    assert result.culprits[0].why.startswith("it called barrier at train.py:")
    assert result.culprits[0].why.endswith("where ranks 0 and 2 called all_reduce of [4] Float")


def test_an_unanswered_receive_is_reported_with_the_rank_that_has_not_sent(tmp_path: Path) -> None:
    body = """
    dist.init_process_group("gloo")
    for step in range(5):
        dist.all_reduce(torch.ones(4))
        if rank == 1:
            if step == 4:
                print("ready", flush=True)
            dist.irecv(torch.ones(4), src=2).wait()
        elif rank == 2 and step != 4:
            dist.isend(torch.ones(4), dst=1).wait()
        elif rank != 1 and step == 4:
            print("ready", flush=True)
    dist.all_reduce(torch.ones(4))
    """
    with staged(tmp_path, body, size=3) as stage:
        stage.ready()
        result = stage.diagnosis()
    assert named(result) == (Verdict.MISMATCH, [(2, "n0")])
    assert (
        "has not called the other half of a send or receive, in which rank 1 waits" in result.culprits[0].why
    )


def test_a_rank_that_meets_elsewhere_is_named_with_both_addresses(tmp_path: Path) -> None:
    body = """
    if rank == 1:
        os.environ["MASTER_PORT"] = "9"
    print("ready", flush=True)
    dist.init_process_group("gloo")
    """
    with staged(tmp_path, body, size=3) as stage:
        stage.ready()
        result = until(
            lambda: result if (result := stage.diagnosis()).verdict is Verdict.MISMATCH else None,
            "a mismatch",
        )
    assert named(result) == (Verdict.MISMATCH, [(1, "n0")])
    assert result.culprits[0].why.startswith("it looks for rank 0 at 127.0.0.1:9, where the others look at")


def test_the_root_that_the_departed_rank_named_is_the_right_one_of_two(tmp_path: Path) -> None:
    """Ranks 0 and 2 wait for each other's part; rank 1 has given its own to rank 0 and is in the barrier."""
    body = """
    dist.init_process_group("gloo")
    writer = 2 if rank == 2 else 0
    parts = [torch.zeros(3) for _ in range(3)] if rank == writer else None
    print("ready", flush=True)
    dist.gather(torch.ones(3), parts, dst=writer)
    dist.barrier()
    """
    with staged(tmp_path, body, size=3) as stage:
        stage.ready()
        result = until(
            lambda: (
                result
                if (result := stage.diagnosis()).verdict is Verdict.MISMATCH and result.culprits
                else None
            ),
            "a culprit",
        )
    assert named(result) == (Verdict.MISMATCH, [(2, "n0")])
    assert result.culprits[0].why.startswith("it names rank 2 as the root of gather at train.py:")


def test_the_rank_that_has_not_set_a_key_that_the_others_wait_for_is_named(tmp_path: Path) -> None:
    body = """
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    print("ready", flush=True)
    if rank != 2:
        store.wait(["shards"])
    dist.all_reduce(torch.ones(4))
    """
    with staged(tmp_path, body, size=3) as stage:
        stage.ready()
        result = stage.diagnosis()
    assert named(result) == (Verdict.MISMATCH, [(2, "n0")])
    assert "has not set the key shards of the store that rank 1 waits for" in result.culprits[0].why


def test_a_rank_without_python_shows_the_kernels_wait_channel(tmp_path: Path) -> None:
    body = "os.execv('/bin/sleep', ['sleep', '600'])"
    with staged(tmp_path, body, size=1, torch=False) as stage:
        until(lambda: Path(f"/proc/{stage.ranks[0].pid}/comm").read_text() == "sleep\n", "the program")
        result = stage.diagnosis()
    assert (result.verdict, [group.stack for group in result.groups]) == (Verdict.WAITING, [()])
    assert "shows no Python stack" in result.evidence[0]
