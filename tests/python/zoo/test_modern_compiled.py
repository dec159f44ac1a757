# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The modern networks, compiled, against eager on all kinds of paths."""

from __future__ import annotations

import pytest
import torch

import dycl_tvm
from dycl_tvm.compare import difference
from dycl_tvm.zoo.modern.recipes import RECIPES

#: Networks with fewer than four paths.
FEW_PATHS = {"cascade": 2, "tree_lstm": 1}


@pytest.mark.parametrize("name", RECIPES)
def test_compiled_network_agrees_with_eager(name, network, tmp_path):
    entry = network(name)
    artifact = dycl_tvm.build(entry.model, entry.example_inputs, target="llvm", name=name)
    library = artifact.export_library(tmp_path / "model.so")
    module = dycl_tvm.load(library, artifact.save_params(tmp_path / "model.params"))
    paths = set()
    for number, inputs in enumerate(entry.inputs(32)):
        with torch.no_grad():
            expected = entry.model(*inputs)
        found = difference(expected, module(*inputs))
        assert found is None, f"input {number}: {found}"
        paths.add(module.last_path.key())
    assert len(paths) >= FEW_PATHS.get(name, 4)
