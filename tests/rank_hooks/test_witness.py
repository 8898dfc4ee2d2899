"""A rank reports torch's flight records. NCCL's recorder is a fake, because only builds for GPUs have it."""

from __future__ import annotations

import asyncio
import ctypes
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterrun.diagnosis.evidence import Group, PostedOp
from clusterrun.monitor.rank_channels import calls, records
from clusterrun.rank_hooks import clusterrun_prelude, clusterrun_witness
from tests.diagnosis.ranks import bare, case
from tests.monitor.stage import ROOT, until

Dump = Callable[[bool, bool], str]


def entry(group: str, call: str, number: int, **more: Any) -> dict[str, Any]:
    """Return a record as torch gives it."""
    return {
        "process_group": [group, "default_pg"],
        "collective_seq_id": number,
        "profiling_name": call,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4]],
        "state": "scheduled",
        "retired": False,
        "is_p2p": False,
        "time_created_ns": number * 1_000_000_000,
        **more,
    }


def dump(*entries: dict[str, Any]) -> Dump:
    return lambda collectives, active: json.dumps({"entries": entries, "pg_status": {}})


def test_calls_that_torch_ignored_for_their_group_are_reported() -> None:
    text = "Running all_reduce on global rank 1 which does not belong to the given group."
    registry = {"version": 7, (text, UserWarning, 3222): True, ("Running late", UserWarning, 1): True}
    c10d = SimpleNamespace(__warningregistry__=registry)
    assert clusterrun_witness.ignored_calls(c10d) == ["all_reduce"]


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Load the witness in a process whose torch has these groups, by name, and these recorders."""

    def made(backends: dict[str, str], plugins: tuple[str, ...] = (), **recorders: Dump) -> dict[str, Any]:
        world = SimpleNamespace(
            pg_names={f"group {name}": name for name in backends},
            pg_map={f"group {name}": (backend, None) for name, backend in backends.items()},
        )
        c10d = SimpleNamespace(_world=world, Backend=SimpleNamespace(_plugins=plugins))
        monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", c10d)
        monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace(**recorders))
        return clusterrun_prelude.witness(str(ROOT / "clusterrun/rank_hooks"))

    return made


def asked(space: dict[str, Any]) -> Callable[[], list[str]]:
    """Return a function by which a script gets the witness's report of its calls."""
    return lambda: space["calls_near"](sys._getframe(1))  # type: ignore[no-any-return]


def test_collectives_of_nccl_are_read_from_its_own_recorder(witness: Callable[..., dict[str, Any]]) -> None:
    nccl = dump(
        entry("0", "nccl:all_reduce", 1, state="completed", retired=True),
        entry("0", "nccl:send 0->1", 1, is_p2p=True),
        entry("0", "nccl:all_reduce", 2, state="started", time_discovered_started_ns=2_500_000_000),
    )
    space = witness({"0": "nccl"}, _dump_nccl_trace_json=nccl, _dump_fr_trace_json=dump())
    result = records({"records": space["flight"](16)})
    assert [
        (record.group, record.sequence, record.operation, record.done, record.at) for record in result
    ] == [("0", 1, "all_reduce", True, 1.0), ("0", 2, "all_reduce", False, 2.5)]
    assert [record.sequence for record in records({"records": space["flight"](1)})] == [2]


@pytest.mark.parametrize(
    ("library", "function"),
    [
        ("/usr/lib/libcuda.so.580.159.04", "cuThreadExchangeStreamCaptureMode"),
        ("/opt/rocm/lib/libamdhip64.so.7", "hipThreadExchangeStreamCaptureMode"),
        ("/usr/lib/libcuda.so.1", ""),
    ],
)
def test_records_are_requested_in_a_thread_that_ends_no_graph_capture(
    witness: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    library: str,
    function: str,
) -> None:
    modes: list[int] = []
    order: list[str] = []

    def relax(mode: Any) -> None:
        modes.append(mode._obj.value)
        order.append("relax")

    def recorder(collectives: bool, active: bool) -> str:
        order.append("dump")
        return dump(entry("0", "nccl:all_reduce", 1))(collectives, active)

    maps = tmp_path / "maps"
    maps.write_text(f"7f00-7f01 r-xp 00000000 08:01 7 {library}\n7f02-7f03 rw-p 00000000 00:00 0\n")
    loaded = SimpleNamespace(**({function: relax} if function else {}))
    monkeypatch.setattr(ctypes, "CDLL", lambda path: loaded if path == library else None)
    space = witness({"0": "nccl"}, _dump_nccl_trace_json=recorder)
    space["open"] = {"/proc/self/maps": maps.open()}.__getitem__
    assert [record["collective_seq_id"] for record in space["flight"](16)] == [1]
    # cuda.h: CU_STREAM_CAPTURE_MODE_RELAXED is 2.
    assert (modes, order) == (([2], ["relax", "dump"]) if function else ([], ["dump"]))


