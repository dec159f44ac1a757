# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a build costs: linear in the length of a network, without recursion over it.

``make test`` builds a few hundred operators and layers; DYCL_COST_OPERATORS=20000 (``make cost``) builds 20,000 operators and 2,000 layers,
and prints a table.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

import dycl_tvm
from dycl_tvm.backends.tir_cpu.fuse import fuse
from dycl_tvm.zoo.skipnet import FeedforwardSkipNet

#: Operators of the longest straight network; it has a tenth as many layers.
LONGEST = int(os.environ.get("DYCL_COST_OPERATORS", "1600"))


def operators(n):
    def straight(x):
        for k in range(n):
            x = torch.sin(x) if k % 2 else torch.tanh(x)
        return x

    return straight, (torch.ones(2, 3),)


class Layers(nn.Module):
    def __init__(self, n, layer, residual):
        super().__init__()
        self.layers = nn.ModuleList([layer() for _ in range(n)])
        self.residual = residual

    def forward(self, x):
        for layer in self.layers:
            y = layer(x)
            x = (y + x) * 0.5 if self.residual else y  # halved, or 2,000 layers end in infinity
        return x


def linear_layers(n):
    return Layers(n // 10, lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU()), residual=False).eval(), (torch.ones(2, 8),)


def residual_layers(n):
    def layer():
        return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())

    return Layers(n // 10, layer, residual=True).eval(), (torch.ones(1, 8, 8, 8),)


def clock():
    """Return the seconds of the processor that this process and the compilers that it started have taken."""
    return sum(os.times()[:4])


def measure(make, n, folder):
    """Return the seconds of the processor for build and link, and for the link alone, with the compilation of the generated C++."""
    model, inputs = make(n)
    start = clock()
    art = dycl_tvm.build(model, inputs)
    built = clock()
    art.export_library(folder / "net.so")
    art.save_params(folder / "net.params")
    end = clock()
    net = dycl_tvm.load(folder / "net.so", folder / "net.params")
    with torch.no_grad():
        want = model(*inputs)
    assert torch.allclose(torch.as_tensor(net(*inputs)), want, rtol=1e-3, atol=1e-4)
    return end - start, end - built


@pytest.mark.parametrize("make", [operators, linear_layers, residual_layers], ids=lambda f: f.__name__)
def test_a_build_takes_time_linear_in_the_length(make, tmp_path):
    measure(make, 40, tmp_path)  # the first build of a process pays for imports
    sizes = (LONGEST // 4, LONGEST // 2, LONGEST)
    seconds = [measure(make, n, tmp_path) for n in sizes]
    for n, (whole, link) in zip(sizes, seconds):
        print(f"{make.__name__}: {n if make is operators else n // 10:6} {whole:7.2f} s, of these {link:.2f} s to link")
    # four times the length; the slack is for what a build costs at least, and a machine that does something else too
    assert seconds[2][0] <= 4 * seconds[0][0] * 1.6 + 1.0, seconds


class Original(FeedforwardSkipNet):
    """SkipNet as its authors train and evaluate it: every block runs, and is multiplied by its gate, for batches of any size."""

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        masks, gprobs = [], []
        x = self.group1_layer0(x)
        mask, gprob = self.group1_gate0(x)
        gprobs.append(gprob)
        masks.append(mask.squeeze())
        prev = x
        for g in range(3):
            for i in range(0 + int(g == 0), self.num_layers[g]):
                if getattr(self, f"group{g + 1}_ds{i}") is not None:
                    prev = getattr(self, f"group{g + 1}_ds{i}")(prev)
                x = getattr(self, f"group{g + 1}_layer{i}")(x)
                prev = x = mask.expand_as(x) * x + (1 - mask).expand_as(prev) * prev
                mask, gprob = getattr(self, f"group{g + 1}_gate{i}")(x)
                gprobs.append(gprob)
                masks.append(mask.squeeze())
        masks.pop()
        x = self.avgpool(x)
        x = x.view(x.size(0), -1)
        return self.fc(x), masks, gprobs


def test_the_original_skipnet_of_38_layers_at_batch_2(tmp_path):
    torch.manual_seed(0)
    model, x = Original((6, 6, 6)).eval(), torch.randn(2, 3, 32, 32)
    art = dycl_tvm.build(model, (x,))
    art.export_library(tmp_path / "net.so")
    art.save_params(tmp_path / "net.params")
    got = dycl_tvm.load(tmp_path / "net.so", tmp_path / "net.params")(x)
    with torch.no_grad():
        want = model(x)
    for a, b in zip([got[0], *got[1], *got[2]], [want[0], *want[1], *want[2]], strict=True):
        assert torch.allclose(torch.as_tensor(a), b, rtol=1e-3, atol=1e-4)


def test_what_an_epilogue_depends_on_is_found_without_recursion():
    from dycl_tvm.backends.tir_cpu.graph import Graph, Node, Var
    from dycl_tvm.backends.tir_cpu.reading.expression import Elementwise
    from dycl_tvm.backends.tir_cpu.words.workload import Tensor

    tensor = Tensor((1, 8), "float32")
    graph = Graph("f", None, {}, [], [], [])

    def node(inputs, anchor, elementwise=None):
        made = Node(None, None, inputs, Var(None, tensor, False), anchor, elementwise)
        made.output.producer = made
        graph.nodes.append(made)
        for var in dict.fromkeys(inputs):
            var.users.append(made)
        return made

    def add(*inputs):
        return node(list(inputs), "tir", Elementwise([tensor] * len(inputs), tensor, lambda v: v[0], "add", 1))

    first = node([Var(None, tensor, False)], "relax.matmul")
    chain = first.output
    for _ in range(5000):
        chain = node([chain], "relax.nn.softmax").output
    add(first.output, chain)
    fuse(graph)
    assert not first.absorbed
