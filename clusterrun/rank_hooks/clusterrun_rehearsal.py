"""What a rank does, seen from inside while `clusterrun rehearse` runs it: a line of JSON per optimizer step.

It is loaded by the prelude where ``CLUSTERRUN_REHEARSAL`` holds a plan (JSON), and writes to
``attempts/NNN/00003.rehearsal.jsonl``. Nothing of the script is copied: tensors are reduced to a checksum
where they lie. Lines, by their ``t``:

    step    one outermost ``Optimizer.step()``: checksums of parameters, state, buffers, averages; learning
            rates; random states; rows of the model's inputs and of batches; the loss
    save    a checkpoint file that was written: by which name, size, seconds, line of the script
    load    a file that was read    remove    one that was deleted    call    a state_dict, or its loading
    error   the exception that ended the rank    end    its end, and whether the limit of steps ended it

The plan's ``strikes`` are carried out here where only the rank knows the moment: it kills itself between two
steps, lets the kernel end it in the middle of a write (RLIMIT_FSIZE), or lets a write be refused.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import math
import os
import resource
import signal
import struct
import sys
import threading
import time
import zlib
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType
    from typing import Any

WAIT_SECONDS = 30.0
"""For the other ranks at the limit of steps."""
HOLD_SECONDS = 300.0
"""For whoever strikes while all ranks hold: through Slurm that takes a step of its own, on a node in use."""
MOST_ROWS = 512
"""Samples of one batch that are told apart."""
MOST_COPIES = 100_000
"""Tensors in a dict that is looked into."""
REST_SECONDS = 1.0
"""After which a file that a thread wrote has its final name, if nothing has moved it."""
MOST_PLACES = 100_000
"""Tensors whose place in memory is known."""
SMALL_ROW = 4096
"""Bytes of a sample up to which its batch is copied: that is quicker than to look at each in its place."""
LARGEST_PRIME = 4294967291
"""Below 2 to the power of 32."""
MOST_READS = 1000
"""Files that are told of as read before the first step."""
PIECE = 1 << 22
"""Elements of a tensor on a device that are summed at once."""
KINDS = (
    ".pt",
    ".pth",
    ".ckpt",
    ".bin",
    ".safetensors",
    ".distcp",
    ".npz",
    ".pkl",
    ".pickle",
    ".tar",
    ".part",
)
"""How files end that may be checkpoints, if something else than `torch.save` writes them."""
FIRST_STEPS = 5
ONLY_OURS = 3
"""References to an object: of our list, of a variable, and of the call that counts them."""
LIBRARIES = ("site-packages", "dist-packages", f"{os.sep}lib{os.sep}python", "<frozen", "<string>")
FILE_EVENTS = ("open", "os.rename", "os.remove", "shutil.rmtree")
RATES = ("lr", "momentum", "betas", "weight_decay")
COUNTS = ("last_epoch", "best", "num_bad_epochs", "cooldown_counter")
"""What a scheduler goes by; all but the first are ReduceLROnPlateau's."""
OWN = ("clusterrun_rehearsal.py", "sitecustomize.py", "clusterrun_prelude.py")


MAKE_STATE = ("_init_optim_state", "initialize_optimizer_states")
"""Functions of torch's distributed checkpoints and of DeepSpeed that step only to have a state to fill."""


def is_called_by(names: tuple[str, ...]) -> bool:
    """Whether a function of one of these names is on this thread's stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in names:
            return True
        frame = frame.f_back
    return False


def script_line() -> str:
    """``train.py:88``: the innermost line on this thread's stack that belongs to no library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if os.path.basename(name) not in OWN and not any(part in name for part in LIBRARIES):
            return f"{os.path.relpath(name) if name.startswith(os.getcwd()) else name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


class TensorDigest:
    """Checksums of tensors. Their version counters are no help: batch norm changes its buffers unseen."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._memory: dict[tuple[int, int], Any] = {}

    def of(self, tensors: Iterable[Any]) -> int:
        """One number for all of them, in their order."""
        total, size = 0, 0
        for tensor in tensors:
            total = (total * 1000003 + self.fresh(tensor)) & 0xFFFFFFFF
            size += 1
        return total ^ size

    def of_set(self, tensors: Iterable[Any]) -> int:
        """One number for all of them, in any order."""
        total = 0
        for tensor in tensors:
            one = self.fresh(tensor)
            total += one * one
        return total % LARGEST_PRIME

    def fresh(self, tensor: Any) -> int:
        """The checksum of one tensor's bytes; of those that lie here, if it is spread over ranks."""
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        if not local.is_cpu:
            return self._on_device(local.detach())
        if not local.is_contiguous():
            local = local.detach().contiguous()
        size = local.numel() * local.element_size()
        if not size:
            return 0
        place = (local.data_ptr(), size)
        data = self._memory.get(place) or self._at(place)
        return zlib.adler32(data, zlib.crc32(data[:4096]) if size > 4096 else 1)

    def _at(self, place: tuple[int, int]) -> Any:
        """The bytes at a place, to be read only while a tensor is there: most have theirs for all steps."""
        if len(self._memory) >= MOST_PLACES:
            self._memory.clear()
        data = self._memory[place] = bytes_at(*place)
        return data

    def _on_device(self, tensor: Any) -> int:
        torch = self._torch
        flat = tensor.contiguous().reshape(-1)
        if flat.numel() == 0:
            return 0
        words = flat.view(torch.int32) if flat.element_size() >= 4 else flat.view(torch.uint8)
        sums = torch.zeros(2, dtype=torch.int64, device=flat.device)
        for begin in range(0, words.numel(), PIECE):
            piece = words[begin : begin + PIECE].to(torch.int64)
            weights = torch.arange(begin, begin + piece.numel(), device=flat.device) % 65521 + 1
            sums += torch.stack((piece.sum(), (piece * weights).sum()))
        one, two = sums.tolist()
        return int(one * 31 + two * 1000003) & 0xFFFFFFFF

    def rows(self, tensor: Any) -> str:
        """A checksum of each sample of a batch, eight digits each; one for all where they are too many."""
        count = len(tensor) if tensor.dim() else 1
        numbers = tensor.numel()
        if not tensor.is_cpu and numbers <= PIECE:
            tensor = tensor.detach().cpu()
        if not tensor.is_cpu or not numbers or not 0 < count <= MOST_ROWS:
            return packed([self.fresh(tensor)])
        if not tensor.is_contiguous():
            tensor = tensor.detach().contiguous()
        size = numbers * tensor.element_size() // count
        place = (tensor.data_ptr(), size * count)
        data = self._memory.get(place) or self._at(place)
        if size <= SMALL_ROW:
            return packed([*map(zlib.crc32, struct.unpack(f"{size}s" * count, data))])
        return packed([zlib.crc32(data[place * size : (place + 1) * size]) for place in range(count)])


