"""Who trains: spares take the places of unfit nodes, and no bad link stays inside; pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from clusterrun.model.frozen import frozen


@frozen
class Choice:
    """``world`` is in rank order, with None if nobody could be found.

    ``parted`` are fit nodes left out because their link to another one is bad.
    ``swaps`` are (who left, who came).
    """

    world: tuple[int | None, ...]
    parted: tuple[int, ...]
    swaps: tuple[tuple[int, int], ...]

    @property
    def whole(self) -> bool:
        return None not in self.world

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(node for node in self.world if node is not None)


def choose(
    places: Sequence[int],
    spares: Sequence[int],
    unfit: Collection[int],
    links: Collection[tuple[int, int]],
    reluctant: Collection[int] = (),
    elsewhere: Collection[int] = (),
) -> Choice:
    """``places`` are the nodes in rank order as they would train, ``links`` the bad ones.

    ``reluctant`` nodes work, but a spare without a flaw is preferred. Those ``elsewhere`` are fit, in
    another part of a network that is partitioned.
    """
    world: list[int | None] = [None if node in unfit or node in elsewhere else node for node in places]
    parted = [node for node in places if node in elsewhere] + _part(world, links)
    free = [node for node in spares if node not in unfit and node not in elsewhere]
    free.sort(key=lambda node: node in reluctant)
    for place, node in enumerate(world):
        if node is None:
            world[place] = _take(free, world, links)
    for place, node in enumerate(world):
        if node is not None and node in reluctant:
            better = _take([one for one in free if one not in reluctant], world, links, but=node)
            if better is not None:
                world[place] = better
                free.remove(better)
    swaps = tuple((was, now) for was, now in zip(places, world) if now is not None and now != was)
    return Choice(tuple(world), tuple(parted), swaps)


def _part(world: list[int | None], links: Collection[tuple[int, int]]) -> list[int]:
    """Empty places until no bad link is left: first whoever has most of them, then the later place."""
    parted: list[int] = []
    while True:
        inside = [link for link in links if link[0] in world and link[1] in world]
        if not inside:
            return parted
        ends = [end for link in inside for end in link]
        worst = max(set(ends), key=lambda end: (ends.count(end), world.index(end)))
        world[world.index(worst)] = None
        parted.append(worst)


def _take(
    free: list[int], world: list[int | None], links: Collection[tuple[int, int]], but: int | None = None
) -> int | None:
    """The first free node whose links to all of ``world`` (but one) are good."""
    others = {node for node in world if node is not None and node != but}
    for node in free:
        if not any(node in link and others.intersection(link) - {node} for link in links):
            free.remove(node)
            return node
    return None
