"""Mistakes in COMMAND are refused before the run is queued; what a node may provide is warned of at most."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterrun import system
from clusterrun.model.errors import BadInput
from clusterrun.model.spec import JobSpec
from clusterrun.script.command_words import check_files, check_words, near_file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a project and change into it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg/part").mkdir(parents=True)
    (tmp_path / "part").mkdir()
    files = {
        "train.py": "print(1)\n",
        "dos.py": "print(1)\r\n",
        "wrong.py": "x = 1\ndef f(:\n    pass\n",
        "escape.py": 'print("\\d")\n',
        "new.py": "match 3:\n    case 3:\n        print(3)\n",
        "pkg/__init__.py": "",
        "pkg/__main__.py": "",
        "pkg/train.py": "def f(:\n",
        "pkg/part/__init__.py": "",
        "part/__init__.py": "",
        "open.sh": "#!/bin/bash\nif true; then\n",
        "extended.sh": "#!/bin/bash\nshopt -s extglob\nls !(a|b)\n",
        "payload.sh": "#!/bin/bash\ntail -n +4 $0 | base64 -d\nexit\n(\n",
        "dos.sh": "#!/bin/bash\r\necho hello\r\n",
        "mixed.sh": "#!/bin/bash\ncat <<END\nHTTP/1.1 200 OK\r\n\r\nEND\necho a\necho b\n",
        "run.sh": "#!/bin/bash\necho 'a\r'\n",
        "nowhere": "#!/no/such/shell\n",
        "no_first_line": "echo hello\n",
        "empty": "",
        "binary": "\x7fELF\0\r\n",
        "null.py": "x = 1\ny = '\0'\n",
    }
    contents = {name: text.encode() for name, text in files.items()} | {
        "utf16.py": "x = 1\n".encode("utf-16")
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def spec(folder: Path, typed: str, **wish: Any) -> JobSpec:
    return JobSpec(tuple(shlex.split(typed)), str(folder), **{"python": sys.executable, **wish})


def refusal(folder: Path, typed: str, **wish: Any) -> tuple[str, str]:
    with pytest.raises(BadInput) as caught:
        requested = spec(folder, typed, **wish)
        check_words(requested)
        check_files(requested, contained=False)
    return caught.value.seen, caught.value.remedy


@pytest.mark.parametrize(
    ("typed", "observed", "remedy"),
    [
        ("python3 missing.py", "there is no file", "relative to the current directory"),
        ("python3 -u -X dev trian.py", "there is no file", "did you mean train.py?"),
        ("/usr/bin/python3.11 -Wignore trian.py --lr 1", "there is no file", "did you mean train.py?"),
        ("env A=1 nice -n 5 bash rnu.sh", "there is no file", "did you mean run.sh?"),
        ("bash /dev/fd/63 --lr 1", "/dev/fd/63 belongs to this shell", "submit bash -s"),
        ("train.py --config=/dev/fd/12", "/dev/fd/12 belongs to this shell", "write it into a file"),
        ("bash -x rnu.sh", "there is no file", "did you mean run.sh?"),
        ("torchrun --nproc-per-node 1 trian.py", "there is no file", "did you mean train.py?"),
        ("FOO=1 python3 t.py", "'FOO=1' sets a variable", "clusterrun submit --env FOO=1 python3 t.py"),
        ("A=1 B='x y' ./p -v", "'A=1' sets a variable", "submit --env A=1 --env 'B=x y' ./p -v"),
        ("A=1", "'A=1' sets a variable", "clusterrun submit --env A=1 COMMAND"),
        ("'A=1 B=2 python t.py -v'", "sets a variable", "submit --env A=1 --env B=2 python t.py -v"),
        ("-m train.py", "-m train.py: this is a path", "give train.py or -m train"),
        ("-m pkg/train.py --x", "-m pkg/train.py: this is a path", "pkg/train.py --x or -m pkg.train --x"),
        ("-m pkg/train", "-m pkg/train: this is a path", "give -m pkg.train"),
        ("python -m ./train.py", "-m ./train.py: this is a path", "-m train"),
        ("wrong.py", "wrong.py cannot be compiled", "correct wrong.py"),
        ("python3 wrong.py", "wrong.py cannot be compiled by python3: line 2", "correct wrong.py"),
        ("null.py", "null.py, line 2: a NUL byte", "look: file null.py"),
        ("python3 utf16.py", "utf16.py, line 1: a NUL byte", "iconv -f UTF-16 -t UTF-8 utf16.py"),
        ("./dos.sh", "'./dos.sh' has DOS line ends", "sed -i 's/\\r$//' ./dos.sh"),
        ("bash dos.sh", "'dos.sh' has DOS line ends", "sed -i 's/\\r$//' dos.sh"),
        ("sh -e ./dos.sh", "'./dos.sh' has DOS line ends", "sed -i 's/\\r$//' ./dos.sh"),
        ("bash open.sh", "open.sh is not complete: line 3: syntax error", "bash -n open.sh"),
        ("./open.sh", "./open.sh is not complete: line 3: syntax error", "bash -n ./open.sh"),
        ("-m part", "part is a package without __main__.py", "-m part.NAME"),
        ("python3 -m pkg.part", "pkg.part is a package without __main__.py", "-m pkg.part.NAME"),
        ("./no_first_line", "has no #! line", "submit: bash ./no_first_line"),
        ("–nodes 2 train.py", "'–nodes' has a dash", "clusterrun submit --nodes 2 train.py"),
        ("—n 2 train.py", "U+2014", "clusterrun submit -n 2 train.py"),
        ("“train.py” –lr=1", "'“train.py”' has a dash, quote or space", '"train.py" --lr=1'),
    ],
)
def test_a_mistake_in_the_command_is_refused_with_the_remedy(
    folder: Path, typed: str, observed: str, remedy: str
) -> None:
    refused = refusal(folder, typed)
    assert observed in refused[0]
    assert remedy in refused[1]


@pytest.mark.parametrize(
    "typed",
    [
        "train.py --name don’t 1–2 —",  # marks inside a text; a lone dash means nothing
        "dos.py",
        "python3 dos.py",
        "escape.py",
        "python3 -c 'def f(:' missing.py",
        "python3",
        "python3 -um pkg data.txt",
        "python3 -mpkg data.txt",
        "python3 -Xdev -W ignore train.py",
        "bash ls",
        "bash -s missing.sh",
        "bash mixed.sh",
        "bash extended.sh",
        "bash payload.sh",
        "sh open.sh",
        "python3 - missing.py",
        "python3 pkg",
        "-m pkg",
        "-m torch.distributed.checkpoint",
        "./run.sh",
        "bash run.sh",
        "bash -c 'python3 missing.py'",
        "bash",
        "./empty",
        "./binary",
        "hostname a=1",
    ],
)
def test_a_command_that_may_work_gets_no_notice(folder: Path, typed: str) -> None:
    requested = spec(folder, typed)
    assert (check_words(requested), check_files(requested, contained=False)) == ((), ())


@pytest.mark.parametrize(
    ("typed", "wish", "phrase"),
    [
        ("python3 trian.py", {"setup": ("cd /data",)}, "did you mean train.py?): will it be on the nodes?"),
        ("wrong.py", {"setup": ("module load python",)}, "wrong.py, line 2: invalid syntax: can the Python"),
        ("wrong.py", {"python": "/no/python"}, "can /no/python compile it?"),
        ("-m pkg.trian", {}, "did you mean pkg.train?"),
        (
            "./nowhere",
            {},
            "'/no/such/shell', which the first line of ./nowhere names, does not exist on this machine",
        ),
    ],
)
def test_a_command_that_another_machine_may_have_gets_a_warning(
    folder: Path, typed: str, wish: dict[str, Any], phrase: str
) -> None:
    (sentence,) = check_files(spec(folder, typed, **wish), contained=False)
    assert phrase in sentence


def test_files_of_a_container_are_not_searched_on_this_machine(folder: Path) -> None:
    for typed in ("python3 /workspace/trian.py", "bash /opt/run.sh", "-m pkg.trian", "/opt/prog"):
        assert check_files(spec(folder, typed), contained=True) == ()


def test_typographic_characters_in_arguments_are_warned_of(folder: Path) -> None:
    requested = spec(folder, "train.py –lr 1 “a b” --x=“q”", setup=("‘module load x’",))
    assert check_words(requested) == tuple(
        f"{word!r} has {marks}, which no keyboard types: did you mean {meant}"
        for word, marks, meant in (
            ("–lr", "U+2013", "--lr"),
            ("“a", "U+201C", '"a'),
            ("b”", "U+201D", 'b"'),
            ("--x=“q”", "U+201C, U+201D", '--x="q"'),
            ("‘module load x’", "U+2018, U+2019", "'module load x'"),
        )
    )


def test_typographic_characters_in_options_are_warned_of(folder: Path) -> None:
    job_spec = spec(folder, "train.py", name="“big”", sbatch=("comment=‘x’", "nice=5"))
    words = [sentence.partition(" has ")[0] for sentence in check_words(job_spec)]
    assert words == ["'“big”'", "'comment=‘x’'"]


@pytest.mark.parametrize(
    "line, runs_no_trap",
    [
        ("trap 'rm -rf $TMPDIR/x' EXIT", True),
        ("module load x; trap cleanup TERM USR1", True),
        ("cleanup() { rm x; }; trap -- cleanup EXIT", True),
        ("trap '' HUP", False),
        ("trap - TERM", False),
        ("trap", False),
        ("echo no trap here", False),
    ],
)
def test_a_trap_of_the_setup_that_never_runs_is_reported(folder: Path, line: str, runs_no_trap: bool) -> None:
    assert ["no trap" in notice for notice in check_words(spec(folder, "train.py", setup=(line,)))] == (
        [True] if runs_no_trap else []
    )


@pytest.mark.parametrize(
    "line", ["source dos.sh", "set -e; . ./dos.sh", "[ -e x ] && bash 'dos.sh' 2>/dev/null"]
)
def test_a_file_with_dos_line_ends_that_the_setup_reads_is_refused(folder: Path, line: str) -> None:
    with pytest.raises(BadInput, match="has DOS line ends"):
        check_files(spec(folder, "train.py", setup=(line,)), contained=False)
    for other in ("source train.py", "source missing.sh", "echo source dos.sh"):
        assert check_files(spec(folder, "train.py", setup=(other,)), contained=False) == ()


def test_the_activation_of_an_environment_that_was_moved_is_refused(folder: Path) -> None:
    (folder / "old/bin").mkdir(parents=True)
    (folder / "old/pyvenv.cfg").touch()
    (folder / "old/bin/activate").write_text(f'VIRTUAL_ENV="{folder}/old"\nexport VIRTUAL_ENV\n')
    line = "source {}/bin/activate"
    assert check_files(spec(folder, "train.py", setup=(line.format("old"),)), contained=False) == ()
    (folder / "old").rename(folder / "new")
    with pytest.raises(BadInput, match=f"activates {folder}/old, which does not exist") as caught:
        check_files(spec(folder, "train.py", setup=(line.format("new"),)), contained=False)
    assert f"--python {folder}/new/bin/python" in caught.value.remedy


def test_the_python_of_the_ranks_compiles_the_script(folder: Path) -> None:
    """A script for a newer Python than ours, and one for a newer Python than the ranks' own."""
    requested: list[tuple[str, ...]] = []

    def answer(out: str) -> Any:
        def run(argv: tuple[str, ...], timeout: float) -> system.Completed:
            requested.append(argv)
            return system.Completed((), 0, out, "", 0.0)

        return run

    newer = spec(folder, "wrong.py", python="/new/python")
    assert check_files(newer, False, answer("")) == ()
    old_python = answer("SyntaxError: line 1: invalid syntax")
    with pytest.raises(BadInput, match=r"new\.py cannot be compiled by /old/python: line 1: invalid syntax"):
        check_files(spec(folder, "new.py", python="/old/python"), False, old_python)
    assert [argv[0] for argv in requested] == ["/new/python", "/old/python"]
    assert check_files(spec(folder, "train.py", python="/old/python"), False, answer("not asked")) == ()
    assert len(requested) == 2


