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
import os
import resource
import signal
import sys
import time
import zlib

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
LIBRARIES = ("site-packages", "dist-packages", f"{os.sep}lib{os.sep}python", "<frozen", "<string>")
FILE_EVENTS = ("open", "os.rename", "os.remove", "shutil.rmtree")
RATES = ("lr", "momentum", "betas", "weight_decay")
OWN = ("clusterrun_rehearsal.py", "sitecustomize.py", "clusterrun_prelude.py")


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

    def of(self, tensors: Iterable[Any]) -> int:
        """One number for all of them, in their order."""
        total, size = 0, 0
        for tensor in tensors:
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            total = (total * 1000003 + self.fresh(local)) & 0xFFFFFFFF
            size += 1
        return total ^ size

    def fresh(self, tensor: Any) -> int:
        """The checksum of one tensor's bytes."""
        tensor = tensor.detach()
        if tensor.device.type != "cpu":
            return self._on_device(tensor)
        data = contents(tensor)
        return 0 if data is None else zlib.adler32(data, zlib.crc32(data[:4096]) if len(data) > 4096 else 1)

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

    def rows(self, tensor: Any) -> list[int]:
        """A checksum of each sample of a batch; one for all where they are too many."""
        tensor = tensor.detach()
        count = tensor.shape[0] if tensor.dim() else 1
        if tensor.device.type != "cpu" and tensor.numel() <= PIECE:
            tensor = tensor.cpu()
        data = contents(tensor) if tensor.device.type == "cpu" else None
        if data is None or not 0 < count <= MOST_ROWS:
            return [self.fresh(tensor)]
        size = len(data) // count
        return [zlib.crc32(data[place * size : (place + 1) * size]) for place in range(count)]


def contents(tensor: Any) -> Any:
    """The bytes of a tensor on the CPU, not copied; None where it has none."""
    tensor = tensor if tensor.is_contiguous() else tensor.contiguous()
    size = tensor.numel() * tensor.element_size()
    if not size:
        return None
    # A tensor that was made contiguous here lives as long as its bytes are read: the array holds it.
    array = (ctypes.c_char * size).from_address(tensor.data_ptr())
    array.tensor = tensor
    return memoryview(array).cast("B")


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


