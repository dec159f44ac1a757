# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Prepares one network of the zoo for all contenders: inputs with weights, what eager returns, and the static networks."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from dycl_tvm import zoo
from dycl_tvm.build import stage_model
from dycl_tvm.progress import Phases
from speed.static import static_path, torch_module, write_onnx


def choose_inputs(entry: zoo.Entry, draw: int, paths: int) -> list[tuple[tuple[Any, ...], int]]:
    """Return one input for each of the most frequent paths, with the number of inputs that took the path.

    Parameters
    ----------
    entry : zoo.Entry
    draw : int
        How many inputs are drawn.
    paths : int
        How many paths are kept; among equally frequent ones, those that came first.
    """
    drawn = list(entry.inputs(draw))
    taken = [zoo.path_of(entry.model, inputs) for inputs in drawn]
    counts = Counter(taken)  # in the order of their first appearance, which most_common keeps among equals
    return [(drawn[taken.index(path)], count) for path, count in counts.most_common(paths)]


def prepare(name: str, folder: Path, draw: int, paths: int) -> None:
    """Write what the contenders need into a folder.

    model.pt (the eager model), data.pickle (inputs and expected results as NumPy arrays) and static_k.onnx; about.json says what there is.
    """
    torch.set_num_threads(1)  # its pool is slow on small layers when other work runs
    folder.mkdir(parents=True, exist_ok=True)
    entry = zoo.load(name)
    chosen = choose_inputs(entry, draw, paths)
    with torch.no_grad():
        expected = [entry.model(*inputs) for inputs, _ in chosen]
    torch.save(entry.model, folder / "model.pt")
    graph = stage_model(entry.model, entry.example_inputs, phases=Phases())
    statics: list[dict[str, Any]] = []
    files: dict[Any, dict[str, Any]] = {}
    for k, (inputs, _) in enumerate(chosen):
        try:
            static = static_path(graph, inputs)
            if static.key not in files:
                write_onnx(static, folder / f"static_{k}.onnx")
                files[static.key] = {"file": f"static_{k}", "structure": static.structure, "leaves": static.leaves}
            statics.append(files[static.key])
        except Exception as error:
            statics.append({"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"})
    with (folder / "data.pickle").open("wb") as file:
        pickle.dump({"inputs": [arrays(i) for i, _ in chosen], "expected": [arrays(e) for e in expected]}, file)
    (folder / "about.json").write_text(json.dumps({"weights": [n for _, n in chosen], "drawn": draw, "static": statics}))


def exported(folder: Path, k: int) -> Any:
    """Return the static network of the k-th input of a prepared network as an ``ExportedProgram``."""
    model = torch.load(folder / "model.pt", weights_only=False)
    with (folder / "data.pickle").open("rb") as file:
        inputs = tuple(map(torch.from_numpy, pickle.load(file)["inputs"][k]))
    static = static_path(stage_model(model, inputs, phases=Phases()), inputs)
    return torch.export.export(torch_module(static), inputs)


def arrays(value: Any) -> Any:
    """Return a structure with NumPy arrays in the place of tensors."""
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous().numpy()
    if isinstance(value, (list, tuple)):
        return type(value)(arrays(v) for v in value)
    return {k: arrays(v) for k, v in value.items()} if isinstance(value, dict) else value
