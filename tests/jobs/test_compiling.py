import pytest

torch = pytest.importorskip("torch")

import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402

from tests.jobs.launch import TRAIN, outside_a_launcher  # noqa: E402

CODE = """
import sys
import torch
from torch import nn
from compiling import compiled

model = nn.Linear(3, 2)
reason = compiled(model, torch.device("cpu"))
numbers = torch.ones(1, 3)
expected = nn.functional.linear(numbers, model.weight, model.bias)
with torch.no_grad():
    torch.testing.assert_close(model(numbers), expected)
print(reason or "compiled")
"""


def outcome(tmp_path, **environment):
    """Return the answer of `compiled` in a fresh process, before any compilation."""
    surrounding = {
        **outside_a_launcher(),
        "PYTHONPATH": str(TRAIN.parent),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
    }
    run = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**surrounding, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.slow
@pytest.mark.skipif(os.system("c++ --version >/dev/null 2>&1") != 0, reason="no C++ compiler here")
def test_a_model_is_compiled_if_a_compiler_exists(tmp_path) -> None:
    assert outcome(tmp_path) == "compiled\n"


def test_a_missing_compiler_is_reported_and_the_model_works_uncompiled(tmp_path) -> None:
    message = outcome(tmp_path, PATH=str(tmp_path), CXX="/no/such/compiler")
    assert message.startswith("torch.compile does not work here (")
    assert message.endswith("): training continues without it\n")
