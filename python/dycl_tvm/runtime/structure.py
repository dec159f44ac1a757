# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Nested Python structures as JSON: the form in which inputs and outputs of an artefact are described.

A structure is one of::

    {"leaf": k, "type": "tensor" | "int" | "float" | "bool"}    the k-th leaf
    {"leaf": k, "type": "tensor", "along": d, "length": {"leaf": j, "type": "int"}}    its first elements: its extent d is the leaf j
        (where there are several, "along" and "length" are lists)
    {"leaf": k, "type": "tensor", "numpy": "array" | "number"}     the k-th leaf as an array of NumPy's, or as one of its numbers
    {"const": None | bool | int | float | str}                     a value fixed at build time
    {"tuple": [structure, ...]}   {"list": [structure, ...]}
    {"rows": [leaf, ...], "item": structure}                       a list: each item has one row of each tensor, in the places of
        the leaves of "item", which are their numbers in "rows"
    {"dict": [[key, structure], ...]}                              keys: str, int, bool, float or None
    {"namedtuple": "Name", "fields": ["a", ...], "items": [structure, ...]}    a named tuple or a dataclass

A result that is no plain tuple, list or dict has ``class`` too, the name of its class (:mod:`.classes`), and ``attributes``, a list of
[name, structure], if it has others than its fields. ``base`` is the class of Python's own that a container is of, if that is no tuple,
list or dict: a deque is a list with ``maxlen``, a set a list in any order, a defaultdict a dict with ``factory``, the name of a class. A
dataclass has ``keys``: which of its fields are items, if it is a dict too. ``numpy`` is the dtype of a constant that is a NumPy scalar. A
constant with ``name`` is a class, a member of an enum, a dtype or a device of PyTorch, and its text: where the module of that name is not
loaded, the text takes its place.
Any other object of a class written in Python is::

    {"object": "Name", "class": ..., "attributes": [[name, structure], ...]}

Nothing here imports torch: a loaded artefact must run without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dycl_tvm.runtime import classes
from dycl_tvm.runtime.classes import LOADED, Classes

Structure = dict[str, Any]
#: Dimensions of a tensor, and how much of each there is.
Cuts = Sequence[tuple[int, int]]


def flatten(structure: Structure, value: Any, where: str = "", known: Classes = LOADED) -> list[tuple[str, Any]]:
    """Take the leaves of ``value`` by the lines of ``structure``.

    Returns
    -------
    list of (name, leaf)
        In the order of the leaf numbers; the name is the access path, ``x`` or ``state[0]['h']``.

    Raises
    ------
    TypeError, ValueError
        If ``value`` is not of that structure; the message names the place.
    """
    found: dict[int, tuple[str, Any]] = {}
    _flatten(structure, value, where, found, known)
    return [found[k] for k in sorted(found)]


def flatten_call(
    structure: Structure, args: Sequence[Any], kwargs: dict[str, Any], names: Sequence[str], known: Classes = LOADED
) -> list[tuple[str, Any]]:
    """Take the leaves of a call's inputs.

    Parameters
    ----------
    structure : dict
        That of a call, see :func:`is_call`.
    args, kwargs
        What the caller gave, by position or by name as in Python. An input that was fixed when the model was built may be left out.
    names : sequence of str
        The names of the leaves; where the structure does not name the positional inputs they do.
    known : Classes
        Finds the classes of inputs.

    Raises
    ------
    TypeError, ValueError
        If an input is missing, not known, or of another structure; the message names it.
    """
    varargs, varkw = structure.get("varargs"), structure.get("varkw")
    if "dict" in structure:
        parts = dict(structure["dict"])
    else:
        items, pairs = structure["tuple"][0]["tuple"], structure["tuple"][1]["dict"]
        parts = {_root(item, names) or f"input {i}": item for i, item in enumerate(items)} | dict(pairs)
    named = [name for name in parts if name not in (varargs, varkw)]
    positional = (
        list(parts)[: list(parts).index(varargs)] if varargs in parts else named[: len(named) if "dict" in structure else len(items)]
    )
    given: dict[str, Any] = dict(zip(positional, args))
    rest = args[len(positional) :]
    if varargs is not None and varargs in parts:
        given[varargs] = rest
    elif rest:
        raise TypeError(f"takes {len(positional)} positional inputs ({', '.join(positional)}), got {len(args)}")
    others = {}
    for key, value in kwargs.items():
        if key not in named:
            others[key] = value
        elif key in given:
            raise TypeError(f"got the input '{key}' twice")
        else:
            given[key] = value
    if varkw is not None and varkw in parts:
        given[varkw] = others
    elif others:
        raise TypeError(f"has no input '{next(iter(others))}'; it has {', '.join(named)}")
    found: dict[int, tuple[str, Any]] = {}
    for name, item in parts.items():
        if name in given:
            _flatten(item, given[name], name, found, known)
        elif _has_leaves(item):
            raise TypeError(f"the input '{name}' is missing")
    return [found[k] for k in sorted(found)]


