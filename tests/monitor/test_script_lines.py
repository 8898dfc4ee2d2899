"""The source of a rank shows the key that it waits for, and the block that an error led it to."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from clusterrun.diagnosis.evidence import MainCall
from clusterrun.diagnosis.spied_process import SpiedFrame, SpiedProcess
from clusterrun.monitor.script_lines import (
    ScriptFrame,
    block_around,
    group_argument,
    loop_around,
    open_block,
    own_lock_holder,
    parsed,
    position,
    script_frames,
    store_call,
)

SCRIPT = """\
def exchange(step, rank):
    store.set(f"weights_{step}_{rank}", "x")
    others.add(step)
    return store.get(
        f"weights_{step}_{step + 1}")

def main():
    try:
        exchange(1, 2)
    except ValueError as error:
        def fallback():
            return leave()
        fallback()
    finally:
        leave()
    leave()
"""


@pytest.mark.parametrize(("values", "key"), [({"step": 3}, "weights_3_4"), ({}, ""), ({"step": "it"}, "")])
def test_the_key_is_built_from_the_variables_of_the_frame(values: dict[str, object], key: str) -> None:
    assert store_call(ScriptFrame("/me/train.py:4 exchange", ast.parse(SCRIPT), values)) == MainCall(
        name="store",
        key=key,
        key_source="f'weights_{step}_{step + 1}'",
        sets=("/me/train.py:2\tf'weights_{step}_{rank}'",),
    )


@pytest.mark.parametrize(
    ("condition", "block"),
    [
        ("dist.get_rank() == 0", "if dist.get_rank() == 0"),
        ("self.rank == src and step % 10 == 0", "if self.rank == src"),
        ("not rank", "if not rank"),
        ("args.rank in (-1, 0)", "if args.rank in (-1, 0)"),
        ("trainer.is_global_zero", "if trainer.is_global_zero"),
        ("accelerator.is_main_process and save", "if accelerator.is_main_process"),
        # These hold for several ranks.
        ("rank", ""),
        ("rank < 2", ""),
        ("rank == 0 or step == 3", ""),
        ("local_rank == 0", ""),
        ("accelerator.is_local_main_process", ""),
        ("rank in (0, 2)", ""),
    ],
)
def test_a_block_that_one_rank_enters_is_found(condition: str, block: str) -> None:
    tree = ast.parse(f"if {condition}:\n    save()\nelse:\n    leave()")
    assert (block_around(tree, 2), block_around(tree, 4), block_around(tree, 2, False)) == (block, "", "")


def test_a_call_that_the_other_ranks_make_in_the_other_branch_is_in_no_block() -> None:
    tree = ast.parse("if rank == 0:\n    comm.bcast(x)\n    save()\nelse:\n    x = comm.bcast(None)")
    assert (block_around(tree, 2), block_around(tree, 3)) == ("", "if rank == 0")
    tree = ast.parse("if rank == 0:\n    log(x)\n    sync()\nelse:\n    sync()\n    if x:\n        log(x)")
    assert (block_around(tree, 2), block_around(tree, 5)) == ("if rank == 0", "")


def test_a_line_without_one_wait_shows_no_key() -> None:
    assert store_call(ScriptFrame("/me/train.py:2 exchange", ast.parse(SCRIPT), {})) == MainCall()


@pytest.mark.parametrize(
    ("line", "block"),
    [(9, ""), (12, ""), (13, "except ValueError"), (15, "finally"), (16, "")],
)
def test_the_innermost_block_of_the_function_is_found(line: int, block: str) -> None:
    assert block_around(ast.parse(SCRIPT), line) == block


@pytest.mark.parametrize(
    ("line", "group"),
    [
        ("all_gather(x, sync_grads=True)", ""),
        ("net.all_gather(x).mean()", ""),
        ("all_gather(x, part)", "part"),
        ("all_gather(x, group=self.part)", "self.part"),
        ("all_gather(*values)", None),
        ("all_gather(x, **options)", None),
        ("all_gather(all_gather(x))", None),
    ],
)
def test_the_group_that_a_line_passes_to_a_library_is_read(line: str, group: str | None) -> None:
    assert group_argument(ScriptFrame("/me/train.py:1 step", ast.parse(line), {}), "all_gather", 1) == group


def test_a_variable_shows_the_kind_of_the_error(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    inner, outer = f"{path}:5 exchange", f"{path}:13 main"
    exits = "/home/me/guard.py:9 Guard.__exit__"
    setter = f"{path}:2 exchange"

    def block(*main: str, error: tuple[str, str] | None = None, meets_all: bool = True) -> str:
        errors = (error,) if error else ()
        script = tuple(SpiedFrame(frame) for frame in main if frame != exits)
        spied = SpiedProcess(main=main, script=script, errors=errors)
        return open_block(spied, script_frames(os.getpid(), spied), meets_all)

    assert block(inner, outer, meets_all=False) == f"{outer}: except ValueError"
    assert block(inner, outer, error=(outer, "UnicodeError")) == f"{outer}: except UnicodeError"
    # A handler may pass its error to a function.
    assert block(setter, error=(setter, "IndexError")) == f"{setter}: except IndexError"
    assert block(exits, inner, outer, error=(exits, "KeyError")) == f"{exits}: __exit__ after KeyError"


@pytest.mark.parametrize("content", [None, "def (", "\0"])
def test_a_file_that_cannot_be_read_shows_nothing(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "train.py"
    if content is not None:
        path.write_text(content)
    assert not parsed(os.getpid(), f"{path}:1 main").body


LOOP = """\
def wait(path):
    while not os.path.exists(path):
        time.sleep(1)
    for turn in range(3):
        time.sleep(1)
    while True:
        time.sleep(1)
    while True:
        try:
            os.mkdir(path)
            break
        except FileExistsError:
            time.sleep(1)
    while True:
        if not os.path.exists(path):
            return
        time.sleep(1)
