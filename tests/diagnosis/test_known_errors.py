"""Messages as they are really printed, and what is made of them."""

from __future__ import annotations

import re

import pytest

from clusterrun.diagnosis.known_errors import ROWS, meaning
from clusterrun.diagnosis.verdict import Verdict

GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "


@pytest.mark.parametrize(
    ("line", "verdict", "word"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            Verdict.OUT_OF_MEMORY,
            "a GPU ran out of memory",
        ),
        (
            "RuntimeError: CUDA error: device-side assert triggered",  # recorded on an H100
            Verdict.CRASHED,
            "a kernel failed on the GPU",
        ),
        (
            "AcceleratorError: CUDA error: operation not permitted when stream is capturing",  # as above
            Verdict.CRASHED,
            "a CUDA graph was captured",
        ),
        (
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60",  # as above
            Verdict.CRASHED,
            "two ranks use the same GPU",
        ),
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
            Verdict.CRASHED,
            "NVSwitch fabric is not ready",
        ),
        (
            "NCCL WARN MNNVL: fabric handles are not supported, IMEX is not running",
            Verdict.CRASHED,
            "IMEX, is not running",
        ),
        (
            "RuntimeError: RESOURCE_EXHAUSTED: Attempting to reserve 14.81G at the bottom of memory.",
            Verdict.OUT_OF_MEMORY,
            "a GPU ran out",
        ),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_90'", Verdict.CRASHED, "compiled"),
        (
            "TypeError: unsupported operand type(s) for |: 'type' and 'NoneType'",
            Verdict.CRASHED,
            "no valid Python",
        ),
        ("srun: error: n1: task 4: Illegal instruction (core dumped)", Verdict.CRASHED, "newer CPU"),
        ("PIL.UnidentifiedImageError: cannot identify image file 'a.jpg'", Verdict.CRASHED, "a file is cut"),
        *(
            (line, Verdict.CRASHED, "a file is cut")
            for line in (
                "tarfile.ReadError: unexpected end of data",
                "ValueError: ('unexpected end of data', <class 'tarfile.ReadError'>)",
                "pyarrow.lib.ArrowInvalid: Parquet magic bytes not found in footer. The file is corrupted",
                "OSError: Corrupt snappy compressed data.",
                "EOFError: Compressed file ended before the end-of-stream marker was reached",
                "gzip.BadGzipFile: Not a gzipped file (b've')",
                "OSError: Unable to synchronously open file (file signature not found)",
                "EOFError: Ran out of input",
                "RuntimeError: unexpected EOF, expected 10240 more bytes. The file might be corrupted.",
                "soundfile.LibsndfileError: Error opening '/d/a.flac': Format not recognised.",
            )
        ),
        ("json.decoder.JSONDecodeError: Expecting value: line 1 column 1", Verdict.CRASHED, "no valid JSON"),
        (
            "pyarrow.lib.ArrowInvalid: JSON parse error: Missing a name. in row 3",
            Verdict.CRASHED,
            "no valid JSON",
        ),
        ("init.cc:412 NCCL WARN Cuda failure 2 'out of memory'", Verdict.OUT_OF_MEMORY, "a GPU ran out"),
        ("torch.OutOfMemoryError: HIP out of memory. Tried", Verdict.OUT_OF_MEMORY, "a GPU ran out"),
        ("Failed to initialize NVML: Driver/library version mismatch", Verdict.CRASHED, "driver was updated"),
        ("# Out of bounds values : 12 FAILED", Verdict.CRASHED, "changes data"),
        ("NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory", Verdict.CRASHED, "NVSwitch"),
        ("NCCL WARN Detected mixed local Net device counts", Verdict.CRASHED, "network adapters"),
        (
            "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            Verdict.CRASHED,
            "exclusive mode",
        ),
        (
            "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment",
            Verdict.CRASHED,
            "nvidia-uvm",
        ),
        (
            "Memory access fault by GPU node-2 (Agent handle: 0x1)",
            Verdict.CRASHED,
            "a kernel failed on the GPU",
        ),
        ("RuntimeError: HIP error: an illegal memory access", Verdict.CRASHED, "a kernel failed on the GPU"),
        ("NCCL WARN HIP failure: 'out of memory'", Verdict.OUT_OF_MEMORY, "a GPU ran out"),
        ("[FATAL ERROR]: HIP failure: 'invalid device pointer'", Verdict.CRASHED, "a kernel failed"),
        (
            "misc/shmutils.cc:112 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-KWfVyt",
            Verdict.CRASHED,
            "a call of NCCL failed",
        ),
        (
            "init.cc:263 NCCL WARN Cuda failure 'initialization error'",
            Verdict.CRASHED,
            "before it was forked",
        ),
        ("RuntimeError: No HIP GPUs are available", Verdict.CRASHED, "sees no GPU"),
        (
            "srun: error: Unable to create step for job 6: More processors requested than permitted",
            Verdict.CRASHED,
            "than its job has",
        ),
        (
            "NCCL WARN NET/IB: Got completion from peer 10.0.0.1<5> with status=IBV_WC_RETRY_EXC_ERR(12) "
            "opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Send hca mlx5_5",
            Verdict.LINK,
            "does not deliver",
        ),
        (
            "NCCL WARN NET/IB: Got completion from peer 10.0.0.1<4> with status=IBV_WC_REM_ACCESS_ERR(10)",
            Verdict.LINK,
            "GPUDirect RDMA",
        ),
        (
            "NCCL WARN NET/IB: x:1 async fatal event on QP: local access violation",
            Verdict.LINK,
            "failed while ranks",
        ),
        ("RuntimeError: HIP error: invalid device function", Verdict.CRASHED, "not built for this model"),
        (
            "p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 peer access is not supported",
            Verdict.CRASHED,
            "cannot use each other's memory",
        ),
        ("NCCL WARN Cuda failure 800 'operation not permitted'", Verdict.CRASHED, "IMEX"),
        ("NCCL WARN NET/OFI Unable to find a protocol", Verdict.CRASHED, "aws-ofi-nccl"),
        (
            "NCCL WARN NET/IB : mlx5_3:1 Got async event : port error",
            Verdict.LINK,
            "failed while ranks used it",
        ),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory",
            Verdict.OUT_OF_MEMORY,
            "no more of the machine's memory",
        ),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=4.0.",
            Verdict.OUT_OF_MEMORY,
            "ended a process because memory ran out",
        ),
        (
            "RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error.",
            Verdict.OUT_OF_MEMORY,
            "shared memory (/dev/shm) is full",
        ),
        (
            "RuntimeError: DataLoader worker (pid 71) is killed by signal: Killed. ",
            Verdict.CRASHED,
            "a worker of the data-loader was killed",
        ),
        ("needs 8 GPUs, found 0", Verdict.ALONE, "too few GPUs"),
        ("EOFError: EOF when reading a line", Verdict.CRASHED, "ranks have none"),
        ("bdb.BdbQuit", Verdict.CRASHED, "ranks have none"),
        (
            "RuntimeError: [enforce fail at inline_container.cc:778] . PytorchStreamWriter failed writing "
            "file data/17: file write failed",
            Verdict.CRASHED,
            "torch could not write a file",
        ),
        (
            "misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-abc to 9637892 bytes "
            "(No space left on device)",
            Verdict.OUT_OF_MEMORY,
            "shared memory (/dev/shm) is full",
        ),
        (
            "  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 1000 vs 4.",
            Verdict.MISMATCH,
            "different size or type",
        ),
        (
            "RuntimeError: Rank 1 has 3 params, while rank 0 has inconsistent 4 params.",
            Verdict.MISMATCH,
            "models differ",
        ),
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying "
            "to connect to (n0001, 29500).",
            Verdict.NEVER_ARRIVED,
            "ranks did not meet",
        ),
        (
            "[rank3]:[E1120 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=12, OpType=ALLREDUCE)",
            Verdict.NEVER_ARRIVED,
            "did not join",
        ),
        (
            "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, "
            "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            Verdict.CRASHED,
            "a port is taken",
        ),
        ("ModuleNotFoundError: No module named 'apex'", Verdict.CRASHED, "a package is missing"),
        (
            "ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by x.so)",
            Verdict.CRASHED,
            "built for a newer system",
        ),
        ("RuntimeError: CUDA error: invalid device ordinal", Verdict.CRASHED, "does not see"),
        (
            "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
            Verdict.CRASHED,
            "this rank sees no GPU",
        ),
        (
            "ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
            Verdict.CRASHED,
            "two ranks use the same GPU",
        ),
        (
            "transport/net_ib.cc:94 NCCL WARN NET/IB : Got completion from peer 10.0.0.3<42> with status=12",
            Verdict.LINK,
            "RDMA path does not deliver",
        ),
        (
            "bootstrap.cc NCCL WARN Bootstrap : no socket interface found",
            Verdict.CRASHED,
            "NCCL_SOCKET_IFNAME",
        ),
        ("Unable to locate sufficient 2 gpus to run this example. Exiting.", Verdict.ALONE, "too few GPUs"),
        (
            "RuntimeError: unable to write to file </torch_47_10039>: No space left on device (28)",
            Verdict.OUT_OF_MEMORY,
            "/dev/shm",
        ),
        (
            "python: can't open file '/var/spool/slurmd/job7/fit.py': [Errno 2] No such file or directory",
            Verdict.CRASHED,
            "runs a copy of it",
        ),
        ("_pickle.UnpicklingError: Weights only load failed. This file", Verdict.CRASHED, "torch 2.6"),
        ("fit.py: error: unrecognized arguments: --local-rank=3", Verdict.CRASHED, "passes --local-rank"),
        ("RuntimeError: Permission denied", Verdict.CRASHED, "below 1024"),
        ("RuntimeError: Distributed package doesn't have NCCL built in", Verdict.CRASHED, "has no NCCL"),
        ("RuntimeError: unable to open shared memory object </torch_3>", Verdict.CRASHED, "open files"),
        ("NET/OFI Unable to register memory: Cannot allocate memory", Verdict.CRASHED, "locked memory"),
    ],
)
def test_a_known_message_has_a_cause_and_a_remedy(line: str, verdict: Verdict, word: str) -> None:
    row = meaning(line)
    assert row is not None
    assert (row.verdict, row.consequence) == (verdict, False)
    assert word in row.cause
    assert row.remedy


