# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Models and example inputs, as they are named on the command line."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dycl_tvm.errors import ForwardError, UsageError
from dycl_tvm.progress import Phases

if TYPE_CHECKING:
    from dycl_tvm.zoo import Entry

#: A number, or a size that each call decides: ``T<=512``.
_SIZE = r"(?:(?:\d+<=)?[A-Z]\w*<=\d+|\d+)"
_SPEC = re.compile(rf"^(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>scalar|{_SIZE}(?:x{_SIZE})*)(?::(?P<dtype>\w+))?$")
_NUMBER = re.compile(r"^(?:(?P<name>[A-Za-z_]\w*)=)?(?P<kind>int|float|bool):(?P<value>.+)$")
_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


def load_model(reference: str, state_dict: str | None = None, quiet: bool = True) -> tuple[Any, tuple[Any, ...] | None]:
    """Return the model that ``reference`` names, and its example inputs where it brings some.

    Raises
    ------
    UsageError
        If there is no such thing.
    """
    if is_graph_file(reference):
        if state_dict is not None:
            raise UsageError(f"{reference} has its weights with it; --state-dict is for models in Python")
        if not Path(reference).is_file():
            raise UsageError(f"there is no file {reference!r}")
        return (reference, None) if reference.endswith(".onnx") else (_exported(reference), None)
    where, colon, path = reference.partition(":")
    if not colon or not where or not path:
        raise UsageError(f"{reference!r} names no model; write zoo:NAME, file.py:OBJECT, package.module:OBJECT, model.onnx or program.pt2")
    if where == "zoo":
        entry = zoo_entry(path, quiet)
        model, examples = entry.model, tuple(entry.example_inputs)
    else:
        model, examples = _resolve(_module(where), path, reference), None
        if isinstance(model, tuple) and len(model) == 2:
            model, examples = model[0], model[1] if isinstance(model[1], tuple) else (model[1],)
    if state_dict is not None:
        _load_weights(model, state_dict)
    return model, examples


def is_graph_file(reference: str) -> bool:
    """Tell whether a model is named by a file of ONNX or torch.export."""
    return reference.endswith((".onnx", ".pt2"))


def model_and_inputs(reference: str, state_dict: str | None, specs: list[str], quiet: bool = True) -> tuple[Any, dict[str, Any]]:
    """Return the model that ``reference`` names, and what ``build`` is told of its inputs.

    The inputs of graph files have names and types of their own: ``name=1x3x32x32`` gives the shape of one, ``name=N<=8x3`` with a size that
    each call decides, ``symbol=int:4`` the size of a symbolic dimension.

    Raises
    ------
    UsageError
        If there is no such model or an input cannot be read.
    """
    model, examples = load_model(reference, state_dict, quiet)
    positional, named = parse_inputs(specs)
    if not is_graph_file(reference):
        if examples is None and not specs:
            raise UsageError(f"say what inputs {reference} takes, such as -i 1x3x32x32: one -i for each, in order or as NAME=1x3x32x32")
        return model, {"example_inputs": positional if specs else examples, "example_kwargs": named}
    if positional:
        raise UsageError(f"the inputs of {reference} have names; write name=1x3x32x32, or symbol=int:4 for a dimension without a size")
    shapes = {name: getattr(value, "shape", value) for name, value in named.items()}
    written = {name: {k: size for k, size in enumerate(s) if isinstance(size, str)} for name, s in shapes.items() if isinstance(s, tuple)}
    sizes = {name: of for name, of in written.items() if of}
    return model, {"input_shapes": {name: _largest(shape) for name, shape in shapes.items()} or None, "dynamic_shapes": sizes or None}


def _largest(shape: Any) -> Any:
    """Return a shape at the bounds of the sizes that are written in it."""
    if not isinstance(shape, tuple):
        return shape
    from dycl_tvm.hcfg.sizes import Dim

    found = [Dim.of(size) if isinstance(size, str) else size for size in shape]
    return tuple(size.largest if isinstance(size, Dim) else size for size in found)


@contextlib.contextmanager
def blaming_inputs(reference: str, model: Any, inputs: dict[str, Any]) -> Iterator[None]:
    """Tell a model that cannot be compiled from one that does not run on such inputs in eager either.

    Raises
    ------
    UsageError
        In the second case.
    """
    try:
        yield
    except ForwardError as error:
        if (why := _fails_in_eager(model, inputs)) is not None:
            text = f"{reference} does not run on such inputs in PyTorch either: {type(why).__name__}: {why}"
            raise UsageError(f"{text}\n{error.origin_text()}".rstrip()) from error
        raise


