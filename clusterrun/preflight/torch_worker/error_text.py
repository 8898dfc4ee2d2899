"""Makes of what torch and its libraries print one short line, or the network that NCCL chose."""

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
_CHOSEN = re.compile(r"NCCL INFO (?:Assigned NET plugin (\S+) to comm|Using network (.+?)\s*$)", re.MULTILINE)
_DEVICES = re.compile(r"NCCL INFO NET/(\w+) : Using (.+?)\s*(?:; OOB .*)?$", re.MULTILINE)
_DEVICE = re.compile(r"\[\d+\] ?([\w.-]+)")
"""``[0]mlx5_0:1/IB``; ports that NCCL merges: ``[0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE}``."""
_MELLANOX_PLUGIN = "IBext"
"""``IBext``, ``IBext_v8``: its devices NCCL lists as those of IB."""
_CONNECTS = re.compile(r"NCCL INFO .*(?:Init START|Channel \d|Init COMPLETE)")
"""Before its first line of these (2.18 and later) NCCL is on this GPU alone, and loads its kernels."""
_DIRECT = re.compile(r"via NET/.+/GDRDMA")


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


def loads(log: str) -> bool:
    """Whether NCCL has begun and has not come to other ranks yet.

    A build without code for these GPUs compiles it there, which takes a minute (nccl#1646).
    """
    return "NCCL INFO" in log and not _CONNECTS.search(log)


def chosen(log: str) -> str:
    """``NET/IB mlx5_0 mlx5_1 GDRDMA``, ``NET/Socket eth0``, or empty if no network is spoken of."""
    named = _CHOSEN.search(log)
    if not named:
        return ""
    network = (named[1] or named[2]).strip()
    of = "IB" if network.startswith(_MELLANOX_PLUGIN) else network
    devices = [name for kind, using in _DEVICES.findall(log) if kind == of for name in _DEVICE.findall(using)]
    direct = ["GDRDMA"] if _DIRECT.search(log) else []
    return " ".join([f"NET/{network}", *dict.fromkeys(devices), *direct])
