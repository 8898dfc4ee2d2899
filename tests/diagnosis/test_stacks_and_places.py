"""Stacks of several tools are read, and a rank's location is taken from them."""

from __future__ import annotations

import json

import pytest

from clusterrun.diagnosis.stacks import (
    Doing,
    StackLocation,
    ThreadPlace,
    frame_of,
    joins_processes,
    line_of,
    of_faulthandler,
    of_py_spy,
    other_threads,
    short,
)
from clusterrun.diagnosis.stacks import location as place
from tests.diagnosis.ranks import ALL_REDUCE, LIBRARY, LOADER, LOOP, MEETING

TWO_THREADS = """\0\0Thread 0x00007fa7cd5fe640 (most recent call first):
  File "/run/prelude/clusterrun_prelude.py", line 77 in answer

Current thread 0x00007fa7ce040b80 (most recent call first):
  File "/home/me/my train.py", line 9 in work
  File "/home/me/my train.py", line 12 in <module>

Extension modules: torch._C (total: 1)
"""
NAMED = """Thread 0x00007fa7ce040b80 [python] (most recent call first):
  File "/home/me/train.py", line ??? in work
  ...
"""


def test_the_main_thread_is_found_among_all_by_its_number() -> None:
    assert of_faulthandler(TWO_THREADS, "7fa7ce040b80") == (
        "/home/me/my train.py:9 work",
        "/home/me/my train.py:12 <module>",
    )


ENDED = """Thread 0x00007fa7cd5fe640 (most recent call first):
  File "/run/prelude/clusterrun_prelude.py", line 77 in answer

Thread 0x00007fa7cc3fa640 (most recent call first):
  File "/usr/lib/python3.11/queue.py", line 140 in put
  File "/home/me/train.py", line 31 in upload
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x00007fa7cbbf9640 (most recent call first):
  File "/usr/lib/python3.11/site-packages/torch/utils/data/_utils/pin_memory.py", line 50 in do_one_step

Current thread 0x00007fa7ce040b80 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 1590 in _shutdown
"""


def test_only_other_threads_in_the_users_code_are_reported() -> None:
    assert other_threads(ENDED, "7fa7ce040b80") == (
        ThreadPlace("/home/me/train.py:31 upload", "/home/me/train.py:31 upload"),
    )
    assert other_threads(TWO_THREADS, "7fa7ce040b80") == ()


OF_TORCH = """Thread 0x00007fa7cd5fe640 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4012 in all_gather
  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3300 in gather_object
  File "/venv/lib/python3.11/site-packages/torch/distributed/checkpoint/_async_executor.py", line 30 in save
  File "/usr/lib/python3.11/threading.py", line 975 in run

Current thread 0x00007fa7ce040b80 (most recent call first):
  File "/home/me/train.py", line 9 in work
"""


def test_a_torch_thread_in_a_collective_is_reported_with_its_part_of_torch() -> None:
    """As of an asynchronous checkpoint. A thread of torch that is in none is left out."""
    (thread,) = other_threads(OF_TORCH, "7fa7ce040b80")
    assert (thread.operation, short(thread.frame)) == ("gather_object", "_async_executor.py:30 (save)")
    idle = OF_TORCH.replace("distributed_c10d.py", "idle.py").replace("/torch/distributed/", "/torch/")
    assert other_threads(idle, "7fa7ce040b80") == ()


def test_newer_pythons_name_the_thread_and_may_not_know_the_line() -> None:
    assert of_faulthandler(NAMED, "7fa7ce040b80") == ("/home/me/train.py:0 work",)


@pytest.mark.parametrize("text", ["", "Thread 0x1 (most recent call first):\n", "\xff\x00 nonsense"])
def test_other_text_has_no_stack(text: str) -> None:
    assert of_faulthandler(text, "7fa7ce040b80") == ()


def test_a_stack_of_py_spy_is_that_of_its_main_thread() -> None:
    frames = [{"name": "work", "filename": "/home/me/train.py", "line": 9, "short_filename": "train.py"}]
    other = {"pid": 7, "os_thread_id": 9, "thread_name": "Thread-1 (turn)", "frames": []}
    threads = [other, {"pid": 7, "os_thread_id": 7, "thread_name": None, "frames": frames}]
    assert of_py_spy(json.dumps(threads)) == ("/home/me/train.py:9 work",)


@pytest.mark.parametrize("text", ["", "{}", "[]", '[{"frames": 3}]', "Error: no such process"])
def test_a_message_of_py_spy_has_no_stack(text: str) -> None:
    assert of_py_spy(text) == ()


@pytest.mark.parametrize(
    ("stack", "location"),
    [
        (ALL_REDUCE, StackLocation(Doing.COLLECTIVE, ALL_REDUCE[2], "all_reduce")),
        (LOOP, StackLocation(Doing.USER, LOOP[0])),
        (LOADER, StackLocation(Doing.DATA, LOADER[2])),
        (
            (
                ALL_REDUCE[0],
                f"{LIBRARY}/torch/distributed/c10d_logger.py:83 _logger.<locals>.wrapper",
                LOOP[1],
            ),
            StackLocation(Doing.COLLECTIVE, LOOP[1], "all_reduce"),
        ),
        (MEETING, StackLocation(Doing.RENDEZVOUS, MEETING[2], "init_process_group")),
        (
            (f"{LIBRARY}/torch/distributed/distributed_c10d.py:5700 new_group", MEETING[2]),
            StackLocation(Doing.RENDEZVOUS, MEETING[2], "new_group"),
        ),
        ((), StackLocation(Doing.UNKNOWN)),
        ((f"{LIBRARY}/numpy/core.py:1 dot",), StackLocation(Doing.USER, "")),
        # A call that only passes through torch.distributed.elastic or FSDP is user code that computes.
        ((f"{LIBRARY}/torch/distributed/fsdp/api.py:1 forward", *LOOP), StackLocation(Doing.USER, LOOP[0])),
    ],
)
def test_the_place_of_a_rank_is_its_line(stack: tuple[str, ...], location: StackLocation) -> None:
    assert place(stack) == location


def test_a_frame_is_short_for_people() -> None:
    assert [short(frame) for frame in (*LOOP, "")] == ["train.py:33 (work)", "train.py:40", ""]


def test_a_frame_below_a_folder_with_a_space_keeps_its_file_and_line() -> None:
    frame = "/home/me/my runs: 2/v1:1/my train.py:9 work"
    assert (line_of(frame), short(frame)) == (frame.rpartition(" ")[0], "my train.py:9 (work)")


def test_the_processes_of_the_package_multiprocess_are_those_of_multiprocessing() -> None:
    stack = (frame_of(f"{LIBRARY}/multiprocess/pool.py", "367", "Pool.map"), *LOOP)
    assert joins_processes(stack)