def test_a_group_of_two_backends_counts_each_for_itself(witness: Callable[..., dict[str, Any]]) -> None:
    space = witness(
        {"0": "cpu:gloo,cuda:nccl", "1": "gloo"},
        _dump_nccl_trace_json=dump(entry("0", "nccl:all_reduce", 7)),
        _dump_fr_trace_json=dump(entry("0", "gloo:barrier", 1), entry("1", "gloo:all_gather", 3)),
    )
    result = records({"records": space["flight"](16)})
    assert sorted((element.group, element.sequence, element.operation) for element in result) == [
        ("0", 7, "all_reduce"),
        ("0 (gloo)", 1, "barrier"),
        ("1", 3, "all_gather"),
    ]
    group = Group("0", 2, 7, True, "cpu:gloo,cuda:nccl", "0-1")
    observed = [
        bare(0, "n0", "S", groups=(group,), records=tuple(result)),
        bare(
            1,
            "n1",
            "S",
            groups=(group,),
            records=tuple(element for element in result if element.operation != "barrier"),
        ),
    ]
    (first, _) = case(*observed).waits
    assert (first.rank, first.operation, first.missing) == (0, "barrier", (1,))


@pytest.mark.parametrize(
    ("nccl", "plugins", "alone"),
    [
        (dump(), (), True),
        (dump(entry("0", "nccl:all_reduce", 1)), (), False),
        (dump(), ("UCC",), False),
        (dump(), ("FAKE",), True),
        (dump(entry("0", "nccl:all_reduce", 1)), ("FAKE",), False),
    ],
)
def test_a_rank_without_groups_trained_alone_only_if_no_recorder_contradicts(
    witness: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    nccl: Dump,
    plugins: tuple[str, ...],
    alone: bool,
) -> None:
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        monkeypatch.delenv(name, raising=False)
    space = witness({}, plugins, _dump_nccl_trace_json=nccl, _dump_fr_trace_json=dump())
    assert space["never_joined_a_collective"]([], space["flight"](16)) is alone


@pytest.mark.parametrize(
    ("provided", "root"), [("src=2", 2), ("group_src=1", 11), ("group='g', group_src=1", 11), ("", -1)]
)
@pytest.mark.parametrize(
    ("function", "argument", "message", "named"),
    [
        ("broadcast", "src", "rooted", "root"),
        ("gather", "dst", "rooted", "root"),
        ("recv", "src", "name", "peer"),
    ],
)
def test_the_peers_of_a_call_are_read_from_its_arguments(
    witness: Callable[..., dict[str, Any]],
    function: str,
    argument: str,
    message: str,
    named: str,
    provided: str,
    root: int,
) -> None:
    space = witness({})
    groups = SimpleNamespace(WORLD="all")
    c10d = SimpleNamespace(
        __name__="c10d", GroupMember=groups, get_global_rank=lambda _group, among: 10 + among
    )
    caller: dict[str, Any] = {"__name__": "c10d", "ask": lambda: space["call"](c10d)}
    exec(f"def {function}({argument}=None, group=None, group_{argument}=None): return ask()", caller)
    result = eval(f"{function}({provided.replace('src', argument)})", caller)
    assert (result[message], result[named]) == (function, root)
    main, _, _ = calls({"call": result})
    assert (main.name if message == "name" else main.rooted) == function
    assert caller["ask"]() == {}


