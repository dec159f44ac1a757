# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Networks of real size whose inputs take different paths, with random weights that are calibrated so that they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from dycl_tvm.zoo.calibrate.common import calibrate_batch_norm, forced_outputs, normalise, recorded_outputs
from dycl_tvm.zoo.calibrate.modern import calibrate_gpt
from dycl_tvm.zoo.images import batch_of_images, random_images
from dycl_tvm.zoo.modern.bert import EntropyExitBert, HighwayException, entropy
from dycl_tvm.zoo.modern.samples import prompts, sentences
from dycl_tvm.zoo.recipe import Samples
from dycl_tvm.zoo.skipnet import RNNGate
from real_size.networks import Bottleneck, conv, gpt2, resnet50

#: Pictures and texts that a calibration sees.
_SEEN = 24


class ExitsBert(EntropyExitBert):
    """BERT-base that may leave behind some of its layers only: by the number of the layer, below which entropy."""

    def __init__(self, exits: Sequence[int] = (4, 8)) -> None:
        super().__init__(30522, 2, 512, 768, 12, 12, 3072)
        self.bars = dict.fromkeys(exits, -1.0)

    def encode(self, hidden_states: Tensor, attention_mask: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Run the layers; return the last answer."""
        for i, layer in enumerate(self.layer, 1):
            hidden_states = layer(hidden_states, attention_mask)
            if i in self.bars:
                logits = self.highway[i - 1](hidden_states)
                if entropy(logits) < self.bars[i]:
                    raise HighwayException((logits, []), i)
        return self.highway[-1](hidden_states), []


class ExitsResNet(nn.Module):
    """ResNet-50 with classifiers behind its second and its third stage, which end it if they are sure."""

    def __init__(self) -> None:
        super().__init__()
        layers = resnet50()
        assert isinstance(layers, nn.Sequential)
        self.stages = nn.ModuleList([layers[:11], layers[11:17], layers[17:-3]])
        self.heads = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000)) for width in (512, 1024, 2048)
        )
        self.bars = {0: -1.0, 1: -1.0}

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        for k, (stage, head) in enumerate(zip(self.stages, self.heads)):
            x = stage(x)
            if k in self.bars:
                scores = head(x)
                if entropy(scores).max() < self.bars[k]:
                    return scores, k
        return self.heads[-1](x), len(self.bars)


class SkipNet101(nn.Module):
    """SkipNet (Wang et al., ECCV 2018) on ResNet-101: one recurrent gate says behind each block whether the next one runs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.blocks, self.gates = nn.ModuleList(), nn.ModuleList()
        before = 64
        for stage, blocks in enumerate((3, 4, 23, 3)):
            for k in range(blocks):
                self.blocks.append(Bottleneck(before, 64 << stage, 2 if stage and not k else 1))
                before = 256 << stage
                self.gates.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(before, 10, 1)))
        self.gates = self.gates[:-1]
        self.control = RNNGate()
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](self.stem(x))
        self.control.hidden = self.control.init_hidden(x.size(0))
        for gate, block in zip(self.gates, self.blocks[1:]):
            runs, _ = self.control(gate(x))
            if runs == 1:
                x = block(x)
            elif not isinstance(block.skip, nn.Identity):
                x = block.skip(x)
        return self.head(x)


def _bars(model: ExitsBert | ExitsResNet, heads: Sequence[nn.Linear], run: Callable[[], None]) -> None:
    """Set below which entropy a classifier ends the network: a third of what is seen leaves at each of two, and a third at the end."""
    with recorded_outputs(heads) as found:
        run()
    left = torch.ones(len(torch.cat(found[0])), dtype=torch.bool)
    for share, key, head, scores in zip((1 / 3, 1 / 2), list(model.bars), heads, found):
        sure = entropy(normalise(head, torch.cat(scores), 2.0))
        here = sure[left].sort().values
        n = round(share * len(here))
        model.bars[key] = float(here[n - 1 : n + 1].mean())
        left &= sure >= model.bars[key]


def _exits_bert() -> nn.Module:
    model = ExitsBert().eval().requires_grad_(False)
    seen = list(islice(_sentences(torch.Generator().manual_seed(0)), _SEEN))
    _bars(model, [model.highway[k - 1].classifier for k in model.bars], lambda: [model(*x) for x in seen] and None)
    return model


def _exits_resnet() -> nn.Module:
    model = ExitsResNet().eval().requires_grad_(False)
    images = _seen()
    calibrate_batch_norm(model, lambda: [model(x) for x in images.split(8)] and None)
    _bars(model, [head[-1] for head in model.heads][:-1], lambda: [model(x[None]) for x in images] and None)
    return model


def _skipnet() -> nn.Module:
    model = SkipNet101().eval().requires_grad_(False)
    images, generator = _seen(), torch.Generator().manual_seed(1)

    def run() -> None:
        for k, batch in enumerate(images.split(8)):
            # a decision for the batch as a whole; the first one runs all blocks, so that no norm is left without statistics
            runs = [torch.tensor(float(not k or torch.rand((), generator=generator) < 0.5)) for _ in model.gates]
            taken = iter(runs)
            with forced_outputs([model.control], lambda output, taken=taken: (next(taken), output[1])):
                model(batch)

    calibrate_batch_norm(model, run)
    embeddings = [gate[-1] for gate in model.gates]
    with recorded_outputs(embeddings) as found:
        run()
    for layer, values in zip(embeddings, found):
        normalise(layer, torch.cat(values).flatten(1))
    for parameter in model.control.rnn.parameters():
        parameter.mul_(3.0)
    with recorded_outputs([model.control.proj]) as found:
        run()
    normalise(model.control.proj, torch.cat(found[0]), 2.0)
    model.control.hidden = None
    return model


def _gpt() -> nn.Module:
    model = gpt2(64, 24).eval().requires_grad_(False)
    calibrate_gpt(model, list(islice(_prompts(torch.Generator().manual_seed(0)), _SEEN)))
    return model


def _seen() -> Tensor:
    return batch_of_images(_SEEN, 224, torch.Generator().manual_seed(0))


def _sentences(generator: torch.Generator) -> Samples:
    return sentences(30522, 128, generator)


def _prompts(generator: torch.Generator) -> Samples:
    return prompts(50257, 16, generator)


def _images(generator: torch.Generator) -> Samples:
    return ((image,) for image in random_images(224, generator))


@dataclass(frozen=True)
class Branching:
    """A network with control flow: what makes it, and what draws its inputs."""

    make: Callable[[], nn.Module]
    samples: Callable[[torch.Generator], Samples]

    def model(self) -> nn.Module:
        """Return the network; equal calls give equal weights."""
        torch.manual_seed(0)
        with torch.no_grad():
            return self.make()

    def inputs(self, n: int) -> list[tuple[Tensor, ...]]:
        """Return inputs that the calibration has not seen, the same in each call."""
        return list(islice(self.samples(torch.Generator().manual_seed(1)), n))


NETWORKS = {
    "BERT-base, exits behind 4 and 8 layers": Branching(_exits_bert, _sentences),
    "ResNet-50, two exits, 224": Branching(_exits_resnet, _images),
    "SkipNet-101, 224": Branching(_skipnet, _images),
    "GPT-2 124M, greedy until its end": Branching(_gpt, _prompts),
}