def is_call(structure: Structure) -> bool:
    """Tell whether a structure is that of a call.

    Either a dict from the names of the parameters, in the order of the signature, to their structures; its entries ``varargs`` and
    ``varkw`` name the parameters that are ``*args`` (a tuple) and ``**kwargs`` (a dict). Or a tuple (positional inputs, keyword inputs).
    """
    parts = structure.get("tuple", ())
    return "dict" in structure or (len(parts) == 2 and "tuple" in parts[0] and "dict" in parts[1])


def _children(node: Structure) -> list[Structure]:
    return [*_parts(node), *node.get("rows", ()), *[length for _, length in cuts_of(node)]]


def _parts(node: Structure) -> list[Structure]:
    """Return what an object holds."""
    named = [s for _, s in [*node.get("dict", ()), *node.get("attributes", ())]]
    return [*node.get("tuple", ()), *node.get("list", ()), *node.get("items", ()), *named]


def cuts_of(node: Structure) -> list[tuple[int, Structure]]:
    """Return the dimensions of a leaf that is the first elements of a tensor only, each with the leaf that is its extent."""
    if "along" not in node:
        return []
    several = isinstance(node["along"], list)
    return list(zip(node["along"], node["length"])) if several else [(node["along"], node["length"])]


def _has_leaves(node: Structure) -> bool:
    return "leaf" in node or any(_has_leaves(child) for child in _children(node))


def _root(node: Structure, names: Sequence[str]) -> str:
    """Return the name of the input to which a leaf in ``node`` belongs: ``state`` for ``state[0]``."""
    while "leaf" not in node:
        child = next((c for c in _children(node) if _has_leaves(c)), None)
        if child is None:
            return ""
        node = child
    return names[node["leaf"]].split("[")[0].split(".")[0]


def _flatten(structure: Structure, value: Any, where: str, found: dict[int, tuple[str, Any]], known: Classes) -> None:
    if "leaf" in structure:
        first, before = found.setdefault(structure["leaf"], (where, value))
        if before is not value:
            raise ValueError(f"{where} must be the very tensor that {first} is, as it was when the model was built")
        return
    if "const" in structure:
        want = known.constant(structure["name"], structure["const"]) if "name" in structure else structure["const"]
        same = value is want or (type(value) is type(want) and value == want)
        if not same:
            raise ValueError(f"{where or 'the value'} was fixed to {want!r} when the model was built; got {value!r}")
        return
    for kind, cls in (("tuple", tuple), ("list", list)):
        if kind in structure:
            items = structure[kind]
            if not isinstance(value, cls) or len(value) != len(items):
                raise TypeError(f"{where or 'the value'} must be a {kind} of {len(items)} items, got {_describe(value)}")
            for i, item in enumerate(items):
                _flatten(item, value[i], f"{where}[{i}]", found, known)
            return
    if "namedtuple" in structure:
        fields = structure["fields"]
        missing = [f for f in fields if not hasattr(value, f)]
        if missing:
            raise TypeError(f"{where or 'the value'} must have the fields {fields}, got {_describe(value)}")
        for name, item in zip(fields, structure["items"]):
            _flatten(item, getattr(value, name), f"{where}.{name}", found, known)
        return
    if "object" in structure:
        space = getattr(value, "__dict__", {})
        if not _is_of(value, structure, known) or set(space) != {name for name, _ in structure["attributes"]}:
            names = ", ".join(name for name, _ in structure["attributes"])
            raise TypeError(f"{where or 'the value'} must be a {structure['object']} with the attributes {names}, got {_describe(value)}")
        for name, item in structure["attributes"]:
            _flatten(item, space[name], f"{where}.{name}", found, known)
        return
    pairs = structure["dict"]
    if not isinstance(value, dict) or set(value) != {k for k, _ in pairs}:
        raise TypeError(f"{where or 'the value'} must be a dict with the keys {[k for k, _ in pairs]}, got {_describe(value)}")
    for key, item in pairs:
        _flatten(item, value[key], f"{where}[{key!r}]", found, known)