@pytest.mark.parametrize(
    ("thread", "name", "by_thread"),
    [
        ("main", "python", False),
        ("7", "Thread-1 (metrics)", True),
        ("7", "pt_autograd_0", False),
        ("", "", False),
    ],
)
def test_a_call_of_another_thread_is_marked_unless_autograd_made_it(
    witness: Callable[..., dict[str, Any]], thread: str, name: str, by_thread: bool
) -> None:
    """Torch before 2.9 records no thread."""
    number = str(threading.main_thread().ident) if thread == "main" else thread
    called = entry("0", "gloo:all_reduce", 1, thread_id=number, thread_name=name)
    space = witness({"0": "gloo"}, _dump_fr_trace_json=dump(called))
    (result,) = records({"records": space["flight"](16)})
    assert result.by_thread is by_thread


@pytest.mark.parametrize(
    ("function", "provided", "expected"),
    [
        (
            "all_to_all_single(input, output, output_split_sizes=None, input_split_sizes=None)",
            "[2, 0], [1, 1], [1, 1], [2, 0]",
            {"function": "all_to_all_single", "counts": [2, 0, 1, 1]},
        ),
        (
            "all_to_all_single(input, output, output_split_sizes=None, input_split_sizes=None)",
            "[2, 0], [1, 1]",
            {"function": "all_to_all_single"},
        ),
        ("broadcast(tensor, src)", "1, 3", {"function": "broadcast", "rooted": "broadcast", "root": 3}),
        (
            "broadcast_object_list(object_list, src)",
            "[None, None], 1",
            {
                "function": "broadcast_object_list",
                "rooted": "broadcast_object_list",
                "root": 1,
                "counts": [2],
            },
        ),
        ("broadcast_object_list(object_list, src)", "1, 0", {"function": "broadcast_object_list"}),
    ],
)
def test_the_call_in_which_an_exception_was_raised_is_read_with_its_arguments(
    witness: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    provided: str,
    expected: dict[str, Any],
) -> None:
    space = witness({})
    c10d = SimpleNamespace(__name__="c10d")
    raising: dict[str, Any] = {"__name__": "c10d"}
    exec(f"def {function}: raise RuntimeError('gone')", raising)
    name = function.partition("(")[0]
    with pytest.raises(RuntimeError) as raised:
        eval(f"{name}({provided})", {name: raising[name]})
    monkeypatch.setattr(sys, "last_exc", raised.value, raising=False)
    assert space["failed_call"](c10d) == expected
    monkeypatch.setattr(sys, "last_exc", ValueError("of the script"))
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    assert space["failed_call"](c10d) == {}