def _fails_in_eager(model: Any, inputs: dict[str, Any]) -> Exception | None:
    """Return what a model raises on its example inputs, if it does."""
    import torch

    from dycl_tvm.example_inputs import normalise

    if "example_inputs" not in inputs:
        return None
    args, kwargs = normalise(inputs["example_inputs"], inputs["example_kwargs"])
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    except Exception as error:  # whatever the model raises
        return error
    return None


def parse_inputs(specs: list[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword examples from ``--input`` options.

    Raises
    ------
    UsageError
        If one cannot be read.
    """
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for spec in specs:
        name, value = _parse_one(spec)
        if name:
            named[name] = value
        else:
            positional.append(value)
    return tuple(positional), named


def _parse_one(spec: str) -> tuple[str | None, Any]:
    from dycl_tvm.example_inputs import TensorSpec

    number = _NUMBER.match(spec)
    if number:
        return number["name"], _number(number["kind"], number["value"], spec)
    found = _SPEC.match(spec)
    if not found:
        raise UsageError(
            f"input {spec!r} cannot be read; write a shape such as 1x3x32x32, 1x16:int64, 1xT<=512, scalar:float32, name=1x8, or int:5"
        )
    dtype = found["dtype"] or "float32"
    if dtype not in _DTYPES:
        raise UsageError(f"input {spec!r}: there is no dtype {dtype!r}; there are {', '.join(_DTYPES)}")
    shape = () if found["shape"] == "scalar" else tuple(int(d) if d.isdigit() else d for d in re.findall(_SIZE, found["shape"]))
    return found["name"], TensorSpec(shape, dtype)


def _number(kind: str, text: str, spec: str) -> int | float | bool:
    try:
        if kind == "bool":
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        return int(text) if kind == "int" else float(text)
    except (KeyError, ValueError):
        raise UsageError(f"input {spec!r}: {text!r} is not of type {kind}") from None


def _exported(path: str) -> Any:
    """Return the program that torch.export.save wrote."""
    import torch

    try:
        return torch.export.load(path)
    except Exception as err:  # zip, JSON, versions and operators each have their own errors
        raise UsageError(f"{path} is not a program that torch.export.save wrote: {str(err).strip().splitlines()[0]}") from err


def zoo_entry(name: str, quiet: bool = True) -> Entry:
    """Make a network of the zoo, which may take half a minute; on stderr it says so unless it is to be quiet.

    Raises
    ------
    UsageError
        If there is none of that name.
    """
    from dycl_tvm import zoo

    if name not in zoo.names():
        raise UsageError(f"there is no network {name!r} in the zoo; there are {', '.join(zoo.names())}")
    with Phases(not quiet).phase("zoo", f"make {name} and calibrate its branches"):
        return zoo.load(name)


def _module(where: str) -> Any:
    path = Path(where)
    if where.endswith(".py") or path.exists():
        if not path.is_file():
            raise UsageError(f"there is no file {where!r}")
        # The folder of the file is searched too, as `python file.py` would.
        sys.path.insert(0, str(path.resolve().parent))
        name = path.stem if path.stem not in sys.modules else f"dycl_tvm_user_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise UsageError(f"{where!r} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up there
        try:
            spec.loader.exec_module(module)
        except Exception as err:
            raise UsageError(f"{where} cannot be imported: {type(err).__name__}: {err}") from err
        return module
    try:
        sys.path.insert(0, "")
        return importlib.import_module(where)
    except ImportError as err:
        raise UsageError(f"{where!r} is neither a file nor an importable module: {err}") from err


def _resolve(module: Any, path: str, reference: str) -> Any:
    called = path.endswith("()")
    found = module
    for part in path.removesuffix("()").split("."):
        if not hasattr(found, part):
            known = ", ".join(n for n in vars(module) if not n.startswith("_"))
            raise UsageError(f"{reference!r}: {getattr(found, '__name__', type(found).__name__)} has no {part!r}; it has {known}")
        found = getattr(found, part)
    if not called and not isinstance(found, type):
        return found
    try:
        return found()
    except TypeError as err:
        raise UsageError(f"{reference!r} cannot be made without arguments: {err}; write a function that makes it") from err


def _load_weights(model: Any, path: str) -> None:
    import torch

    owner = getattr(model, "__self__", model)
    if not isinstance(owner, torch.nn.Module):
        raise UsageError("--state-dict needs a model that is an nn.Module or a method of one")
    try:
        owner.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except (RuntimeError, KeyError, AttributeError, ValueError, EOFError, TypeError) as err:
        raise UsageError(f"the weights {path!r} do not fit: {err}") from err
    except Exception as err:
        # pickle's own error type, without importing pickle: such a file holds code or is damaged
        raise UsageError(f"the weights {path!r} cannot be read safely: {err}") from err
