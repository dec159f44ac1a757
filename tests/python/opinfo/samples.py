# Licensed under the Apache License, Version 2.0; see LICENSE.
"""PyTorch's own samples of its operators as programs: what is called, and the tensors that it is called with."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree


def _as_it_is(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


# The samples of random operators would seed them within the library's own code; here they begin with SEED.
common_methods_invocations.wrapper_set_seed = _as_it_is
OPERATORS = {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db}

#: Operators whose results are not defined: memory that nobody wrote, random numbers.
UNDEFINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}


#: Operators that may give any of the positions of equal elements: positions are not compared, those of ``argsort`` by what stands there.
TIES = {"topk", "sort", "msort", "mode", "median", "nanmedian", "kthvalue"}


#: Operators that give vectors whose signs PyTorch leaves open: what does not depend on them is compared, as PyTorch's own tests do.
VECTORS = {"svd", "svd_lowrank", "pca_lowrank", "linalg.svd", "linalg.eig", "linalg.eigh"}
#: Operators whose kernels for float32 lose digits that others keep (a sine near a multiple of pi, squares of squares).
COARSE = {name for name in OPERATORS if "polygamma" in name or name in ("pow", "__rpow__", "matrix_exp")}
#: What random numbers begin with.
SEED = 67280421310721


@dataclass(frozen=True)
class Sample:
    """One call of an operator: ``run(*tensors)``."""

    name: str
    operator: str
    run: Callable[..., Any]
    tensors: tuple[Tensor, ...]

    def eager(self) -> Any:
        """Return what PyTorch gives; the tensors stay as they are, and random numbers begin as those of a new network."""
        torch.manual_seed(SEED)
        with torch.no_grad():
            return self.run(*(t.clone() for t in self.tensors))


def samples(operator: str, dtype: torch.dtype, limit: int | None = None) -> Iterator[Sample]:
    """Yield the samples of an operator that run in eager; with a limit, as many spread over all of them."""
    op = OPERATORS[operator]
    if dtype not in op.supported_dtypes("cpu"):
        return
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = list(op.sample_inputs("cpu", dtype, requires_grad=False))
        if limit is not None and len(given) > limit:
            given = [given[k * len(given) // limit] for k in range(limit)]
        for number, one in enumerate(given):
            sample = _sample(f"{operator}[{str(dtype)[6:]}-{number}]", operator, op, one)
            try:
                sample.eager()
            except Exception:
                continue
            yield sample


def _sample(name: str, operator: str, op: Any, one: Any) -> Sample:
    leaves, structure = pytree.tree_flatten(((one.input, *one.args), one.kwargs))
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    function = _sorted if operator == "argsort" else op.op

    def run(*tensors: Tensor) -> Any:
        given = list(leaves)
        for place, tensor in zip(places, tensors):
            given[place] = tensor
        args, kwargs = pytree.tree_unflatten(given, structure)
        result = function(*args, **kwargs)
        return one.output_process_fn_grad(result) if operator in VECTORS else result

    return Sample(name, operator, run, tuple(leaves[k].detach() for k in places))


def _sorted(x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Tensor:
    return x.gather(dim, x.argsort(dim=dim, descending=descending, stable=stable))


def tensors_of(result: Any) -> list[Any]:
    """Return the leaves of a result in order."""
    return pytree.tree_leaves(result)
