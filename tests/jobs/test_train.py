import json
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import checkpoints  # noqa: E402
from tests.jobs.launch import alone, together  # noqa: E402


def after(directory: Path) -> dict:
    state = checkpoints.newest(directory)
    assert state is not None
    return state


def gradients(directory: Path) -> list:
    """After one step of gradient descent with momentum, the momentum is the gradient."""
    momenta = after(directory)["optimizer"]["state"]
    return [momenta[number]["momentum_buffer"] for number in sorted(momenta)]


@pytest.mark.parametrize("batch", ["64", "3"])
def test_the_gradient_of_a_step_on_4_ranks_is_that_of_1_rank_on_the_same_global_batch(tmp_path, batch):
    options = ("--steps", "1", "--dtype", "float64", "--batch-size", batch, "--checkpoint-dir")
    assert alone("--device", "cpu", *options, str(tmp_path / "1")).returncode == 0
    together(4, *options, str(tmp_path / "4"))
    one, four = gradients(tmp_path / "1"), gradients(tmp_path / "4")
    assert len(one) == len(four) == 8
    for expected, found in zip(one, four, strict=True):
        assert expected.abs().max() > 0
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-14)


def test_a_resumed_run_ends_with_the_very_weights_of_an_uninterrupted_one(tmp_path):
    options = ("--augment", "--batch-size", "400", "--checkpoint-dir")
    together(2, "--steps", "9", *options, str(tmp_path / "whole"))
    together(2, "--steps", "5", *options, str(tmp_path / "halves"))
    printed = together(2, "--steps", "9", "--resume", *options, str(tmp_path / "halves"))
    assert "resuming after step 5\n" in printed[0]
    whole, halves = after(tmp_path / "whole"), after(tmp_path / "halves")
    assert whole["step"] == halves["step"] == 9
    assert all(torch.equal(whole["model"][name], halves["model"][name]) for name in whole["model"])


def test_a_run_on_three_ranks_says_where_it_ran_and_reaches_the_accuracy_of_the_guide():
    printed = together(3, "--epochs", "8")
    lead = re.escape("device cpu, 1 threads, backend gloo")
    for rank, text in enumerate(printed):
        assert re.match(rf"rank {rank} of 3 on \S+: {lead}\n", text)
    assert float(printed[0].rsplit("accuracy ", 1)[1]) > 0.95
    assert [text.count("\n") for text in printed[1:]] == [1, 1]


def test_without_a_launcher_it_trains_alone_and_says_so():
    run = alone("--steps", "2", "--device", "cpu")
    assert (run.returncode, run.stderr) == (0, "")
    assert re.match(r"rank 0 of 1 on \S+: device cpu, 1 threads, backend none\n", run.stdout)
    assert re.search(r"trained 2 steps on 1 ranks in [\d.]+ s\naccuracy 0\.\d{4}\n$", run.stdout)


def test_a_half_set_environment_is_refused_and_the_error_file_tells_the_launcher(tmp_path):
    told = tmp_path / "error.json"
    run = alone(RANK="0", WORLD_SIZE="2", MASTER_ADDR="", TORCHELASTIC_ERROR_FILE=str(told))
    assert run.returncode == 1
    message = json.loads(told.read_text())["message"]["message"]
    assert "but not LOCAL_RANK, MASTER_ADDR, MASTER_PORT" in message


def test_resuming_with_another_order_of_samples_is_refused(tmp_path):
    options = ("--device", "cpu", "--checkpoint-dir", str(tmp_path))
    assert alone("--steps", "1", *options).returncode == 0
    run = alone("--steps", "2", "--resume", "--batch-size", "32", *options)
    assert run.returncode == 1
    assert "made with {'batch_size': 64, 'seed': 0}, this run has {'batch_size': 32, 'seed': 0}" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--resume"], "--resume needs --checkpoint-dir"),
        (["--epochs", "0"], "0 is below 1"),
        (["--device", "tpu"], "invalid choice"),
    ],
)
def test_a_wrong_option_ends_with_code_2_and_a_reason(arguments, said):
    run = alone(*arguments)
    assert run.returncode == 2
    assert said in run.stderr
