# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The nine networks, compiled: they do what eager does on every path, and run nothing else."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from compiled import Compiled, compile_entry, kernel_runs, passed_blocks
from torch import nn
from torchless import write_cases

import dycl_tvm
from dycl_tvm import zoo
from dycl_tvm.codegen import toolchain
from dycl_tvm.compare import difference
from dycl_tvm.hcfg.nodes import SubDNNCall
from dycl_tvm.zoo.blockdrop import BlockDrop
from dycl_tvm.zoo.skipnet import RecurrentSkipNet

#: The networks of the DyCL paper.
PAPER = [
    "sdn_mobilenet", "sdn_vgg16bn", "sdn_resnet56", "sdn_wideresnet32_4", "skipnet38_rnn", "skipnet38_ff",
    "caption_resnext50", "caption_googlenet", "blockdrop_resnet110",
]  # fmt: skip
REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def compiled(network: Callable[[str], zoo.Entry], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Compiled]:
    """Return a function from a name to the compiled network; each is compiled once."""

    @functools.cache
    def get(name: str) -> Compiled:
        return compile_entry(network(name), tmp_path_factory.mktemp(name), 8 if name.startswith("caption") else 64)

    return get


@pytest.mark.parametrize("name", PAPER)
def test_results_and_return_sites_are_those_of_eager(name, compiled):
    net = compiled(name)
    paths = set()
    for k, call in enumerate(net.calls):
        actual = net.module(*call.inputs)
        assert difference(call.output, actual, rtol=1e-4) is None, f"input {k}"
        path = net.module.last_path
        function = (path.origin.file, path.origin.function.rpartition(".")[2])
        assert path.origin.line == call.returns[function], f"input {k}"
        paths.add(path.key())
    possible = net.artifact.report().paths
    assert len(paths) >= 4
    if possible <= 16:
        assert len(paths) == possible


@pytest.mark.parametrize("name", PAPER)
def test_artefact_runs_without_torch(name, compiled):
    net = compiled(name)
    write_cases(net.folder, [call.inputs for call in net.calls], [call.output for call in net.calls])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, str(Path(__file__).with_name("torchless.py")), str(net.folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["cases"] == len(net.calls)
    assert counts["paths"] >= 4


@pytest.mark.parametrize("name", PAPER)
def test_only_what_the_path_needs_is_run(name, compiled):
    net = compiled(name)
    places = net.artifact._lowered.program.calls()
    calls = {place.sub_dnn for place in places}
    fewest = len(places)
    for k, call in enumerate(net.calls[:16]):
        net.module(*call.inputs)
        ran, sub_dnns = net.module.kernels_run, net.module.sub_dnns_run
        blocks, choices = passed_blocks(net.artifact.hcfg, call.inputs)
        assert [int(branch.choice) for branch in net.module.last_path.branches] == choices, f"input {k}"
        expected, by_sub_dnn = kernel_runs(net.artifact, blocks)
        assert ran == expected, f"input {k}"
        assert sub_dnns == by_sub_dnn, f"input {k}"
        on_path = {step.callee.name for block in blocks for step in block.steps if isinstance(step, SubDNNCall)}
        assert set(sub_dnns) == on_path & calls, f"input {k}"
        # Seen from outside: each convolution that eager runs is one kernel, and there is no other. Those of one pixel are products,
        # and share their kernels with linear layers of that size.
        convolutions = sum(n for symbol, n in ran.items() if "conv2d" in symbol and "conv2d_dense" not in symbol)
        products = sum(n for symbol, n in ran.items() if "conv2d_dense" in symbol)
        assert convolutions <= call.convolutions <= convolutions + products, f"input {k}"
        fewest = min(fewest, sum(ran.values()))
    assert fewest < len(places)


def _signatures(artifact: dycl_tvm.Artifact) -> set[tuple[str, ...]]:
    """Return what is different between the layers: the operators of each kernel, and the types that it takes and gives."""
    program = artifact._lowered.program
    return {(re.sub(r"_\d+$", "", program.kernels[c.kernel].symbol), *(str(slot.type) for slot in c.args)) for c in program.calls()}


@pytest.mark.parametrize(
    "name, small",
    [
        ("blockdrop_resnet110", lambda: BlockDrop((6, 6, 6))),  # ResNet-38
        ("skipnet38_rnn", lambda: RecurrentSkipNet((3, 3, 3))),
    ],
)
def test_kernels_grow_with_the_different_layers_only(name: str, small: Callable[[], nn.Module], compiled):
    """A deeper network of the same code has more kernels by no more than the shapes that the smaller one does not have."""
    deep = compiled(name).artifact
    shallow = dycl_tvm.build(small().eval().requires_grad_(False), (torch.zeros(1, 3, 32, 32),))
    new = _signatures(deep) - _signatures(shallow)
    assert deep.report().kernels <= shallow.report().kernels + len(new)
    assert deep.report().kernel_calls > 1.5 * shallow.report().kernel_calls
    # All that is new is the length of the policy, one number a block.
    assert all(any("[54]" in t or ", 54]" in t or "[54, " in t for t in types) for _, *types in new)
    assert bool(new) == (name == "blockdrop_resnet110")


@pytest.mark.parametrize("name", ["sdn_mobilenet", "skipnet38_rnn", "caption_googlenet"])
def test_no_heap_allocation_after_the_first_run(name, compiled, tmp_path):
    """The first run may set up threads; after it no path allocates, whichever is taken.

    With several threads, which of them runs a task depends on who comes first: a thread allocates the scratch memory of its kernels
    when it first has such a task, and keeps it.
    """
    net = compiled(name)
    main = REPOSITORY / "tests" / "cpp" / "heap_images_main.cc"
    flags = ["-std=c++17", "-O1", "-fno-builtin", *toolchain.include_flags(), str(main), "-o", str(tmp_path / "heap"), "-ldl", "-rdynamic"]
    toolchain.find_compiler().run(flags, "heap")
    images = torch.cat([call.inputs[0] for call in net.calls[:16]])
    (tmp_path / "images.bin").write_bytes(images.contiguous().numpy().tobytes())
    for threads in ("1", "2"):
        command = [tmp_path / "heap", net.folder / "model.so", net.folder / "model.params", tmp_path / "images.bin", images.shape[-1]]
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, check=False, env={**os.environ, "DYCL_NUM_THREADS": threads}
        )
        found = re.search(rf"{len(images)} images, \d+ paths, (\d+) allocations", done.stdout)
        assert found is not None, done.stdout + done.stderr
        assert int(found[1]) <= (0 if threads == "1" else 32), done.stdout
