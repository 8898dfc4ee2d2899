import pytest

torch = pytest.importorskip("torch")

import precision  # noqa: E402
from precision import Precision  # noqa: E402

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("mode", "dtype"), [("off", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_products_use_the_requested_precision_and_only_fp16_is_scaled(mode, dtype) -> None:
    requested = Precision(mode, CPU)
    with requested.cast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
    assert requested.scaler().is_enabled() is (mode == "fp16")


@pytest.mark.parametrize(
    ("mode", "flags", "message"),
    [
        ("bf16", "fpu avx512_bf16", ""),
        ("bf16", "fpu avx2", "this processor has no bf16 instructions (avx512_bf16 or amx_bf16)"),
        ("fp16", "fpu avx512_bf16", "this processor has no fp16 instructions (avx512_fp16 or amx_fp16)"),
    ],
)
def test_a_processor_without_the_instructions_is_reported_from_fake_flags(
    tmp_path, mode, flags, message
) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
    assert precision.missing_on_cpu(mode, tmp_path / "cpuinfo") == message
    assert precision.missing_on_cpu(mode, tmp_path / "nothing") == ""


@pytest.mark.parametrize(
    ("mode", "capability", "message"),
    [
        ("bf16", (9, 0), ""),
        ("fp16", (7, 0), ""),
        (
            "bf16",
            (7, 5),
            "--amp bf16 works, but this GPU (compute capability 7.5) has no bf16 units: "
            "it may be slower than off",
        ),
        ("off", (7, 5), ""),
    ],
)
def test_a_gpu_without_the_units_is_reported_from_a_fake_capability(
    monkeypatch, mode, capability, message
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert Precision(mode, torch.device("cuda", 0)).notice() == message
