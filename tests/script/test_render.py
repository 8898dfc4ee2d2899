"""The laws of script text: no value becomes code, directives arrive as meant, an edited template counts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterrun import shipped
from clusterrun.cli import reference
from clusterrun.model.errors import BadInput
from clusterrun.script import quoting, render

HOSTILE = st.text(
    st.sampled_from("ab$`\"'\\!#%*?~ \t\n;&|<>(){}[]=-@:")
    | st.characters(codec="utf-8", exclude_characters="\0"),
    max_size=40,
)
LINE = HOSTILE.filter(quoting.carries)


def values(**known: quoting.Value) -> dict[str, quoting.Value]:
    plain: dict[str, quoting.Value] = {name: name for name in render.VARIABLES}
    return {**plain, "directives": ("--nodes=1",), "setup": (), "command": ("train.py",), **known}


def bash(script: str, limit: float = 20.0) -> bytes:
    result = subprocess.run(
        ["/bin/bash"], input=script.encode(), capture_output=True, timeout=limit, check=True
    )
    assert result.stderr == b""
    return result.stdout


def as_sbatch_reads(line: str) -> list[str]:
    """Parse a directive line as sbatch does. The lab's tests ask sbatch itself."""
    arguments, word, quote, escaped = [], None, "", False
    for letter in line.removeprefix("#SBATCH"):
        if escaped:
            word, escaped = (word or "") + letter, False
        elif letter == "\\":
            escaped = True
        elif quote:
            quote, word = ("", word) if letter == quote else (quote, (word or "") + letter)
        elif letter in "\"'":
            quote, word = letter, word or ""
        elif letter == "#":
            break
        elif letter.isspace() and letter.isascii():
            arguments += [] if word is None else [word]
            word = None
        else:
            word = (word or "") + letter
    return arguments + ([] if word is None else [word])


@settings(max_examples=200)
@given(st.lists(LINE, min_size=1, max_size=4))
def test_every_directive_is_one_line_that_sbatch_reads_as_one_option(options: list[str]) -> None:
    text = quoting.sbatch([f"--comment={option}" for option in options])
    assert [as_sbatch_reads(line) for line in text.split("\n")] == [
        [f"--comment={option}"] for option in options
    ]


@pytest.mark.parametrize(
    "option", ["--a=b\nc", "--a=\x1b[2J", "--a=my-hetjob", "--comment=PACKJOB", "--a=" + "b" * 2000]
)
def test_a_value_that_no_directive_can_hold_is_refused(option: str) -> None:
    assert not quoting.carries(option)
    with pytest.raises(BadInput, match="does not fit on an #SBATCH line"):
        quoting.sbatch([option])


def test_thousands_of_hostile_values_come_through_a_real_shell_byte_for_byte() -> None:
    observed: list[str] = []

    @settings(max_examples=3000, deadline=None)
    @given(HOSTILE)
    def collect(text: str) -> None:
        observed.append(text)

    collect()
    template = "\n".join(f"printf '%s\\0' {quoting.quoted(text)}" for text in observed)
    assert bash(template).split(b"\0")[:-1] == [text.encode() for text in observed]


@settings(max_examples=25, deadline=None)
@given(st.lists(LINE, max_size=4), HOSTILE, HOSTILE, HOSTILE)
def test_a_complete_script_runs_as_intended_for_any_values(
    directives: list[str], agent: str, run_dir: str, name: str
) -> None:
    python = "/bin/true"
    options = [f"--comment={text}" for text in directives]
    script = render.render(
        values(
            directives=options, python=python, agent=agent, run_dir=run_dir, name=name, job_output="/dev/null"
        )
    )
    lines = script.split("\n")
    assert sum(line.startswith("#SBATCH") for line in lines[1 : 1 + len(options)]) == len(options)
    assert "\\exec >>/dev/null 2>&1" in lines[1 + max(len(options), 1) :]
    start = script[script.index("\\exec " + python) :].replace("\\exec " + python, "printf '%s\\0'", 1)
    assert bash(start).decode().split("\0") == ["-I", "-S", agent, "coordinate", run_dir, ""]
    subprocess.run(["/bin/bash", "-n"], input=script.encode(), timeout=60, check=True)


