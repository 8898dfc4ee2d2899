"""Hold the state of one training process: requests to it, its reports, and the notice signal."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from . import agreement
from .post import MessageWriter
from .surroundings import Surroundings, surroundings

NOTICE_SIGNAL = signal.SIGUSR2
# The reasons for a checkpoint at once.
BY_FILE, BY_NOTICE = 1, 2


# Most calls between two rounds. A script that becomes slow is then still asked soon enough.
MOST_CALLS = 16
# Target seconds between two rounds. If calls are rarer, every call makes a round.
BETWEEN = 0.25
# Seconds between two rounds from which on a wait for the GPU costs little.
RARE = 1.0


class AgreedQuestion:
    """Agrees on whether any rank has a request.

    ``get_request`` returns the request that this rank has received, 0 if none. A round is one collective.
    Rank 0 proposes the number of calls until the next round, and the round itself transmits it. All ranks
    therefore make the round at the same call, independent of their clocks.

    The answer of a round on GPUs is read at the next call, so that no step waits for the GPU. It is read at
    once if the last round was more than ``RARE`` seconds before: then a wait costs little, and the next call
    may be far away.
    """

    def __init__(
        self,
        get_request: Callable[[], int],
        agree: Callable[[int, int, int], agreement.Maximum],
        leads: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._get_request, self._agree, self._leads, self._clock = get_request, agree, leads, clock
        self._calls = 0
        self._due = 1
        self._last: float | None = None
        self._pending: agreement.Maximum | None = None
        self._is_rare = True

    def answer(self, every: int = 0) -> int:
        """Return the highest answer of any rank; 0 between two rounds.

        A round happens at every ``every``-th call; at 0 about four times a second.
        """
        self._calls += 1
        answer = self._read()
        # The caller takes note of an answer before it makes the next request.
        if answer or self._calls < (every or self._due):
            return answer
        # Rank 0 proposes the number of calls until the next round, and whether rounds are rare. The pace is
        # unknown before the third round.
        now, last = self._clock(), self._last
        self._last = now
        if not self._leads():
            proposal, is_rare = 1, False
        elif last is None or now <= last:
            proposal, is_rare = 1, True
        else:
            calls = max(1, min(MOST_CALLS, round(self._calls * BETWEEN / (now - last))))
            proposal, is_rare = calls, now - last > RARE
        self._pending = self._agree(self._get_request(), proposal, int(is_rare))
        self._calls = 0
        return self._read() if self._is_rare or self._pending.is_ready else 0

    def _read(self) -> int:
        if self._pending is None:
            return 0
        answer, self._due, is_rare = self._pending.wait()
        self._pending, self._is_rare = None, bool(is_rare)
        return answer


class Script:
    """The state behind the package's functions. It is created at the first call."""

    def __init__(self, place: Surroundings) -> None:
        self.pid = os.getpid()
        self.place = place
        self.stopping = False
        self.step: int | None = None
        self.checkpoint: int | None = None
        self._marks: dict[str, float] = {}
        self._signalled = self._saved_for_notice = self._listens = False
        self._before: object = None
        self._saves = self._wanted = 0
        self._results: dict[str, object] = {}
        self._post = MessageWriter(place, self.leads)
        if place.run_dir and (self.leads or agreement.group() is None):
            self._post.open()
            atexit.register(self._at_exit)
        self._stop = AgreedQuestion(self._room_wanted, agreement.start_max_over_ranks, lambda: self.leads)
        self._save = AgreedQuestion(self._save_wanted, agreement.start_max_over_ranks, lambda: self.leads)

    @property
    def leads(self) -> bool:
        """Return whether this process is rank 0. Each use computes it: a group may be formed later."""
        return agreement.rank(self.place.rank) == 0

    def should_stop(self, every: int) -> bool:
        self._listen()
        if not self.stopping and self._stop.answer(every):
            self.stopping = True
            self._tell(now=True)
        return self.stopping

    def save_now(self, every: int) -> bool:
        """Return whether a requested checkpoint has not been saved yet."""
        self._listen()
        why = self._save.answer(every)
        if why == BY_NOTICE:
            self._saved_for_notice = True
        if why:
            self._saves = self._wanted
        return why > 0

    def progress(self, step: int | None, checkpoint: int | None) -> None:
        """Record the step, the time of the first step, and the time of the newest checkpoint."""
        if step is not None and not self._marks:
            self._marks = {"first_step": step, "first_at": time.time()}
        if checkpoint is not None:
            self._marks["checkpoint_at"] = time.time()
        self.step = self.step if step is None else step
        self.checkpoint = self.checkpoint if checkpoint is None else checkpoint
        self._tell(now=checkpoint is not None)

    def report(self, values: dict[str, object]) -> None:
        """Record results. The last value of each name counts."""
        self._results = {**self._results, **{name: _plain(name, value) for name, value in values.items()}}
        if self.place.run_dir and self.leads and self.pid == os.getpid():
            self._post.send({"values": self._results}, path=self.place.results)

    def _room_wanted(self) -> int:
        return int(self._signalled or self._post.noticed)

    def _save_wanted(self) -> int:
        if self._room_wanted() and not self._saved_for_notice:
            return BY_NOTICE
        self._wanted = self._post.saves_asked
        return BY_FILE if self._wanted > self._saves else 0

    def _tell(self, now: bool) -> None:
        if not (self.place.run_dir and self.leads and self.pid == os.getpid()):
            return
        message = {"step": self.step, "checkpoint": self.checkpoint, "stopping": self.stopping, **self._marks}
        self._post.send(message, now)

    def _at_exit(self) -> None:
        if self.pid == os.getpid():
            self._post.close()

    def _listen(self) -> None:
        """Install the handler of the notice, once. A handler that was installed before is called too."""
        if self._listens or threading.current_thread() is not threading.main_thread():
            return  # only the main thread can handle signals; the file has the same notice
        self._listens = True
        self._before = signal.signal(NOTICE_SIGNAL, self._on_signal)
        # System calls of C libraries in this process continue after the signal.
        signal.siginterrupt(NOTICE_SIGNAL, False)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True
        if callable(self._before):
            self._before(number, frame)


def _plain(name: str, value: object) -> object:
    """Return the value as JSON supports it.

    Tensors and numbers of other libraries are converted by ``item``.
    """
    item = getattr(value, "item", None)
    if callable(item):
        value = item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"report({name}=…) takes numbers and texts, not {type(value).__name__}")


def steps_of(global_batch: int, batch: int, world: int) -> int:
    """Return how many batches of ``batch`` samples on ``world`` ranks make ``global_batch``.

    Raises ``ValueError``.
    """
    if batch < 1 or global_batch < 1:
        raise ValueError(f"batches have one sample or more, not {min(batch, global_batch)}")
    at_once = world * batch
    steps, rest = divmod(global_batch, at_once)
    if not rest:
        return steps
    candidates = [count for count in (steps * at_once, (steps + 1) * at_once) if count]
    raise ValueError(
        f"a global batch of {global_batch} does not divide by {world} ranks x {batch} samples = {at_once}: "
        f"the nearest that do are {' and '.join(map(str, candidates))}"
    )


_current: list[Script] = []


def current_script() -> Script:
    """Return the state of this process. A forked child gets a new one."""
    if not _current or _current[0].pid != os.getpid():
        _current[:] = [Script(surroundings(os.environ))]
    return _current[0]