@pytest.mark.parametrize(
    "line",
    [
        GLOO + "Connection closed by peer [127.0.0.1]:54462.",
        GLOO + "Read error [127.0.0.1]:8109: Connection reset by peer. This is typically caused by",
        "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error",
        "NCCL WARN NET/IB : Got completion from peer 10.0.0.1<4> with status=5 opcode=1 len=1 vendor err 249",
        "socketPollConnect: Connect to 10.0.0.4<56849> returned 113(No route to host) errno 115",
        "socketPollConnect: connect to 10.0.0.2<5> returned Connection refused, exceeded error retry count",
        "torch.distributed.DistBackendError: NCCL error in: x, remote process exited",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
    ],
)
def test_an_observer_differs_from_a_failed_rank(line: str) -> None:
    row = meaning(line)
    assert row is not None
    assert row.consequence


@pytest.mark.parametrize(
    "line", ["step 3 loss 0.25", "", "epoch 1: 100%|####| 10/10", "saved checkpoint to /x/y"]
)
def test_ordinary_output_is_no_error(line: str) -> None:
    assert meaning(line) is None


def test_every_row_is_complete() -> None:
    for row in ROWS:
        re.compile(row.pattern)
        assert row.cause, row.pattern
        assert row.remedy, row.pattern
        assert not row.cause.endswith("."), row.pattern