@pytest.mark.parametrize("tries", [0, 2, 6])
def test_the_jobs_output_is_awaited_and_a_job_without_output_continues(tmp_path: Path, tries: int) -> None:
    remote = tmp_path / "there"
    script = render.render(values(python="/bin/true", job_output=f"{remote}/job.out"))
    head = script[: script.index("\\exec >>")] + f"exec >>{remote}/job.out 2>&1\necho goes on\n"
    appears = f'[ "$(wc -l <{tmp_path}/slept)" -lt {tries} ] || [ {tries} = 6 ] || mkdir {remote}'
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "sleep").write_text(f"#!/bin/bash\necho $1 >>{tmp_path}/slept; {appears}\n")
    (programs / "sleep").chmod(0o755)
    stub = f"PATH={programs}:$PATH\n"
    if tries == 0:
        remote.mkdir()
    result = subprocess.run(["/bin/bash"], input=(stub + head).encode(), capture_output=True, timeout=60)
    slept = (tmp_path / "slept").read_text().split() if tries else []
    assert slept == ["1", "1", "2", "4", "8", "16"][:tries]
    if tries < 6:
        assert (remote / "job.out").read_text() == "goes on\n"
    else:
        assert result.stdout == b"goes on\n" and f"{remote}/job.out: No such file" in result.stderr.decode()


COMMANDS = (
    "builtin",
    "cd",
    "command",
    "grep",
    "hostname",
    "kill",
    "printf",
    "sleep",
    "srun",
    "timeout",
    "type",
)
# A shell that starts in POSIX mode refuses functions of these names, and ends.
SPECIAL = ("break", "exec", "exit", "export", "return", "set", "trap", "unset")


@pytest.mark.parametrize("posix", [False, True])
def test_no_function_alias_or_option_of_the_submitting_shell_affects_the_script(
    tmp_path: Path, posix: bool
) -> None:
    """Plain sbatch runs such functions too, but there a script calls only what its author wrote."""
    names = COMMANDS if posix else COMMANDS + SPECIAL
    (tmp_path / "rc").write_text("\n".join(f"alias {name}='echo alias {name};'" for name in names))
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"$@\"\ntr '\\\\0' '\\\\n' </proc/$$/environ | grep -c ^BASH_FUNC\n")
    python.chmod(0o755)
    text = render.render(
        values(
            python=str(python), agent="/etc/passwd", run_dir="/run", job_output="/dev/stdout", setup=("true",)
        )
    )
    script = tmp_path / "script"
    script.write_text(text)
    script.chmod(0o755)
    environment = {
        **{f"BASH_FUNC_{name}%%": f"() {{ echo function {name}; }}" for name in names},
        **({"POSIXLY_CORRECT": "1"} if posix else {}),
        "PATH": os.environ["PATH"],
        "BASH_ENV": str(tmp_path / "rc"),
        "SHELLOPTS": "braceexpand:errexit:nounset:noclobber",
    }
    result = subprocess.run([script], env=environment, capture_output=True, text=True, timeout=60)
    lines = result.stdout.splitlines()
    assert (result.returncode, lines[0]) == (0, "-I -S /etc/passwd coordinate /run"), (
        result.stdout,
        result.stderr,
    )
    # Ranks find the functions of their user, except for three that nobody exports.
    assert int(lines[1]) >= (0 if posix else len(names) - 3)


