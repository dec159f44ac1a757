# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Choosing among Python objects by an index known only at run time (``outputs[int(torch.argmax(c))]``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dycl_tvm.frontend.python import scalars
from dycl_tvm.frontend.python.branches import Scope
from dycl_tvm.frontend.python.context import current
from dycl_tvm.frontend.python.merge import Join, Poison, capture_path
from dycl_tvm.hcfg.nodes import Edge, Switch, Value


def switch(items: Sequence[Any], index: Any) -> Any:
    """Return ``items[index]``: tensors and numbers meet in a block parameter, anything else is chosen by a fork."""
    stage = current()
    if len(items) == 0:
        raise IndexError("index out of range")
    position = stage.check_index(index, len(items))
    operand = scalars.operand_of(position)
    if not isinstance(operand, Value):
        return items[operand]
    scope = Scope()
    site = stage.open_site(operand)
    blocks = [stage.builder.new_block("case") for _ in items]
    stage.builder.terminate(Switch(operand, [Edge(b) for b in blocks], stage.origin()))
    paths = []
    for block, item in zip(blocks, items):
        stage.builder.block = block
        paths.append(capture_path({}, scope.mark, item, has_value=True))
    scope.close()
    if len(paths) == 1:
        stage.builder.block = paths[0].block
        value = items[0]
    else:
        _, value = Join(paths, scope.mark, scope.clock, site.target, "chosen").run()
    stage.close_site(site)
    if isinstance(value, Poison):
        return _by_tests(items, position)
    return value


def _by_tests(items: Sequence[Any], position: Any) -> Any:
    """Choose by one test an item; the tests fork, so that each path knows its item."""
    for i, item in enumerate(items[:-1]):
        if position == i:
            return item
    return items[-1]

