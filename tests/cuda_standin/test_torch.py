"""torch believes in the GPUs: devices, memory, streams, models and their errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

THREE_GIB = 3 << 30


def run(code: str, **variables: str) -> str:
    environment = {**os.environ, **variables}
    process = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def test_the_gpus_of_the_node_are_h100s() -> None:
    properties = torch.cuda.get_device_properties(1)
    assert torch.cuda.is_available()
    assert (torch.cuda.device_count(), properties.name) == (2, "NVIDIA H100 80GB HBM3")
    assert (properties.total_memory, torch.cuda.get_device_capability(1)) == (4 << 30, (9, 0))


@pytest.mark.parametrize(("visible", "count"), [("1", 1), ("1,0", 2), ("", 0), ("0,7,1", 1)])
def test_only_visible_gpus_are_counted(visible: str, count: int) -> None:
    counted = run("import torch; print(torch.cuda.device_count())", CUDA_VISIBLE_DEVICES=visible)
    assert counted == str(count)


def test_tensors_compute_the_same_on_the_gpu_and_on_the_cpu() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(50, 30, generator=generator)
    on_gpu = rows.cuda()
    for compute in (
        lambda x: x @ x.t(),
        lambda x: x.softmax(1).log(),
        lambda x: x.t()[1:].mul_(2).sum(0),
        lambda x: torch.cat([x, x.abs()]).sort(1).values,
        lambda x: x[x > 0].cumsum(0),
        lambda x: torch.nn.functional.conv1d(x[None], torch.ones(4, 50, 3, device=x.device)),
        lambda x: torch.linalg.norm(x.double()),
    ):
        expected, result = compute(rows.clone()), compute(on_gpu.clone())
        assert result.device.type == "cuda"
        torch.testing.assert_close(result.cpu(), expected)


def test_a_result_is_resized_and_a_tensor_moves_between_gpus() -> None:
    result = torch.empty(0, device="cuda")
    torch.add(torch.ones(3, device="cuda"), 1, out=result)
    assert result.to("cuda:1").cpu().tolist() == [2, 2, 2]


def test_a_model_trains_with_mixed_precision() -> None:
    torch.manual_seed(0)
    layers = [
        torch.nn.Conv2d(1, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(144, 3),
    ]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")
    images, classes = torch.randn(16, 1, 8, 8, device="cuda"), torch.arange(16, device="cuda") % 3
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = torch.nn.functional.cross_entropy(model(images), classes)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_attention_trains() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True).cuda()
    result = layer(torch.randn(2, 5, 16, device="cuda"))
    result.sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_the_state_of_the_random_numbers_is_saved_and_restored() -> None:
    torch.cuda.manual_seed(3)
    state = torch.cuda.get_rng_state()
    first, second = torch.randn(3, device="cuda"), torch.randn(3, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.randn(3, device="cuda").tolist() == first.tolist() != second.tolist()


def test_a_full_gpu_is_out_of_memory() -> None:
    message = r"Tried to allocate 5\.00 GiB. GPU 0 has a total capacity of 4\.00 GiB"
    with pytest.raises(torch.OutOfMemoryError, match=message):
        torch.empty(5 << 30, dtype=torch.uint8, device="cuda")


def test_memory_of_another_process_counts() -> None:
    keep = "import torch; x = torch.empty(3 << 30, dtype=torch.uint8, device='cuda:1')"
    keep += "; print(flush=True); input()"
    command = [sys.executable, "-c", keep]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        free, total = torch.cuda.mem_get_info(1)
        other.communicate("\n", timeout=60)
    assert total - free >= THREE_GIB
    assert torch.cuda.mem_get_info(1)[0] > free


def test_a_child_that_was_forked_after_cuda_started_cannot_use_it() -> None:
    code = """
import os, torch
torch.cuda.init()
if os.fork() == 0:
    try:
        torch.ones(1, device="cuda")
    except RuntimeError as error:
        print(error)
    os._exit(0)
os.wait()
"""
    assert "Cannot re-initialize CUDA in forked subprocess" in run(code)


def test_events_measure_a_stream() -> None:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    torch.ones(300, 300, device="cuda") @ torch.ones(300, 300, device="cuda")
    last.record()
    torch.cuda.synchronize()
    assert last.query()
    assert first.elapsed_time(last) > 0


def test_a_tensor_is_shared_with_another_process(tmp_path: Path) -> None:
    code = """
import torch, torch.multiprocessing as mp
def change(queue, done):
    tensor = queue.get()
    tensor += 1
    done.set()
    queue.get()
if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue, done = context.Queue(), context.Event()
    child = context.Process(target=change, args=(queue, done))
    child.start()
    tensor = torch.zeros(3, device="cuda")
    queue.put(tensor)
    done.wait(120)
    print(tensor.tolist())
    queue.put(None)
    child.join()
"""
    script = tmp_path / "share.py"
    script.write_text(code)
    process = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240)
    assert process.stdout.strip() == "[1.0, 1.0, 1.0]", process.stderr


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("gpu-busy@gpu0", "CUDA-capable device(s) is/are busy or unavailable"),
        ("fabric-not-ready", "system not yet initialized"),
        ("ecc@gpu0", "uncorrectable ECC error encountered"),
        ("illegal-address", "an illegal memory access was encountered"),
    ],
)
def test_a_gpu_fault_has_cudas_error_message(fault: str, message: str) -> None:
    code = """
import torch
try:
    torch.ones(3).cuda().sum().item()
except RuntimeError as error:
    print(error)
"""
    assert message in run(code, CUDA_STANDIN_FAULTS=fault)
    assert message not in run(code, CUDA_STANDIN_FAULTS=f"{fault.split('@')[0]}@another-host")
