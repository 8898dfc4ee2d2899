"""The source of a rank shows the function of MPI that it waits in, and the ranks that the call names."""

from __future__ import annotations

import ast

import pytest

from clusterrun.diagnosis.evidence import MainCall, PostedOp
from clusterrun.monitor.mpi_lines import mpi_call
from clusterrun.monitor.script_lines import ScriptFrame

SCRIPT = """\
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.size
HALO, LOSS = 7, 5
right = (rank + 1) % size
"""


def call_of(
    line: str, script: str = SCRIPT, other_file: str = "", **values: object
) -> tuple[tuple[str, ...], MainCall]:
    """Return the call of rank 1 among 4 in the last line of a script."""
    source = script + line
    number = source.count("\n") + 1
    inner = ScriptFrame(f"/me/train.py:{number} <module>", ast.parse(source), values)
    return mpi_call([inner, ScriptFrame("/me/main.py:1 <module>", ast.parse(other_file), {})], 1, 4)


@pytest.mark.parametrize(
    ("line", "functions"),
    [
        ("sizes = comm.allgather(x.numel())", ("MPI_Allgather",)),
        ("comm.Bcast(x, root=0)", ("MPI_Bcast",)),
        ("row = comm.Split(color=0, key=rank)", ("MPI_Comm_split",)),
        ("window = MPI.Win.Create(memory)", ()),
        ("words = text.split()", ()),
        ("comm.send(comm.recv(source=1), dest=2)", ()),
        ("put = comm.ssend if is_large else comm.send\nput(x, dest=2)", ("MPI_Send",)),
        ("put = comm.recv if is_last else comm.send\nput(x)", ()),
        ("for put in (comm.send, comm.recv):\n    put(x)", ()),
        ("x.mean()", ()),
    ],
)
def test_the_function_of_mpi_that_a_line_calls_is_named(line: str, functions: tuple[str, ...]) -> None:
    assert call_of(line)[0] == functions


@pytest.mark.parametrize(
    ("line", "name", "peer", "tag"),
    [
        ("x = comm.recv(source=right, tag=HALO)", "recv", 2, 7),
        ("comm.Recv([x, MPI.DOUBLE], comm.rank - 1)", "recv", 0, -1),
        ("x = table\ncomm.recv(source=x.size - 1)", "recv", -1, -1),
        ("comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG)", "recv", -1, -1),
        ("comm.Probe(3, LOSS)", "recv", 3, 5),
        ("comm.ssend(x, dest=peer, tag=step)", "send", 3, 9),
        ("comm.Send(x, rank ^ 1)", "send", 0, 0),
        ("put = comm.Ssend\nput(x, dest=right)", "send", 2, 0),
        ("comm.Send(x, other)", "send", -1, 0),
        ("comm.send(*message)", "send", -1, -1),
        ("request = comm.Isend(x, dest=right)\nrequest.Wait()", "send", 2, 0),
    ],
)
def test_the_peer_of_a_send_is_known_if_variables_show_it(line: str, name: str, peer: int, tag: int) -> None:
    call = call_of(line, peer=3, step=9)[1]
    assert (call.name, call.peer, call.tag, call.is_of_all) == (name, peer, tag, False)


def test_a_sendrecv_has_two_peers() -> None:
    call = call_of("comm.sendrecv(x, dest=right, source=rank - 1)")[1]
    assert (call.name, call.posts) == ("wait", (PostedOp("send", 2), PostedOp("recv", 0)))


@pytest.mark.parametrize(
    ("line", "rooted", "root"),
    [
        ("comm.Barrier()", "", -1),
        ("comm.bcast(x)", "MPI_Bcast", 0),
        ("comm.Reduce(x, y, MPI.SUM, right)", "MPI_Reduce", 2),
        ("comm.gather(x, root=other)", "MPI_Gather", -1),
    ],
)
def test_a_collective_of_all_ranks_shows_its_root(line: str, rooted: str, root: int) -> None:
    call = call_of(line)[1]
    assert (call.is_of_all, call.rooted, call.root) == (True, rooted, root)


ROWS = "row = comm.Split(rank // 2)\n"
METHOD = """\
class Trainer:
    def __init__(self, comm):
        self.comm = comm

    def step(self, comm):
        """


@pytest.mark.parametrize(
    ("line", "script", "other_file", "group"),
    [
        ("row.Barrier()", SCRIPT + ROWS, "", "row"),
        ("comm.Barrier()", SCRIPT + ROWS, "", ""),
        ("MPI.COMM_WORLD.Barrier()", ROWS, "", ""),
        ("self.comm.Barrier()", METHOD, SCRIPT, ""),
        ("comm.Barrier()", METHOD, SCRIPT, ""),
        ("self.comm.Barrier()", METHOD, SCRIPT + ROWS, "self.comm"),
        ("topology.comm.Barrier()", SCRIPT, "", "topology.comm"),
        ("comm.Barrier()", "from topology import comm\n", SCRIPT, "comm"),
        ("MPI.Finalize()", "", "", ""),
    ],
)
def test_a_communicator_has_all_ranks_if_the_files_make_no_other(
    line: str, script: str, other_file: str, group: str
) -> None:
    call = call_of(line, script, other_file)[1]
    assert (call.group, call.is_of_all) == (group, not group)


@pytest.mark.parametrize("line", ["comm.scan(x)", "request = first or second\nrequest.wait()"])
def test_a_call_that_ranks_leave_one_after_another_is_not_of_all(line: str) -> None:
    assert not call_of(line)[1].is_of_all
