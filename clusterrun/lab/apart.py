"""Run a program in a session of its own: another user's program must not type into our terminal (TIOCSTI).

A process whose controlling terminal it is can put characters into its input, and so run commands as the
user who reads it afterwards. The program gets a session of its own and, from a terminal, a new terminal.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

from clusterrun.system import foreground


def run_in_own_session(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run ``argv`` in a session of its own. Return its exit code, or 128 plus the signal's number.

    From a terminal, the program that makes its terminal takes the place of this process.
    """
    if all(map(os.isatty, (0, 1, 2))):
        # script makes the terminal, and starts its command by the shell that SHELL names.
        shell = [f"SHELL={environment['SHELL']}"] if "SHELL" in environment else ["-u", "SHELL"]
        command = f"exec {shlex.join(['env', *shell, *argv])}"
        script = ["script", "--quiet", "--return", "--command", command, os.devnull]
        os.execvpe(script[0], script, {**environment, "SHELL": "/bin/sh"})
    return foreground(argv, environment, own_session=True)
