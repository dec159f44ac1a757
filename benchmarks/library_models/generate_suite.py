# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``generate()`` of the language models of ``transformers``: greedy, sampling and beam search, small configurations with random weights.

A name is ``MODEL:SEARCH:CACHE:TOKENS:BATCH:MASK``. The token that ends a text is one at which the calls stop early, late and never.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from library_models.calls import Case, Suite, seeded

_SIZES = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 96,
}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SEQ2SEQ = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
_SEQ2SEQ |= {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 120, **_TOKENS, "decoder_start_token_id": 1}
_IMAGES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 32, "patch_size": 8}
_WORDS, _FRAMES, _SAMPLES, _CALLS = 6, 32, 800, 4
#: Random weights times so much: those that are usual before training hardly look at what they are given.
_SCALE = 8.0
_SEARCHES = {
    "greedy": {},
    "sample": {"do_sample": True, "temperature": 0.9, "top_k": 20, "top_p": 0.95},
    "beam": {"num_beams": 3},
}


def _gpt2(t: Any) -> Any:
    return t.GPT2LMHeadModel(t.GPT2Config(vocab_size=120, n_positions=96, n_embd=32, n_layer=2, n_head=4, **_TOKENS))


def _decoder(kind: str) -> Callable[[Any], Any]:
    def made(t: Any) -> Any:
        cls = getattr(t, f"{kind}ForCausalLM")
        return cls(cls.config_class(**_SIZES, **_TOKENS, head_dim=8))

    return made


def _t5(t: Any) -> Any:
    config = t.T5Config(vocab_size=120, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, **_TOKENS, decoder_start_token_id=0)
    return t.T5ForConditionalGeneration(config)


def _bart(t: Any) -> Any:
    return t.BartForConditionalGeneration(t.BartConfig(**_SEQ2SEQ, max_position_embeddings=96, forced_eos_token_id=None))


def _whisper(t: Any) -> Any:
    sizes = {"num_mel_bins": 16, "max_source_positions": _FRAMES // 2, "max_target_positions": 96}
    return t.WhisperForConditionalGeneration(t.WhisperConfig(**_SEQ2SEQ, **sizes, suppress_tokens=None, begin_suppress_tokens=None))


def _trocr(t: Any) -> Any:
    decoder = t.TrOCRConfig(
        vocab_size=120, d_model=32, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=48, max_position_embeddings=96, **_TOKENS
    )
    config = t.VisionEncoderDecoderConfig.from_encoder_decoder_configs(t.ViTConfig(**_IMAGES), decoder)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 1, 0, 2
    return t.VisionEncoderDecoderModel(config)


def _blip(t: Any) -> Any:
    text = {**_SIZES, **_TOKENS, "sep_token_id": 2, "encoder_hidden_size": 32}
    config = t.BlipConfig(text_config=text, vision_config=_IMAGES, projection_dim=32, image_text_hidden_size=32)
    return t.BlipForConditionalGeneration(config)


def _speech(t: Any) -> Any:
    sizes = {k: v for k, v in _SEQ2SEQ.items() if k != "d_model"} | {"hidden_size": 32, "max_speech_positions": 96}
    convolutions = {"conv_dim": (16, 16), "conv_stride": (5, 8), "conv_kernel": (10, 8), "num_conv_pos_embedding_groups": 4}
    return t.SpeechT5ForSpeechToText(
        t.SpeechT5Config(**sizes, **convolutions, num_conv_pos_embeddings=16, max_text_positions=96, apply_spec_augment=False)
    )


#: How a model is made, and what it reads: a text, an image, frames or samples of sound.
_MODELS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "GPT2": (_gpt2, "input_ids"),
    "Llama": (_decoder("Llama"), "input_ids"),
    "Qwen2": (_decoder("Qwen2"), "input_ids"),
    "Gemma": (_decoder("Gemma"), "input_ids"),
    "T5": (_t5, "input_ids"),
    "Bart": (_bart, "input_ids"),
    "Whisper": (_whisper, "input_features"),
    "TrOCR": (_trocr, "pixel_values"),
    "Blip": (_blip, "pixel_values"),
    "SpeechT5": (_speech, "input_values"),
}


