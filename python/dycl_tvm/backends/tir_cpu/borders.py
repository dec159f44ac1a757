# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Convolutions of integers that put the border around their input themselves: what stands for zero is then any integer."""

from __future__ import annotations

from collections.abc import Callable

from dycl_tvm.backends.tir_cpu.graph import Graph, Node
from dycl_tvm.backends.tir_cpu.match import is_integer
from dycl_tvm.backends.tir_cpu.reading.borders import border


def join(graph: Graph, takes: Callable[[Node], bool]) -> None:
    """Let each convolution that ``takes`` wants so read what has no border yet."""
    for node in graph.nodes:
        pad = node.inputs[0].producer if node.anchor == "relax.nn.conv2d" and is_integer(node) else None
        if pad is None or pad.channelwise is None or any(int(p) for p in node.value.attrs.padding):
            continue
        found = border(pad.channelwise)
        if found is None:
            continue
        (source,), whole = pad.inputs, node.inputs[0]
        node.inputs, node.border = [source, *node.inputs[1:]], found
        if takes(node):
            whole.users.remove(node)
            source.users.append(node)
        else:
            node.inputs, node.border = [whole, *node.inputs[1:]], None
    unread = [n for n in graph.nodes if n.channelwise is not None and n.output is not None and not n.output.users]
    for node in unread:
        assert node.output is not None
        if not node.output.is_result:
            graph.nodes.remove(node)
            for var in dict.fromkeys(node.inputs):
                var.users.remove(node)
