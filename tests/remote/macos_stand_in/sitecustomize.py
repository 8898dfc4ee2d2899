"""Makes a Python on Linux lack what a Python on macOS lacks, from its start: a stand-in for a Mac.

It changes ``sys.platform`` and ``os.uname``, removes what only Linux has from the standard library, and
refuses /proc, /sys, /dev/shm and symbols of glibc. It cannot show how the kernel or the OpenSSH of a Mac
behave.
"""

import errno
import os
import select
import signal
import socket
import sys

_ABSENT = {
    os: (
        *("copy_file_range", "eventfd", "getrandom", "getresgid", "getresuid", "getxattr", "listxattr"),
        *("memfd_create", "pidfd_open", "pipe2", "posix_fadvise", "posix_fallocate", "prlimit", "sendfile"),
        *("sched_getaffinity", "sched_setaffinity", "sched_getparam", "sched_setparam", "setns", "setresuid"),
        *("setresgid", "splice", "unshare", "fdatasync", "O_DIRECT", "O_PATH", "O_TMPFILE", "O_NOATIME"),
        *("PRIO_DARWIN_BG", "CLONE_NEWNS", "P_PIDFD", "MFD_CLOEXEC"),
    ),
    select: ("epoll", "EPOLLIN", "EPOLLOUT", "EPOLLERR", "EPOLLHUP", "EPOLLET", "EPOLL_CLOEXEC"),
    signal: (
        *("SIGRTMIN", "SIGRTMAX", "SIGPWR", "SIGPOLL", "SIGSTKFLT", "SIGCLD", "pidfd_send_signal"),
        *("sigtimedwait", "sigwaitinfo"),
    ),
    socket: ("AF_NETLINK", "AF_PACKET", "AF_VSOCK", "SO_PEERCRED", "SOCK_CLOEXEC", "SOCK_NONBLOCK"),
}
_FOLDERS = ("/proc", "/sys", "/dev/shm")
_OPENING = ("open", "os.listdir", "os.scandir", "os.chdir")
_GLIBC = ("prctl", "gnu_get_libc_version", "syscall", "unshare", "setns")


def _refuse(path: object) -> None:
    try:
        text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
    except ValueError:
        return
    if any(text == folder or text.startswith(f"{folder}/") for folder in _FOLDERS):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)


def _on_event(event: str, arguments: tuple) -> None:
    if event in _OPENING and arguments:
        _refuse(arguments[0])
    elif event == "ctypes.dlsym" and arguments[1] in _GLIBC:
        raise AttributeError(f"dlsym: symbol not found: {arguments[1]}")


def _without_linux(function):
    def called(path, *arguments, **named):
        _refuse(path)
        return function(path, *arguments, **named)

    return called


sys.platform = "darwin"
for module, names in _ABSENT.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
_uname = os.uname()
os.uname = lambda: os.uname_result(("Darwin", _uname.nodename, "24.1.0", "Darwin Kernel", "arm64"))
for name in ("stat", "lstat", "readlink", "access"):
    setattr(os, name, _without_linux(getattr(os, name)))
sys.addaudithook(_on_event)
