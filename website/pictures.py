"""Makes docs/pictures from real runs on a lab of four nodes, as root: python website/pictures.py

Terminal output becomes an SVG; the page of a report becomes a PNG where chromium is installed.
"""

from __future__ import annotations

import io
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from clusterrun.lab.lab import Lab  # noqa: E402
from clusterrun.lab.spec import LabSpec  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
LOOP = """import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
step = 0
while True:
    loss = torch.ones(1000)
    dist.all_reduce(loss)
    step += 1
    time.sleep(0.2)
"""
FAILS = """import os
if os.environ["RANK"] == "1":
    raise ValueError("the data set is empty")
"""
TRAINING_SECONDS = 240


class Desk:
    """A terminal on the lab's login host, with a project and a home of its own."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab, self._folder = lab, folder
        for name, text in (("train.py", LOOP), ("sweep.py", FAILS), ("evaluate.py", "print('done')\n")):
            (folder / name).write_text(text)

    def type(self, line: str, columns: int = 100) -> str:
        """What ``line`` shows on a terminal of that width."""
        typed = f"stty cols {columns} rows 50; {line.replace('clusterrun', shlex.quote(PROGRAM), 1)}"
        environment = {"CLUSTERRUN_HOME": str(self._folder / "home"), "TERM": "xterm-256color", "COLUMNS": ""}
        words = ["env", "-u", "COLUMNS", "script", "-qec", typed, "/dev/null"]
        done = self._lab.exec(words, env=environment, cwd=str(self._folder), timeout=300)
        return done.out.replace("\r\n", "\n")

    def picture(self, name: str, line: str, columns: int = 100, again: str = "") -> None:
        """``line`` and what it shows, as docs/pictures/``name``.svg."""
        from rich._export_format import CONSOLE_SVG_FORMAT
        from rich.console import Console
        from rich.text import Text

        shown = self.type(line, columns)
        console = Console(
            record=True, width=columns, file=io.StringIO(), force_terminal=True, legacy_windows=False
        )
        console.print(Text(f"$ {line}", style="bold"))
        console.print(Text.from_ansi(shown.rstrip()))
        bare = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
        drawn = console.export_svg(title="clusterrun", code_format=bare, unique_id=name)
        drawn = drawn.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")
        (PICTURES / f"{name}.svg").write_text(drawn, encoding="utf-8")
        print(f"{name}.svg: {len(drawn)} bytes\n{shown}")


PROGRAM = str(Path(sys.executable).with_name("clusterrun"))


def photographed(page: Path, picture: Path) -> None:
    """The top of a page as chromium draws it."""
    with tempfile.TemporaryDirectory() as profile:
        options = (
            "--headless --no-sandbox --disable-gpu --no-first-run --hide-scrollbars --window-size=900,760"
        )
        quiet = "--disable-background-networking --disable-component-update --disable-sync --disable-quic"
        words = [*shlex.split(options), *shlex.split(quiet), f"--user-data-dir={profile}"]
        command = ["chromium", *words, f"--screenshot={picture}", page.as_uri()]
        subprocess.run(command, capture_output=True, timeout=120, check=True)


def main() -> None:
    """All pictures, on a lab that is gone afterwards."""
    PICTURES.mkdir(exist_ok=True)
    lab = Lab("pictures")
    with tempfile.TemporaryDirectory() as place:
        desk = Desk(lab, Path(place))
        try:
            lab.up(LabSpec(name="pictures", nodes=4, gpus=2))
            desk.type("clusterrun submit --preflight off --nodes 2 --ranks-per-node 1 --wait evaluate.py")
            desk.type("clusterrun submit --preflight off --nodes 2 --ranks-per-node 1 --wait sweep.py")
            lab.fault("cut", "n0003", to="n0002", both=True)
            desk.type("clusterrun check --nodes 4")
            page = Path(place) / "report.html"
            desk.type(f"clusterrun report --html {page}")
            if shutil.which("chromium") and page.exists():
                photographed(page, PICTURES / "report.png")
            lab.heal()
            desk.type("clusterrun submit --preflight off --nodes 4 --gpus 2 --time 2h train.py")
            end = time.monotonic() + TRAINING_SECONDS
            while "training" not in desk.type("clusterrun status last") and time.monotonic() < end:
                time.sleep(1)
            time.sleep(40)  # torch is imported eight times on few cores
            desk.picture("status", "clusterrun status", 118)
            desk.picture("top", "clusterrun top --once", 104)
            desk.type("clusterrun exec --rank 5 -- sh -c 'kill -STOP $CLUSTERRUN_RANK_PID'")
            time.sleep(20)
            desk.picture("diagnose", "clusterrun diagnose", 100)
            desk.type("clusterrun cancel last")
        finally:
            lab.down()


if __name__ == "__main__":
    main()
