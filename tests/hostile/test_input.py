"""Bad input is answered before anything is queued: what was seen, what to do, the right exit code."""

from __future__ import annotations

import pytest

from tests.hostile.conftest import Person


def refused(person: Person, code: int, *arguments: str) -> str:
    """Return the error of a refused submission. It has a remedy and leaves no run."""
    (person.folder / "x.py").write_text("")
    (person.folder / "folder.py").mkdir(exist_ok=True)
    cluster = "slurm" if person.lab else "local"
    result = person.types("submit", "--cluster", cluster, *arguments)
    assert (result.code, result.out) == (code, ""), result
    _, error, remedy = ("\n" + result.err).partition("\nerror: ")
    assert error and len(remedy.splitlines()) > 1, result.err
    assert list(person.home.glob("runs/*")) == []
    return result.err


@pytest.mark.parametrize("arguments, message", [
    (["folder.py"], "is not a file"),
    (["--nodes", "-1", "x.py"], "--nodes must be at least 1, not -1"),
    (["--nodes", "99999999", "x.py"], "too many for this machine"),
    (["--ranks-per-node", "0", "x.py"], "--ranks-per-node must be at least 1, not 0"),
    (["--gpus", "2", "--ranks-per-node", "3", "x.py"], "every GPU has one rank"),
    (["--numa-binding", "node", "x.py"], "--numa-binding without --gpus"),
    (["--numa-binding", "near", "--gpus", "2", "x.py"], "'near' is not one of"),
    (["--max-restarts", "-1", "x.py"], "--max-restarts must be at least 0, not -1"),
    (["--time", "-5", "x.py"], "is not a duration"),
    (["--env", "=x", "x.py"], "not the name of a variable"),
    (["--env", "A;B=x", "x.py"], "not the name of a variable"),
    (["--env", "1A=x", "x.py"], "not the name of a variable"),
    (["--python", "/bin/true", "x.py"], "is not a Python"),
    (["-m"], "-m needs a module"),
    (["./program"], "there is no program"),
    (["program-that-is-not-here"], "there is no program"),
])  # fmt: skip
def test_wrong_input_is_refused_before_anything_is_written(
    person: Person, arguments: list[str], message: str
) -> None:
    assert message in refused(person, 2, *arguments)


@pytest.mark.lab
@pytest.mark.parametrize("arguments, message", [
    (["--gpus", "9"], "4 nodes, up to 8 GPUs"),
    (["--partition", "debgu"], "did you mean 'debug'?"),
    (["--mem", "9999G"], "--gpus, --cpus-per-rank or --mem"),
    (["--nodelist", "n0099"], "sinfo -N"),
    (["--constraint", "fast"], "sinfo -o"),
    (["--reservation", "mine"], "scontrol show reservation"),
    (["--sbatch", "nonsense"], "man sbatch"),
])  # fmt: skip
def test_a_refusal_of_slurm_is_shown_with_the_sites_offer(
    user: Person, arguments: list[str], message: str
) -> None:
    local = "--gpus" in arguments  # known without asking Slurm for the job
    answer = refused(user, 2 if local else 4, *arguments, "x.py")
    assert (local or "Slurm refused the job: " in answer) and message in answer
    assert user.lab and user.lab.exec(["squeue", "-h"]).out == ""


@pytest.mark.lab
def test_a_controller_that_is_down_is_an_error_and_no_reason_to_run_elsewhere(user: Person) -> None:
    assert user.lab
    user.lab.fault("controller")
    assert "nothing was queued" in refused(user, 4, "x.py")
    user.lab.heal()
