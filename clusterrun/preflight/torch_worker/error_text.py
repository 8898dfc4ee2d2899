"""Shorten the output of torch and its libraries to one line, or to the network that NCCL chose."""

from __future__ import annotations

import re
from collections.abc import Iterable

from clusterrun.model.phrases import shortened

_MAX_CHARACTERS = 300
# Lines that do not tell the cause.
_UNINFORMATIVE = re.compile(
    r"Exception raised from|^frame #|^\s*$|^Traceback|^\s+File |^\s+\^|<omitting python frames>|^#\d+ "
    r"|NCCL INFO|^NCCL version|Last error:?\s*$"
    r"|^CUDA kernel errors might be|^For debugging consider|^Compile with `TORCH_USE|^Search for `cuda"
)
# torch's text of an NCCL error: the place in torch, the kind, and the code with its general meaning.
_NCCL_ERROR = re.compile(
    r"NCCL error(?: in: \S+,|:) (?P<kind>.+?)(?: \(run with NCCL_DEBUG=\w+ for details\))?"
    r", NCCL version (?P<version>\S+)(?:\s+(?P<code>nccl[A-Z]\w+):.*)?"
)
_PEER_ERROR = re.compile(
    r"(?i)connection (?:was )?(?:reset|closed)|broken pipe|closed by (?:remote )?peer|ncclRemoteError"
    r"|remote process|timed out waiting|saw a wrong sum"
    r"|did not finish the queued work|killed after [\d.]+ s"
)
# torch's watchdog logs an asynchronous error of NCCL at once, and ends the process much later.
_ASYNC_ERROR = re.compile(r"NCCL error: .*?(?=Exception raised from|\n\n\[|\Z)", re.DOTALL)
_PLACE = re.compile(r"^\[?[\w./+-]+\.(?:cc|cpp|hpp|h|cu):\d+\]?[:,]?\s*")
_ERROR_LINE = re.compile(r"(?i)error|warn|fatal|fail|abort|time.?out")
_STAMP = re.compile(r"^(?:\[rank\d+\]:)?\[[EWI]\d+ [\d:.]+ \S+\.\w+:\d+\]\s*|^\S+:\d+:\d+ \[\d+\] ")
_NETWORK = re.compile(
    r"NCCL INFO (?:Assigned NET plugin (\S+) to comm|Using network (.+?)\s*$)", re.MULTILINE
)
_DEVICES = re.compile(r"NCCL INFO NET/(\w+) : Using (.+?)\s*(?:; OOB .*)?$", re.MULTILINE)
# ``[0]mlx5_0:1/IB``. Merged ports: ``[0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE}``.
_DEVICE = re.compile(r"\[\d+\] ?([\w.-]+)")
# ``IBext``, ``IBext_v8``. NCCL lists its devices as devices of IB.
_MELLANOX_PLUGIN = "IBext"
# NCCL 2.18 and later loads its kernels on this GPU alone before the first of these lines.
_CONNECTS = re.compile(r"NCCL INFO .*(?:Init START|Channel \d|Init COMPLETE)")
_DIRECT = re.compile(r"via NET/.+/GDRDMA")
_OVER_IB = re.compile(r"via NET/IB")


def short(text: str) -> str:
    """Return the first informative lines as one line of at most 300 characters."""
    text = _NCCL_ERROR.sub(_nccl, text)
    lines = [
        _PLACE.sub("", _STAMP.sub("", line)).strip()
        for line in text.splitlines()
        if not _UNINFORMATIVE.search(line)
    ]
    joined = " ".join([line for line in lines if line][:3])
    plain = "".join(character if character.isprintable() else " " for character in joined)
    return shortened(plain, _MAX_CHARACTERS)


def _nccl(error: re.Match[str]) -> str:
    code = f" ({error['code']})" if error["code"] else ""
    return f"NCCL {error['version']}: {error['kind']}{code}"


def most_telling(texts: Iterable[str]) -> str:
    """Return the first text that gives a cause in this rank, else the first text, else ''.

    A text that blames another rank, or that only reports a wait, gives no cause.
    """
    reasons = [text for text in texts if text]
    return next((text for text in reasons if not _PEER_ERROR.search(text)), reasons[0] if reasons else "")


def of_error(error: BaseException) -> str:
    """Return an exception as one short line: its text, or its type if the text is empty."""
    return short(str(error)) or type(error).__name__


def of_end(output: str) -> str:
    """Return why a process died: the first errors at the end of its output."""
    return short("\n".join(line for line in output.splitlines() if _ERROR_LINE.search(line)))


def async_error(output: str) -> str:
    """Return the asynchronous error of NCCL that torch's watchdog logged, or ''."""
    error = _ASYNC_ERROR.search(output)
    return short(error[0]) if error else ""


def loads(log: str) -> bool:
    """Return whether NCCL has started and has not connected to other ranks yet.

    A build without code for these GPUs compiles it at this point, for about a minute (nccl#1646).
    """
    return "NCCL INFO" in log and not _CONNECTS.search(log)


def chosen(log: str) -> str:
    """Return the network: ``NET/IB mlx5_0 mlx5_1 GDRDMA``, ``NET/Socket eth0``, or '' if the log has none.

    ``without-GDRDMA``: this rank sends over InfiniBand or RoCE, and never directly from its GPU.
    """
    named = _NETWORK.search(log)
    if not named:
        return ""
    network = (named[1] or named[2]).strip()
    listed_as = "IB" if network.startswith(_MELLANOX_PLUGIN) else network
    devices: list[str] = []
    for kind, listing in _DEVICES.findall(log):
        if kind == listed_as:
            devices += _DEVICE.findall(listing)
    direct = ["GDRDMA"] if _DIRECT.search(log) else ["without-GDRDMA"] if _OVER_IB.search(log) else []
    return " ".join([f"NET/{network}", *dict.fromkeys(devices), *direct])