@pytest.mark.parametrize(
    ("missing", "near"),
    [
        ("trian.py", "did you mean train.py?"),
        ("pkg/trian.py", "did you mean pkg/train.py?"),
        ("nothing_like_it.py", ""),
        ("train.sh", ""),
        ("gone/dos.py", ""),
    ],
)
def test_a_near_name_is_offered(folder: Path, missing: str, near: str) -> None:
    assert near_file(str(folder / missing), str(folder)) == near


def test_a_script_one_folder_deeper_is_suggested(folder: Path) -> None:
    (folder / "train.py").unlink()
    assert near_file(str(folder / "train.py"), str(folder)) == "did you mean pkg/train.py?"


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("source env.sh", "--setup 'source env.sh' COMMAND"),
        ("cd sub '&&' python t.py --x 1", "--setup 'cd sub' python t.py --x 1"),
        ("module load cuda ';' train.py", "--setup 'module load cuda' train.py"),
        ("export 'A=b c'", """--setup 'export '"'"'A=b c'"'"'' COMMAND"""),
        ("conda activate my", "--setup 'conda activate my' COMMAND"),
        ("for i in 1 2", "bash -c 'for i in 1 2'"),
    ],
)
def test_a_command_of_the_shell_is_refused_with_the_line_to_type(folder, monkeypatch, typed, line) -> None:
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    seen, remedy = refusal(folder, typed)
    assert seen.endswith("is a command of the shell, not a program")
    assert remedy.endswith(f": clusterrun submit {line}")


