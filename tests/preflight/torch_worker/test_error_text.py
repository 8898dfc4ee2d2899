"""The laws of short words: what torch said is kept, where in its sources is not."""

from __future__ import annotations

import pytest

from clusterrun.preflight.torch_worker.error_text import chosen, most_telling, of_end, of_error, short

STORE = """The client socket has timed out after 1000ms while trying to connect to (10.0.0.9, 4).
Exception raised from throwTimeoutError at /torch/csrc/socket.cpp:1020 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7febc7525b8d in /lib/libc10.so)

"""
GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:41066"
NCCL = """NCCL error in: ../torch/NCCLUtils.hpp:268, unhandled system error, NCCL version 2.21.5
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:
socketPollConnect: Connect to 10.0.0.9<4> returned 113(No route to host) errno 115(Operation now in progress)
"""
DIED = """n1:77:99 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
[rank0]:[E1120 11:01:15.622444163 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught a timeout: (SeqNum=1)
frame #1: something
"""


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (STORE, "The client socket has timed out after 1000ms while trying to connect to (10.0.0.9, 4)."),
        (GLOO, "Connection closed by peer [10.0.0.2]:41066"),
        ("", ""),
        ("one\x1b[31m\ntwo\nthree\nfour", "one [31m two three"),
        ("x" * 400, "x" * 299 + "…"),
    ],
)
def test_an_error_is_its_first_lines_without_places_and_frames(text, arguments) -> None:
    assert short(text) == arguments


def test_nccls_error_has_its_kind_and_its_last_error() -> None:
    message = short(NCCL)
    assert message == (
        "NCCL 2.21.5: unhandled system error (ncclSystemError) socketPollConnect: Connect to 10.0.0.9<4>"
        " returned 113(No route to host) errno 115(Operation now in progress)"
    )


def test_an_error_without_a_message_is_named_by_its_kind() -> None:
    assert of_error(KeyError()) == "KeyError"


def test_the_reason_of_a_processs_death_is_read_from_its_output() -> None:
    assert of_end(DIED) == "[Rank 0] Watchdog caught a timeout: (SeqNum=1)"


def test_a_process_without_output_has_no_message() -> None:
    assert of_end("") == ""


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            ["", "Connection closed by peer [10.0.0.2]:41066", "CUDA error: out of memory"],
            "CUDA error: out of memory",
        ),
        (["another rank saw a wrong sum", "int64 sum: element 7 is 1"], "int64 sum: element 7 is 1"),
        (
            ["Timed out waiting 4460ms for recv operation to complete", ""],
            "Timed out waiting 4460ms for recv",
        ),
        (
            ["NCCL 2.27.5: remote process exited (ncclRemoteError)", "NCCL 2.27.5: unhandled cuda error"],
            "NCCL 2.27.5: u",
        ),
        ([], ""),
    ],
)
def test_a_rank_that_failed_by_itself_is_reported_before_ranks_that_lost_it(texts, message) -> None:
    assert most_telling(texts).startswith(message)
    assert most_telling(reversed(texts)).startswith(message)


OVER_IB = """n1:9:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
n1:179:179 [0] NCCL INFO Using network IB
n1:179:181 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
n1:179:181 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
"""
OVER_TCP = """n1:1:1 [0] NCCL INFO NET/IB : No device found.
n1:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0> [1]ib0:10.1.0.1<0>
n1:1:1 [0] NCCL INFO Using network Socket
n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
"""
BY_PLUGIN = """n1:1:1 [0] NCCL INFO NET/Plugin: Loaded net plugin AWS Libfabric (v10)
n1:1:1 [0] NCCL INFO Using network AWS Libfabric
n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/AWS Libfabric/0/GDRDMA
"""
NEWER = """n1:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_bond_0:1/RoCE [RO]; OOB bond0:10.0.0.1<0>
n1:1:1 [0] NCCL INFO Initialized NET plugin IB
n1:1:1 [0] NCCL INFO Assigned NET plugin IB to comm
n1:1:1 [0] NCCL INFO Using network IB
"""


