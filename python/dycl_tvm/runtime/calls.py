# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The usual call of a module in C: the extension ``_calls`` (``src/python``), where it was built.

It takes positional tensors and numbers that are as the description says, runs, and makes the results. It does nothing where an input is
not usual; then, and where it was not built, the call goes through ctypes, with the same results and the same errors.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from typing import Any

import numpy as np

from dycl_tvm.runtime import capi
from dycl_tvm.runtime.structure import Structure, leaf_cuts

#: Which arguments the extension's ``Caller`` takes. One that was built of an older source takes others.
_TAKES = 2

try:
    _extension: Any = importlib.import_module("dycl_tvm.runtime._calls")
except ImportError:  # it was not built, or for another machine
    _extension = None

#: NumPy's dtypes by DLPack's code and bits; an array has the bits of a bfloat16.
_DTYPES = tuple((*pair, np.dtype("uint16" if name == "bfloat16" else name)) for name, pair in capi.DL_DTYPES.items())


class Caller:
    """Makes the usual calls of one session.

    Parameters
    ----------
    library : ctypes.CDLL
    session : ctypes.c_void_p
        It must live as long as this object is called.
    metadata : dict
        Of the library.

    Attributes
    ----------
    single : list of bool
        Of each return site, whether its result is a leaf, or the first elements of one.
    """

    def __init__(self, library: ctypes.CDLL, session: ctypes.c_void_p, metadata: dict[str, Any]) -> None:
        functions = (ctypes.cast(f, ctypes.c_void_p).value for f in (library.dycl_run_with, library.dycl_output, library.dycl_copy_output))
        inputs = tuple(_described(want) for want in metadata["inputs"])
        structures: list[Structure] = [site["structure"] for site in metadata["sites"]]
        self.single = [structure.keys() - {"along", "length"} == {"leaf", "type"} for structure in structures]
        sites = tuple(_site(structure, single) for single, structure in zip(self.single, structures))
        self._caller = _extension.Caller(session.value, *functions, np.ndarray, np.empty, _DTYPES, inputs, sites)
        #: ``call(args, deadline_ms, signal, into)``: None if an input is not usual; a status of the C API if the run failed; otherwise the
        #: return site and its leaves (of a ``single`` one the leaf), None for leaves that are to be asked for one by one.
        self.call = self._caller.call
        self._knows_torch = False
        self.meet_torch()

    def meet_torch(self) -> bool:
        """Take torch tensors from now on, once the process has loaded PyTorch; whether that is new."""
        torch = sys.modules.get("torch")
        if self._knows_torch or not hasattr(torch, "Tensor"):
            return False
        self._caller.use_torch(torch.Tensor, torch.strided)  # type: ignore[union-attr]  # it was looked for
        self._knows_torch = True
        return True


def new_caller(library: ctypes.CDLL, session: ctypes.c_void_p, metadata: dict[str, Any], positional: bool) -> Caller | None:
    """Return what makes the usual calls; None without the extension of this version, or where inputs are not positional leaves."""
    fits = getattr(_extension, "TAKES", None) == _TAKES
    return Caller(library, session, metadata) if fits and positional else None


def _site(structure: Structure, single: bool) -> tuple[int, tuple[tuple[tuple[int, int], ...], ...]] | None:
    cuts = leaf_cuts(structure)
    return None if cuts is None else (structure["leaf"] if single else -1, tuple(cuts))


def _described(want: dict[str, Any]) -> tuple[Any, ...] | None:
    if want["type"] != "tensor":
        return None
    shape, sized = tuple(want["shape"]), want.get("sized", {})
    # an array of uint16 may be meant as what it is: it goes the long way
    arrays = want["dtype"] != "bfloat16"
    return (*capi.DL_DTYPES[want["dtype"]], arrays, shape, tuple(str(d) in sized for d in range(len(shape))))
