"""py-spy's stacks with the variables of torch's frames describe a rank without our hook."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterrun.diagnosis.evidence import GroupRequest, MainCall
from clusterrun.diagnosis.spied_process import SpiedFrame, SpiedProcess, read_spied
from clusterrun.diagnosis.stacks import (
    BACKWARD,
    GPU_WAIT,
    STORE_WAIT,
    Doing,
    is_in_python,
    location,
    script_has_ended,
)
from tests.diagnosis.ranks import LIBRARY

TORCH = "/venv/lib/python3.11/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
LOGGER = f"{TORCH}/distributed/c10d_logger.py"


def frame(name: str, path: str, line: int, **variables: str) -> dict[str, Any]:
    values = [{"name": key, "repr": value, "addr": 1, "arg": True} for key, value in variables.items()]
    return {"name": name, "filename": path, "line": line, "module": None, "locals": values}


def native(name: str, library: str = "/venv/libtorch_cpu.so") -> dict[str, Any]:
    return {"name": name, "filename": library, "line": 0, "module": library, "locals": None}


def spied(*frames: dict[str, Any], others: tuple[list[dict[str, Any]], ...] = ()) -> SpiedProcess:
    threads = [{"pid": 7, "os_thread_id": 8 + n, "frames": stack} for n, stack in enumerate(others)]
    return read_spied(json.dumps([*threads, {"pid": 7, "os_thread_id": 7, "frames": list(frames)}]))


def wrapper(args: str, kwargs: str = "{}") -> dict[str, Any]:
    return frame("_exception_logger.<locals>.wrapper", LOGGER, 83, args=args, kwargs=kwargs)


STEP = frame("step", "/home/me/train.py", 9, i="5", t="<Tensor at 0x7f>", lr="0.1")


def test_a_collective_shows_its_place_the_steps_of_the_script_and_native_frames() -> None:
    stacks = spied(
        native("0x7f08b1899f16", "/lib/libc.so.6"),
        native("pthread_cond_wait", "/lib/libc.so.6"),
        native("c10d::Work::wait"),
        {
            **native("fcntl_flock_impl", "/usr/lib/libpython3.11.so"),
            "filename": "/src/fcntlmodule.c",
            "line": 297,
        },
        frame("all_reduce", C10D, 3252, group="<torch._C._distributed_c10d.ProcessGroup at 0x7f>"),
        wrapper("(<Tensor at 0x7f>)"),
        STEP,
        frame("train", "/home/me/train.py", 20, epoch="2", seen="77"),
        native("0x7f08b183b24a", "/lib/libc.so.6"),
    )
    assert (stacks.main[-1], len(stacks.main)) == ("/home/me/train.py:20 train", 4)
    assert stacks.native == ("pthread_cond_wait", "c10d::Work::wait", "fcntl_flock_impl")
    assert (stacks.counters, stacks.call) == (("i=5", "epoch=2"), MainCall(is_of_all=True))
    assert stacks.numbers == ("i=5", "epoch=2", "seen=77")
    assert location(stacks.main).operation == "all_reduce"


@pytest.mark.parametrize(
    ("passed", "is_of_all"), [("{'src': 0}", True), ("{'group': <ProcessGroup>}", False)]
)
def test_the_arguments_of_the_script_show_whether_a_call_within_a_call_is_of_all(
    passed: str, is_of_all: bool
) -> None:
    sizes = frame("broadcast", C10D, 3151, group="<ProcessGroup at 0x7f>")
    inner = wrapper("(<Tensor at 0x7f>)", "{'group': <ProcessGroup at 0x7f>}")
    objects = frame("broadcast_object_list", C10D, 4026, group="<ProcessGroup at 0x7f>")
    stacks = spied(sizes, inner, objects, wrapper("(['request'])", passed), STEP)
    assert stacks.call.is_of_all == is_of_all


def test_plain_variables_of_the_script_and_errors_are_read() -> None:
    names = {"self": "<OnError at 0x7>", "kind": "<type at 0x7>", "error": "<KeyError at 0x7>"}
    guard = frame("Guard.__exit__", "/home/me/guard.py", 4, **names)
    step = frame("step", "/home/me/train.py", 9, i="20", mode='"abc"', cut='"abc..."', x="<Tensor at 0x7>")
    stacks = spied(frame("wait", f"{TORCH}/x.py", 3, timeout="5"), step, guard)
    assert stacks.script == (
        SpiedFrame("/home/me/train.py:9 step", (("i", 20), ("mode", "abc"))),
        SpiedFrame("/home/me/guard.py:4 Guard.__exit__", owner="<OnError at 0x7>"),
    )
    assert stacks.errors == (("/home/me/guard.py:4 Guard.__exit__", "KeyError"),)


@pytest.mark.parametrize(
    ("function", "values", "passed", "call"),
    [
        ("recv", {"src": "0", "tag": "3"}, "(<Tensor>, 0)", MainCall("recv", "recv", 0, 3)),
        ("send", {"dst": "None", "group_dst": "2"}, "(<Tensor>)", MainCall("send", "send", 2)),
        ("recv", {"src": "None"}, "(<Tensor>)", MainCall("recv", "recv", -1)),
        (
            "broadcast",
            {"src": "1"},
            "(<Tensor>, 1)",
            MainCall(function="broadcast", rooted="broadcast", root=1, is_of_all=True),
        ),
        (
            "broadcast",
            {"src": "None", "group_src": "1"},
            "(<Tensor>, <torch._C._distributed_c10d.ProcessGroup at 0x7f>)",
            MainCall(function="broadcast", rooted="broadcast"),
        ),
    ],
)
def test_sends_and_roots_are_read_from_torchs_variables(
    function: str, values: dict[str, str], passed: str, call: MainCall
) -> None:
    assert spied(frame(function, C10D, 1, **values), wrapper(passed), STEP).call == call


def test_the_root_of_an_object_is_that_of_the_scripts_own_call() -> None:
    inner = (
        frame("broadcast", C10D, 9, src="None", group_src="0"),
        wrapper("(<Tensor>)", "<ProcessGroup at 0x7f>"),
    )
    call = spied(*inner, frame("broadcast_object_list", C10D, 99, src="2"), wrapper("([None])"), STEP).call
    assert (call.rooted, call.root, call.is_of_all) == ("broadcast_object_list", 2, True)


@pytest.mark.parametrize(("asks", "is_of_all"), [("None", True), ("<ProcessGroup at 0x7e>", False)])
def test_a_call_is_of_all_ranks_if_a_library_that_passes_the_group_was_given_none(
    asks: str, is_of_all: bool
) -> None:
    library = f"{LIBRARY}/lightning/fabric/utilities/distributed.py"
    passed = "<torch._C._distributed_c10d.ProcessGroup at 0x7f>"
    lightning = spied(
        frame("barrier", C10D, 5356, group=passed),
        wrapper("()", f"{{'group': {passed}}}"),
        frame("_sync_ddp", library, 213, group=passed),
        frame("_sync_ddp_if_available", library, 178, group=asks),
        frame("save", f"{LIBRARY}/lightning/callbacks.py", 890),
        STEP,
    )
    torchmetrics = spied(
        frame("barrier", C10D, 5356, group=passed),
        wrapper("()", f"{{'group': {passed}}}"),
        frame("gather_all_tensors", f"{LIBRARY}/torchmetrics/utilities/distributed.py", 121, group=passed),
        frame("apply_to_collection", f"{LIBRARY}/lightning_utilities/core/apply_func.py", 76),
        frame("Metric.sync", f"{LIBRARY}/torchmetrics/metric.py", 614, process_group=asks),
        STEP,
    )
    ddp = spied(
        frame(
            "_verify_param_shape_across_processes", f"{TORCH}/distributed/utils.py", 286, process_group=passed
        ),
        frame(
            "DistributedDataParallel.__init__",
            f"{TORCH}/nn/parallel/distributed.py",
            1064,
            process_group=asks,
        ),
        STEP,
    )
    assert {stacks.call.is_of_all for stacks in (lightning, torchmetrics, ddp)} == {is_of_all}


def test_the_place_of_the_group_among_the_arguments_of_a_library_is_read() -> None:
    method = frame(
        "Net.all_gather", f"{LIBRARY}/lightning/module.py", 694, self="<Net>", data="1", group="<>"
    )
    assert spied(method, STEP).takes_group == ("all_gather", 1)
    assert spied(frame("fit", f"{LIBRARY}/lightning/module.py", 9), method, STEP).takes_group[1] == 1
    call = frame("all_reduce", C10D, 3252, tensor="<Tensor>", op="<>", group="<>")
    assert spied(call, wrapper("(<Tensor>)"), STEP).takes_group == ("all_reduce", 2)
    assert spied(method, frame("fit", f"{LIBRARY}/lightning/module.py", 9), STEP).takes_group == ("", -1)


def test_a_rank_that_makes_the_group_shows_world_rank_and_store() -> None:
    rendezvous = f"{TORCH}/distributed/rendezvous.py"
    stacks = spied(
        native("c10d::TCPStore::waitForWorkers"),
        frame("_create_c10d_store", rendezvous, 199, hostname='"n1"', port="29500", rank="0", world_size="3"),
        frame("_env_rendezvous_handler", rendezvous, 280),
        frame("init_process_group", C10D, 1892, world_size="3", rank="0"),
        wrapper('("gloo")'),
        frame("<module>", "/home/me/train.py", 5),
    )
    assert stacks.request == GroupRequest(world=3, asks=0, store="n1:29500")
    assert location(stacks.main).doing is Doing.RENDEZVOUS
    group = frame("_new_process_group_helper", C10D, 2169)
    by_address = frame("init_process_group", C10D, 1899, init_method='"tcp://10.0.0.2:29517"')
    assert spied(group, by_address, STEP).request.store == "10.0.0.2:29517"


@pytest.mark.parametrize(("alone", "meets"), [("True", "0-1"), ("False", "")])
def test_a_rank_that_makes_a_group_shows_its_members(alone: str, meets: str) -> None:
    asks = {"ranks": "[0, 1]", "use_local_synchronization": alone}
    stacks = spied(
        frame("_new_process_group_helper", C10D, 2169),
        frame("_new_group_with_tag", C10D, 6056, group_name='"2"', **asks),
        frame("new_group", C10D, 5863, **asks),
        STEP,
    )
    assert stacks.request == GroupRequest(makes=("2", "0-1"), meets=meets)


def test_the_address_of_a_connection_that_does_not_come_is_read() -> None:
    connects = frame("create_connection", "/usr/lib/python3.11/socket.py", 836, address='("logs.site", 443)')
    assert (spied(connects, STEP).connects, spied(STEP).connects) == ("logs.site:443", "")


def test_the_index_of_a_spawned_process_is_read() -> None:
    stacks = spied(STEP, frame("_wrap", f"{TORCH}/multiprocessing/spawn.py", 90, i="1"))
    assert (stacks.spawned, spied(STEP).spawned) == (1, -1)
    starts = frame("start_processes", f"{TORCH}/multiprocessing/spawn.py", 300, nprocs="4", i="3")
    assert (spied(starts).spawns, stacks.spawns) == (4, 0)


def test_a_thread_of_the_user_is_seen_beside_the_main_thread() -> None:
    uploads = [frame("upload", "/home/me/train.py", 40), frame("run", "/usr/lib/python3.11/threading.py", 1)]
    (thread,) = spied(STEP, others=(uploads,)).threads
    assert thread.frame == "/home/me/train.py:40 upload"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "[{}]", "[[", '[{"frames": [1], "pid": 1, "os_thread_id": 1}]']
)
def test_damaged_output_shows_nothing(text: str) -> None:
    assert read_spied(text) == SpiedProcess()


LINE = ("/home/me/train.py:9 step",)


@pytest.mark.parametrize(
    ("functions", "operation"),
    [
        (("pthread_cond_wait", "c10d::Work::wait", "c10d::Reducer::finalize_backward"), BACKWARD),
        (("poll", "c10d::TCPStore::doWait", "c10d::TCPStore::wait"), STORE_WAIT),
        (("gloo::transport::tcp::UnboundBuffer::waitSend",), "send"),
        (("opal_progress", "PMPI_Allreduce"), "MPI_Allreduce"),
        # An H200 with torch 2.11.0+cu130: ``item()``, ``torch.cuda.synchronize()`` and ``cpu()``.
        (("clock_gettime", "cuStreamSynchronize", "cudaStreamSynchronize", "at::native::item"), GPU_WAIT),
        (("cuCtxSynchronize_v2", "cudaDeviceSynchronize", "c10::cuda::device_synchronize"), GPU_WAIT),
        (("cuMemcpyDtoHAsync_v2", "cudaMemcpyAsync", "at::native::copy_kernel_cuda"), GPU_WAIT),
    ],
)
def test_native_frames_show_a_wait_in_a_line_of_the_user(functions: tuple[str, ...], operation: str) -> None:
    place = location(LINE, functions)
    assert (place.doing, place.operation, place.line) == (Doing.COLLECTIVE, operation, "train.py:9 (step)")


def test_other_native_frames_decide_nothing() -> None:
    assert location(LINE, ("clock_nanosleep", "time_sleep")).doing is Doing.USER


# --- the thread that trains ---

SERVES = (
    frame("main_loop", "/venv/lib/python3.11/site-packages/ray/_private/worker.py", 990),
    frame("<module>", "/venv/lib/python3.11/site-packages/ray/_private/workers/default_worker.py", 321),
)
THREADS = "/usr/lib/python3.11/threading.py"
TRAINS = [
    frame("all_reduce", C10D, 3252),
    frame("loop", "/home/me/train.py", 12, rank="2"),
    frame("run", THREADS, 975),
]
WAITS = [frame("refresh", "/home/me/train.py", 90), frame("run", THREADS, 975)]
JOINS = (frame("join", THREADS, 1119), frame("<module>", "/home/me/train.py", 30))
LOCKED = (frame("step", "/home/me/train.py", 60), frame("<module>", "/home/me/train.py", 30))
ENDS = (frame("_shutdown", THREADS, 1560),)


@pytest.mark.parametrize(
    ("main", "others", "place"),
    [
        (SERVES, (WAITS, TRAINS), (9, Doing.COLLECTIVE, "train.py:12 (loop)")),
        (SERVES, (WAITS,), (8, Doing.USER, "train.py:90 (refresh)")),
        (SERVES, (), (0, Doing.USER, "")),
        (JOINS, (TRAINS,), (8, Doing.COLLECTIVE, "train.py:12 (loop)")),
        (JOINS, (WAITS,), (0, Doing.USER, "train.py:30")),
        (JOINS, (TRAINS, TRAINS), (0, Doing.USER, "train.py:30")),
        (LOCKED, (TRAINS,), (0, Doing.USER, "train.py:60 (step)")),
        (ENDS, (WAITS,), (0, Doing.USER, "")),
    ],
)
def test_a_thread_speaks_for_a_main_thread_that_only_serves_or_joins_it(
    main: tuple[dict[str, Any], ...], others: tuple[list[dict[str, Any]], ...], place: tuple[int, Doing, str]
) -> None:
    stacks = spied(*main, others=others)
    where = location(stacks.main)
    assert (stacks.thread, where.doing, where.line) == place
    assert script_has_ended(stacks.main) == (main == ENDS)


def test_a_variable_of_the_script_shows_the_number_of_a_rank() -> None:
    assert spied(*SERVES, others=(TRAINS,)).rank == 2
    assert spied(*LOCKED).rank == -1


def test_a_thread_in_pythons_own_library_is_in_no_native_code_of_torch() -> None:
    assert is_in_python(spied(*JOINS).main)
    assert not is_in_python(spied(*LOCKED).main)
    assert not is_in_python(spied(*SERVES).main)


def test_the_lock_file_of_a_build_is_that_of_its_folder() -> None:
    waits = frame("FileBaton.wait", f"{TORCH}/utils/file_baton.py", 50, self="<FileBaton at 0x7f>")
    builds = frame("_jit_compile", f"{TORCH}/utils/cpp_extension.py", 2400, build_directory="'/cache/ops'")
    assert spied(waits, builds, STEP).lock == "/cache/ops/lock"
    assert spied(builds, STEP).lock == ""


def test_the_lock_file_that_filelock_polls_for_is_its_variable() -> None:
    library = f"{TORCH.rpartition('/')[0]}/filelock/_api.py"
    assert (
        spied(frame("acquire", library, 340, lock_filename="'/cache/a.lock'"), STEP).lock == "/cache/a.lock"
    )


def test_a_thread_that_the_module_threading_began_is_no_hook_of_the_backward_pass() -> None:
    loads = [frame("load", "/home/me/train.py", 30)]
    threading = frame("Thread._bootstrap", "/usr/lib/python3.11/threading.py", 1002)
    began = [spied(STEP, others=(stack,)).threads[0].begun for stack in (loads, [*loads, threading])]
    assert began == [False, True]


def test_threads_are_numbered_by_the_namespace_of_their_process() -> None:
    text = json.dumps([{"pid": 7, "os_thread_id": 1, "frames": [STEP]}])
    assert (read_spied(text).main, read_spied(text, {1: 7}).counters) == ((), ("i=5",))
