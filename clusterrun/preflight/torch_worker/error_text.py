"""Makes of what torch and its libraries say one short line; knows no test."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MOST = 300
_NOT_SAID = re.compile(
    r"Exception raised from|^frame #|^\s*$|^Traceback|^\s+File |^\s+\^|<omitting python frames>|^#\d+ "
    r"|NCCL INFO|^NCCL version|Last error:?\s*$"
    r"|^CUDA kernel errors might be|^For debugging consider|^Compile with `TORCH_USE|^Search for `cuda"
)
_OF_NCCL = re.compile(
    r"NCCL error in: \S+, (?P<kind>.+?)(?: \(run with NCCL_DEBUG=\w+ for details\))?"
    r", NCCL version (?P<version>\S+)(?:\s+(?P<code>nccl[A-Z]\w+):.*)?"
)
"""How torch tells an error of NCCL's: where in torch, the kind, and the code with its general meaning."""
_OF_A_PEER = re.compile(
    r"(?i)connection (?:was )?(?:reset|closed)|broken pipe|closed by (?:remote )?peer|ncclRemoteError"
    r"|remote process|timed out waiting|saw a wrong sum"
)
_PLACE = re.compile(r"^\[?[\w./+-]+\.(?:cc|cpp|hpp|h|cu):\d+\]?[:,]?\s*")
_TELLING = re.compile(r"(?i)error|warn|fatal|fail|abort|time.?out")
_STAMP = re.compile(r"^(?:\[rank\d+\]:)?\[[EWI]\d+ [\d:.]+ \S+\.\w+:\d+\]\s*|^\S+:\d+:\d+ \[\d+\] ")


def short(text: str) -> str:
    """The first lines that say something to who runs a job, as one; at most 300 characters."""
    text = _OF_NCCL.sub(_nccl, text)
    lines = [
        _PLACE.sub("", _STAMP.sub("", line)).strip()
        for line in text.splitlines()
        if not _NOT_SAID.search(line)
    ]
    said = " ".join([line for line in lines if line][:3])
    plain = "".join(sign if sign.isprintable() else " " for sign in said)
    return plain if len(plain) <= _MOST else plain[: _MOST - 1] + "…"


def _nccl(error: re.Match[str]) -> str:
    code = f" ({error['code']})" if error["code"] else ""
    return f"NCCL {error['version']}: {error['kind']}{code}"


def most_telling(texts: Iterable[str]) -> str:
    """The first of these that says more than that another rank ended or was silent; else the first at all."""
    said = [text for text in texts if text]
    return next((text for text in said if not _OF_A_PEER.search(text)), said[0] if said else "")


def of_error(error: BaseException) -> str:
    """An exception as one short line; its kind only where it says nothing."""
    return short(str(error)) or type(error).__name__


def of_end(output: str) -> str:
    """Why a process died, from the end of what it printed: the first word of what went wrong there."""
    return short("\n".join(line for line in output.splitlines() if _TELLING.search(line)))
