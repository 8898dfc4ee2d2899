"""Checks before queueing: a sure failure is refused, a possible failure is a notice."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from clusterrun import system
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.model.spec import JobSpec
from clusterrun.script import checks
from clusterrun.script.plan import MachineFacts, Plan, plan


def of(tmp_path: Path, *command: str, python: str = sys.executable, setup: tuple[str, ...] = ()) -> Plan:
    spec = JobSpec(command, cwd=str(tmp_path), python=python, setup=setup)
    return plan(spec, "r", "t", "/runs/r", MachineFacts(slurm=True, python=sys.executable))


def old(argv: object, timeout: float) -> system.Completed:
    return system.Completed((), 0, "3 6 False\n", "", 0.0)


def without_torch(argv: object, timeout: float) -> system.Completed:
    return system.Completed((), 0, "3 12 False\n", "", 0.0)


def missing(argv: object, timeout: float) -> system.Completed:
    raise system.ProgramMissing("the program '/x/python' was not found")


def test_visible_faults_are_reported_before_the_queue(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "prog").write_text("#!/bin/sh\n")
    (tmp_path / "conf.yaml").write_text("lr: 1\n")
    results = []
    for command, python, run in (
        ("nowhere.py", sys.executable, old),
        ("folder.py", sys.executable, old),
        ("./prog", sys.executable, old),
        ("conf.yaml", sys.executable, old),
        ("./none", sys.executable, old),
        ("train.py", "/x/python", missing),
        ("train.py", "/x/python", old),
    ):
        with pytest.raises(BadInput) as caught:
            checks.check(of(tmp_path, command, python=python), run)
        results.append(caught.value.seen)
        assert "chmod" in caught.value.remedy or "prog" not in command
        assert "train.py conf.yaml" in caught.value.remedy or "conf" not in command
    assert results == [
        f"there is no script '{tmp_path}/nowhere.py'",
        f"'{tmp_path}/folder.py' is not a file",
        f"'{tmp_path}/prog' is not executable",
        f"'{tmp_path}/conf.yaml' is not executable",
        f"there is no program '{tmp_path}/none'",
        "there is no Python '/x/python' here (the program '/x/python' was not found)",
        "'/x/python' is Python 3.6",
    ]


@pytest.mark.parametrize("value, mark", [
    ("$HOME/cache", "$"), ("/opt/bin:${PATH}", "$"), ("~/hf", "~"), ("/a:~/b", "~"),
    ("5$", ""), ("a~b", ""), ("/usr/bin", ""), ("p$4", ""),
])  # fmt: skip
def test_a_value_that_a_shell_would_expand_is_reported(value: str, mark: str) -> None:
    notices = checks.check_environment(
        JobSpec(("train.py",), cwd="/", environment=(("A", value),)), {"A": "$TYPED"}
    )
    assert [notice.partition(" in its")[0] for notice in notices] == ([f"--env A: {mark}"] if mark else [])


def test_another_python_in_the_first_line_of_an_executable_script_is_reported(tmp_path: Path) -> None:
    script = tmp_path / "t.py"
    for line, mode, is_reported in (
        ("#!/opt/env/bin/python3 -O", 0o755, True),
        ("#!/opt/env/bin/python", 0o644, False),
        ("#!/usr/bin/env python3", 0o755, False),
        (f"#!{os.path.dirname(sys.executable)}/python3", 0o755, False),
    ):
        script.write_text(f"{line}\n")
        script.chmod(mode)
        assert bool(checks.about_first_line(of(tmp_path, "./t.py", python=""), str(script))) == is_reported


@pytest.mark.parametrize("command, is_refused", [
    ("prog", True),
    ("./prog", True),
    ("env FOO=1 ./prog", True),
    ("timeout -k 5 10m ./prog", True),
    ("nohup ./prog", True),
    ("bash ./prog", False),
    ("timeout 10m bash ./prog", False),
    ("nice python ./prog", False),
    ("cat ./prog", False),
])  # fmt: skip
@pytest.mark.parametrize("setup", [(), ("module load x",)])
def test_a_script_that_is_not_executable_is_refused_also_behind_a_wrapper(
    tmp_path: Path, command: str, is_refused: bool, setup: tuple[str, ...]
) -> None:
    (tmp_path / "prog").touch(0o644)
    refusal = ""
    try:
        checks.check(of(tmp_path, *command.split(), setup=setup))
    except BadInput as error:
        refusal = error.remedy
    is_seen = is_refused and not (setup and command == "prog")  # setup lines may put it on PATH
    assert ("chmod u+x" in refusal) is is_seen


@pytest.mark.parametrize("setup", [
    ("export MSG='it", "true"),
    ('export A="$(date',),
    ("cat <<EOF", "x"),
    ("module load \\",),
    ("if true; then", "x=1"),
    ("x=1", "fi"),
    ("f() {", "true"),
])  # fmt: skip
def test_setup_lines_that_would_swallow_later_lines_are_refused(
    tmp_path: Path, setup: tuple[str, ...]
) -> None:
    with pytest.raises(BadInput, match="no complete shell code: "):
        checks.check(of(tmp_path, "true", setup=setup))


@pytest.mark.parametrize("setup", [
    ("export MSG='it is'", "true"),
    ("cat <<EOF", "it's", "EOF"),
    ("if true; then", "x=1", "fi"),
    ("module load \\", "  cuda"),
    ("# it's a comment",),
    (": a{b,c}", "x=${y:-}"),
])  # fmt: skip
def test_setup_lines_that_are_complete_together_are_accepted(tmp_path: Path, setup: tuple[str, ...]) -> None:
    assert checks.check(of(tmp_path, "true", setup=setup)) == ()


def test_conda_activate_needs_a_line_that_defines_conda(tmp_path: Path) -> None:
    def remedy(*setup: str, **environ: str) -> str:
        try:
            checks.check(of(tmp_path, "true", setup=setup), environ=environ)
        except BadInput as refusal:
            return refusal.remedy.partition("--setup ")[2]
        return ""

    assert (
        remedy("cd /", "conda activate x", CONDA_EXE="/c/bin/conda") == "'source /c/etc/profile.d/conda.sh'"
    )
    assert remedy("cd / && micromamba activate x") == """'eval "$(micromamba shell hook --shell bash)"'"""
    for defines in ("source ~/c.sh", ". ~/c.sh", 'eval "$(conda shell.bash hook)"', "module load conda"):
        assert remedy(defines, "conda activate x") == remedy(f"{defines} && conda activate x") == ""
    bashrc = ("source ~/.bashrc", "conda activate x")
    assert remedy(*bashrc, HOME=str(tmp_path)) == ""
    (tmp_path / ".bashrc").write_text("case $- in\n *i*) ;;\n *) return;;\nesac\n")
    with pytest.raises(BadInput, match="bashrc returns early in it"):
        checks.check(of(tmp_path, "true", setup=bashrc), environ={"HOME": str(tmp_path)})
    assert remedy("conda activate x", BASH_ENV="~/c.sh") == remedy("echo conda activate") == ""


def test_a_variable_that_clusterrun_sets_cannot_be_set(tmp_path: Path) -> None:
    def check(name: str) -> None:
        planned = of(tmp_path, "true")
        checks.check(replace(planned, spec=replace(planned.spec, environment=((name, "1"),))))

    check("NCCL_DEBUG")
    for name in ("MASTER_PORT", "RANK", "CLUSTERRUN_RUN_ID"):
        with pytest.raises(BadInput, match=f"--env {name} would have no effect"):
            check(name)
    planned = of(tmp_path, "true")
    port = replace(planned.spec, alone=True, environment=(("MASTER_PORT", "1"),))
    checks.check(replace(planned, spec=port))  # a check dials it
    spec = replace(planned.spec, sbatch=("export=ALL,NCCL_DEBUG=1,MASTER_PORT=1",))
    with pytest.raises(BadInput, match="--sbatch export MASTER_PORT would have no effect"):
        checks.check(replace(planned, spec=spec))


def test_a_script_in_the_setup_lines_folder_is_not_searched(tmp_path: Path) -> None:
    message = "train.py is not in this directory: it must be in the folder that the --setup lines change to"
    assert checks.check(of(tmp_path, "train.py", setup=("cd sub",))) == (message,)
    with pytest.raises(BadInput, match="there is no script"):
        checks.check(of(tmp_path, "train.py", setup=("export A=cdrom",)))


def test_a_script_that_is_a_broken_link_is_reported_with_its_target(tmp_path: Path) -> None:
    (tmp_path / "train.py").symlink_to("/nowhere/train.py")
    with pytest.raises(BadInput, match="is a link to '/nowhere/"):
        checks.check(of(tmp_path, "train.py"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_script_is_reported(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch(0o200)
    with pytest.raises(BadInput, match="cannot be read"):
        checks.check(of(tmp_path, "train.py"))


def test_a_script_that_imports_a_missing_torch_only_gets_a_notice(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\nfrom torch import nn\n")
    (tmp_path / "plain.py").write_text("# import torch\n")
    notice = "/x/python has no torch, and the script imports it: install it there, or see --python, --setup"
    assert checks.check(of(tmp_path, "train.py", python="/x/python"), without_torch) == (notice,)
    assert checks.check(of(tmp_path, "plain.py", python="/x/python"), without_torch) == ()


def test_a_program_that_is_missing_on_this_machine_may_exist_on_the_nodes(tmp_path: Path) -> None:
    message = "'elsewhere' is not on PATH on this machine: is it on the nodes?"
    assert checks.check(of(tmp_path, "elsewhere")) == (message,)


@pytest.mark.parametrize("setup", [(), ("module load cuda",)])
def test_a_missing_batch_script_is_refused_as_a_missing_script_is(
    tmp_path: Path, setup: tuple[str, ...]
) -> None:
    (tmp_path / "train.sbatch").touch()
    for command in (("trian.sbatch",), ("env", "A=1", "trian.sbatch"), ("sub/nofile.sh",)):
        with pytest.raises(BadInput, match="there is no script") as error:
            checks.check(of(tmp_path, *command, setup=setup))
    assert error.value.remedy == "give its path relative to the current directory"
    with pytest.raises(BadInput) as error:
        checks.check(of(tmp_path, "trian.sbatch", setup=setup))
    assert error.value.remedy == "did you mean train.sbatch?"
    assert len(checks.check(of(tmp_path, "nofile.sh", setup=("cd /elsewhere",)))) == 0


def test_conda_run_that_keeps_the_output_back_gets_a_notice(tmp_path: Path) -> None:
    line = ("conda", "run", "-n", "e", "python", "train.py")
    (notice,) = [text for text in checks.check(of(tmp_path, *line)) if "output" in text]
    assert "conda run --no-capture-output -n e python train.py" in notice
    streaming = ("conda", "run", "--live-stream", "python", "train.py")
    assert not [text for text in checks.check(of(tmp_path, *streaming)) if "output" in text]


def test_a_python_of_the_setup_lines_is_not_searched_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert (
        checks.check(of(tmp_path, "train.py", python="/x/python", setup=("module load python",)), missing)
        == ()
    )


def environment(folder: Path, torch: bool) -> str:
    """Make the files of a virtual environment that are read, and return its prefix."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").touch(0o755)
    if torch:
        (folder / "lib/python3.11/site-packages/torch").mkdir(parents=True)
    return str(folder)


