import pytest

torch = pytest.importorskip("torch")

import pace  # noqa: E402


def test_the_steps_of_the_warm_up_do_not_count(monkeypatch) -> None:
    wall, cpu = iter([0.0, 10.0, 14.0]), iter([1.0, 2.0, 2.5])
    monkeypatch.setattr(pace.time, "perf_counter", lambda: next(wall))
    monkeypatch.setattr(pace.time, "process_time", lambda: next(cpu))
    run = pace.Pace(torch.device("cpu"), warm_up=2)
    for samples in (7, 7, 100, 100):
        run.stepped(samples)
    run.stop()
    assert run.line("tokens", 64, world=2) == (
        "throughput steps_per_second=0.5000 samples_per_second=50.00 tokens_per_second=3200.00 "
        "steps=2 seconds=4.0000 cpu_seconds=0.5000 world=2"
    )
    assert run.whole == 14.0
