"""Estimate memory and time of each strategy from a few numbers. Pure arithmetic."""

from __future__ import annotations

from clusterrun.bench import rates
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen

# The share of a GPU's memory for training; CUDA's context and the allocator's gaps take the rest.
USABLE = 0.9
# Assumed number of blocks of a model with FSDP. Two of them are gathered at any time.
BLOCKS = 32
# Numbers that an optimizer keeps for each parameter.
OPTIMIZERS = {"sgd": 0, "momentum": 1, "adam": 2}
# Bytes of each parameter's weight, gradient and optimizer number, and of a 16-bit copy beside them.
PRECISIONS = {"fp32": (4, 4, 4, 0), "amp": (4, 4, 4, 2), "bf16": (2, 2, 2, 0)}
GB = 1e9


@frozen
class AdviceQuestion:
    """A model and the machines for it. Units are bytes, seconds, bytes per second; 0 means unknown."""

    parameters: float
    optimizer: str
    precision: str
    memory: float
    gpus_per_node: int = 8
    nodes: int = 1
    # The rate at which each rank can send while all send: the slowest link of the ring in `bench scaling`.
    bandwidth: float = 0.0
    latency: float = 0.0
    step_seconds: float = 0.0
    activations: float = 0.0  # of one GPU's batch

    def __post_init__(self) -> None:
        for name in ("parameters", "memory"):
            if getattr(self, name) <= 0:
                raise BadInput(f"the {name} must be greater than 0", "for example 7e9 and 80GB")
        for name in ("gpus_per_node", "nodes"):
            if getattr(self, name) < 1:
                raise BadInput(
                    f"--{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}",
                    "give 1 or more",
                )
        for name in ("bandwidth", "latency", "step_seconds", "activations"):
            if getattr(self, name) < 0:
                raise BadInput(f"--{name.replace('_', '-')} must not be negative")

    @property
    def world(self) -> int:
        """GPUs in all."""
        return self.gpus_per_node * self.nodes


@frozen
class Fit:
    """Bytes that one GPU needs under a strategy, and the lines that show how they are computed."""

    strategy: str
    needs: float
    fits: bool
    lines: tuple[str, ...]


@frozen
class Expected:
    """A step under a strategy on ``gpus`` GPUs, each with the batch of one: seconds and efficiency."""

    strategy: str
    gpus: int
    sending: float
    step: float
    efficiency: float


@frozen
class Advice:
    """The recommended strategy, with the memory of every strategy and the scaling of those that fit."""

    take: str  # the strategy; '' if none fits
    because: str
    fits: tuple[Fit, ...]  # every strategy
    expected: tuple[Expected, ...]  # the strategies that fit
    lines: tuple[str, ...]


def advise(question: AdviceQuestion) -> Advice:
    """Return the whole answer, arithmetic and all."""
    fits = tuple(_fit(question, strategy) for strategy in ("single", "ddp", "fsdp"))
    take, because = _choice(question, {fit.strategy: fit for fit in fits})
    worlds = [1 << power for power in range(1, question.world.bit_length()) if 1 << power < question.world]
    several = [*worlds, question.world] if question.world > 1 else []
    is_known = question.bandwidth > 0 and question.step_seconds > 0
    fitting = [fit.strategy for fit in fits if fit.fits and fit.strategy != "single"]
    expected = tuple(_expect(question, name, n) for name in fitting for n in several if is_known)
    return Advice(take, because, fits, expected, _times(question))


def _fit(question: AdviceQuestion, strategy: str) -> Fit:
    """Return the memory of one GPU, term by term."""
    weight, gradient, number, copy = PRECISIONS[question.precision]
    count, parts = question.parameters, question.world if strategy == "fsdp" else 1
    state = OPTIMIZERS[question.optimizer] * number
    terms = [("weights", weight), ("gradients", gradient), (f"{question.optimizer}'s state", state)]
    terms += [("16-bit copy", copy)] if strategy != "fsdp" else []
    share = f" / {parts}" if parts > 1 else ""
    terms_found = [
        (f"{name} {_count(count)} × {size} B{share}", count * size / parts) for name, size in terms if size
    ]
    if strategy == "ddp":
        terms_found.append((f"buckets {_count(count)} × {gradient} B", count * gradient))
    if strategy == "fsdp":
        held = copy or weight
        terms_found.append((f"two of {BLOCKS} blocks whole {_count(count)} × {held} B × 2 / {BLOCKS}",
                      count * held * 2 / BLOCKS))  # fmt: skip
    if question.activations:
        terms_found.append(("activations (as told)", question.activations))
    needs = sum(size for _, size in terms_found)
    room = USABLE * question.memory
    lines = [f"{name} = {size / GB:.2f} GB" for name, size in terms_found]
    verdict = "fits" if needs <= room else "does not fit"
    share = f"{USABLE:.0%} of {question.memory / GB:g} GB = {room / GB:.1f} GB"
    return Fit(
        strategy, needs, needs <= room, (*lines, f"together {needs / GB:.2f} GB: {verdict} in {share}")
    )