def test_ranks_follow_a_setup_line_that_changes_the_directory(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    show = ('echo "$CLUSTERRUN_SETUP_CWD"',)
    for setup, cwd in (((), ""), (("cd sub",), f"{tmp_path}/sub"), (("cd sub", "cd .."), "")):
        text = render.render(values(setup=setup, job_output="/dev/stdout")).partition("missing=")[0]
        result = subprocess.run(
            ["/bin/bash"],
            input=f"{text}{show[0]}\n",
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=20,
        )
        assert result.stdout == f"{cwd}\n"


@pytest.fixture
def template(tmp_path: Path) -> Path:
    return tmp_path / "mine.sbatch.j2"


def test_every_value_of_a_users_template_is_quoted_unless_raw(template: Path) -> None:
    template.write_text("{{ name }} {{ name | raw }} {{ command }} {{ nodes }}\n")
    output = render.render(values(name="a b", command=("x", "y z"), nodes=4), str(template))
    assert output == "'a b' a b x 'y z' 4\n"


def test_a_users_template_may_extend_the_shipped_one(template: Path) -> None:
    template.write_text(
        '{% extends "job.sbatch.j2" %}{% block setup %}module load cuda\n{{ super() | raw }}{% endblock %}'
    )
    output = render.render(values(setup=("echo hi",)), str(template))
    plain = render.render(values(setup=("echo hi",)))
    assert output == plain.replace("echo hi\n", "module load cuda\necho hi\n", 1)


@pytest.mark.parametrize(
    ("setup", "code", "failed"),
    [
        ([], 0, ""),
        (["true", "export A=1", "# a comment", "sleep 0 &"], 0, ""),
        (["true", "false", "true"], 1, "false"),
        (["(exit 7)"], 7, "(exit 7)"),
        (["no_such_program --x 'a b'"], 127, "no_such_program --x 'a b'"),
        (["if false; then true; else true; fi"], 0, ""),
        (["if false; then", "  true", "else", "  true", "fi"], 0, ""),
        (["if true; then", "  false", "fi"], 1, "if true; then;   false; fi"),
        (["for i in 1 2; do", "  false", "done", "true"], 0, ""),
        (["case a in", "  a) true;;", "esac"], 0, ""),
        (["cat <<EOF >/dev/null", "it's", "EOF"], 0, ""),
        (["cat <<EOF >/dev/null", "x", "EOF", "false"], 1, "cat <<EOF >/dev/null; x; EOF; false"),
        (["true &&", "false"], 1, "true &&; false"),
        (["A='one", "two'"], 0, ""),
        (["f() {", "  return 3", "}", "f"], 3, "f() {;   return 3; }; f"),
    ],
)
def test_a_setup_line_that_fails_ends_the_script_and_is_named(
    setup: list[str], code: int, failed: str
) -> None:
    text = render.render(values(setup=setup, job_output="/dev/stdout"))
    before_start = text.partition("missing=")[0]
    result = subprocess.run(
        ["/bin/bash"], input=f"{before_start}echo went on\n", capture_output=True, text=True, timeout=20
    )
    assert result.returncode == code
    last = (result.stdout + result.stderr).splitlines()[-1]
    host = os.uname().nodename
    error = f"clusterrun: --setup ended with exit code {code} on {host}: {failed}"
    assert last.partition("; mend this line")[0] == (error if code else "went on")


@pytest.mark.parametrize(
    "text, message",
    [
        ("{{ nonsense }}", "'nonsense' is undefined"),
        ("{% if %}", "line 1"),
        ("{% include 'nowhere' %}", "there is no template 'nowhere'"),
        ("{{ name | sbach }}", "No filter named 'sbach'"),
    ],
)
def test_a_fault_in_a_template_is_named_with_a_remedy(template: Path, text: str, message: str) -> None:
    template.write_text(text)
    with pytest.raises(BadInput) as caught:
        render.render(values(), str(template))
    assert message in caught.value.seen
    assert caught.value.remedy


def test_a_missing_template_is_named(template: Path) -> None:
    with pytest.raises(BadInput, match=r"mine\.sbatch\.j2"):
        render.render(values(), str(template))


def test_the_manual_lists_exactly_the_existing_variables() -> None:
    manual = Path(shipped.folder("templates")).parent / "docs" / "templates.md"
    rows = [
        line.split(" | ", 1)
        for line in reference.expanded(manual.read_text()).split("## Variables")[1].splitlines()
        if line.startswith("| `")
    ]
    assert {name.strip("| `"): message.removesuffix(" |") for name, message in rows} == render.VARIABLES