def packed(numbers: list[int]) -> str:
    """Checksums as text: decimals of many would take as long as what they stand for."""
    return struct.pack(f"={len(numbers)}I", *numbers).hex()


def bytes_at(address: int, size: int) -> Any:
    """The bytes of a tensor on the CPU, not copied: whoever reads them holds the tensor."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


class Generator:
    """The random state of Python, or of NumPy, as the words that its Mersenne twister goes by.

    To ask for them takes ten times as long as to read them: an object is made of each. So it is asked once,
    and read from then on where what it said is found in its own memory.
    """

    def __init__(self, ask: Callable[[], bytes], place: Callable[[Any], tuple[int, int]]) -> None:
        self._ask, self._place = ask, place
        self._owner: Any = None
        self._memory: Any = None

    def words(self, owner: Any) -> Any:
        """Those of the generator that is in use now."""
        if owner is None or owner is not self._owner:
            asked = self._ask()
            self._owner, self._memory = owner, self._found(asked, owner)
            return asked
        return self._ask() if self._memory is None else self._memory

    def _found(self, words: bytes, owner: Any) -> Any:
        try:
            memory = bytes_at(*self._place(owner))
        except (AttributeError, TypeError, ValueError):
            return None
        begin = bytes(memory).find(words)
        return memory[begin : begin + len(words)] if begin >= 0 else None


def python_words() -> bytes:
    """The state of Python's `random`."""
    *words, index = sys.modules["random"].getstate()[1]
    return struct.pack("=625I", index, *words)


def python_place(owner: Any) -> tuple[int, int]:
    """Where the object of a `random.Random` lies, which is written in C, and begins with those words."""
    if sys.implementation.name != "cpython":
        raise ValueError
    return id(owner), sys.modules["random"].Random.__base__.__basicsize__


def numpy_words() -> bytes:
    """The state of NumPy's `random`, which may be another generator than it was made with."""
    state = sys.modules["numpy.random"].get_state(legacy=False)["state"]
    if "key" not in state:
        return repr(state).encode()
    return bytes(state["key"]) + struct.pack("=i", state["pos"])


def numpy_place(owner: Any) -> tuple[int, int]:
    """Where the state of its Mersenne twister lies."""
    if type(owner).__name__ != "MT19937":
        raise ValueError
    return owner.ctypes.state_address, 2500


