# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The base model of each kind that ``transformers`` lists, by its own configuration made small, with random weights."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from typing import Any

import torch

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
_TOKENS, _DECODED, _SAMPLES, _FRAMES = 7, 5, 800, 32
#: Kinds whose small configuration, or whose calls without more arguments, are none that eager accepts, or that stay above this size.
PARAMETERS = 3_000_000
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


def _call(model: Any, k: int) -> dict[str, Any]:
    """Return the arguments of a call by their usual names; texts of several lengths are padded at the end."""
    g, names = seeded(k), inspect.signature(model.forward).parameters
    side = _side(model.config)
    made = {
        "input_ids": lambda: torch.randint(3, _SMALL["vocab_size"], (1, _TOKENS), generator=g),
        "attention_mask": lambda: torch.tensor([[1] * (_TOKENS - k) + [0] * k]) if "input_ids" in names else None,
        "decoder_input_ids": lambda: torch.randint(3, _SMALL["vocab_size"], (1, _DECODED), generator=g),
        "pixel_values": lambda: torch.randn(1, 3, side, side, generator=g),
        "input_values": lambda: torch.randn(1, _SAMPLES, generator=g),
        "input_features": lambda: torch.randn(1, _SMALL["num_mel_bins"], _FRAMES, generator=g),
    }
    found = {name: make() for name, make in made.items() if name in names}
    return {name: value for name, value in found.items() if value is not None}


def load(name: str) -> Case:
    """Return a model of a class of ``transformers``."""
    import transformers

    cls = getattr(transformers, name)
    config = _small(cls.config_class)
    with torch.device("meta"):
        size = sum(p.numel() for p in cls(config).parameters())
    if size > PARAMETERS:
        raise ValueError(f"{size} parameters")
    model = cls(config).eval()
    return Case(model, [((), _call(model, k)) for k in range(3)])


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