@pytest.mark.parametrize(
    "active, torch, torch_here, chosen",
    [
        (("VIRTUAL_ENV",), True, True, "venv"),
        (("CONDA_PREFIX",), True, True, "conda"),
        (("CONDA_PREFIX",), False, False, "conda"),
        (("CONDA_PREFIX",), False, True, ""),
        (("VIRTUAL_ENV",), False, True, "venv"),
        (("VIRTUAL_ENV", "CONDA_PREFIX"), True, True, "venv"),
        ((), True, True, ""),
    ],
)
def test_ranks_use_the_active_environment_but_no_base_without_torch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    active: tuple[str, ...],
    torch: bool,
    torch_here: bool,
    chosen: str,
) -> None:
    prefixes = {
        "VIRTUAL_ENV": environment(tmp_path / "venv", torch),
        "CONDA_PREFIX": environment(tmp_path / "conda", torch),
    }
    monkeypatch.setattr(checks, "_torch_beside_us", lambda: torch_here)
    environ = {name: prefixes[name] for name in active}
    environ["PATH"] = os.pathsep.join([*(f"{prefix}/bin" for prefix in environ.values()), "/usr/bin"])
    python, why, message = checks.ranks_python(environ)
    assert python == (f"{tmp_path}/{chosen}/bin/python" if chosen else sys.executable)
    assert bool(message) == bool(active) and all(word in message and word in why for word in active[:1])