def _choice(question: AdviceQuestion, fits: dict[str, Fit]) -> tuple[str, str]:
    if question.world == 1:
        alone = fits["single"].fits
        return (
            ("single", "there is one GPU, and it fits") if alone else ("", _nothing(question, fits["single"]))
        )
    if fits["ddp"].fits:
        return "ddp", "the whole model fits into each GPU, and ddp sends least"
    if fits["fsdp"].fits:
        return "fsdp", f"the model does not fit whole; cut into {question.world} pieces it does"
    return "", _nothing(question, fits["fsdp"])


def _nothing(question: AdviceQuestion, fit: Fit) -> str:
    return (
        f"{fit.strategy} needs {fit.needs / GB:.1f} GB per GPU of {USABLE * question.memory / GB:.1f} GB: "
        "more GPUs (fsdp cuts finer), --precision bf16, a smaller batch, or offloading"
    )


def _sending(question: AdviceQuestion, strategy: str, gpus: int) -> float:
    """Return the seconds in which one GPU sends its share of a step."""
    weight, gradient, _, copy = PRECISIONS[question.precision]
    link = (gpus, question.bandwidth, question.latency)
    if strategy == "fsdp":
        return rates.sharded(question.parameters * (copy or weight), question.parameters * gradient, *link)
    return rates.all_reduce(question.parameters * gradient, *link)


def _expect(question: AdviceQuestion, strategy: str, gpus: int) -> Expected:
    """Every GPU has the same work at any world (weak scaling): only the sending is added."""
    sending = _sending(question, strategy, gpus)
    step = question.step_seconds + rates.exposed(sending, question.step_seconds, overlaps=True)
    return Expected(strategy, gpus, sending, step, question.step_seconds / step)


def _times(question: AdviceQuestion) -> tuple[str, ...]:
    """Return the arithmetic of a step's sending on all GPUs, or what is missing for it."""
    if question.world == 1:
        return ("one GPU: nothing is sent",)
    weight, gradient, _, copy = PRECISIONS[question.precision]
    n, billions = question.world, question.parameters / GB
    ddp, fsdp = 2 * gradient, 2 * (copy or weight) + gradient
    sent = tuple(
        f"{name} sends ({n} - 1) / {n} × {_count(question.parameters)} × {size} B = "
        f"{(n - 1) / n * billions * size:.4g} GB per GPU and step: {what}"
        for name, size, what in (
            ("ddp", ddp, f"gradients of {gradient} B, summed and spread"),
            ("fsdp", fsdp, f"weights of {copy or weight} B gathered twice, gradients of {gradient} B"),
        )
    )
    if not question.bandwidth:
        return (*sent, "how long that takes: --bandwidth GB/s, or --from a measurement of bench scaling")
    return sent + tuple(line for name in ("ddp", "fsdp") for line in _waits(question, name))


def _waits(question: AdviceQuestion, strategy: str) -> tuple[str, ...]:
    """Return how long the sending takes, and what of it a step waits for."""
    seconds = _sending(question, strategy, question.world)
    each = f" and {question.latency * 1e3:.3g} ms per bucket" if question.latency else ""
    line = f"{strategy}: at {question.bandwidth / GB:.4g} GB/s{each} {seconds * 1e3:.4g} ms"
    if not question.step_seconds:
        return (f"{line}; what of it a step waits for: --step-time SECONDS of one GPU",)
    step = question.step_seconds
    exposed_seconds = rates.exposed(seconds, step, overlaps=True)
    return (
        f"{line}, of which the backward pass hides up to 2/3 × {step * 1e3:.4g} = "
        f"{rates.BACKWARD * step * 1e3:.4g} ms",
        f"{strategy}: a step takes {step * 1e3:.4g} + {exposed_seconds * 1e3:.4g} ms: "
        f"efficiency {step / (step + exposed_seconds):.0%} on {question.world} GPUs",
    )


def _count(number: float) -> str:
    return f"{number:.4g}"