def tensors_in(value: Any, depth: int = 4) -> Iterable[Any]:
    """The tensors in a batch, whatever it is made of."""
    if hasattr(value, "data_ptr"):
        yield value
    elif depth and isinstance(value, dict):
        for one in value.values():
            yield from tensors_in(one, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_in(one, depth - 1)
    elif depth and hasattr(value, "__dict__") and not callable(value):
        yield from tensors_in(vars(value), depth - 1)


class OpenFile:
    """A file that is being written: since when, by which line, as the how-manieth of its checkpoint.

    ``late``: by another thread than the main one, which trains on meanwhile.
    """

    def __init__(self, step: int, nth: int, sure: bool) -> None:
        self.step, self.nth, self.sure = step, nth, sure
        self.at, self.line = time.time(), script_line()
        self.late = threading.current_thread() is not threading.main_thread()


class CheckpointWatch:
    """Which checkpoint files are written, under which name they end up, and what is struck meanwhile."""

    def __init__(self, tell: Callable[..., None], strike: Any, run_dir: str) -> None:
        self._tell, self._strike, self._run_dir = tell, strike, run_dir
        self._open: dict[str, OpenFile] = {}
        self.begun_at: dict[int, int] = {}
        self._read: set[str] = set()
        self._known: set[str] = set()
        self.step = self.taken = 0
        self._struck: OpenFile | None = None
        self._old_limit: tuple[int, int] | None = None

    def begun(self, path: str, sure: bool) -> None:
        """Something opens ``path`` for writing; a temporary file counts once it gets a checkpoint's name."""
        path = os.path.abspath(path)
        if path in self._open or path.startswith((self._run_dir + os.sep, "/dev/", "/proc/")):
            return
        late = threading.current_thread() is not threading.main_thread()
        step = self.taken if late and self.taken else self.step  # a thread writes what was taken before
        nth = self.begun_at[step] = self.begun_at.get(step, 0) + 1
        file = self._open[path] = OpenFile(step, nth, sure)
        strike = self._strike
        if strike and step and (step, nth) == (strike["step"], strike["file"]):
            self._struck = file
            self._limit(strike)

    def _limit(self, strike: Any) -> None:
        """From now on the kernel lets no file of this process grow beyond the limit."""
        self._tell("strike", what=strike["kind"])
        self._old_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (strike["size"], self._old_limit[1]))
        self._strike = None

    def renamed(self, source: str, target: str) -> None:
        """A file, or a folder with files, gets its final name."""
        source, target = os.path.abspath(source), os.path.abspath(target)
        for path in self._below(source):
            self._written(path, target + path[len(source) :])

    def removed(self, path: str, whole: bool) -> None:
        """A file, or a folder with all that is in it, is deleted."""
        path = os.path.abspath(path)
        below = self._below(path)
        for one in below:
            del self._open[one]
        known = whole or below or path in self._known or path.endswith(KINDS)
        if known and not path.startswith(self._run_dir + os.sep):
            self._tell("remove", path=path)

    def _below(self, path: str) -> list[str]:
        return [one for one in list(self._open) if one == path or one.startswith(path + os.sep)]

    def read(self, path: str) -> None:
        """A file is opened for reading."""
        path = os.path.abspath(path)
        if path not in self._read and len(self._read) < MOST_READS:
            self._read.add(path)
            self._tell("load", path=path, line=script_line())

    def settle(self, end: bool = False) -> None:
        """Before the next step, or at the end: what is still under its first name was written in place."""
        for path, file in list(self._open.items()):
            if end or not (file.late and self._in_work(path)):
                self._written(path, path)
        if self._old_limit is not None and self._struck not in self._open.values():
            resource.setrlimit(resource.RLIMIT_FSIZE, self._old_limit)
            self._old_limit = None

    def _in_work(self, path: str) -> bool:
        """Whether a thread may still write a file, or name it anew: it was changed a moment ago."""
        try:
            return time.time() - os.stat(path).st_mtime < REST_SECONDS or path in open_files()
        except OSError:
            return True

    def _written(self, source: str, target: str) -> None:
        file = self._open.pop(source)
        try:
            seen = os.stat(source)
            sure = file.sure or target.endswith(KINDS)
            if not sure and (file.step == 0 or is_text(source)):
                return
        except OSError:
            return
        self._known.add(target)
        self._tell(
            "save",
            n=file.step,
            path=target,
            temp=source if source != target else "",
            size=seen.st_size,
            secs=round(max(0.0, seen.st_mtime - file.at), 4),
            line=file.line,
            sure=sure,
            nth=file.nth,
        )


