# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Backends that take regions of a network: their patterns, predicates, costs and code generators (BYOC).

A backend is one object, registered by :func:`register_backend` or by an installed package's entry point group
``dycl_tvm.backends`` (a callable without arguments that returns the backend). Regions are found by TVM's ``FuseOpsByPattern``,
neighbouring ones joined by ``MergeCompositeFunctions``. What no backend takes as a region gets the kernels of the first backend that makes
them for whole networks (``tir_cpu``); what that leaves is compiled by TVM itself (backend ``tvm``).
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tvm

from dycl_tvm.backends.network_kernels import LeftToTVM, Network, NetworkKernels
from dycl_tvm.errors import UsageError


@dataclass(frozen=True)
class Pattern:
    """What a backend can take.

    Attributes
    ----------
    name : str
        Without the backend's name, for example ``conv2d_relu``.
    pattern : tvm.relax.dpl.DFPattern
    annotations : dict
        Names of sub-patterns for the predicate.
    predicate : callable, optional
        Gets a ``PatternCheckContext``; whether this very match (its shapes, dtypes, attributes) can be taken.
    """

    name: str
    pattern: Any
    annotations: dict[str, Any] = field(default_factory=dict)
    predicate: Callable[[Any], bool] | None = None


@dataclass(frozen=True)
class Region:
    """A region as the cost hook and the code generator see it.

    Attributes
    ----------
    symbol : str
        The C symbol without the prefix ``__tvm_ffi_``.
    function : tvm.relax.Function
        Its body calls the composite functions (attribute ``Composite``) of the backend.
    macs : int
        Multiply-accumulates of its convolutions and products.
    nodes : int
        Number of operators.
    constants : frozenset of int
        Parameters that are weights at all places of the region: the same values at each call of a place, but others at another place.
    """

    symbol: str
    function: Any
    macs: int
    nodes: int
    constants: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Generated:
    """What a code generator returns: C or C++ sources and objects, as (file name, contents), and flags of the linker."""

    sources: tuple[tuple[str, str], ...] = ()
    objects: tuple[tuple[str, bytes], ...] = ()
    link_flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Backend:
    """A backend.

    Attributes
    ----------
    name : str
        An identifier.
    patterns : callable, optional
        Returns the pattern table for a target (empty: nothing for this target). The first pattern that matches wins.
    codegen : callable, optional
        Comes with patterns: ``codegen(regions, target) -> Generated``. Every region must come out as a function
        ``__tvm_ffi_<symbol>`` of the ``TVMFFISafeCallType`` ABI: the inputs, then the outputs, as ``DLTensor*``; it returns 0, or
        -1 with an error set.
    worth : callable, optional
        The cost hook: whether a region is worth its hand-over; a region that is not goes to the next backend. It is not asked
        where the user wants the backend by name.
    priority : int
        Backends of higher priority choose first.
    on_request : bool
        Whether it takes part only where it is enabled: for backends whose artefacts need something that others do not.
    on_device : bool
        Whether its code is for targets whose tensors live on a device. Every region must then come out as a C++ function
        ``int32_t dycl_device_<symbol>(const dycl::LibraryCall&)`` (``program.h``) that puts its work on a stream.
    merge : bool
        Whether neighbouring matches become one region; if not, each is one.
    kernels : callable, optional
        For backends that make the kernels of whole networks for CPUs, of what no patterns took: the first of them makes them all.
    """

    name: str
    patterns: Callable[[tvm.target.Target], Sequence[Pattern]] | None = None
    codegen: Callable[[Sequence[Region], tvm.target.Target], Generated] | None = None
    worth: Callable[[Region, tvm.target.Target], bool] | None = None
    priority: int = 0
    on_request: bool = False
    on_device: bool = False
    merge: bool = True
    kernels: Callable[[Network], NetworkKernels] | None = None


_BACKENDS: dict[str, Backend] = {}
_ENTRY_POINTS_LOADED = False


def register_backend(backend: Backend) -> Backend:
    """Make a backend known. A second one of the same name replaces the first."""
    if not backend.name.isidentifier() or backend.name == "tvm":
        raise UsageError(f"a backend cannot be named {backend.name!r}: give an identifier other than 'tvm'")
    _BACKENDS[backend.name] = backend
    return backend


def unregister_backend(name: str) -> None:
    """Forget a backend."""
    _BACKENDS.pop(name, None)


def kernels_of(network: Network, backends: Sequence[Backend]) -> NetworkKernels:
    """Return who makes the kernels of a network: the first of some backends that makes any, or else TVM."""
    return next((b.kernels(network) for b in backends if b.kernels is not None), LeftToTVM())


def requested(enabled: Collection[str]) -> set[str]:
    """Return the names of the backends that the user asks for, with or without ``:faster``."""
    return {name.removesuffix(":faster") for name in enabled}


def active_backends(disabled: Collection[str] = (), enabled: Collection[str] = ()) -> list[Backend]:
    """Return the backends that may take regions, in the order in which they choose: those of ``enabled`` first.

    A name in ``enabled`` leaves out the backend's cost hook, unless ``:faster`` follows it.

    Raises
    ------
    UsageError
        For names that are not registered, or that are in both collections.
    """
    global _ENTRY_POINTS_LOADED
    if not _ENTRY_POINTS_LOADED:
        _ENTRY_POINTS_LOADED = True
        for entry in importlib.metadata.entry_points(group="dycl_tvm.backends"):
            register_backend(entry.load()())
    asked = enabled if isinstance(enabled, str) else requested(enabled)
    for what, names, known in (("disable", disabled, {*_BACKENDS, "tvm"}), ("enable", asked, {*_BACKENDS})):
        if isinstance(names, str):
            raise UsageError(f"{what}_backends is a collection of names: [{names!r}]")
        if unknown := sorted(set(names) - known):
            raise UsageError(f"there is no backend {unknown[0]!r} to {what}; registered: {sorted(_BACKENDS) or 'none'}")
    if both := sorted(set(asked) & set(disabled)):
        raise UsageError(f"the backend {both[0]!r} cannot be both enabled and disabled")
    usable = [b for b in _BACKENDS.values() if b.name not in disabled and (b.name in asked or not b.on_request)]
    chosen = [replace(b, worth=None) if b.name in enabled else b for b in usable]
    return sorted(chosen, key=lambda b: (b.name not in asked, -b.priority, b.name))
