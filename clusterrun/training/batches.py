"""One global batch on any number of ranks: how often each of them adds up gradients before a step."""

from __future__ import annotations


def steps_of(global_batch: int, batch: int, world: int) -> int:
    """Batches of ``batch`` samples on each of ``world`` ranks that make ``global_batch``.

    Raises ``ValueError``.
    """
    if batch < 1 or global_batch < 1:
        raise ValueError(f"batches have one sample or more, not {min(batch, global_batch)}")
    at_once = world * batch
    steps, rest = divmod(global_batch, at_once)
    if not rest:
        return steps
    near = [count for count in (steps * at_once, (steps + 1) * at_once) if count]
    raise ValueError(
        f"a global batch of {global_batch} does not divide by {world} ranks x {batch} samples = {at_once}: "
        f"the nearest that do are {' and '.join(map(str, near))}"
    )