def test_a_program_that_has_the_name_of_a_shell_command_runs(folder, monkeypatch) -> None:
    (folder / "bin").mkdir()
    (folder / "bin/time").write_text("#!/bin/sh\n")
    (folder / "bin/time").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin")
    assert check_words(spec(folder, "time train.py")) == ()


@pytest.mark.parametrize("operator", ["&&", "|", ">", "2>&1", "&"])
def test_an_operator_that_no_shell_reads_is_reported(folder, operator) -> None:
    (notice,) = check_words(spec(folder, f"train.py '{operator}' 'a b'"))
    assert notice == (
        f"train.py gets {operator!r} as an argument, because no shell reads it; "
        f"""with one: bash -c 'python train.py {operator} '"'"'a b'"'"''"""
    )
    assert check_words(spec(folder, f"bash run.sh '{operator}'")) == ()


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("train.py --out 'runs/$SLURM_JOB_ID'", """bash -c 'python train.py --out "runs/$SLURM_JOB_ID"'"""),
        ("./p '${TMPDIR}'", """bash -c './p "${TMPDIR}"'"""),
        ("nice bash -c 'ls $TMPDIR/x'", ""),
        ("train.py 'lr=${lr}' 'path=${oc.env:HOME}'", ""),
        ("awk '{print $NF}'", ""),
    ],
)
def test_a_variable_that_no_shell_reads_is_reported(folder: Path, typed: str, line: str) -> None:
    notices = check_words(spec(folder, typed))
    assert [notice.partition("with one: ")[2] for notice in notices] == [line] * bool(line)
