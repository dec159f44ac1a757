# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What is known of an operator of ATen, whatever it is given: what kind of operation it is, and what it changes."""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.frontend.trace.values.arguments import opname
from dycl_tvm.frontend.trace.values.composed import COMPOSED, INDEXING
from dycl_tvm.frontend.trace.values.folding import FILLS
from dycl_tvm.frontend.trace.values.layouts import QUESTIONS
from dycl_tvm.frontend.trace.values.random import is_random
from dycl_tvm.frontend.trace.values.ranges import RANGED
from dycl_tvm.frontend.trace.values.tensors import op_name
from dycl_tvm.hcfg.quantized import is_dequantize

aten = torch.ops.aten
#: View operators that give several tensors.
_SPLITS = frozenset(["split", "split_with_sizes", "unbind", "chunk"])
#: View operators that give one tensor, and that can be written through (see tensors._scatter) or at least read again.
_VIEWS = {
    "view",
    "_unsafe_view",
    "select",
    "slice",
    "t",
    "transpose",
    "permute",
    "expand",
    "unsqueeze",
    "squeeze",
    "alias",
    "detach",
    "diagonal",
    "unfold",
    "as_strided",
    "view_as_real",
    "view_as_complex",
    "_conj",
    "_neg_view",
}
#: What is no operation of the graph, though it is one of ATen.
_NO_OPERATIONS = (aten._local_scalar_dense.default, aten.equal.default, aten.lift_fresh.default)


class About:
    """What is known of an operator, whatever it is given.

    Attributes
    ----------
    name, op : str
        Its name in ATen, and that with its overload, which is its name in the HCFG.
    builtin : bool
        Whether it is PyTorch's own.
    keeps : bool
        Whether it is recorded of constants too: weights stay quantised, as kernels want them.
    special, fills, indexes, splits, views, composed : bool
        Whether it is no operation of the graph, or may be none; gives a tensor of one number; takes indices; gives several views; one;
        may be recorded as several others.
    ranged : bool
        Whether its results may have bounds that follow from those of its operand, or from its shape.
    written : dict
        The arguments that it changes in place: names by positions.
    """

    __slots__ = (
        "builtin",
        "composed",
        "fills",
        "func",
        "indexes",
        "keeps",
        "name",
        "op",
        "ranged",
        "special",
        "splits",
        "views",
        "written",
    )

    def __init__(self, func: Any) -> None:
        name = opname(func)
        self.func, self.name, self.op = func, name, op_name(func)
        self.builtin = func.namespace in ("aten", "prims")
        self.ranged = name in RANGED
        self.keeps = is_dequantize(self.op)
        self.special = func in _NO_OPERATIONS or name in QUESTIONS or is_random(func)
        self.fills, self.indexes = name in FILLS, func in INDEXING
        self.splits, self.views, self.composed = name in _SPLITS, name in _VIEWS, func in COMPOSED
        arguments = enumerate(func._schema.arguments)
        self.written = {k: a.name for k, a in arguments if a.alias_info is not None and a.alias_info.is_write}


#: By the ids of operators, which take long to hash.
_known_operators: dict[int, About] = {}


def about_operator(func: Any) -> About:
    """Return what is known of an operator."""
    about = _known_operators.get(id(func))
    if about is None:
        about = _known_operators[id(func)] = About(func)
    return about