def _is_of(value: Any, structure: Structure, known: Classes) -> bool:
    """Whether an input is of the class that was there when the model was built, or of the one that stands for it in results."""
    cls = known.find(structure["class"])
    return type(value) is (type(classes.make_object(None, structure["object"])) if cls is None else cls)


def unflatten(
    structure: Structure, leaf: Callable[[int, str], Any], known: Classes = LOADED, front: Callable[[int, Cuts], Any] | None = None
) -> Any:
    """Build the Python object.

    Parameters
    ----------
    structure : dict
    leaf : callable
        ``leaf(k, type)`` gives the k-th leaf.
    known : Classes
        Finds the classes.
    front : callable, optional
        ``front(k, cuts)`` gives the first elements of the k-th leaf, as :func:`first` does, where that takes less than all of it.
    """
    if "leaf" in structure:
        if "along" in structure:
            k, cuts = structure["leaf"], [(along, unflatten(length, leaf)) for along, length in cuts_of(structure)]
            found = first(leaf(k, structure["type"]), cuts) if front is None else front(k, cuts)
        else:
            found = leaf(structure["leaf"], structure["type"])
        return found if "numpy" not in structure else _as_array(found, structure["numpy"] == "number")
    if "name" in structure:
        return known.constant(structure["name"], structure["const"])
    if "const" in structure:
        return np.dtype(structure["numpy"]).type(structure["const"]) if "numpy" in structure else structure["const"]

    def inner(parts: Sequence[Structure]) -> list[Any]:
        return [unflatten(part, leaf, known, front) for part in parts]

    if "rows" in structure:
        columns = inner(structure["rows"])
        return [unflatten(structure["item"], _row(columns, i), known) for i in range(len(columns[0]))]

    def named(kind: type) -> tuple[type | None, str, type]:
        if "class" not in structure:
            return kind, kind.__name__, kind
        return known.find(structure["class"]), structure["class"].rpartition(":")[2].rpartition(".")[2], base(kind)

    def base(kind: type) -> type:
        return (LOADED.find(structure["base"]) or kind) if "base" in structure else kind

    if "tuple" in structure:
        made = classes.make_items(*named(tuple), inner(structure["tuple"]))
    elif "list" in structure:
        made = classes.make_items(*named(list), inner(structure["list"]), structure.get("maxlen"))
    elif "namedtuple" in structure:
        cls, fields = known.find(structure["class"]) if "class" in structure else None, tuple(structure["fields"])
        made = classes.make_record(cls, structure["namedtuple"], fields, inner(structure["items"]), structure.get("keys"), base(object))
    elif "object" in structure:
        made = classes.make_object(known.find(structure["class"]), structure["object"])
    else:
        factory = known.find(structure["factory"]) if "factory" in structure else None
        made = classes.make_dict(*named(dict), [(k, unflatten(s, leaf, known, front)) for k, s in structure["dict"]], factory)
    if "attributes" in structure:
        classes.set_attributes(made, [(name, unflatten(s, leaf, known, front)) for name, s in structure["attributes"]])
    return made


