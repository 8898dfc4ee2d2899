"""A container image that costs nothing: places on which a machine's own folders are mounted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def why_no_charliecloud() -> str:
    """Return why no container of Charliecloud can start on this machine; '' if one can."""
    if not shutil.which("ch-run"):
        return "Charliecloud is not installed (apt-get install charliecloud)"
    command = ["unshare", "--user", "--mount", "true"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"no user namespaces here: {result.stderr.strip()}" if result.returncode else ""


def make_image(folder: Path) -> Path:
    """Make an image in ``folder``. ``mounts`` mounts the folders that it needs of the host."""
    for name in ("usr", "dev", "proc", "sys", "tmp", "etc"):
        (folder / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (folder / name).symlink_to(f"usr/{name}")
    for name in ("passwd", "group", "ld.so.cache"):
        (folder / "etc" / name).touch()
    (folder / "IMAGE").touch()
    return folder


def python() -> str:
    """Return this Python's path inside the container."""
    return os.path.realpath(sys.executable)


def mounts() -> tuple[str, ...]:
    """Return the folders with the programs and this Python."""
    home = Path(python()).parents[1]
    return ("/usr",) if home.is_relative_to("/usr") else ("/usr", str(home))