@pytest.mark.skipif(sys.version_info < (3, 10), reason="no thread can ask for the exception of another")
def test_the_error_in_whose_finally_block_a_rank_waits_is_reported(
    witness: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    script, seen = tmp_path / "train.py", []
    script.write_text("try:\n    {}['weights']\nfinally:\n    look()\n")
    handled = witness({})["handled"]
    names = {"look": lambda: seen.append(handled())}
    with pytest.raises(KeyError):
        exec(compile(script.read_text(), str(script), "exec"), names)
    assert seen == [f"{script}:2 <module>: KeyError: 'weights'"]
    assert handled() == ""


def test_threads_in_a_collective_are_reported_with_function_and_line(
    witness: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    space = witness({})
    inside, leave = threading.Event(), threading.Event()
    calls: dict[str, Any] = {"__name__": "c10d", "inside": inside, "leave": leave}
    exec("def all_reduce():\n    inside.set()\n    leave.wait(60)", calls)
    script: dict[str, Any] = {"all_reduce": calls["all_reduce"]}
    exec(compile("def metrics():\n    all_reduce()", str(tmp_path / "train.py"), "exec"), script)
    thread = threading.Thread(target=script["metrics"], daemon=True)
    thread.start()
    try:
        assert inside.wait(60)
        place = f"{tmp_path}/train.py:2 metrics"
        assert [place, place, "all_reduce"] in space["threads_in_calls"](SimpleNamespace(__name__="c10d"))
    finally:
        leave.set()
        thread.join(60)


@pytest.mark.parametrize(
    ("line", "root"),
    [
        ("dist.gather(x, out, dst=writer if step == 2 else 0)", 3),
        ("dist.gather(x, out if writer == 1 else None, writer)", 3),
        ("if writer: scatter(x, None, src=writer - 1)", 2),
        ("work = dist.broadcast(x, src=args.root, async_op=True)", 1),
        ("dist.broadcast_object_list(\n    x,\n    src=writer,\n)", 3),
        ("dist.reduce(x, 0)", 0),
        ("dist.gather(x)", 0),
        ("dist.reduce(x, pick())", None),
        ("dist.reduce(x, roots[0])", None),
        ("dist.reduce(x, scores.best)", None),
        ("dist.reduce(x, group_dst=1)", None),
        ("dist.reduce(x, **more)", None),
        ("helper(x, writer)", 3),
        ("helper(x, to=writer - 1)", 2),
        ("helper(x)", 1),
        ("helper(x, pick())", None),
        ("helper(x, *roots)", None),
        ("changes(x, writer)", None),
        ("dist.reduce(x, writer)\nwriter = 1", None),
        ("dist.reduce(\n    x,\n    dst=writer)\nother = 1", 3),
        ("dist.reduce(x, missing)", None),
        ("dist.reduce(x, writer // zero)", None),
        ("dist.reduce(x, 'a' * writer)", None),
        ("dist.reduce(x, lazy.root)", None),
        ("words = 'broadcast('", None),
        ("dist.all_reduce(x)", None),
    ],
)
def test_the_root_of_a_finished_call_is_derived_from_its_variables(
    witness: Callable[..., dict[str, Any]], tmp_path: Path, line: str, root: int | None
) -> None:
    body = "def helper(x, to=1):\n    dist.reduce(x, to)\n    return x\n"
    body += "def changes(x, to):\n    to = 0\n    dist.reduce(x, to)\n\n"
    body += "\n    ".join(
        ["def step_of():", "step, writer, zero = 2, 3, 0", *line.split("\n"), "return ask()"]
    )
    script = tmp_path / "train.py"
    script.write_text(f"{body}\n")
    ran: list[str] = []

    class Scores:
        @property
        def best(self) -> int:
            ran.append("a property")
            return 1

    class Lazy:
        def __getattribute__(self, name: str) -> object:
            ran.append("a property")
            return 1

    def does(*_args: object, **_words: object) -> None:
        pass

    dist = SimpleNamespace(**dict.fromkeys((*witness({})["ROOT_PLACES"], "all_reduce"), does))
    space = {"dist": dist, "scatter": does, "args": SimpleNamespace(root=1), "x": None, "out": None}
    space |= {
        "roots": [1],
        "scores": Scores(),
        "lazy": Lazy(),
        "more": {},
        "pick": lambda: ran.append("a call"),
    }
    space["ask"] = asked(witness({}))
    runs = body.replace("missing", "0").replace("zero)", "1)")
    exec(compile(runs, str(script), "exec"), space)
    ran.clear()
    results = [element[1:] for element in space["step_of"]() if element.startswith(f"R{script}:")]
    assert results == ([] if root is None else [f"{script}:{2 if 'helper' in line else 10} {root}"])
    assert [element for element in ran if element == "a property"] == ["a property"] * (
        "best" in line or "lazy" in line
    )  # its own


@pytest.mark.parametrize(
    ("body", "roots"),
    [
        ("for step in range(2):\n    told = ask()\n    dist.gather(x, out, dst=writer)", [1]),
        ("step = 0\nwhile step < 2:\n    step += 1\n    told = ask()\n    if x: dist.reduce(x, writer)", [1]),
        ("for e in range(2):\n    for b in range(1):\n        told = ask()\n    dist.reduce(x, writer)", [1]),
        ("for step in range(2):\n    told = ask()\n    dist.reduce(x, step)", []),
        ("for step in range(2):\n    told = ask()\n    to = writer\n    dist.reduce(x, to)", []),
        ("for step in range(2):\n    if writer: to = writer\n    told = ask()\n    dist.reduce(x, to)", []),
        ("for step in range(2):\n    to, y = writer, 1\n    dist.reduce(x, to)\n    told = ask()", [1]),
        ("told = ask()\ndist.reduce(x, writer)", []),  # not called yet
        ("for step in range(2):\n    told = ask()\ndist.reduce(x, writer)", []),
    ],
)
def test_a_root_in_a_loop_is_derived_if_the_loop_does_not_change_it(
    witness: Callable[..., dict[str, Any]], tmp_path: Path, body: str, roots: list[int]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(body + "\n")
    dist = SimpleNamespace(**dict.fromkeys(("gather", "reduce"), lambda *_args, **_words: None))
    space = {"dist": dist, "x": None, "out": None, "writer": 1, "ask": asked(witness({}))}
    exec(compile(script.read_text(), str(script), "exec"), space)
    messages = [element.rpartition(" ")[2] for element in space["told"] if element.startswith(f"R{script}:")]
    assert messages == [str(root) for root in roots]


@pytest.mark.parametrize(("ranks", "message"), [([2, 0], "0,2"), ([1, 2, 3], "1-3")])
def test_a_rank_that_creates_a_group_reports_its_name_ranks_and_count(
    witness: Callable[..., dict[str, Any]], ranks: list[int], message: str
) -> None:
    space = witness({})
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    c10d.__name__, c10d._world.group_count = "c10d", 8
    caller: dict[str, Any] = {"__name__": "c10d", "ask": lambda: json.loads(space["state_json"](1, 16, 4))}
    exec("def _new_group_with_tag(ranks, group_name): return ask()", caller)
    sys.modules["torch._C._distributed_c10d"].__dict__["_dump_fr_trace_json"] = dump()
    _, request, _ = calls(caller["_new_group_with_tag"](ranks, "7"))
    assert (request.makes, request.made) == (("7", message), 8)
    assert calls(caller["ask"]())[1].makes == ()


class P2POp(SimpleNamespace):
    """torch's object for a send or receive in a batch."""


def isend() -> None:
    pass


def test_requests_posted_together_are_read_from_the_waiting_ranks_variables(
    witness: Callable[..., dict[str, Any]],
) -> None:
    space = witness({})
    ops = [P2POp(op=isend, peer=1, tag=0), P2POp(op=isend, peer=3, tag=7)]
    caller = SimpleNamespace(f_locals={"n": 1, "ops": ops, "first": ops[0]}, f_back=None)
    inner = SimpleNamespace(f_locals={"work": object(), "more": [1, 2]}, f_back=caller)
    c10d = SimpleNamespace(P2POp=P2POp)
    posted = space["posts"](c10d, inner)
    assert posted == [["isend", 1, 0], ["isend", 3, 7]]
    assert calls({"call": {"name": "wait", "posts": posted}})[0].posts == (
        PostedOp("send", 1),
        PostedOp("send", 3, 7),
    )
    assert space["posts"](SimpleNamespace(), inner) == []
    assert space["posts"](c10d, SimpleNamespace(f_locals={}, f_back=None)) == []


class Store:
    """The parts of torch's store that the witness reads: its kind, an address, an inner store."""

    def __init__(self, **has: Any) -> None:
        self.__dict__.update(has)


@pytest.mark.parametrize(
    ("local", "store"),
    [
        ({"hostname": "n0", "port": 29500}, "n0:29500"),
        ({"master_addr": "n0", "master_port": 29501}, "n0:29501"),
        ({"store": Store(underlying_store=Store(host="n0", port=7))}, "n0:7"),
        ({"store": Store(underlying_store=Store(path="/home/me/store"))}, "file:/home/me/store"),
        ({}, ""),
    ],
)
def test_the_meeting_point_of_ranks_is_read_from_the_call(
    witness: Callable[..., dict[str, Any]], local: dict[str, Any], store: str
) -> None:
    space = witness({})
    names = ", ".join(["world_size", "rank", *local])
    caller: dict[str, Any] = {
        "__name__": "c10d",
        "ask": lambda: space["call"](SimpleNamespace(__name__="c10d")),
    }
    exec(f"def init_process_group({names}): return ask()", caller)
    assert caller["init_process_group"](4, 2, **local) == {"world": 4, "asks": 2, "store": store}


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("store.wait(['a', 'b'])", "a, b"),
        ("return int(store.get(f'seed/{epoch}/{name}'))", "seed/3/x"),
        ("self.store.get(name, timeout)", "x"),
        ("if name: [store.get(f'ready/{epoch + 1}') for _ in names]", "ready/4"),
        ("store.get(f'{epoch:03d}')", ""),
        ("store.get(f'{epoch!r}')", ""),
        ("store.get(make())", ""),
        ("store.wait(names)", "y"),
        ("store.wait([f'done/{i}' for i in range(epoch)], limit)", "done/0, done/1, done/2"),
        ("store.wait([f'{name}/{i + 1}' for i in range(1, 3)])", "x/2, x/3"),
        ("store.wait(['of/' + one for one in names])", "of/y"),
        ("store.wait([f'done/{i}' for i in range(size())])", ""),
        ("store.wait([f'done/{i}' for i in range(epoch) if i])", ""),
        ("store.wait([f'done/{i}{j}' for i in range(2) for j in range(2)])", ""),
        ("store.wait(['a', make()])", ""),
        ("while not store.get('a'):", ""),
        ("store.get(missing)", ""),
    ],
)
def test_the_key_that_a_line_waits_for_is_reported_if_it_is_built_from_plain_variables(
    witness: Callable[..., dict[str, Any]], line: str, key: str
) -> None:
    space = witness({})
    space["line"] = lambda _frame: f"    {line}\n"
    frame = SimpleNamespace(f_globals={"epoch": 0}, f_locals={"epoch": 3, "name": "x", "names": ["y"]})
    assert space["key_wanted"](frame)[0] == key


@pytest.mark.parametrize(
    ("line", "waits"),
    [
        ("store.wait(['a'])", True),
        ("value = store.get('a')", True),
        ("print(int(store.get('a')))", True),
        ("[store.get(name) for name in names]", True),
        ("return self.store.get('a')", True),
        ("return self.cache.get('a')", False),
        ("work.wait()", False),
        ("store.set('a', 1)", False),
        ("make().wait(['a'])", False),
    ],
)
def test_a_line_that_waits_for_a_key_is_recognized_by_the_type_of_its_variable(
    witness: Callable[..., dict[str, Any]], line: str, waits: bool
) -> None:
    space = witness({}, Store=Store)
    space["line"] = lambda _frame: line
    frame = SimpleNamespace(
        f_locals={"store": Store(), "self": SimpleNamespace(store=Store(), cache={})},
        f_globals={"work": object()},
    )
    assert space["in_store"](frame) is waits


SETTERS = """
def publish(n):
    store.set(f'p/{n}', 'x')
class Teller:
    def __init__(self, store):
        self.store = store
    def tell(self, kind, n):
        self.store.set(f't/{kind}/{n}', 'x')
    def say(self, where, n):
        where.set(str(n), 'x')
teller = Teller(store)
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("store.set('e/' + str(number), 'x')\nask()", "12 e/3"),
        (
            "if number == 9: store.set(f'e/{number}', 'x')\nask()",
            "12 e/3 if number == 9: store.set(f'e/{number}', 'x')",
        ),
        ("if number:\n    store.set('e', 'x')\nask()", "13 e"),
        (
            "if number > 3 or not number:  # rarely\n    store.set('e', 'x')\nask()",
            "13 e if number > 3 or not number:  # rarely",
        ),
        ("if number:\n    pass\nelse:\n    store.set('e', 'x')\nask()", "15 e"),  # not looked at
        ("if words.set:\n    store.set('e', 'x')\nask()", "13 e"),
        ("if number == 3:\n    store.set('e', 'x')\nnumber = 4\nask()", "13 e"),
        ("if number == 9:\n    with words:\n        store.set('e', 'x')\nask()", "14 e if number == 9:"),
        ("for step in range(3):\n    if step == 1:\n        store.set('e', 'x')\nask()", "14 e"),
        (
            "def tell(found):\n    if found:\n        store.set('e', 'x')\ntell(False)\nask()",
            "14 e if found:",
        ),
        ("store.add('count', 1)\nask()", "12 count"),
        ("publish(number)\nask()", "3 p/3"),
        ("publish(number); ask()", "3 p/3"),
        ("for step in range(2):\n    store.set(f's{step}', 'x')\n    ask()", "13 s1"),
        (
            "for step in range(2):\n    ask()\n    store.set(f's{step}', 'x')",
            "14 f's{step}'",
        ),  # it may be another one by then
        ("teller.tell('a', number)\nask()", "8 t/a/3"),
        ("teller.say(store, number + 1)\nask()", "10 4"),
        ("def own(n):\n    store.set(f'o/{n}', 'x')\nown(number)\nask()", "13 o/3"),
        (
            "def main(st):\n    def pub(n):\n        st.set(f'm/{n}', 'x')\n"
            "    pub(number)\n    ask()\nmain(store)",
            "14 m/3",
        ),
        ("words.set('e', 'x')\nask()", ""),  # no store
        ("store.set(make(), 'x')\nask()", "12 make()"),
    ],
)
def test_keys_that_nearby_lines_set_in_a_store_are_reported(
    witness: Callable[..., dict[str, Any]], tmp_path: Path, body: str, message: str
) -> None:
    space = witness({})
    sys.modules["torch._C._distributed_c10d"].Store = Store  # type: ignore[attr-defined]
    script, result = tmp_path / "train.py", []
    script.write_text(f"{SETTERS}{body}\n")
    store = Store(set=lambda *_: None, add=lambda *_: None)
    names = {"store": store, "words": SimpleNamespace(set=lambda *_: None), "make": lambda: "m", "number": 3}
    names["ask"] = lambda: result.append(space["calls_near"](sys._getframe(1)))
    exec(compile(script.read_text(), str(script), "exec"), names)
    keys = [element[1:].replace("\t", " ") for element in result[-1] if element.startswith(f"K{script}:")]
    assert sorted(set(keys)) == ([f"{script}:{message}"] if message else [])


def test_positions_of_asyncio_tasks_and_failures_are_reported(
    witness: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import asyncio\n"
        "async def fill(queue):\n"
        "    raise KeyError('bucket-7')\n"
        "async def train():\n"
        "    queue = asyncio.Queue()\n"
        "    task = asyncio.ensure_future(fill(queue))\n"
        "    asyncio.get_running_loop().call_later(0.01, look)\n"
        "    asyncio.get_running_loop().call_later(0.02, queue.put_nowait, 1)\n"
        "    await queue.get()\n"
    )
    space, result = witness({}), []
    names: dict[str, Any] = {"look": lambda: result.append(space["tasks"]())}
    exec(compile(script.read_text(), str(script), "exec"), names)
    assert space["tasks"]() == {"tasks": []}, "no loop runs"
    asyncio.run(names["train"]())
    (message,) = result
    assert sorted(message["tasks"]) == [f"{script}:3 fill: KeyError: 'bucket-7'", f"{script}:9 train"]


def test_a_key_that_a_call_makes_is_reported_as_its_source(witness: Callable[..., dict[str, Any]]) -> None:
    space = witness({})
    space["line"] = lambda _frame: "store.wait([f'ready/{host(True)}'], timeout)"
    frame = SimpleNamespace(f_globals={}, f_locals={})
    assert space["key_wanted"](frame) == ("", "[f'ready/{host(True)}']")


THREADS = """\
import queue, threading
first, second, met = threading.Lock(), threading.Lock(), threading.Barrier(2)
owned, cond, items = threading.RLock(), threading.Condition(), queue.Queue(1)
def other(outer, inner):
    with outer:
        met.wait()
        with inner:
            pass
def hold(lock):
    lock.acquire()
    met.wait()
    end.wait()
    lock.release()
def fill():
    items.put(1)
    items.put(2)
def begin(*arguments):
    thread = threading.Thread(target=arguments[0], args=arguments[1:], daemon=True)
    thread.start()
    return thread
def circle():
    begin(other, second, first)
    other(first, second)
def itself():
    with first:
        again()
def again():
    with first:
        pass
def of_owner():
    begin(hold, owned)
    met.wait()
    owned.acquire()
def unreleased():
    first.acquire()
    first.acquire()
def joined():
    begin(fill).join()
def reads():
    import socket
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    names["peer"] = "127.0.0.1:%d" % server.getsockname()[1]
    begin(lambda: (end.wait(), server.accept()[0].close()))
    client.makefile("rb").read()
def waits():
    while not end.is_set():
        end.wait()
"""


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("circle", [["lock", "7 other", "7 other", 1], ["lock", "7 other", "7 other", 0]]),
        ("itself", [["lock", "28 again", "26 itself", 0]]),
        ("of_owner", [["lock", "33 of_owner", "12 hold", 1], ["event", "12 hold", "", -1]]),
        ("unreleased", [["lock", "36 unreleased", "", -1]]),
        ("joined", [["join", "38 joined", "16 fill", 1], ["put", "16 fill", "", -1]]),
        ("reads", [["read", "45 reads", "peer", -1]]),
        ("waits", [["event", "48 waits", "", -1]]),
    ],
)
def test_a_thread_that_waits_in_its_process_is_reported_with_the_holder(
    witness: Callable[..., dict[str, Any]], tmp_path: Path, function: str, expected: list[list[Any]]
) -> None:
    space, script = witness({}), tmp_path / "train.py"
    script.write_text(THREADS)
    names: dict[str, Any] = {"end": threading.Event()}
    exec(compile(script.read_text(), str(script), "exec"), names)
    names["names"] = names
    thread = threading.Thread(target=names[function], daemon=True)
    thread.start()
    space["MAIN_THREAD"] = thread.ident

    def placed(place: str) -> str:
        return names.get(place, f"{script}:{place}" if place else "")

    def are_reported() -> bool:
        waits = [[kind, placed(frame), placed(holder), number] for kind, frame, holder, number in expected]
        return space["thread_waits"]() == waits

    until(are_reported, "the waits of the threads", 20.0)
    assert space["loop_around"]() == "not end.is_set()" * (function == "waits")
    names["end"].set()  # threads in a deadlock stay until the interpreter ends


@pytest.mark.parametrize("pair", ["store.get('a'), store.get('b')", "(store.get('a') and store.get('b'))"])
@pytest.mark.parametrize("waits", ["a", "b"])
def test_the_awaited_of_two_keys_in_a_line_is_reported_or_none(
    witness: Callable[..., dict[str, Any]], tmp_path: Path, pair: str, waits: str
) -> None:
    space, script, result = witness({}), tmp_path / "train.py", []
    script.write_text(f"def both(store):\n    if store: return {pair}\n")

    def get(key: str) -> str:
        if key == waits:
            result.append(space["key_wanted"](sys._getframe(1))[0])
        return key

    names: dict[str, Any] = {}
    exec(compile(script.read_text(), str(script), "exec"), names)
    names["both"](Store(get=get))
    assert result == [waits if sys.version_info >= (3, 11) else ""]


CAPTURE_LIBRARY = """
static _Thread_local int mode = -1;
int cuThreadExchangeStreamCaptureMode(int *other) { int old = mode; mode = *other; *other = old; return 0; }
int mode_of_this_thread(void) { return mode; }
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc for a stand-in of libcuda")
def test_a_dump_relaxes_the_capture_mode_of_its_thread_alone_with_a_fake_libcuda(
    witness: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """On an H100 a dump without this ended a capture of a CUDA graph in the rank's main thread."""
    source, library = tmp_path / "cuda.c", tmp_path / "libcuda.so.1"
    source.write_text(CAPTURE_LIBRARY)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    driver = ctypes.CDLL(str(library))
    space = witness({"0": "nccl"}, _dump_nccl_trace_json=dump(entry("0", "nccl:all_reduce", 1)))
    mode_in_dumping_thread: list[int] = []

    def dump_records() -> None:
        space["flight"](1)
        mode_in_dumping_thread.append(driver.mode_of_this_thread())

    thread = threading.Thread(target=dump_records)
    thread.start()
    thread.join(60)
    assert mode_in_dumping_thread == [space["RELAXED"]]
    assert driver.mode_of_this_thread() == -1


def test_a_driver_without_capture_modes_hides_no_records(
    witness: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    space = witness({"0": "nccl"}, _dump_nccl_trace_json=dump(entry("0", "nccl:all_reduce", 1)))
    loaded = Path("/proc/self/maps").read_text()
    name = next(name for name in ("/libc.so", "/libm.so", "/ld-linux") if name in loaded)
    space["CAPTURE_MODES"] = {name: "no_such_function"}
    assert [record["collective_seq_id"] for record in space["flight"](1)] == [1]
