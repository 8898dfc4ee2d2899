"""Read the report that torchrun prints at its end: which rank failed first, and how; pure."""

from __future__ import annotations

import re

from clusterrun.model.phrases import code_in_words

_OTHERS = "Failures:"
# torch 1.9 puts the colon behind "Cause".
_BEGINNING = ("Root Cause (first observed failure):", "Root Cause:")
_FIELD = re.compile(r"^\s*(time|host|rank|exitcode)\s*: (\S+)")
_RANK = re.compile(r"^\s*rank\s*: (\d+) \(local_rank: (\d+)\)$")
_MESSAGE = re.compile(r'^\s+"message": "(.+)",$')
_NUMBER = re.compile(r"-?\d+")
_TRACEBACK = re.compile(r"^  traceback : (?=Traceback \(most recent call last\))")
_END = re.compile(r"^(?:=====|-----)")


class TorchrunReport:
    """The newest report in a stream of lines."""

    def __init__(self) -> None:
        self.rank = self.local_rank = -1
        self.host = self.time = ""
        self.ended = ""  # how the rank ended, in words
        self.in_traceback = False  # the newest line belongs to the traceback of the rank's error file
        self._is_open = self._is_listing = False
        # The log lacks the lines above the section of a rank. The last section is that of the first failure.
        self._is_cut = False
        # Ranks that the report lists above the first one that failed, and their nodes.
        self.failed: dict[int, str] = {}

    def hear(self, line: str) -> str:
        """Read one line. Return ``rank`` or ``ended`` if the line completed that field, else ''.

        The message of the rank's exception replaces its exit code.
        """
        if rank := _RANK.match(line):
            self.local_rank = int(rank[2])
        if line.startswith(_OTHERS):
            self.failed, self._is_listing = {}, True
        elif self._is_listing and (field := _FIELD.match(line)) and not line.startswith(_BEGINNING):
            if field[1] == "rank" and _NUMBER.fullmatch(field[2]):
                self.failed[int(field[2])] = self.host
                return "listed"
            elif field[1] == "host":
                self.host = field[2]
        elif line.startswith(_BEGINNING):
            self._is_listing = False
            self.rank, self.host, self.ended = -1, "", ""
            self._is_open, self.in_traceback, self._is_cut = True, False, False
        elif not self._is_open and rank:
            self.rank, self.host, self.ended = int(rank[1]), "", ""
            self._is_open = self._is_cut = True
        elif self._is_open and _END.match(line):
            is_last = self._is_cut and line.startswith("=")
            self.close()
            return "ended" if is_last and self.ended else ""
        elif self._is_open and _TRACEBACK.match(line):
            self.in_traceback = True
        elif self._is_open and self.rank >= 0 and (message := _MESSAGE.match(line)):
            self.ended = message[1]
            return "ended"
        elif self._is_open and not self.in_traceback and (field := _FIELD.match(line)):
            name = self._take(field[1], field[2])
            return "" if self._is_cut else name
        return ""

    def close(self) -> None:
        """End a report that its stream did not end."""
        self._is_open = self.in_traceback = self._is_cut = False

    def _take(self, name: str, value: str) -> str:
        if name == "time":
            self.time = value
        elif name == "host":
            self.host = value
        elif _NUMBER.fullmatch(value) and name == "rank":
            # The lines of two reports may be mixed. The second rank is of the other one.
            if self.rank < 0 or self._is_cut:
                self.rank, self.ended = int(value), ""
            return "rank"
        elif _NUMBER.fullmatch(value) and self.rank >= 0 and not self.ended:
            self.ended = code_in_words(int(value))
            return "ended"
        return ""


def without_heading(line: str) -> str:
    """Return a line of the report's traceback without its heading and its indent."""
    text = _TRACEBACK.sub("", line)
    return text[2:] if text.startswith("  ") else text