def open_files() -> set[str]:
    """The paths that this process holds open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return found


class RankWatch:
    """One rank under watch, from its first step on."""

    def __init__(self, plan: Any, folder: str, rank: int, run_dir: str) -> None:
        self.plan, self.pid, self.rank = plan, os.getpid(), rank
        self.attempt = int(os.environ.get("CLUSTERRUN_ATTEMPT", "0"))
        self.folder = folder
        self._out = os.open(
            f"{folder}/{rank:05d}.rehearsal.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        self.step = 0
        self.limit = int(plan.get("steps", 0))
        mine = [one for one in plan.get("strikes", ()) if one["attempt"] == self.attempt]
        mine = self._mine = [one for one in mine if one.get("rank", rank) == rank]
        self._hold = next((one for one in mine if one["kind"] == "hold"), None)
        self._kill = next((one for one in mine if one["kind"] in ("kill", "kill-before")), None)
        torn = next((one for one in mine if one["kind"] in ("torn", "full")), None)
        if torn and torn["kind"] == "torn":
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        self.files = CheckpointWatch(self.tell, torn, run_dir)
        self.audit = hearing(FILE_EVENTS, self._audited)
        self.quiet: set[int] = set()
        self._optimizers: list[Any] = []
        self._keys: list[int] = []
        self._parameters: dict[int, int] = {}
        self._inside: Any = None
        self._inputs: list[str] = []
        self._batches: list[str] = []
        self._settings: Any = None
        self._settings_text = ""
        self._losses: list[float] = []
        self._python = Generator(python_words, python_place)
        self._numpy = Generator(numpy_words, numpy_place)
        self._parts: dict[str, Any] = {}
        self._schedulers: list[Any] = []
        self._scalers: list[Any] = []
        self._called: set[Any] = set()
        self._depth = 0
        self._global_hooks: list[Any] = []

    # --- lines ---

    def tell(self, kind: str, **said: Any) -> None:
        """One line of the trace."""
        if os.getpid() != self.pid:
            return
        self._write(json.dumps({"t": kind, "n": self.step, **said}))

    def _write(self, line: str) -> None:
        limit = self.files._old_limit if hasattr(self, "files") else None
        if limit is None:
            os.write(self._out, f"{line}\n".encode())
            return
        low = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        os.write(self._out, f"{line}\n".encode())
        resource.setrlimit(resource.RLIMIT_FSIZE, low)

    def _audited(self, event: str, args: Any) -> None:
        """Python is about to open, rename or delete a file."""
        if os.getpid() != self.pid:
            return
        thread = threading.get_ident()
        if thread in self.quiet:
            return
        self.quiet.add(thread)
        try:
            self._file_event(event, args)
        except Exception:  # noqa: BLE001 (the script's file is more important than our line)
            pass
        finally:
            self.quiet.discard(thread)

    def _file_event(self, event: str, args: Any) -> None:
        if event == "open":
            path, mode, flags = args
            if not isinstance(path, (str, bytes)):
                return
            path = os.fsdecode(path)
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR)) or any(c in (mode or "") for c in "wxa+")
            temporary = flags & (os.O_EXCL | os.O_TRUNC)
            if writes and (temporary or path.endswith(KINDS)) and "__pycache__" not in path:
                self.files.begun(path, sure=False)
            elif not writes and path.endswith("notice.json"):
                self._called.add("notice.json")
            elif not writes and self.step == 0 and (path.endswith(KINDS) or is_own(path)):
                self.files.read(path)
        elif event == "os.rename":
            self.files.renamed(os.fsdecode(args[0]), os.fsdecode(args[1]))
        else:
            path = beside(os.fsdecode(args[0]), args[1] if len(args) > 1 else None)
            self.files.removed(path, event == "shutil.rmtree")

    # --- torch ---

    def install(self, torch: Any) -> None:
        """torch has just been imported: hook what it offers, and wrap what it does not."""
        self.torch, self.digest = torch, TensorDigest(torch)
        optimizer = sys.modules["torch.optim.optimizer"]
        optimizer.register_optimizer_step_pre_hook(self._guarded(self.before_step))
        optimizer.register_optimizer_step_post_hook(self._guarded(self.after_step))
        modules = sys.modules["torch.nn.modules.module"]
        self._global_hooks = [
            modules.register_module_forward_pre_hook(self._guarded(self._enter)),
            modules.register_module_forward_hook(self._guarded(self._leave), always_call=True),
        ]
        self._wrap_save(torch)
        self._wrap_backward(sys.modules["torch.autograd"])
        self._wrap_loader(sys.modules.get("torch.utils.data.dataloader"))
        schedulers = sys.modules.get("torch.optim.lr_scheduler")
        if schedulers is not None:
            base = schedulers.LRScheduler
            self._collect(base, self._schedulers)
            self._collect(schedulers.ReduceLROnPlateau, self._schedulers)  # it does without its base's
            for kind in (base, *base.__subclasses__()):
                self._note_calls(kind, "scheduler")
        scalers = sys.modules.get("torch.amp.grad_scaler")
        if scalers is not None:
            self._collect(scalers.GradScaler, self._scalers)
            self._note_calls(scalers.GradScaler, "scaler")
        self._note_calls(torch.nn.Module, "model")
        self._note_random(torch)
        self._note_calls(torch.optim.Optimizer, "optimizer")

    def _guarded(self, hook: Callable[..., None]) -> Callable[..., None]:
        """The same, whatever happens in it: nothing of ours may end a script; the first failure is told."""

        def watched(*args: Any) -> None:
            try:
                hook(*args)
            except Exception as error:  # noqa: BLE001 (torch of any version, objects of any library)
                if "blind" not in self._called:
                    self._called.add("blind")
                    self.tell("blind", why=f"{type(error).__name__}: {error}"[:300])

        return watched

    def _wrap_save(self, torch: Any) -> None:
        save, note = torch.save, self._guarded(self._note_save)

        def watched(obj: Any, f: Any, *args: Any, **more: Any) -> Any:
            note(f)
            return save(obj, f, *args, **more)

        torch.save = watched
        serialization = sys.modules.get("torch.serialization")
        if serialization is not None:
            serialization.save = watched  # type: ignore[attr-defined]

    def install_safetensors(self, safetensors: Any) -> None:
        """What opens its files is no Python: its functions are wrapped before its modules take them."""
        write, read = safetensors.serialize_file, safetensors.safe_open
        begun, seen = self._guarded(self._note_save), self._guarded(self._note_read)

        def written(tensors: Any, filename: Any, *args: Any, **more: Any) -> Any:
            begun(filename)
            return write(tensors, filename, *args, **more)

        def opened(filename: Any, *args: Any, **more: Any) -> Any:
            seen(filename)
            return read(filename, *args, **more)

        safetensors.serialize_file, safetensors.safe_open = written, opened

    def _note_read(self, path: Any) -> None:
        if os.getpid() == self.pid and self.step == 0:
            self.files.read(os.fspath(path))

    def _note_save(self, file: Any) -> None:
        path = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", None)
        if os.getpid() == self.pid and isinstance(path, (str, os.PathLike)):
            self.files.begun(os.fspath(path), sure=True)

    def _wrap_backward(self, autograd: Any) -> None:
        backward, note = autograd.backward, self._guarded(self._note_loss)

        def watched(tensors: Any, *args: Any, **more: Any) -> Any:
            note(tensors)
            return backward(tensors, *args, **more)

        autograd.backward = watched

    def _note_loss(self, tensors: Any) -> None:
        one = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if os.getpid() == self.pid and hasattr(one, "numel") and one.numel() == 1:
            self._losses.append(one.item())

    def _wrap_loader(self, loaders: Any) -> None:
        if loaders is None:
            return
        base = loaders._BaseDataLoaderIter
        following, index = base.__next__, base._next_index

        def chosen(iterator: Any) -> Any:
            found = index(iterator)
            whole = isinstance(found, (list, tuple)) and all(isinstance(one, int) for one in found)
            iterator.__dict__.setdefault("_rehearsed", []).append([*map(int, found)] if whole else "null")
            return found

        note = self._guarded(self._note_batch)

        def watched(iterator: Any) -> Any:
            batch = following(iterator)
            note(iterator, batch)
            return batch

        base.__next__, base._next_index = watched, chosen

    def _note_batch(self, iterator: Any, batch: Any) -> None:
        if os.getpid() != self.pid or len(self._batches) >= 64:
            return
        seen_by_model = self.step and "root" in self._parts
        first = None if seen_by_model else next(iter(tensors_in(batch)), None)
        data = getattr(iterator, "_dataset", None)
        size = len(data) if data is not None and hasattr(data, "__len__") else 0
        order = iterator.__dict__.get("_rehearsed") or ["null"]
        rows = self.digest.rows(first) if first is not None else ""
        name = json.dumps(f"{type(data).__name__}:{size}")
        self._batches.append(f'[{name}, "{rows}", {order.pop(0)}]')

    def _collect(self, kind: Any, into: list[Any]) -> None:
        made = kind.__init__

        def watched(one: Any, *args: Any, **more: Any) -> None:
            made(one, *args, **more)
            if not any(known is one for known in into):
                into.append(one)

        kind.__init__ = watched

    def _note_calls(self, kind: Any, what: str) -> None:
        """Say once per line of the script which state is taken or loaded there."""
        for name in {"state_dict", "load_state_dict"} & vars(kind).keys():
            setattr(kind, name, self._noting(getattr(kind, name), what, name))

    def _note_random(self, torch: Any) -> None:
        """Say which state of random numbers is set; torch's own functions set it for a moment."""
        for what, name, method in (
            ("python", "random", "setstate"),
            ("numpy", "numpy.random", "set_state"),
            ("torch", "torch", "set_rng_state"),
            ("torch", "torch.random", "set_rng_state"),
        ):
            if name in sys.modules:
                real = getattr(sys.modules[name], method)
                setattr(sys.modules[name], method, self._noting(real, what, "set"))

    def _noting(self, real: Any, what: str, name: str) -> Any:
        def watched(*args: Any, **more: Any) -> Any:
            if name == "state_dict" and what != "scaler":
                self.files.taken = self.step
            own = name == "set" and sys._getframe(1).f_globals.get("__name__", "").startswith("torch.")
            if not own and ((what, name) not in self._called or name == "load_state_dict"):
                self._called.add((what, name))
                self.tell("call", what=what, name=name, line=script_line())
            result = real(*args, **more)
            missing, unknown = getattr(result, "missing_keys", ()), getattr(result, "unexpected_keys", ())
            if missing and unknown and self.step == 0:
                said = {"missing": len(missing), "unknown": len(unknown), "name": unknown[0]}
                self.tell("partial", line=script_line(), **said)
            return result

        watched.__name__ = getattr(real, "__name__", name)
        watched.__wrapped__ = real  # type: ignore[attr-defined]
        return watched

    # --- what the model was given ---

    def _enter(self, module: Any, args: Any) -> None:
        self._depth += 1
        if self._depth == 1 and module.training and self.torch.is_grad_enabled() and os.getpid() == self.pid:
            first = next(iter(tensors_in(args)), None)
            if first is not None and len(self._inputs) < 64:
                self._inputs.append(self.digest.rows(first))
                self._parts.setdefault("root", {})[id(module)] = module

    def _leave(self, module: Any, args: Any, output: Any) -> None:
        self._depth = max(0, self._depth - 1)

    def _own_hooks(self) -> None:
        """After the first step the outermost modules are known: only they are hooked from now on."""
        for hook in self._global_hooks:
            hook.remove()
        self._global_hooks = []
        self._depth = 0
        for module in self._parts.get("root", {}).values():
            ours = module.register_forward_pre_hook(self._guarded(self._given), prepend=True).id
            pickle_without(type(module), ours)

    def _given(self, module: Any, args: Any) -> None:
        if module.training and self.torch.is_grad_enabled() and len(self._inputs) < 64:
            first = next(iter(tensors_in(args)), None)
            if first is not None:
                self._inputs.append(self.digest.rows(first))

    # --- steps ---

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer is about to step."""
        if os.getpid() != self.pid or (self._inside is not None and self._inside is not optimizer):
            return
        known = any(one is optimizer for one in self._optimizers)
        if not known and is_called_by(MAKE_STATE):
            return
        known = known or self._takes_over(optimizer)
        self._inside = optimizer
        self.files.settle()
        if known:
            self._look_again(optimizer)
        if self._hold and self.step == self._hold["step"]:  # most of a step's time lies before this
            self._wait_for(lambda: os.path.exists(f"{self.folder}/rehearsal.go"), "hold", HOLD_SECONDS)
        kill = self._kill
        if kill and kill["kind"] == "kill-before" and self.step == kill["step"]:
            self._die()
        if self.limit and self.step >= self.limit:
            self._end_at_limit()
        if not known:
            number = len(self._optimizers)
            self._add(optimizer)
            parameters, state = self._of(optimizer)
            self._parameters[self._keys[-1]] = parameters
            shared = self._shares(optimizer)
            self.tell("before", o=self._keys[-1], p=parameters, s=state, shared=shared, line=script_line())
            if number == 0:
                self._go_on_after(self._past().get(parameters, 0))

    def _look_again(self, optimizer: Any) -> None:
        """Whether the script itself has changed weights since a step: a mean over ranks, limits of weights.

        It is looked for in the first steps, and where a checkpoint may hold them.
        """
        files = self.files
        if self.step > FIRST_STEPS and self.step not in (files.taken, *files.begun_at):
            return
        parameters = self._of(optimizer, with_state=False)[0]
        key = self._key(optimizer)
        if parameters != self._parameters[key]:
            self._parameters[key] = parameters
            self.tell("moved", o=key, p=parameters)

    def _past(self) -> dict[int, int]:
        """After which step of the run it had which parameters, by what the starts before this one said."""
        runs = self.plan.get("past", ())
        starts = [os.path.join(run, name) for run in runs for name in sorted(os.listdir(run))]
        here = os.path.dirname(self.folder)
        starts += [os.path.join(here, f"{number:03d}") for number in range(self.attempt)]
        found: dict[int, int] = {}
        for start in starts:
            mine = f"{start}/{self.rank:05d}.rehearsal.jsonl"
            begin = 0
            for line in lines_of(mine if os.path.exists(mine) else f"{start}/00000.rehearsal.jsonl"):
                if line["t"] == "before" and not begin:
                    begin = found.get(line["p"], 0)
                elif line["t"] in ("step", "moved"):
                    found[line["p"]] = begin + line["n"]
        return found

    def _go_on_after(self, done: int) -> None:
        """The plan counts the steps of the run, and we those of this start."""
        if self.limit:
            self.limit = max(1, self.limit - done)
        for strike in self._mine:
            strike["step"] -= done

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer has stepped."""
        if os.getpid() != self.pid or self._inside is not optimizer:
            return
        self._inside = None
        self.step += 1
        self.files.step = self.step
        if self.step == 1:
            self._own_hooks()
            self._survey()
        self._write(self._told(optimizer))
        if self._kill and self._kill["kind"] == "kill" and self.step == self._kill["step"]:
            self._die()

    def _told(self, optimizer: Any) -> str:
        """The line of this step. It is put together by hand: what json takes for it is felt in each step."""
        parameters, state = self._of(optimizer)
        losses, self._losses = self._losses, []
        inputs, self._inputs = self._inputs, []
        batches, self._batches = self._batches, []
        key = self._key(optimizer)
        self._parameters[key] = parameters
        random = ", ".join([f'"{name}": {state}' for name, state in self._random().items()])
        loss = sum(losses) / len(losses) if losses else None
        buffers = self.digest.of(self._parts.get("buffers", ()))
        return (
            f'{{"t": "step", "n": {self.step}, "o": {key}, "p": {parameters}, "s": {state}, "b": {buffers}, '
            f'"ema": {self._averages()}, "rng": {{{random}}}, "x": {json_texts(inputs)}, '
            f'"d": [{", ".join(batches)}], "loss": {json_number(loss)}, "at": {time.time()!r}, '
            f"{self._settings_of(optimizer)}"
        )

    def _settings_of(self, optimizer: Any) -> str:
        """What seldom changes from one step to the next, as the end of its line."""
        hears = callable(signal.getsignal(signal.SIGUSR2)) or "notice.json" in self._called
        settings = {
            "lr": [[fixed(g[name]) for name in RATES if name in g] for g in optimizer.param_groups],
            "sched": [scheduler_state(one) for one in self._schedulers],
            "scale": [scaler_state(one) for one in self._scalers],
            "hears": hears,
        }
        if settings != self._settings:
            self._settings, self._settings_text = settings, json.dumps(settings)[1:]
        return self._settings_text

    def _add(self, optimizer: Any) -> None:
        """Know an optimizer by its kind and the shapes that it trains: the same one in every start."""
        shapes = [tuple(one.shape) for one in trained_by(optimizer)]
        key = zlib.crc32(f"{type(optimizer).__name__}{shapes}".encode())
        while key in self._keys:
            key += 1
        self._optimizers.append(optimizer)
        self._keys.append(key)

    def _key(self, optimizer: Any) -> int:
        return next(key for key, one in zip(self._keys, self._optimizers) if one is optimizer)

    def _takes_over(self, optimizer: Any) -> bool:
        """Whether it is for the weights of one that the script has dropped: it is the same one to us."""
        mine = [id(one) for one in trained_by(optimizer)]
        for place in range(len(self._optimizers)):
            one = self._optimizers[place]
            gone = sys.getrefcount(one) <= ONLY_OURS
            same = mine == [id(parameter) for parameter in trained_by(one)]
            if gone and type(one) is type(optimizer) and same:
                self._optimizers[place] = optimizer
                return True
        return False

    def _shares(self, optimizer: Any) -> bool:
        """Whether an optimizer that stepped before trains some of the same parameters."""
        mine = {id(one) for one in trained_by(optimizer)}
        others = (one for one in self._optimizers if one is not optimizer)
        return any(id(parameter) in mine for one in others for parameter in trained_by(one))

    def _of(self, optimizer: Any, with_state: bool = True) -> tuple[int, int]:
        """Checksums of the parameters, in any order, and of the state; ZeRO has that of its shard inside."""
        parameters = trained_by(optimizer)
        inner = getattr(optimizer, "optim", None)
        state = inner.state if isinstance(inner, self.torch.optim.Optimizer) else optimizer.state
        held: list[Any] = []
        plain = 0
        for parameter in parameters if with_state else ():
            mine = (state.get(parameter) if hasattr(state, "get") else None) or {}
            for name in sorted(mine, key=str):
                value = mine[name]
                if hasattr(value, "data_ptr"):
                    held.append(value)
                elif isinstance(value, (int, float)):
                    plain = (plain * 31 + hash(value)) & 0xFFFFFFFF
        return self.digest.of_set(parameters), self.digest.of(held) ^ plain

    def _survey(self) -> None:
        """Find, once, the modules that hold the parameters and what looks like averages of them."""
        module_kind = self.torch.nn.Module
        trained = {id(parameter) for one in self._optimizers for parameter in trained_by(one)}
        shapes = {tuple(parameter.shape) for one in self._optimizers for parameter in trained_by(one)}
        states = [one.state.values() for one in self._optimizers if hasattr(one.state, "values")]
        taken = trained | {
            id(v) for held in states for one in held if isinstance(one, dict) for v in one.values()
        }
        modules, held_together = self._found(module_kind)
        inner = {id(child) for one in modules for child in one.children()}
        buffers: list[Any] = []
        averages: list[Any] = []
        for one in modules:
            if id(one) in inner:
                continue
            held = list(one.parameters())
            if any(id(p) in trained for p in held):
                buffers += list(one.buffers())
            elif held and {tuple(p.shape) for p in held} >= shapes:
                averages.append(one)
        known = {id(b) for b in buffers}
        of_modules = {id(one.__dict__.get("_parameters")) for one in modules}
        for one in held_together:
            if not 0 < len(shapes) <= len(one) <= MOST_COPIES or id(one) in of_modules:
                continue
            values = values_of(one)
            if type(one) is list and len(values) != len(trained):
                continue  # many lists hold tensors: of an average one is wanted per parameter
            if all(issubclass(type(value), self.torch.Tensor) for value in values) and (
                are_copies(values, taken, shapes)
            ):
                averages.append(one)
        self._parts["buffers"] = list({id(b): b for b in buffers}.values()) if known else []
        self._parts["averages"] = averages

    def _found(self, module_kind: Any) -> tuple[list[Any], list[Any]]:
        """All modules, and all dicts and lists that begin with a tensor; each type is looked at once."""
        kinds: dict[type, bool] = {dict: False, list: False}
        tensor, modules, held = self.torch.Tensor, [], []
        for one in gc.get_objects():
            kind = type(one)
            known = kinds.get(kind)
            if known is None:
                known = kinds[kind] = issubclass(kind, module_kind)
            if known:
                modules.append(one)
            elif kind in (dict, list) and one and issubclass(type(next(iter(values_of(one, 1)))), tensor):
                held.append(one)
        return modules, held

    def _averages(self) -> list[int]:
        found = []
        for one in self._parts.get("averages", ()):
            values = one.state_dict().values() if hasattr(one, "state_dict") else values_of(one)
            found.append(self.digest.of(v for v in values if hasattr(v, "data_ptr")))
        return sorted(set(found))

    def _random(self) -> dict[str, int]:
        """A checksum of each state of random numbers that this process has."""
        found = {}
        if "random" in sys.modules:
            owner = getattr(sys.modules["random"].getstate, "__self__", None)
            # Before Python 3.12 the hash of None is another one in each process.
            gauss = hash(getattr(owner, "gauss_next", None) or 0.0) & 0xFFFFFFFF
            found["python"] = zlib.crc32(self._python.words(owner)) ^ gauss
        if "numpy.random" in sys.modules:
            made = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
            owner = getattr(made, "_bit_generator", None)
            found["numpy"] = zlib.crc32(self._numpy.words(owner))
        found["torch"] = self.digest.fresh(self.torch.random.get_rng_state())
        cuda = self.torch.cuda
        if cuda.is_initialized():
            found["cuda"] = self.digest.fresh(cuda.get_rng_state())
        return found

    # --- ends ---

    def _die(self) -> None:
        self.tell("strike", what="kill")
        os.kill(self.pid, signal.SIGKILL)

    def _wait_for(self, there: Callable[[], bool], why: str, seconds: float = WAIT_SECONDS) -> None:
        self.tell(why)
        until = time.monotonic() + seconds
        while not there() and time.monotonic() < until:
            time.sleep(0.02)

    def _end_at_limit(self) -> None:
        """The limit of steps is reached: end with all other ranks, so that none sees another one go."""
        with open(f"{self.folder}/{self.rank:05d}.rehearsal.done", "w"):
            pass
        size = int(os.environ.get("WORLD_SIZE", "1"))
        names = [f"{self.folder}/{rank:05d}.rehearsal.done" for rank in range(size)]
        self._wait_for(lambda: all(map(os.path.exists, names)), "limit")
        self.tell("end", limit=True)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)

    def at_exit(self) -> None:
        """The script ends by itself."""
        if os.getpid() == self.pid:
            self.files.settle(end=True)
            for optimizer in self._optimizers:
                self._guarded(self._look_again)(optimizer)
            self.tell("end", limit=False)

    def failed(self, kind: Any, error: Any, trace: Any) -> None:
        """The script ends by an exception."""
        line, inner = "", trace
        while inner is not None:
            name = inner.tb_frame.f_code.co_filename
            if not any(part in name for part in LIBRARIES) and os.path.basename(name) not in OWN:
                line = f"{os.path.basename(name)}:{inner.tb_lineno}"
            inner = inner.tb_next
        self.tell("error", what=kind.__name__, text=str(error)[:500], line=line, at=time.time())
        sys.__excepthook__(kind, error, trace)