def test_a_conda_environment_that_was_activated_by_name_is_used_without_torch(tmp_path: Path) -> None:
    prefix = environment(tmp_path / "tools", False)
    environ = {"CONDA_PREFIX": prefix, "CONDA_DEFAULT_ENV": "tools", "PATH": f"{prefix}/bin"}
    assert checks.ranks_python(environ)[0] == f"{prefix}/bin/python"


def test_an_environment_is_first_on_the_path_under_any_name_of_its_folder(tmp_path: Path) -> None:
    prefix = environment(tmp_path / "venv", True)
    (tmp_path / "code").mkdir()
    path = f"{tmp_path}/code/../venv/bin"
    assert checks.ranks_python({"VIRTUAL_ENV": prefix, "PATH": path})[0] == f"{path}/python"


def test_an_environment_that_is_not_first_on_the_path_or_is_our_own_changes_nothing(tmp_path: Path) -> None:
    other, first = environment(tmp_path / "other", True), environment(tmp_path / "first", True)
    for environ in (
        {"CONDA_PREFIX": other, "PATH": f"{first}/bin:{other}/bin"},
        {"CONDA_PREFIX": str(tmp_path / "gone"), "PATH": f"{first}/bin"},
        {"VIRTUAL_ENV": sys.prefix, "PATH": f"{sys.prefix}/bin"},
        {"VIRTUAL_ENV": "", "PATH": ""},
        {"PATH": "/bin"},
    ):
        assert checks.ranks_python(environ) == (sys.executable, "the one clusterrun runs in", "")