class CheckpointWatch:
    """Which checkpoint files are written, under which name they end up, and what is struck meanwhile."""

    def __init__(self, tell: Callable[..., None], strike: Any, run_dir: str) -> None:
        self._tell, self._strike, self._run_dir = tell, strike, run_dir
        self._open: dict[str, tuple[float, str, str, int]] = {}
        self._begun = 0
        self.step = 0
        self._old_limit: tuple[int, int] | None = None

    def begun(self, path: str, how: str) -> None:
        """Something opens ``path`` for writing; a temporary file counts once it gets a checkpoint's name."""
        path = os.path.abspath(path)
        if path in self._open or path.startswith((self._run_dir + os.sep, "/dev/", "/proc/")):
            return
        self._begun += 1
        self._open[path] = (time.time(), script_line(), how, self._begun)
        strike = self._strike
        if strike and self.step and (self.step, self._begun) == (strike["step"], strike["file"]):
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
        for path in [path for path in self._open if path == source or path.startswith(source + os.sep)]:
            self._written(path, target + path[len(source) :])

    def removed(self, path: str) -> None:
        """A file, or a folder with all that is in it, is deleted."""
        path = os.path.abspath(path)
        for one in [one for one in self._open if one == path or one.startswith(path + os.sep)]:
            del self._open[one]
        if not path.startswith(self._run_dir + os.sep):
            self._tell("remove", path=path)

    def read(self, path: str) -> None:
        """A file is opened for reading."""
        self._tell("load", path=os.path.abspath(path), line=script_line())

    def settle(self) -> None:
        """Before the next step: what is still under its first name was written in place."""
        if self._old_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, self._old_limit)
            self._old_limit = None
        for path in list(self._open):
            self._written(path, path)
        self._begun = 0

    def _written(self, source: str, target: str) -> None:
        at, line, how, nth = self._open.pop(source)
        if how != "torch.save" and not target.endswith(KINDS):
            return
        try:
            seen = os.stat(source)
        except OSError:
            return
        self._tell(
            "save",
            path=target,
            temp=source if source != target else "",
            size=seen.st_size,
            secs=round(max(0.0, seen.st_mtime - at), 4),
            line=line,
            how=how,
            nth=nth,
        )


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
        self._hold = next((one["step"] for one in mine if one["kind"] == "hold"), 0)
        mine = [one for one in mine if one.get("rank", rank) == rank]
        self._kill = next((one for one in mine if one["kind"] in ("kill", "kill-before")), None)
        torn = next((one for one in mine if one["kind"] in ("torn", "full")), None)
        if torn and torn["kind"] == "torn":
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        self.files = CheckpointWatch(self.tell, torn, run_dir)
        self.quiet = False
        self._optimizers: list[Any] = []
        self._inside: Any = None
        self._inputs: list[list[int]] = []
        self._batches: list[Any] = []
        self._losses: list[float] = []
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
        line = json.dumps({"t": kind, "n": self.step, **said}) + "\n"
        limit = self.files._old_limit if hasattr(self, "files") else None
        if limit is None:
            os.write(self._out, line.encode())
            return
        low = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        os.write(self._out, line.encode())
        resource.setrlimit(resource.RLIMIT_FSIZE, low)

    def audit(self, event: str, args: Any) -> None:
        """Python is about to open, rename or delete a file."""
        if event not in FILE_EVENTS or self.quiet or os.getpid() != self.pid:
            return
        self.quiet = True
        try:
            self._file_event(event, args)
        except Exception:  # noqa: BLE001 (the script's file is more important than our line)
            pass
        finally:
            self.quiet = False

    def _file_event(self, event: str, args: Any) -> None:
        if event == "open":
            path, mode, flags = args
            if not isinstance(path, (str, bytes)):
                return
            path = os.fsdecode(path)
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR)) or any(c in (mode or "") for c in "wxa+")
            temporary = flags & os.O_EXCL and "__pycache__" not in path
            if writes and (temporary or path.endswith(KINDS)):
                self.files.begun(path, "open")
            elif not writes and path.endswith("notice.json"):
                self._called.add("notice.json")
            elif not writes and path.endswith(KINDS) and self.step == 0:
                self.files.read(path)
        elif event == "os.rename":
            self.files.renamed(os.fsdecode(args[0]), os.fsdecode(args[1]))
        elif event == "shutil.rmtree" or os.fsdecode(args[0]).endswith(KINDS):
            self.files.removed(beside(os.fsdecode(args[0]), args[1] if len(args) > 1 else None))

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
            self._collect(schedulers.LRScheduler, self._schedulers)
            self._note_calls(schedulers.LRScheduler, "scheduler")
        scalers = sys.modules.get("torch.amp.grad_scaler")
        if scalers is not None:
            self._collect(scalers.GradScaler, self._scalers)
            self._note_calls(scalers.GradScaler, "scaler")
        self._note_calls(torch.nn.Module, "model")
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

    def _note_save(self, file: Any) -> None:
        path = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", None)
        if os.getpid() == self.pid and isinstance(path, (str, os.PathLike)):
            self.files.begun(os.fspath(path), "torch.save")

    def _wrap_backward(self, autograd: Any) -> None:
        backward, note = autograd.backward, self._guarded(self._note_loss)

        def watched(tensors: Any, *args: Any, **more: Any) -> Any:
            note(tensors)
            return backward(tensors, *args, **more)

        autograd.backward = watched

    def _note_loss(self, tensors: Any) -> None:
        one = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if os.getpid() == self.pid and hasattr(one, "numel") and one.numel() == 1:
            self._losses.append(float(one.detach()))

    def _wrap_loader(self, loaders: Any) -> None:
        if loaders is None:
            return
        base = loaders._BaseDataLoaderIter
        following, index = base.__next__, base._next_index

        def chosen(iterator: Any) -> Any:
            found = index(iterator)
            whole = isinstance(found, (list, tuple)) and all(isinstance(one, int) for one in found)
            iterator.__dict__.setdefault("_rehearsed", []).append(list(found) if whole else None)
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
        order = iterator.__dict__.get("_rehearsed") or [None]
        rows = self.digest.rows(first) if first is not None else []
        self._batches.append([f"{type(data).__name__}:{size}", rows, order.pop(0)])

    def _collect(self, kind: Any, into: list[Any]) -> None:
        made = kind.__init__

        def watched(one: Any, *args: Any, **more: Any) -> None:
            made(one, *args, **more)
            if not any(known is one for known in into):
                into.append(one)

        kind.__init__ = watched

    def _note_calls(self, kind: Any, what: str) -> None:
        """Say once per line of the script which state is taken or loaded there."""
        for name in ("state_dict", "load_state_dict"):
            setattr(kind, name, self._noting(getattr(kind, name), what, name))

    def _noting(self, real: Any, what: str, name: str) -> Any:
        def watched(*args: Any, **more: Any) -> Any:
            if (what, name) not in self._called or name == "load_state_dict":
                self._called.add((what, name))
                self.tell("call", what=what, name=name, line=script_line())
            return real(*args, **more)

        watched.__name__ = name
        watched.__wrapped__ = real  # type: ignore[attr-defined]
        return watched

    # --- what the model was given ---

    def _enter(self, module: Any, args: Any) -> None:
        self._depth += 1
        if self._depth == 1 and module.training and self.torch.is_grad_enabled() and os.getpid() == self.pid:
            first = next((t for t in tensors_in(args)), None)
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
            first = next((t for t in tensors_in(args)), None)
            if first is not None:
                self._inputs.append(self.digest.rows(first))

    # --- steps ---

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer is about to step."""
        if os.getpid() != self.pid or (self._inside is not None and self._inside is not optimizer):
            return
        self._inside = optimizer
        self.files.settle()
        kill = self._kill
        if kill and kill["kind"] == "kill-before" and self.step == kill["step"]:
            self._die()
        if self.limit and self.step >= self.limit:
            self._end_at_limit()
        if not any(one is optimizer for one in self._optimizers):
            self._optimizers.append(optimizer)
            parameters, state = self._of(optimizer)
            number = len(self._optimizers) - 1
            self.tell("before", o=number, p=parameters, s=state, line=script_line())
            known = self.plan.get("known", {}).get(str(self.rank), {})
            if number == 0 and str(parameters) in known and self.limit:
                self.limit = max(1, self.limit - int(known[str(parameters)]))

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer has stepped."""
        if os.getpid() != self.pid or self._inside is not optimizer:
            return
        self._inside = None
        began = time.perf_counter()
        self.step += 1
        self.files.step = self.step
        if self.step == 1:
            self._own_hooks()
            self._survey()
        parameters, state = self._of(optimizer)
        losses, self._losses = self._losses, []
        inputs, self._inputs = self._inputs, []
        batches, self._batches = self._batches, []
        self.tell(
            "step",
            o=next(i for i, one in enumerate(self._optimizers) if one is optimizer),
            p=parameters,
            s=state,
            b=self.digest.of(self._parts.get("buffers", ())),
            ema=self._averages(),
            lr=[[group.get(name) for name in RATES if name in group] for group in optimizer.param_groups],
            sched=[getattr(one, "last_epoch", 0) for one in self._schedulers],
            scale=[scaler_state(one) for one in self._scalers],
            rng=self._random(),
            x=inputs,
            d=batches,
            loss=sum(losses) / len(losses) if losses else None,
            hears=callable(signal.getsignal(signal.SIGUSR2)) or "notice.json" in self._called,
            at=time.time(),
            cost=round(time.perf_counter() - began, 6),
        )
        if self._kill and self._kill["kind"] == "kill" and self.step == self._kill["step"]:
            self._die()
        if self._hold and self.step == self._hold:
            self._wait_for(lambda: os.path.exists(f"{self.folder}/rehearsal.go"), "hold", HOLD_SECONDS)

    def _of(self, optimizer: Any) -> tuple[int, int]:
        """Checksums of the parameters and of the state of an optimizer; ZeRO has that of its shard inside."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        inner = getattr(optimizer, "optim", None)
        state = inner.state if isinstance(inner, self.torch.optim.Optimizer) else optimizer.state
        held: list[Any] = []
        plain = 0
        for parameter in parameters:
            mine = (state.get(parameter) if hasattr(state, "get") else None) or {}
            for name in sorted(mine, key=str):
                value = mine[name]
                if hasattr(value, "data_ptr"):
                    held.append(value)
                elif isinstance(value, (int, float)):
                    plain = (plain * 31 + hash(value)) & 0xFFFFFFFF
        return self.digest.of(parameters), self.digest.of(held) ^ plain

    def _survey(self) -> None:
        """Find, once, the modules that hold the parameters and what looks like averages of them."""
        module_kind = self.torch.nn.Module
        trained = {id(p) for one in self._optimizers for group in one.param_groups for p in group["params"]}
        shapes = {tuple(p.shape) for one in self._optimizers for g in one.param_groups for p in g["params"]}
        modules, dicts = self._found(module_kind)
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
        for one in dicts:
            if not 0 < len(shapes) <= len(one) <= MOST_COPIES:
                continue
            values = list(one.values())
            if all(issubclass(type(value), self.torch.Tensor) for value in values) and (
                are_copies(values, trained, shapes)
            ):
                averages.append(one)
        self._parts["buffers"] = list({id(b): b for b in buffers}.values()) if known else []
        self._parts["averages"] = averages

    def _found(self, module_kind: Any) -> tuple[list[Any], list[Any]]:
        """All modules, and all dicts that begin with a tensor; each type is looked at once."""
        kinds: dict[type, bool] = {dict: False}
        tensor, modules, dicts = self.torch.Tensor, [], []
        for one in gc.get_objects():
            kind = type(one)
            known = kinds.get(kind)
            if known is None:
                known = kinds[kind] = issubclass(kind, module_kind)
            if known:
                modules.append(one)
            elif kind is dict and one and issubclass(type(next(iter(one.values()))), tensor):
                dicts.append(one)
        return modules, dicts

    def _averages(self) -> list[int]:
        found = []
        for one in self._parts.get("averages", ()):
            values = one.state_dict().values() if hasattr(one, "state_dict") else one.values()
            found.append(self.digest.of(v for v in values if hasattr(v, "data_ptr")))
        return sorted(set(found))

    def _random(self) -> dict[str, int]:
        """A checksum of each state of random numbers that this process has."""
        found = {}
        if "random" in sys.modules:
            found["python"] = hash(sys.modules["random"].getstate()) & 0xFFFFFFFF
        if "numpy.random" in sys.modules:
            state = sys.modules["numpy.random"].get_state()
            found["numpy"] = zlib.crc32(state[1].tobytes(), int(state[2]))
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
            self.files.settle()
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


def beside(path: str, folder: Any) -> str:
    """A path that is meant from an open folder (``dir_fd`` of `os.unlink`), if there is one."""
    if isinstance(folder, int) and folder >= 0 and not os.path.isabs(path):
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
    return path


def scaler_state(scaler: Any) -> Any:
    """Scale and growth counter of a GradScaler; None where it is off."""
    if not getattr(scaler, "_enabled", False):
        return None
    scale = getattr(scaler, "_scale", None)
    tracker = getattr(scaler, "_growth_tracker", None)
    return [float(one) if one is not None else None for one in (scale, tracker)]


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
    """Sees the imports of torch and of its compiler, and no other.

    Nothing of what they make is garbage: without looking for any they load in four fifths of the time,
    which is most of what a start of many ranks costs.
    """

    def __init__(self, watch: RankWatch) -> None:
        self._watch = watch
        self._waits_for = {"torch", "torch._dynamo"}

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
            loader.exec_module = self._hooking(loader.exec_module, name == "torch")
        return spec

    def _hooking(self, run: Callable[[Any], None], hooks: bool) -> Callable[[Any], None]:
        def loaded(module: Any) -> None:
            collects = gc.isenabled()
            gc.disable()
            try:
                run(module)
            finally:
                if collects:
                    gc.enable()
            try:
                if hooks:
                    self._watch.install(module)
            except Exception as error:  # noqa: BLE001 (a torch that we do not know)
                self._watch.tell("blind", why=f"{type(error).__name__}: {error}")

        return loaded
