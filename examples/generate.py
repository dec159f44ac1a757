# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Compiles ``generate()`` of an unedited GPT-2 of transformers, and compares its tokens and speed with PyTorch's.

Ends with 0 if all tokens are the same. Without ``--pretrained`` the weights are random, so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers

import dycl_tvm

PROMPTS, WORDS = 3, 8


def main() -> int:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=128, help="how many tokens are made at most (default 128)")
    parser.add_argument("--pretrained", metavar="NAME", help="a causal language model of the Hugging Face hub, such as gpt2")
    asked = parser.parse_args()
    torch.manual_seed(0)
    if asked.pretrained:
        model = transformers.AutoModelForCausalLM.from_pretrained(asked.pretrained).eval()
    else:
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(pad_token_id=0)).eval()

    def generate(ids: torch.Tensor) -> Any:
        return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=asked.tokens, do_sample=False)

    prompts = [torch.randint(3, model.config.vocab_size, (1, WORDS)) for _ in range(PROMPTS)]
    begin = time.monotonic()
    artifact = dycl_tvm.build(generate, (prompts[0],), name="generate", progress=True)
    print(f"\n{sum(p.numel() for p in model.parameters()):,} parameters, built in {time.monotonic() - begin:.0f} s")
    with tempfile.TemporaryDirectory() as folder:
        library = artifact.export_library(Path(folder) / "generate.so")
        module = dycl_tvm.load(library, artifact.save_params(Path(folder) / "generate.params"))
        print(f"{library.name} {library.stat().st_size:,} bytes\n\ntokens   compiled      eager      same")
        same = [_compare(module, generate, prompt) for prompt in prompts]
    return 0 if all(same) else 1


def _compare(module: Any, generate: Any, prompt: torch.Tensor) -> bool:
    begin = time.monotonic()
    tokens = torch.as_tensor(module(prompt))
    middle = time.monotonic()
    with torch.no_grad():
        expected = generate(prompt)
    end = time.monotonic()
    count = expected.shape[1] - prompt.shape[1]
    same = torch.equal(tokens, expected)
    print(f"{count:6}  {(middle - begin) / count * 1e3:6.1f} ms  {(end - middle) / count * 1e3:6.1f} ms  {'yes' if same else 'NO'}")
    return same


if __name__ == "__main__":
    sys.exit(main())