@pytest.mark.parametrize("setup", [(), ("module load cuda",)])
@pytest.mark.parametrize(
    "command, observed, remedy",
    [
        (("ddp.py --epochs 1",), "this is one word", "clusterrun submit ddp.py --epochs 1"),
        (("ddp.py \\\n --epochs 1",), "this is one word", "clusterrun submit ddp.py --epochs 1"),
        (("cd sub && python x.py",), "this is one word", "clusterrun submit bash -c 'cd sub && python x.py'"),
        (("ddp.py --cfg x.py", "--lr", "a b"), "this is one word", "submit ddp.py --cfg x.py --lr 'a b'"),
        ((".",), "is a folder", "name a Python script"),
        (("./src",), "is a folder", "name a Python script"),
        (("src",), "is a folder", "name a Python script"),
        (("train.ipynb",), "is a notebook", "jupyter nbconvert --to script train.ipynb"),
    ],
)
def test_an_impossible_command_is_refused_with_the_likely_one(
    tmp_path: Path, command: tuple[str, ...], observed: str, remedy: str, setup: tuple[str, ...]
) -> None:
    (tmp_path / "src").mkdir()
    for name in ("ddp.py", "x.py", "train.ipynb"):
        (tmp_path / name).touch()
    with pytest.raises(BadInput) as message:
        checks.check(of(tmp_path, *command, setup=setup))
    assert observed in message.value.seen and remedy in message.value.remedy


@pytest.mark.parametrize("name, meant", [("run.sh", "./run.sh"), ("train", "train.py")])
def test_a_program_in_this_folder_but_not_on_the_path_is_refused(
    tmp_path: Path, name: str, meant: str
) -> None:
    (tmp_path / meant).touch(0o755)
    with pytest.raises(BadInput) as message:
        checks.check(of(tmp_path, name))
    assert message.value.remedy.startswith(f"did you mean {meant}? ")


def test_a_file_with_a_space_in_its_name_is_no_command_line(tmp_path: Path) -> None:
    (tmp_path / "my script.py").write_text("1\n")
    assert checks.check(of(tmp_path, "my script.py")) == ()


@pytest.mark.parametrize(
    "command, text, named",
    [
        (("a.py", "--nodes", "2"), "import torch", ("--nodes",)),
        (("a.py", "--nodes=2", "--lr", "1", "--gpus", "8"), "", ("--nodes", "--gpus")),
        (("a.py", "--nodes", "2"), 'parser.add_argument("--nodes")', ()),
        (("a.py", "--cpus-per-rank", "2"), "def main(cpus_per_rank=1): ...", ()),
        (("a.py", "--lr", "2"), "", ()),
        (("torchrun", "--nodes", "2"), "", ()),
    ],
)
def test_an_option_of_submit_after_a_script_that_does_not_know_it_is_named(
    tmp_path: Path, command: tuple[str, ...], text: str, named: tuple[str, ...]
) -> None:
    (tmp_path / "a.py").write_text(text)
    own = {"--nodes", "--gpus", "--cpus-per-rank"}
    assert checks.misplaced(command, str(tmp_path), own) == named


def test_arguments_that_the_line_of_convert_would_ignore_are_refused(tmp_path: Path) -> None:
    def check(code: str) -> None:
        checks.check(of(tmp_path, "bash", "-c", code, "--steps", "5"))

    for code in ('eval "set -- $ARGUMENTS"\nexec python "$@"', "exec python t.py --seed $SEED"):
        with pytest.raises(BadInput, match="--steps 5"):
            check(code)
    for code in ('exec python t.py "$@"', "exec python t.py $0", "python t.py"):
        check(code)