def hearing(events: tuple[str, ...], told: Callable[[str, Any], None]) -> Callable[[str, Any], None]:
    """An audit hook for these events; `id` and its like raise dozens of others in each step.

    A function is called in a third of the time that a method takes.
    """

    def hook(event: str, args: Any) -> None:
        if event in events:
            told(event, args)

    return hook


def pickle_without(kind: Any, hook: int) -> None:
    """Let modules of this class be pickled and copied without our hook: a script may save them whole."""
    state_of = getattr(kind, "__getstate__", None)

    def clean(module: Any) -> Any:
        state = state_of(module) if state_of else module.__dict__
        hooks = state.get("_forward_pre_hooks") if isinstance(state, dict) else None
        if hooks and hook in hooks:
            state = {
                **state,
                "_forward_pre_hooks": type(hooks)((k, v) for k, v in hooks.items() if k != hook),
            }
        return state

    kind.__getstate__ = clean


def is_own(path: str) -> bool:
    """Whether a file may be one of the script's own, and no part of a program: a checkpoint has any name."""
    path = os.path.abspath(path)
    inside = path.startswith(os.getcwd() + os.sep) and not path.endswith((".py", ".pyc"))
    return inside and not any(part in path for part in LIBRARIES)


def is_text(path: str) -> bool:
    """Whether a file begins as text does."""
    with open(path, "rb") as file:
        return b"\0" not in file.read(4096)