class Generator(nn.Module):
    """A model whose call is ``generate()``."""

    def __init__(self, model: Any, reads: str, options: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.reads, self.options = model, reads, options

    def forward(self, given: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Any:
        """Return the tokens."""
        masked = {} if attention_mask is None else {"attention_mask": attention_mask}
        return self.model.generate(**{self.reads: given}, **masked, **self.options)


def _given(reads: str, batch: int, k: int) -> torch.Tensor:
    g = seeded(k)
    if reads == "input_ids":
        return torch.randint(3, 120, (batch, _WORDS), generator=g)
    shapes = {"pixel_values": (3, 32, 32), "input_features": (16, _FRAMES), "input_values": (_SAMPLES,)}
    return torch.randn(batch, *shapes[reads], generator=g)


def _mask(batch: int, k: int) -> torch.Tensor:
    """Return a mask whose texts are padded at the front."""
    mask = torch.ones(batch, _WORDS, dtype=torch.long)
    mask[-1, :k] = 0
    return mask


def _talkative(model: Any) -> Any:
    """Change a model's random weights so that its texts differ: with the usual ones each token gives itself again."""
    parts = (model, getattr(model, "decoder", model), getattr(model, "text_decoder", model))
    head = next(filter(None, (part.get_output_embeddings() for part in parts)))
    head.weight = nn.Parameter(torch.randn(head.weight.shape, generator=seeded(0)))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(_SCALE if p.dim() > 1 else 1.0)
    return model


def _ending(texts: list[torch.Tensor]) -> int:
    """Return the token that ends most texts at places of their own."""
    places: dict[int, list[int]] = {}
    for text in texts:
        row = text.tolist()
        for token in set(row):
            places.setdefault(token, []).append(row.index(token))
    usual = {t: p for t, p in places.items() if t > 2 and min(p) > 0}
    return max(usual, key=lambda t: (len(set(usual[t])), max(usual[t]), t), default=2)


def load(name: str) -> Case:
    """Return a model whose call is ``generate()``."""
    import transformers

    kind, search, cache, tokens, batch, masked = name.split(":")
    made, reads = _MODELS[kind]
    model = _talkative(made(transformers).eval())
    options: dict[str, Any] = {"max_new_tokens": int(tokens), **_SEARCHES[search]}
    if cache == "static":
        options["cache_implementation"] = "static"
    rows = int(batch)
    calls = [(_given(reads, rows, k), *([_mask(rows, k)] if masked == "mask" else ())) for k in range(_CALLS)]
    model.generation_config.eos_token_id = None
    torch.manual_seed(0)
    with torch.no_grad():
        texts = [row for call in calls for row in Generator(model, reads, options)(*call)[:, -int(tokens) :]]
    model.generation_config.eos_token_id = _ending(texts)
    return Case(Generator(model, reads, options).eval(), [(call, {}) for call in calls])


#: SEARCH:CACHE:TOKENS:BATCH:MASK
_WAYS = (
    "greedy:dynamic:8:1:plain",
    "greedy:dynamic:40:2:mask",
    "beam:dynamic:40:2:mask",
    "sample:dynamic:40:2:mask",
    "beam:dynamic:8:1:plain",
    "greedy:static:8:1:plain",
    "sample:static:40:2:mask",
    "beam:static:40:2:mask",
)


def candidates() -> list[str]:
    """Return the ways of generating that are compared; only texts have masks."""
    ways = [(kind, way) for way in _WAYS for kind in _MODELS]
    return [f"{kind}:{way if _MODELS[kind][1] == 'input_ids' else way.replace(':mask', ':plain')}" for kind, way in ways]


def names() -> list[str]:
    """Return the ways of generating that are compared, if the library is there."""
    return candidates() if importlib.util.find_spec("transformers") else []


SUITE = Suite(
    names,
    load,
    candidates,
    "transformers",
    "`generate()` of ten kinds of models, made small: the model, the search, the cache, the new tokens at most, the batch, and whether"
    " there is a mask; the token that ends a text is chosen so that calls stop early, late and never",
)
