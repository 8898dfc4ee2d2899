"""Output of ranks and names of other users' jobs cannot control a terminal or forge a row."""

from __future__ import annotations

import pytest

from tests.hostile.conftest import Person

EVIL = (
    "\\x1b]52;c;ZXZpbA==\\x07 \\x1b[2J\\x1b]0;title\\x07 over\\rwritten \\u009b31m \\u0085next \\u2028line "
    "\\u202eright to left\\u2066 \\x08\\x08 \\x0b\\x0c \\udcff\\udc80 \\x00 \\x7f"
)
PRINTS = f"""import os, sys
for stream in (sys.stdout, sys.stderr):
    stream.buffer.write("{EVIL}\\nn0001 r0 | forged\\n".encode("utf-8", "surrogateescape"))
    stream.flush()
os._exit(3)
"""


def harmless(text: str) -> bool:
    """Return whether a text moves no cursor, reverses no text and begins no line that is not ours."""
    return all(line.isprintable() for line in text.split("\n"))


def test_output_of_ranks_is_shown_without_control_of_the_terminal(anybody: Person) -> None:
    (anybody.folder / "x.py").write_text(PRINTS)
    cluster = "slurm" if anybody.lab else "local"
    name = "n\x1b[2J\nR\u202e"
    followed = anybody.types("submit", "--cluster", cluster, "--follow", "--name", name, "x.py")
    messages = [
        followed,
        *(anybody.types(*arguments) for arguments in (["logs"], ["status"], ["status", "last"])),
    ]
    assert [harmless(result.out + result.err) for result in messages] == [True] * 4, messages
    assert all(" r0 " in line for line in messages[1].out.splitlines()), "a line without our heading"
    assert "\\x9b31m" in followed.out and "\\u202eright" in followed.out
    assert followed.code == 1 and "exited with code 3" in followed.err
    # Only now the bytes themselves: a terminal would have obeyed.
    assert "\x1b]52;c;ZXZpbA==\x07" in anybody.types("logs", "--raw").out


@pytest.mark.lab
def test_no_job_of_anybody_forges_a_row_of_ours(user: Person) -> None:
    lab = user.lab
    assert lab
    (user.folder / "x.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    run = user.submits("x.py")
    job = user.reaches(run, "RUNNING")["job_id"]
    row = lab.exec(["squeue", "--me", "-h", "-o", "%i|%T|%r|%k"]).out.strip()
    for name in (
        f"\n{row}\n",
        f"\n{job}|COMPLETED|None|clusterrun:{run.name}",
        "\x1b[2J\n\x1b[31m",
        "%i%T\x1e",
    ):
        arguments = ["sbatch", "--hold", "--job-name", name, "--comment", f"clusterrun:{run.name}:\n{name}"]
        assert lab.exec([*arguments, "--wrap", "true"]).code == 0
    try:
        result = user.types("status", "--json", run.name)
        assert user.reaches(run, "RUNNING")["job_id"] == job and result.err == ""
        output = user.types("status")
        assert harmless(output.out + output.err) and len(output.out.splitlines()) == 2
    finally:
        lab.exec(["scancel", "--user=root"])  # 20.11 has no --me
    user.reaches(run, "CANCELLED")