"""


@pytest.mark.parametrize(
    ("line", "loop"),
    [
        (3, "not os.path.exists(path) (path='/run/READY')"),
        (5, ""),
        (7, ""),
        (13, "os.mkdir(path) raises FileExistsError (path='/run/READY')"),
        (17, "os.path.exists(path) (path='/run/READY')"),
    ],
)
def test_the_condition_of_the_innermost_loop_is_shown_with_its_values(line: int, loop: str) -> None:
    values = {"path": "/run/READY", "turn": 2}
    assert loop_around(ScriptFrame(f"/me/train.py:{line} wait", ast.parse(LOOP), values)) == loop


TURNS = """\
def fit(loader, store):
    for epoch in range(3):
        for batch in loader:
            step(batch)
        with lock:
            step(None)
        if epoch:
            step(None)
        else:
            return
        for back in range(9, 0, -1): step(back)
    while True:
        step(None)
"""


@pytest.mark.parametrize(
    ("number", "steps"),
    [
        (2, ["line 2", "exit 10", "turn ?"]),
        (4, ["line 2", "exit 10", "turn 1", "line 3", "turn ?", "line 4"]),
        (5, ["line 2", "exit 10", "turn 1", "line 5", "with ?"]),
        (6, ["line 2", "exit 10", "turn 1", "line 5", "line 6"]),
        (8, ["line 2", "exit 10", "turn 1", "line 7", "if 7 False", "line 8"]),
        (10, ["line 2", "exit 10", "turn 1", "line 7", "if 7 True", "line 10"]),
        (11, ["line 2", "exit 10", "turn 1", "line 11", "turn ?", "line 11"]),
        (13, ["line 12", "turn ?", "line 13"]),
    ],
)
def test_a_place_in_the_script_is_read_with_the_turns_of_loops(
    number: int, steps: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(TURNS)
    library = "/venv/lib/python3.11/site-packages/torch/x.py:5 wait"
    script = SpiedFrame(f"{file}:{number} fit", (("epoch", 1), ("back", 3)))
    frames = script_frames(os.getpid(), SpiedProcess(main=(library, script.frame), script=(script,)))
    assert position(frames) == (f"in {file} fit", "exit 10", *steps)


LOCKS = """\
class Rows:
    def add(self):
        with self._lock:
            work()

    def dump(self):
        with self._lock:
            work()

def flush():
    with LOCK:
        with OTHER:
            work()

LOCK, OTHER = Lock(), Lock()
"""
ROWS, OTHERS = "<Rows at 0x7f10>", "<Rows at 0x7f20>"


@pytest.mark.parametrize(
    ("frames", "holder"),
    [
        (((7, ROWS), (20, ""), (4, ROWS)), 4),
        (((7, ROWS), (20, ""), (4, OTHERS)), 0),
        (((7, ROWS), (20, ""), (3, ROWS)), 0),
        (((8, ROWS), (20, ""), (4, ROWS)), 0),
        (((11, ""), (20, ""), (13, "")), 13),
        (((12, ""), (20, ""), (12, "")), 0),
    ],
)
def test_a_lock_that_the_same_thread_holds_is_that_of_an_outer_with(
    frames: tuple[tuple[int, str], ...], holder: int, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOCKS)
    spied = [SpiedFrame(f"{script}:{number} work", owner=owner) for number, owner in frames]
    scripts = script_frames(os.getpid(), SpiedProcess(script=tuple(spied)))
    assert own_lock_holder(scripts) == (f"{script}:{holder} work" if holder else "")
