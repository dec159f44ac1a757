# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The base model of each kind that ``transformers`` lists, by its own configuration made small, with random weights."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dycl_tvm import Dim
from library_models.calls import Case, Suite, seeded

#: What is given to a configuration that has it.
_SMALL: dict[str, int] = {
    **dict.fromkeys(["hidden_size", "d_model", "dim", "n_embd", "embed_dim", "emb_dim", "embedding_size"], 32),
    **dict.fromkeys(["num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"], 2),
    **dict.fromkeys(["num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"], 4),
    **dict.fromkeys(["encoder_attention_heads", "decoder_attention_heads", "num_experts", "num_local_experts", "n_routed_experts"], 4),
    **dict.fromkeys(["intermediate_size", "ffn_dim", "d_ff", "hidden_dim", "dim_feedforward", "encoder_ffn_dim", "decoder_ffn_dim"], 37),
    **dict.fromkeys(["num_decoder_layers", "num_key_value_heads", "num_experts_per_tok"], 2),
    **dict.fromkeys(["head_dim", "d_kv", "patch_size"], 8),
    **dict.fromkeys(["moe_intermediate_size", "shared_expert_intermediate_size", "num_mel_bins"], 16),
    **dict.fromkeys(["max_position_embeddings", "n_positions"], 64),
    "vocab_size": 99,
    "n_inner": 37,
    "image_size": 32,
    "num_queries": 5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
#: Configurations within others, so many levels deep, are made small too.
_DEPTH = 3
_FRAMES = 32
#: Kinds whose small configuration, or whose calls without more arguments, are none that eager accepts, or that stay above this size.
PARAMETERS = 3_000_000


@dataclass(frozen=True)
class _Sizes:
    """Of a call: its batch, tokens of a text, how many of them are padding in the first one, and tokens of a decoder."""

    batch: int = 1
    tokens: int = 7
    padded: int = 0
    decoded: int = 5
    samples: int = 800


#: The calls of models of any size: the first is the example, then the least, the largest, and between.
_OPEN_SIZES = (
    _Sizes(2, 7, 2),
    _Sizes(1, 1, 0, 1, 400),
    _Sizes(4, 16, 5, 8, 1600),
    _Sizes(3, 5, 1, 2, 1111),
    _Sizes(1, 13),
)
_NAMES = Path(__file__).with_name("transformers.txt")


def _small(config: Any, depth: int = 0) -> Any:
    base = config()
    given: dict[str, Any] = {k: v for k, v in _SMALL.items() if isinstance(getattr(base, k, None), int)}
    for name in config.sub_configs if depth < _DEPTH else ():
        part = getattr(base, name, None)
        if part is not None:
            given[name] = _small(type(part), depth + 1).to_dict()
    return config(**given)


def _side(config: Any) -> int:
    """Return the height of the images that a model takes."""
    size = getattr(config, "image_size", None) or getattr(getattr(config, "vision_config", None), "image_size", _SMALL["image_size"])
    return int(size if isinstance(size, int) else size[0])


def _call(model: Any, k: int, sizes: _Sizes) -> dict[str, Any]:
    """Return the arguments of a call by their usual names; texts of several lengths are padded at the end."""
    g, names = seeded(k), inspect.signature(model.forward).parameters
    side, n, words = _side(model.config), sizes.batch, _SMALL["vocab_size"]
    counts = [sizes.tokens - sizes.padded, *[sizes.tokens] * (n - 1)]
    made = {
        "input_ids": lambda: torch.randint(3, words, (n, sizes.tokens), generator=g),
        "attention_mask": lambda: (torch.arange(sizes.tokens) < torch.tensor(counts)[:, None]).long() if "input_ids" in names else None,
        "decoder_input_ids": lambda: torch.randint(3, words, (n, sizes.decoded), generator=g),
        "pixel_values": lambda: torch.randn(n, 3, side, side, generator=g),
        "input_values": lambda: torch.randn(n, sizes.samples, generator=g),
        "input_features": lambda: torch.randn(n, _SMALL["num_mel_bins"], _FRAMES, generator=g),
    }
    found = {name: make() for name, make in made.items() if name in names}
    return {name: value for name, value in found.items() if value is not None}


def _model(name: str) -> Any:
    """Return a model of a class of ``transformers``."""
    import transformers

    cls = getattr(transformers, name)
    config = _small(cls.config_class)
    with torch.device("meta"):
        size = sum(p.numel() for p in cls(config).parameters())
    if size > PARAMETERS:
        raise ValueError(f"{size} parameters")
    return cls(config).eval()


def load(name: str) -> Case:
    """Return a model, and calls of one size."""
    model = _model(name)
    return Case(model, [((), _call(model, k, _Sizes(padded=k))) for k in range(3)])


def load_open(name: str) -> Case:
    """Return a model whose callers decide the batch and how long texts and sounds are, and calls of sizes that eager accepts."""
    model = _model(name)
    found = []
    for k, sizes in enumerate(_OPEN_SIZES):
        call = _call(model, k, sizes)
        with contextlib.suppress(Exception), torch.no_grad():  # such a size is none for this model
            copy.deepcopy(model)(**copy.deepcopy(call))
            found.append(((), call))
    batch = Dim("batch", min=1, max=4)
    text, decoded = {0: batch, 1: Dim("tokens", min=1, max=16)}, {0: batch, 1: Dim("decoded", min=1, max=8)}
    dims = {
        "input_ids": text,
        "attention_mask": text,
        "decoder_input_ids": decoded,
        "input_values": {0: batch, 1: Dim("samples", min=400, max=1600)},
    }
    return Case(model, found, {"dynamic_shapes": {k: dims.get(k, {0: batch}) for k in found[0][1]}})


def candidates() -> list[str]:
    """Return the classes of base models that the installed ``transformers`` lists."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    classes = [names if isinstance(names, str) else names[0] for names in MODEL_MAPPING_NAMES.values()]
    return list(dict.fromkeys(classes))


def names() -> list[str]:
    """Return the classes that eager runs so."""
    return _NAMES.read_text().split() if importlib.util.find_spec("transformers") else []


SUITE = Suite(
    names,
    load,
    candidates,
    "transformers",
    "the base model of every kind in MODEL_MAPPING whose configuration can be made small by one rule and that eager then runs with"
    " tokens, images or audio alone",
)
OPEN = Suite(
    names,
    load_open,
    candidates,
    "transformers",
    "the same, with a batch of 1 to 4, texts of 1 to 16 tokens, texts of decoders of 1 to 8 and sounds of 400 to 1,600 samples that callers"
    " decide, at the least, the largest and three other sizes",
)
