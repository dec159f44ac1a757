# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Runs both ONNX forms of a network with ONNX Runtime, and puts the results together as the network's forward returns them.

A reference: it needs NumPy and onnxruntime only, and is as plain as it can be. Tensors are NumPy arrays.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from dycl_tvm.errors import ArtifactError, InputError, RunError, UsageError
from dycl_tvm.hcfg.hostops import error_of, evaluate
from dycl_tvm.hcfg.sizes import InputSize, SizedDim, measure
from dycl_tvm.hcfg.types import ScalarType
from dycl_tvm.runtime.params import read_params
from dycl_tvm.runtime.structure import flatten, flatten_call, is_call, unflatten

METADATA_KEY = "dycl_tvm"
#: Where a frame has the stack of recursive functions; values have numbers from 0 on.
_STACK = -1


def run(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a model that ``export_onnx`` wrote once; for several calls, and for state, make an :class:`OnnxModel`."""
    return OnnxModel(model)(*args, **kwargs)


class OnnxModel:
    """The one model that ``export_onnx`` writes.

    Parameters
    ----------
    model : path-like, bytes or onnx.ModelProto
    options : onnxruntime.SessionOptions, optional

    Attributes
    ----------
    last_site : int
        The return site of the last call.
    """

    def __init__(self, model: Any, options: Any = None) -> None:
        source = model.SerializeToString() if hasattr(model, "SerializeToString") else model
        self._session = _session(source, options)
        properties = self._session.get_modelmeta().custom_metadata_map
        if METADATA_KEY not in properties:
            raise ArtifactError("this ONNX model was not written by dycl_tvm: it has no description of its results")
        self.description = json.loads(properties[METADATA_KEY])
        self._state: dict[str, Any] = {}
        self.last_site = -1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run; takes and gives what the network's forward takes and gives."""
        about = self.description
        feeds = _leaves(about, args, kwargs)
        names = [o.name for o in self._session.get_outputs()]
        found = dict(zip(names, self._session.run(None, {**feeds, **self._state}), strict=True))
        site = int(found[names[0]])
        self.last_site = site
        if site < 0:
            error = about["errors"][-1 - site]
            raise InputError(error["message"]) if error["kind"] == "InputError" else RunError.of(error["message"], error["kind"])
        self._state = {n: found[f"{n}.next"] for n in about["state"]}
        chosen = about["sites"][site]
        leaves = [found[n] for n in chosen["outputs"]]
        return _built(chosen["structure"], leaves)


class SplitModel:
    """The folder that ``export_onnx(..., split=True)`` writes, run block by block.

    Attributes
    ----------
    last_path : list of (str, int)
        The blocks that the last call left, and the number of the edge by which.
    calls : dict
        How often each sub-DNN ran, over all calls.
    """

    def __init__(self, folder: str | os.PathLike[str], options: Any = None) -> None:
        root = Path(folder)
        try:
            self.description = json.loads((root / "hcfg.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{root} is no folder that export_onnx(split=True) wrote: {error}") from None
        if self.description.get("format") != "dycl-split" or self.description.get("version") != 1:
            raise ArtifactError(f"{root / 'hcfg.json'} is of another format or version")
        self._weights = read_params(root / "weights.params").tensors
        self._sessions = {n: _session(str(root / f"{n}.onnx"), options) for n in self.description["sub_dnns"]}
        self._state = [self._read({}, v["initial"]) for v in self.description["state"]]
        self.calls: dict[str, int] = dict.fromkeys(self.description["sub_dnns"], 0)
        self.last_path: list[tuple[str, int]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run; takes and gives what the network's forward takes and gives."""
        about = self.description
        feeds = _leaves(about, args, kwargs)
        self.last_path = []
        block = about["blocks"][0]
        given = [feeds[n] for n in about["input_names"]]
        frame: dict[int, Any] = dict(zip(block["params"], [*self._with_sizes(given), *self._state], strict=True))
        while True:
            for step in block["steps"]:
                self._step(step, frame)
            end = block["end"]
            if "raise" in end:
                raise RunError(end["message"], end["raise"])
            if "return" in end:
                self._state = [self._read(frame, v) for v in end["state"]]
                leaves = [self._read(frame, v) for v in end["values"]]
                return _built(about["sites"][end["return"]]["structure"], leaves)
            edges, choice = self._choose(end, frame)
            self.last_path.append((block["name"], choice))
            block = about["blocks"][edges[choice]["block"]]
            frame.update(zip(block["params"], [self._read(frame, a) for a in edges[choice]["args"]], strict=True))

    def _with_sizes(self, given: list[Any]) -> list[Any]:
        """Return what the entry is given: inputs whose sizes the caller decides in their buffers, and these sizes."""
        about = self.description
        sizes = [InputSize(s["name"], s["least"], s["most"], tuple(SizedDim(**d) for d in s["dims"])) for s in about.get("sizes", ())]
        found = measure(sizes, given, about["input_names"])
        whole = [t["shape"] for t in about["input_types"][: len(given)]]
        missing = [[(0, most - n) for most, n in zip(shape, x.shape)] for x, shape in zip(given, whole)]
        return [*(np.pad(x, m) if any(n for _, n in m) else x for x, m in zip(given, missing)), *found]

    def _choose(self, end: dict[str, Any], frame: dict[int, Any]) -> tuple[list[Any], int]:
        if "jump" in end:
            return [end["jump"]], 0
        if "branch" in end:
            return [end["then"], end["else"]], 0 if self._read(frame, end["branch"]) else 1
        index, edges = self._read(frame, end["switch"]), end["edges"]
        if not 0 <= index < len(edges):
            raise RunError.of(f"index {index} of {len(edges)}", "IndexError")
        return edges, index

    def _step(self, step: dict[str, Any], frame: dict[int, Any]) -> None:
        args = [self._read(frame, a) for a in step["args"]]
        if "call" in step:
            session = self._sessions[step["call"]]
            self.calls[step["call"]] += 1
            feeds = {i.name: args[int(i.name[1:])] for i in session.get_inputs()}
            results = session.run([f"r{k}" for k in range(len(step["results"]))], feeds)
            frame.update(zip(step["results"], results, strict=True))
        elif step["host"] == "print":
            print(step["text"].format(*args), end="")
            frame[step["result"]] = 0
        elif step["host"] == "check":
            if args[0]:
                kind, message = error_of(step["text"])
                raise RunError.of(message, kind)
            frame[step["result"]] = 0
        elif step["host"] == "clock":
            frame[step["result"]] = getattr(time, step["text"])()
        elif step["host"] == "push":
            frame.setdefault(_STACK, []).append(args[0])
        elif step["host"] == "pop":
            frame[step["result"]] = frame[_STACK].pop()
        elif step["host"] == "to_tensor":
            frame[step["result"]] = np.asarray(args[0]).astype(step["type"]["dtype"])
        else:
            op = step["host"]
            if op == "item":
                op, args = f"to_{step['type']}", [args[0].item()]
            try:
                frame[step["result"]] = evaluate(op, args, ScalarType(step["type"]))
            except (ArithmeticError, ValueError) as error:
                raise RunError(str(error), type(error).__name__) from None

    def _read(self, frame: dict[int, Any], operand: Any) -> Any:
        if isinstance(operand, dict):
            return frame[operand["value"]] if "value" in operand else self._weights[operand["weight"]]
        return operand


def _session(source: Any, options: Any) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise UsageError("this needs ONNX Runtime: pip install onnxruntime") from None
    if options is None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
    return onnxruntime.InferenceSession(source if isinstance(source, bytes) else str(source), options, providers=["CPUExecutionProvider"])


def _built(structure: Any, leaves: list[Any]) -> Any:
    """Return the result of a network; a host scalar may come as an array of rank 0."""

    def leaf(k: int, kind: str) -> Any:
        return leaves[k].item() if kind != "tensor" and isinstance(leaves[k], (np.ndarray, np.generic)) else leaves[k]

    return unflatten(structure, leaf)


def _leaves(about: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the input tensors by name."""
    try:
        if is_call(about["inputs"]):
            found = flatten_call(about["inputs"], args, kwargs, about["input_names"])
        else:
            found = flatten(about["inputs"], args)
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from None
    return {
        name: np.ascontiguousarray(leaf) if np.ndim(leaf) else np.asarray(leaf)
        for name, (_, leaf) in zip(about["input_names"], found, strict=True)
    }