WITHOUT_IB = """n1:147:147 [0] NCCL INFO NCCL version 2.26.2+cuda12.8
n1:147:211 [6] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.
n1:147:211 [6] NCCL INFO NET/IB : No device found.
n1:147:211 [6] NCCL INFO NET/IB : Using [RO]; OOB podnet1:10.0.123.96<0>
n1:147:211 [6] NCCL INFO NET/Socket : Using [0]podnet1:10.0.123.96<0>
n1:147:211 [6] NCCL INFO Using network Socket
"""
BRIDGES = """n1:68:69 [1] NCCL INFO NET/Socket : Using [0]eno1:10.0.0.1<0> [1]veth6d1:fe80::8dd%veth6d1<0>
n1:68:69 [1] NCCL INFO Initialized NET plugin Socket
n1:68:69 [1] NCCL INFO Assigned NET plugin Socket to comm
n1:68:69 [1] NCCL INFO Using network Socket
"""
EFA = """n1:5:5 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.16.2
n1:5:5 [0] NCCL INFO Initialized NET plugin Libfabric
n1:5:5 [0] NCCL INFO Assigned NET plugin Libfabric to comm
n1:5:5 [0] NCCL INFO Using network Libfabric
"""
RCCL = """n1:26:29 [5] NCCL INFO NET/IB : Using [0]mlx5_ib0:1/IB [1]mlx5_an0:1/RoCE [RO]; OOB eth0:10.0.0.4<0>
n1:26:29 [5] NCCL INFO Using network IB
"""
IB_FAILED = """n1:86:86 [0] NCCL INFO Failed to initialize NET plugin IB
n1:85:85 [0] NCCL INFO NET/Socket : Using [0]ibp24s0:10.100.9.37<0> [1]ibp41s0:10.100.9.38<0>
n1:85:85 [0] NCCL INFO Initialized NET plugin Socket
n1:86:86 [0] NCCL INFO Assigned NET plugin Socket to comm
n1:86:86 [0] NCCL INFO NET/Socket : GPU Direct RDMA Disabled for HCA 0 'ibp24s0'
"""


REPORTED = [
    (
        "NVIDIA/nccl#1052: 2.18.5",
        "[0] NCCL INFO NET/IB : Using [0]mlx5_4:1/RoCE [RO]; OOB enp24s0np0:10.10.10.1<0>",
        "IB",
        "NET/IB mlx5_4",
    ),
    (
        "NVIDIA/nccl-tests#185: 2.19.3",
        "[0] NCCL INFO NET/IB : Using [0]mlx5_10:1/RoCE [1]mlx5_11:1/RoCE [RO]; OOB enp220s0:11.1.128.1<0>",
        "IB",
        "NET/IB mlx5_10 mlx5_11",
    ),
    (
        "NVIDIA/nccl#1357",
        "[3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO];"
        " OOB ibp25s0:10.20.0.119<0>",
        "IBext",
        "NET/IBext mlx5_0 mlx5_1",
    ),
    (
        "NVIDIA/nccl#1538: 2.22.3",
        "[1] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:172.24.180.73<0>",
        "IBext_v8",
        "NET/IBext_v8 mlx5_0 mlx5_1",
    ),
    (
        "NVIDIA/nccl-tests#373",
        "[0] NCCL INFO NET/IB : Using [0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE}"
        " [1]={[2] mlx5_0:1/RoCE, [3] mlx5_1:1/RoCE} [RO]; OOB bond0.526:169.136.106.9<0>",
        "IBext_v8",
        "NET/IBext_v8 mlx5_2 mlx5_3 mlx5_0 mlx5_1",
    ),
    (
        "NVIDIA/nccl#1597: EFA",
        "[0] NCCL INFO NET/OFI Selected Provider is efa (found 16 nics)",
        "Libfabric",
        "NET/Libfabric",
    ),
]
"""The reporter, NCCL's line about its devices, the network that it uses; the expected reading."""


@pytest.mark.parametrize(
    ("source", "line", "uses", "network"), REPORTED, ids=[entry[0] for entry in REPORTED]
)
def test_the_network_is_read_from_every_form_of_the_line_that_people_reported(
    source, line, uses, network
) -> None:
    assert chosen(f"n1:1:1 {line}\nn1:1:2 [0] NCCL INFO Using network {uses}\n") == network


@pytest.mark.parametrize(
    ("log", "network"),
    [
        (OVER_IB, "NET/IB mlx5_0 mlx5_1 GDRDMA"),
        (OVER_TCP, "NET/Socket eth0 ib0"),
        (BY_PLUGIN, "NET/AWS Libfabric GDRDMA"),
        (NEWER, "NET/IB mlx5_bond_0"),
        (WITHOUT_IB, "NET/Socket podnet1"),
        (BRIDGES, "NET/Socket eno1 veth6d1"),
        (EFA, "NET/Libfabric"),
        (RCCL, "NET/IB mlx5_ib0 mlx5_an0"),
        (IB_FAILED, "NET/Socket ibp24s0 ibp41s0"),
        ("", ""),
        ("n1:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n", ""),
    ],
)
def test_the_network_that_nccl_chose_is_read_from_its_log(log, network) -> None:
    assert chosen(log) == network
