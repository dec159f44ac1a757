# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The longest way through a graph whose loops make a bounded number of trips."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from dycl_tvm.hcfg.analysis import components

#: From where the entry is reached.
_OUTSIDE = -1


class NoLongest(Exception):
    """There is no longest way; the message says why."""


#: Of the nodes of a loop and its header: how often the loop comes back to the header at most, each time it is reached; None: not known.
Trips = Callable[[Collection[int], int], "int | None"]


def longest(targets: Mapping[int, Sequence[int]], cost: Mapping[int, int], trips: Trips, recursive: Collection[int] = ()) -> int:
    """Return the largest sum of the costs of the nodes on a way, a bound from above.

    A loop costs as much as its trips + 1 times the longest way through its body from its header; a loop within counts as often.

    Parameters
    ----------
    targets : mapping
        From each node to those that may follow; 0 is the entry.
    cost : mapping
        Of each node, not negative.
    trips : callable
        How often a loop comes back.
    recursive : collection of int
        Nodes of recursive functions: a way around them is no loop with so many trips.

    Raises
    ------
    NoLongest
        If there is a loop whose trips are not known, or a loop that is entered in two places, or a recursion.
    """
    before: dict[int, set[int]] = {node: set() for node in targets}
    for node, following in targets.items():
        for target in following:
            before[target].add(node)
    before.setdefault(0, set()).add(_OUTSIDE)

    def chain(nodes: list[int], header: int | None) -> int:
        """Return the longest chain in the part of the graph without the edges to a header, each loop in it as one node."""
        index = {node: k for k, node in enumerate(nodes)}
        edges = [[index[t] for t in targets[node] if t in index and t != header] for node in nodes]
        most: dict[int, int] = {}
        total = 0
        for component in components(edges):  # what follows comes first
            inside = set(component)
            after = max((most[t] for k in component for t in edges[k] if t not in inside), default=0)
            looping = len(component) > 1 or component[0] in edges[component[0]]
            own = loop([nodes[k] for k in component]) if looping else cost[nodes[component[0]]]
            most.update(dict.fromkeys(component, own + after))
            total = max(total, own + after)
        return total

    def loop(nodes: list[int]) -> int:
        if not set(nodes).isdisjoint(recursive):
            raise NoLongest("the network has a recursion, whose calls nothing bounds here")
        inside = set(nodes)
        headers = [node for node in nodes if before[node] - inside]
        if len(headers) != 1:
            raise NoLongest("the network has a loop that is entered in more than one place")
        most = trips(inside, headers[0])
        if most is None:
            raise NoLongest("nothing counts the trips of a loop of the network: say how many it makes at most (max_loop_trips)")
        return (most + 1) * chain(nodes, headers[0])

    return chain(list(targets), None)
