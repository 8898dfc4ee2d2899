"""The training room on several gloo ranks: started once, each case after the other; prints what was found."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 600
SETTLED = 40
"""Calls after which all ranks have long agreed."""


def several(size: int, folder: str) -> list[dict]:
    """Start ``size`` ranks on this machine and return the result of each."""
    return [json.loads(out.splitlines()[-1]) for out in finished(size, __file__, folder)]


def finished(size: int, script: str, *arguments: str, cwd: Path = ROOT, **environment: str) -> list[str]:
    """Run the script on ``size`` ranks and return their output. All must exit with 0."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    shared = {"WORLD_SIZE": size, "MASTER_PORT": store.port, **environment}
    command = [sys.executable, script, *arguments]
    ranks = [start(command, cwd, {"RANK": rank, "LOCAL_RANK": rank, **shared}) for rank in range(size)]
    try:
        printed = [rank.communicate(timeout=LIMIT) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * size, "\n".join(err for _, err in printed)
    return [out for out, _ in printed]


def start(command: list[str], cwd: Path, placed: dict[str, object]) -> subprocess.Popen[str]:
    """Start one rank with torchrun's variables."""
    every = {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": 1}
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("CLUSTERRUN_", "TORCH"))
    }
    placed = {**every, "PYTHONPATH": ROOT, **placed}
    return subprocess.Popen(
        command,
        cwd=cwd,
        env={**clean, **{name: str(value) for name, value in placed.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def found() -> dict[str, object]:
    """Run all cases on this rank."""
    import torch
    import torch.distributed as dist

    from clusterrun.training import Checkpoints, latest_checkpoint, save_now, script, should_stop

    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    cases: dict[str, object] = {}

    def refusal(action: Callable[[], object]) -> tuple[str, str]:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - what kind it is, is what is asked
            return type(error).__name__, str(error)
        return "", ""

    def on_rank_0(name: str) -> Path:
        """Return a folder that only rank 0 sees, as without a shared file system."""
        return folder / name if rank == 0 else Path("/nowhere") / name

    retained = Checkpoints(folder / "saved")
    saved = [
        retained.save({"weights": torch.arange(step + 1)} if rank == 0 else None, step) for step in (1, 2)
    ]
    cases["saved"] = [*saved, {name: each.tolist() for name, each in retained.latest().items()}]

    retained = Checkpoints(on_rank_0("sent"))
    retained.save({"weights": torch.tensor([5])}, 1)
    cases["sent"] = {name: each.tolist() for name, each in retained.latest().items()}

    real = os.fsync

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    os.fsync = full
    cases["full"] = Checkpoints(on_rank_0("full")).save(1, 1)
    os.fsync = real

    (folder / "file").touch()
    cases["unwritable"] = refusal(lambda: Checkpoints(on_rank_0("file")).save(1, 1))
    cases["unpicklable"] = refusal(lambda: Checkpoints(folder / "unpicklable").save(lambda: None, 1))

    retained = Checkpoints(on_rank_0("newest"))
    retained.save(1, 1)
    retained.save(2, 2)
    if rank == 0:
        (damaged,) = (folder / "newest").glob("step-000000002.*")
        damaged.write_bytes(b"half")
    dist.barrier()
    cases["newest"] = latest_checkpoint(on_rank_0("newest"))

    stopped, requested = None, []
    for step in range(SETTLED):
        if step == 5 and rank == 1:
            os.kill(os.getpid(), signal.SIGUSR2)
        if save_now():
            requested.append(step)
        if should_stop() and stopped is None:
            stopped = step
    cases["signal"] = [stopped, requested]

    run = folder / "run"
    if rank == 0:
        (run / "attempts" / "000").mkdir(parents=True)
        (run / "attempts" / "000" / "notice.json").touch()
    os.environ["CLUSTERRUN_RUN_DIR"] = str(run) if rank == 0 else "/nowhere"
    dist.barrier()
    script._current.clear()
    cases["notice"] = should_stop()

    if rank == 0:
        (run / "attempts" / "001").mkdir()
    cases["old"] = refusal(lambda: Checkpoints(folder / "old").save(1, 1))
    return cases


def main() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    cases = found()
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(cases))


if __name__ == "__main__":
    main()
