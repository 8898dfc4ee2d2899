"""A stand-in for `dmesg`: the kernel log of a lab's host, which holds what faults wrote there.

A program of its own (`python -I -S dmesg.py LAB_FOLDER ARGS…`); it imports nothing of the package
and shows nothing of the machine's own log.
"""

from __future__ import annotations

import os
import sys
import time


def _lines(folder: str) -> list[tuple[float, str]]:
    path = f"{folder}/hosts/{os.uname().nodename}/kernel.log"
    try:
        with open(path, encoding="utf-8") as file:
            rows = [line.rstrip("\n").partition(" ") for line in file]
    except FileNotFoundError:
        return []
    return [(float(at), text) for at, _, text in rows]


def main() -> None:
    """Print the log with the time stamps that were asked for."""
    options = set(sys.argv[2:])
    raw = "<3>" if options & {"-r", "--raw"} else ""
    for at, text in _lines(sys.argv[1]):
        if options & {"-T", "--ctime", "--time-format=ctime"}:
            stamp = time.strftime("[%a %b %e %H:%M:%S %Y] ", time.localtime(at))
        elif options & {"--time-format=iso", "iso"}:
            zone = time.strftime("%z", time.localtime(at))
            micro = f",{int(at % 1 * 1e6):06d}"
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at)) + f"{micro}{zone[:3]}:{zone[3:]} "
        elif options & {"-t", "--notime"}:
            stamp = ""
        else:
            since_boot = at - (time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))
            stamp = f"[{since_boot:12.6f}] "
        print(raw + stamp + text)


if __name__ == "__main__":
    main()
