import pytest

pytest.importorskip("torch")

import options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--resume", "--resume needs --checkpoint-dir"),
        ("--epochs 0", "0 is below 1"),
        ("--workers -1", "-1 is below 0"),
        ("--device tpu", "invalid choice"),
        ("--strategy pipeline", "invalid choice"),
        ("--batch-size largest", "invalid"),
        ("--model gpt --augment", "--augment moves images, and gpt reads text"),
        ("--amp bf16 --dtype float64", "--amp bf16 computes in 16 bits"),
        ("--ranks 4", "--ranks needs --strategy ddp-spawn"),
        ("--memory-limit 1G", "--batch-size auto"),
        ("--profile 3-", "invalid"),
    ],
)
def test_a_wrong_option_ends_with_code_2_and_a_reason(arguments, message, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        options.parse(arguments.split())
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "traced"),
    [("", []), ("--profile", [0]), ("--profile 1-2", [1, 2]), ("--profile all", [0, 1, 2])],
)
def test_the_ranks_to_trace(arguments, traced) -> None:
    chosen = options.parse(arguments.split()).profile
    assert [rank for rank in range(3) if rank in chosen] == traced


def test_options_list_the_existing_names() -> None:
    import precision
    import strategies
    import tasks

    assert strategies.STRATEGIES == options.STRATEGIES
    assert tuple(tasks.TASKS) == options.MODELS
    assert precision.MODES == options.AMP
