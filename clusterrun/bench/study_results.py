"""A study's measurements on disk: written whole after every run, so that a second call continues."""

from __future__ import annotations

import json
import os

from clusterrun.bench.reading import SpeedLine
from clusterrun.bench.study import Cell
from clusterrun.model import contract
from clusterrun.model.document import BadDocument, decode, encode
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen
from clusterrun.runs.private_files import private_folder, write_whole


@frozen
class MeasuredRun:
    """One run of a cell. It is under way while ``seconds`` is 0 and ``failed`` is empty."""

    cell: Cell
    number: int  # of the repeat, from 1
    run_id: str
    seconds: float = 0.0  # from the start of its ranks to the end of the run
    wall: float = 0.0  # seconds from its submission until this process noticed its end
    report: SpeedLine | None = None
    notices: tuple[str, ...] = ()
    failed: str = ""  # why there is no measurement

    @property
    def under_way(self) -> bool:
        """Return whether the run was submitted and has not ended yet."""
        return not self.seconds and not self.failed


@frozen
class AllReduceTiming:
    """The time of an all-reduce over the first ``ranks`` ranks."""

    ranks: int
    latency: float  # seconds for an empty message
    bandwidth: float  # bytes per second


@frozen
class MachineInfo:
    """The machines of the ranks, measured by a short job in the largest world."""

    run_id: str = ""
    wall: float = 0.0
    cluster: str = ""
    device: str = ""
    processor: str = ""
    torch: str = ""
    backend: str = ""
    cores: int = 0  # cores of one node that its ranks may use
    groups: tuple[AllReduceTiming, ...] = ()
    failed: str = ""  # why there is no measurement

    def reduced(self, ranks: int) -> AllReduceTiming | None:
        """Return the measurement for a world of ``ranks``; None if there is none."""
        return next((group for group in self.groups if group.ranks == ranks), None)


@frozen
class StudyResults:
    """Everything measured about one subject, which ``digest`` identifies."""

    subject: str
    digest: str
    growth: str
    runs: tuple[MeasuredRun, ...] = ()
    probed: MachineInfo | None = None
    format: int = contract.FORMAT

    def run(self, cell: Cell, number: int) -> MeasuredRun | None:
        """Return the result of one repeat; None if it was not measured."""
        return next((run for run in self.runs if (run.cell, run.number) == (cell, number)), None)


def path_of(home: str, name: str) -> str:
    """Return the file of the study with this name."""
    return os.path.join(home, "bench", f"{name}.json")


def open_results(path: str, fresh: StudyResults) -> StudyResults:
    """Return the results at ``path``, or ``fresh`` if there is no such file.

    Raise ``BadInput`` if the file holds another study, ``BadDocument`` if it is damaged.
    """
    stored = read_results(path)
    if stored is None:
        return fresh
    if stored.digest != fresh.digest:
        raise BadInput(
            f"{path} holds measurements of something else ({stored.subject})",
            "--fresh throws them away; another --name keeps them",
        )
    return stored


def read_results(path: str) -> StudyResults | None:
    """Return the results at ``path``; None if there is no such file. Raise ``BadDocument``."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            data = json.load(file)
        if isinstance(data, dict) and data.get("format", 0) != contract.FORMAT:
            raise BadDocument(
                f"{path} is of format {data.get('format')}, this is {contract.FORMAT}", "--fresh"
            )
        return decode(StudyResults, data)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise BadDocument(f"{path} is damaged: {error}", "--fresh begins anew") from error


def save(path: str, results: StudyResults) -> None:
    """Replace the file at ``path`` by these results. Raise ``DiskRefused``."""
    private_folder(os.path.dirname(path))
    write_whole(path, json.dumps(encode(results), indent=1) + "\n", sync=False)
