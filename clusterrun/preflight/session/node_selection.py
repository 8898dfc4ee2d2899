"""Choose the nodes that train: spares replace unfit nodes, and no bad link remains."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from clusterrun.model.frozen import frozen


@frozen
class Choice:
    """The nodes that train, and the changes to the plan."""

    world: tuple[int | None, ...]  # in rank order; None is a place without a node
    separated: tuple[int, ...]  # excluded fit nodes: ends of bad links, and nodes in another part
    swaps: tuple[tuple[int, int], ...]  # (replaced node, its replacement)

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
    """Choose the nodes for ``places``, the planned nodes in rank order. ``links`` are the bad links.

    ``reluctant`` nodes work, but a spare without a flaw is preferred. Nodes ``elsewhere`` are fit, but in
    another part of a partitioned network.
    """
    world: list[int | None] = [None if node in unfit or node in elsewhere else node for node in places]
    separated = [node for node in places if node in elsewhere]
    # Empty places until no bad link remains, starting with the node that has most bad links.
    while inside := [link for link in links if link[0] in world and link[1] in world]:
        ends = [end for link in inside for end in link]
        worst = max(set(ends), key=lambda end: (ends.count(end), world.index(end)))
        world[world.index(worst)] = None
        separated.append(worst)
    free = [node for node in spares if node not in unfit and node not in elsewhere]
    free.sort(key=lambda node: node in reluctant)
    for index, node in enumerate(world):
        if node is None:
            world[index] = _take(free, world, links)
    for index, node in enumerate(world):
        if node is not None and node in reluctant:
            better = _take([spare for spare in free if spare not in reluctant], world, links, but=node)
            if better is not None:
                world[index] = better
                free.remove(better)
    swaps = tuple((was, now) for was, now in zip(places, world) if now is not None and now != was)
    return Choice(tuple(world), tuple(separated), swaps)


def _take(
    free: list[int], world: list[int | None], links: Collection[tuple[int, int]], but: int | None = None
) -> int | None:
    """Take the first free node whose links to all of ``world`` except ``but`` are good."""
    others = {node for node in world if node is not None and node != but}
    for node in free:
        if not any(node in link and others.intersection(link) - {node} for link in links):
            free.remove(node)
            return node
    return None
