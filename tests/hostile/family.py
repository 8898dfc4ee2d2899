"""A rank with the worst children there are; prints ``up`` when all of them live, then never ends."""

import ctypes
import os
import signal
import sys
import time


def forever() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    while True:
        time.sleep(60)


def child(before) -> None:
    if os.fork() == 0:
        before()
        forever()


def named(name: bytes) -> None:
    ctypes.CDLL(None).prctl(15, name, 0, 0, 0)


def daemon() -> None:
    os.setsid()
    if os.fork():
        os._exit(0)


def stranger() -> None:
    """Become a process outside session and group, with a clean environment and another name."""
    daemon()
    os.execve("/bin/sh", ["a b) c", "-c", "trap '' TERM HUP; while :; do sleep 60; done"], {})


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


child(os.setsid)
child(daemon)
child(stranger)
child(stopped)
child(lambda: named(b"a b) c"))
if "stop" in sys.argv:
    os.write(1, b"up\n")
    stopped()
named(b"my rank) 1")
os.write(1, b"up\n")
forever()