def beside(path: str, folder: Any) -> str:
    """A path that is meant from an open folder (``dir_fd`` of `os.unlink`), if there is one."""
    if isinstance(folder, int) and folder >= 0 and not os.path.isabs(path):
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
    return path


def json_texts(texts: list[str]) -> str:
    """A list of texts that hold nothing that JSON writes otherwise."""
    return str(texts).replace("'", '"')


def json_number(number: float | None) -> str:
    """A number, or none, as JSON."""
    return repr(number) if number is not None and math.isfinite(number) else json.dumps(number)


def trained_by(optimizer: Any) -> list[Any]:
    """The parameters of an optimizer, in the order of its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def fixed(value: Any) -> Any:
    """A setting without what may change in its place: some are tensors."""
    if isinstance(value, (list, tuple)):
        return [fixed(one) for one in value]
    return value.item() if hasattr(value, "item") else value


def scheduler_state(scheduler: Any) -> Any:
    """The number that a scheduler has counted to; those of ReduceLROnPlateau."""
    found = [getattr(scheduler, name, None) for name in COUNTS]
    return found[0] if found[1:] == [None, None, None] else found


def lines_of(path: str) -> Iterable[Any]:
    """The lines of a trace; a line that was cut off by its end is left out."""
    if os.path.exists(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except ValueError:
                    pass


def scaler_state(scaler: Any) -> Any:
    """Scale and growth counter of a GradScaler; None where it is off."""
    if not getattr(scaler, "_enabled", False):
        return None
    scale = getattr(scaler, "_scale", None)
    tracker = getattr(scaler, "_growth_tracker", None)
    return [float(one) if one is not None else None for one in (scale, tracker)]


def values_of(held: Any, most: int | None = None) -> list[Any]:
    """What a dict or a list holds, at most so many of it."""
    return list(islice(held.values() if isinstance(held, dict) else held, most))


def are_copies(tensors: list[Any], trained: set[int], shapes: set[Any]) -> bool:
    """Whether there is a tensor for every shape of the parameters, none of them a parameter itself."""
    if any(id(one) in trained or one.requires_grad for one in tensors):
        return False
    return {tuple(one.shape) for one in tensors} >= shapes


def begin(folder: str, rank: int, run_dir: str) -> None:
    """RankWatch this rank; torch is hooked as soon as the script has imported it."""
    watch = RankWatch(json.loads(os.environ["CLUSTERRUN_REHEARSAL"]), folder, rank, run_dir)
    sys.addaudithook(watch.audit)
    sys.excepthook = watch.failed
    atexit.register(watch.at_exit)
    sys.meta_path.insert(0, TorchImport(watch))


class TorchImport:
    """Sees the imports of torch, of its compiler and of safetensors, and no other.

    Nothing of what they make is garbage: without looking for any they load in four fifths of the time,
    which is most of what a start of many ranks costs. What torch itself made is never looked at again.
    """

    def __init__(self, watch: RankWatch) -> None:
        self._watch = watch
        self._waits_for = {"torch", "torch._dynamo", "safetensors"}
        self._after = {"torch": watch.install, "safetensors": watch.install_safetensors}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The real spec of such a module; torch is hooked once it has run."""
        if name not in self._waits_for:
            return None
        self._waits_for.discard(name)
        if not self._waits_for:
            sys.meta_path.remove(self)
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = self._hooking(loader.exec_module, self._after.get(name))
        return spec

    def _hooking(
        self, run: Callable[[Any], None], after: Callable[[Any], None] | None
    ) -> Callable[[Any], None]:
        def loaded(module: Any) -> None:
            collects = gc.isenabled()
            gc.disable()
            try:
                run(module)
            finally:
                if after == self._watch.install:
                    gc.freeze()
                if collects:
                    gc.enable()
            try:
                if after:
                    after(module)
            except Exception as error:  # noqa: BLE001 (a torch that we do not know)
                self._watch.tell("blind", why=f"{type(error).__name__}: {error}")

        return loaded