def _row(columns: Sequence[Any], i: int) -> Callable[[int, str], Any]:
    return lambda k, kind: columns[k][i] if kind == "tensor" else columns[k][i].item()


def _as_array(tensor: Any, number: bool) -> Any:
    array = tensor.numpy() if hasattr(tensor, "numpy") else np.asarray(tensor)
    return array[()] if number else array


def first(tensor: Any, cuts: Cuts) -> Any:
    """Return as many of the first elements of a tensor or an array as make one whose extents are those of ``cuts``.

    Raises
    ------
    IndexError
        If there are not as many.
    """
    shape = shape_of_first(tensor.shape, cuts)
    return tensor.reshape(-1)[: math.prod(shape)].reshape(shape)


def shape_of_first(shape: Sequence[int], cuts: Cuts) -> list[int]:
    """Return the shape of what :func:`first` gives of a tensor.

    Raises
    ------
    IndexError
        If the tensor has not as many elements.
    """
    made = list(shape)
    for along, length in cuts:
        if not 0 <= length <= shape[along]:
            raise IndexError(f"index {length} of {shape[along] + 1}")
        made[along] = length
    return made


def parts_of(structure: Structure) -> dict[int, list[tuple[int, int]]]:
    """Return which leaves are first elements only: the dimensions, each with the leaf that has its extent."""
    cuts = [(along, length["leaf"]) for along, length in cuts_of(structure)]
    found = {structure["leaf"]: cuts} if cuts else {}
    for child in _children(structure):
        found |= parts_of(child)
    return found


def unflatten_call(structure: Structure, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments of a call with these leaves; the reverse of :func:`flatten_call`."""
    value = unflatten(structure, lambda k, _: leaves[k])
    if not isinstance(value, dict):
        return (value[0], value[1]) if is_call(structure) else (tuple(value), {})
    varargs, varkw = structure.get("varargs"), structure.get("varkw")
    if varargs not in value:
        return (), {**{k: v for k, v in value.items() if k != varkw}, **value.get(varkw, {})}
    # What stands before *args must be given by position.
    names = list(value)
    split = names.index(varargs)
    named = {k: value[k] for k in names[split + 1 :] if k != varkw}
    return (*(value[k] for k in names[:split]), *value[varargs]), {**named, **value.get(varkw, {})}


def leaf_cuts(structure: Structure) -> list[tuple[tuple[int, int], ...]] | None:
    """Return of each leaf its cuts, as :func:`parts_of` has them; None if a leaf, or its items, stand in several places."""
    places: list[int] = []

    def visit(node: Structure) -> bool:
        if "leaf" in node:
            places.append(node["leaf"])
            return True
        return "rows" not in node and all(map(visit, _parts(node)))

    if not visit(structure) or len(set(places)) < len(places):
        return None
    cuts = parts_of(structure)
    leaves = {*places, *(length for of in cuts.values() for _, length in of)}
    return [tuple(cuts.get(k, ())) for k in range(len(leaves))] if leaves == set(range(len(leaves))) else None


def whole_leaves(structure: Structure) -> int:
    """Return how many leaves a structure has, if each stands in one place and is whole; otherwise -1."""
    cuts = leaf_cuts(structure)
    return -1 if cuts is None or any(cuts) else len(cuts)


def leaf_types(structure: Structure) -> list[str]:
    """Return the types of the leaves in the order of their numbers."""
    found: dict[int, str] = {}

    def visit(node: Structure) -> None:
        if "leaf" in node:
            found[node["leaf"]] = node["type"]
        for child in _children(node):
            visit(child)

    visit(structure)
    return [found[k] for k in sorted(found)]


def _describe(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)} items"
    if isinstance(value, dict):
        return f"a dict with the keys {list(value)}"
    return f"a {type(value).__name__}"
