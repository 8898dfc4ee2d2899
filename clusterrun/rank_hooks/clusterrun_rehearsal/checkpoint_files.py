"""The checkpoint files that a script writes, reads and deletes."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from .trace_file import TraceFile, is_library, script_line

FILE_EVENTS = ("open", "os.rename", "os.remove", "shutil.rmtree")
# Endings of files that may be checkpoints, if something else than `torch.save` writes them.
KINDS: tuple[str, ...] = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp")
KINDS += (".npz", ".pkl", ".pickle", ".tar", ".part")
# The first bytes of a file of torch.save, which a script may copy to a name without an ending.
ARCHIVE = b"PK\x03\x04"
# Most files that are reported as read before the first step.
MOST_READS = 1000
# Seconds after which a file of a thread keeps its name, if nothing has moved it.
REST_SECONDS = 1.0


class OpenFile:
    """A file that is being written: its start, line and thread, and its place in the checkpoint."""

    def __init__(self, step: int, nth: int, sure: bool) -> None:
        self.step, self.nth, self.sure = step, nth, sure
        self.at, self.line = time.time(), script_line()
        self.late = threading.current_thread() is not threading.main_thread()


class CheckpointWatch:
    """Reports checkpoint files with their final names. ``strike``: the file that the plan cuts off."""

    def __init__(self, trace: TraceFile, strike: Any, run_dir: str) -> None:
        self._trace, self._strike, self._run_dir = trace, strike, run_dir
        self._open: dict[str, OpenFile] = {}
        self._struck: OpenFile | None = None
        self._read: set[str] = set()
        self._known: set[str] = set()
        self._busy: set[int] = set()
        self.begun_at: dict[int, int] = {}
        # The step after which the script last took a state.
        self.taken = 0
        self.heard_notice = False
        if strike and strike["kind"] == "torn":
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)

    def hear(self, event: str, args: Any) -> None:
        """Handle an audit event of ``FILE_EVENTS``: Python is about to open, rename or delete a file."""
        if not self._trace.is_ours():
            return
        thread = threading.get_ident()
        if thread in self._busy:
            return
        self._busy.add(thread)
        try:
            self._file_event(event, args)
        except Exception:  # noqa: BLE001 (the script's file is more important than our line)
            pass
        finally:
            self._busy.discard(thread)

    def _file_event(self, event: str, args: Any) -> None:
        if event == "open":
            path, mode, flags = args
            if not isinstance(path, (str, bytes)):
                return
            path = os.fsdecode(path)
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR)) or any(
                letter in (mode or "") for letter in "wxa+"
            )
            temporary = flags & (os.O_EXCL | os.O_TRUNC)
            if writes:
                keep_original(path, bool(flags & os.O_TRUNC))
            if writes and (temporary or path.endswith(KINDS)) and "__pycache__" not in path:
                self.begun(path, sure=False)
            elif not writes and path.endswith("notice.json"):
                self.heard_notice = True
            elif not writes and self._trace.step == 0 and (path.endswith(KINDS) or is_own(path)):
                self.read(path)
        elif event == "os.rename":
            source, target = (os.path.abspath(os.fsdecode(name)) for name in args[:2])
            for path in self._below(source):
                self._written(path, target + path[len(source) :])
        else:
            path = beside(os.fsdecode(args[0]), args[1] if len(args) > 1 else None)
            self.removed(path, event == "shutil.rmtree")

    def wrap_save(self, torch: Any) -> None:
        save, note = torch.save, self._trace.guarded(self._note_save)

        def watched(obj: Any, f: Any, *args: Any, **more: Any) -> Any:
            note(f)
            return save(obj, f, *args, **more)

        torch.save = watched
        serialization = sys.modules.get("torch.serialization")
        if serialization is not None:
            serialization.save = watched  # type: ignore[attr-defined]

    def wrap_safetensors(self, safetensors: Any) -> None:
        """Wrap the functions of safetensors, whose files no Python code opens."""
        write, read = safetensors.serialize_file, safetensors.safe_open
        note_write, note_read = self._trace.guarded(self._note_save), self._trace.guarded(self.read)

        def written(tensors: Any, filename: Any, *args: Any, **more: Any) -> Any:
            note_write(filename)
            return write(tensors, filename, *args, **more)

        def opened(filename: Any, *args: Any, **more: Any) -> Any:
            note_read(filename)
            return read(filename, *args, **more)

        safetensors.serialize_file, safetensors.safe_open = written, opened

    def _note_save(self, file: Any) -> None:
        path = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", None)
        if self._trace.is_ours() and isinstance(path, (str, os.PathLike)):
            keep_original(os.fspath(path), is_rewritten=True)
            self.begun(os.fspath(path), sure=True)

    def begun(self, path: str, sure: bool) -> None:
        """Note that ``path`` is opened for writing. A temporary file counts once it is renamed."""
        path = os.path.abspath(path)
        if path in self._open or path.startswith((self._run_dir + os.sep, "/dev/", "/proc/")):
            return
        late = threading.current_thread() is not threading.main_thread()
        # A thread writes what was taken before.
        step = self.taken if late and self.taken else self._trace.step
        nth = self.begun_at[step] = self.begun_at.get(step, 0) + 1
        strike = self._strike
        is_struck = strike and step and (step, nth) == (strike["step"], strike["file"])
        if is_struck and strike["kind"] == "torn":
            # The rank dies in this file, so nothing reports the files before it later.
            self.settle(end=True)
        file = self._open[path] = OpenFile(step, nth, sure)
        if is_struck:
            self._struck = file
            time.sleep(strike.get("pause", 0.0))
            self._trace.tell("strike", what=strike["kind"])
            self._trace.limit_files(strike["size"])
            self._strike = None

    def removed(self, path: str, whole: bool) -> None:
        path = os.path.abspath(path)
        relative = self._below(path)
        for open_path in relative:
            # A thread that still writes the file has not made a checkpoint of it.
            if self._open[open_path].late and os.path.exists(open_path) and open_path not in open_files():
                self._written(open_path, open_path)
            else:
                del self._open[open_path]
        is_checkpoint = whole or relative or path in self._known or path.endswith(KINDS)
        # A script may clear the folder of a save before it makes it.
        if is_checkpoint and os.path.lexists(path) and not path.startswith(self._run_dir + os.sep):
            self._trace.tell("remove", path=path)

    def _below(self, path: str) -> list[str]:
        return [
            open_path
            for open_path in list(self._open)
            if open_path == path or open_path.startswith(path + os.sep)
        ]

    def read(self, path: Any) -> None:
        """Report a file that is read before the first step, by its real path: a folder may be a link."""
        path = os.path.realpath(path)
        if not self._trace.is_ours() or self._trace.step > 0:
            return
        if path not in self._read and len(self._read) < MOST_READS:
            self._read.add(path)
            self._trace.tell("load", path=path, line=script_line())

    def settle(self, end: bool = False) -> None:
        """Report files that still have their first name: they were written in place."""
        for path, file in list(self._open.items()):
            if end or not (file.late and self._in_work(path)):
                self._written(path, path)
        if self._struck not in self._open.values():
            self._trace.lift_limit()

    def rest(self) -> None:
        """Wait until threads have finished their files, and report these."""
        until = time.monotonic() + 2 * REST_SECONDS
        while self._open and time.monotonic() < until:
            self.settle()
            time.sleep(REST_SECONDS / 20)

    def _in_work(self, path: str) -> bool:
        """Return whether a thread may still write or rename a file, because it changed a moment ago."""
        try:
            return time.time() - os.stat(path).st_mtime < REST_SECONDS or path in open_files()
        except OSError:
            return True

    def _written(self, source: str, target: str) -> None:
        """Report the file that was written as ``source`` and gets or keeps the name ``target``."""
        file = self._open.pop(source)
        temporary = source if source != target else ""
        try:
            status = os.stat(source)
            with open(source, "rb") as written:
                content = written.read(4096)
        except OSError:
            # Another process has moved or removed it: two ranks may write under one temporary name.
            self._trace.tell("lost", n=file.step, path=target, temp=temporary, line=file.line)
            return
        sure = file.sure or target.endswith(KINDS) or content.startswith(ARCHIVE)
        if not sure and file.step == 0:
            return
        self._known.add(target)
        self._trace.tell(
            "save",
            n=file.step,
            path=target,
            temp=temporary,
            size=status.st_size,
            secs=round(max(0.0, status.st_mtime - file.at), 4),
            line=file.line,
            sure=sure,
            text=b"\0" not in content,
            nth=file.nth,
            thread=file.late,
        )


def open_files() -> set[str]:
    paths = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            paths.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return paths


def hearing(events: tuple[str, ...], handler: Callable[[str, Any], None]) -> Callable[[str, Any], None]:
    """Return an audit hook for these events. A method would take three times as long."""

    def hook(event: str, args: Any) -> None:
        if event in events:
            handler(event, args)

    return hook


def is_own(path: str) -> bool:
    """Return whether a file may be the script's data. A checkpoint may have any name."""
    path = os.path.abspath(path)
    inside = path.startswith(os.getcwd() + os.sep) and not path.endswith((".py", ".pyc"))
    return inside and not is_library(path)


def keep_original(path: str, is_rewritten: bool) -> None:
    """Replace a link to a file outside of this copy by a file of its own, before the script writes to it.

    Large files of the user's working directory are links in the copy.
    """
    if not os.path.islink(path):
        return
    original = os.path.realpath(path)
    if original.startswith(os.path.realpath(os.getcwd()) + os.sep) or not os.path.isfile(original):
        return
    os.unlink(path)
    if not is_rewritten:
        shutil.copyfile(original, path)


def beside(path: str, folder: Any) -> str:
    """Return a path relative to an open folder (``dir_fd`` of `os.unlink`), if there is one."""
    if isinstance(folder, int) and folder >= 0 and not os.path.isabs(path):
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
    return path
