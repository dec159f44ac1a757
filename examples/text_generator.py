# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A writer of text that is served letter by letter: trained here on the help texts of Python, compiled, and streamed over gRPC.

The network keeps what it has written in its state, reads prompts of any length, draws each letter at random, and says when a
sentence has ended. ``dycl-tvm serve`` holds one session of it for each text; the client sends a request for each letter ahead over one
stream and prints the letters as they come. Ends with 0 if the server wrote what PyTorch writes from the same seed.

Needs ``pip install 'dycl-tvm[serve]' 'tritonclient[grpc]'``.
"""

from __future__ import annotations

import argparse
import queue
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from pydoc_data import topics
from typing import Any

import numpy as np
import torch
import tritonclient.grpc as triton
from torch import nn

import dycl_tvm

PROMPT = "The value of the "
LONGEST_PROMPT = 64


class Writer(nn.Module):
    """Reads a prompt, then writes one letter a call; the state is what it has read and written."""

    def __init__(self, letters: str, width: int = 192) -> None:
        super().__init__()
        self.width, self.stop = width, letters.index(".")
        self.embedding = nn.Embedding(len(letters), width)
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Linear(width, len(letters))
        self.register_buffer("memory", torch.zeros(1, width))

    def forward(self, prompt: torch.Tensor, temperature: torch.Tensor) -> dict[str, Any]:
        """Read a prompt, int64 of the shape [T] and empty after the first call, and write one letter; the temperature has no dimensions."""
        memory = self.memory
        for position in range(prompt.shape[0]):
            memory = self.cell(self.embedding(prompt[position : position + 1]), memory)
        chances = torch.softmax(self.head(memory) / temperature, dim=1)
        letter = torch.multinomial(chances[0], 1)
        self.memory = self.cell(self.embedding(letter), memory)
        return {"letter": letter.item(), "end": bool(letter.item() == self.stop)}

    def losses(self, text: torch.Tensor) -> torch.Tensor:
        """Return the mean surprise at letters of texts [B, T], with the weights of the cell as a layer, which is quicker to train."""
        memory, found = torch.zeros(text.shape[0], self.width), []
        inputs = self.embedding(text[:, :-1])
        for position in range(text.shape[1] - 1):
            memory = self.cell(inputs[:, position], memory)
            found.append(memory)
        return nn.functional.cross_entropy(self.head(torch.stack(found, 1)).flatten(0, 1), text[:, 1:].flatten())


def corpus() -> str:
    """Return the sentences of Python's help texts."""
    text = re.sub(r"\s+", " ", " ".join(topics.topics.values()))
    return re.sub(r"[^A-Za-z0-9 .,;:()'\"=_-]", "", text)


def trained(text: str, letters: str, steps: int) -> Writer:
    """Return a writer that has read ``steps`` times 32 pieces of a text."""
    known = torch.tensor([letters.index(letter) for letter in text])
    writer = Writer(letters)
    optimizer = torch.optim.Adam(writer.parameters(), 3e-3)
    for step in range(steps):
        begins = torch.randint(len(known) - 81, (32,))
        loss = writer.losses(torch.stack([known[begin : begin + 80] for begin in begins]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"training, step {step + 1:4} of {steps}: {loss.item() / np.log(2):.2f} bits a letter", flush=True)
    return writer.eval()


def written_by_eager(writer: Writer, prompt: torch.Tensor, temperature: torch.Tensor, seed: int, most: int) -> list[int]:
    """Return the letters that PyTorch writes."""
    torch.manual_seed(seed)
    writer.memory = torch.zeros(1, writer.width)
    found: list[int] = []
    with torch.no_grad():
        for _ in range(most):
            answer = writer(prompt if not found else prompt[:0], temperature)
            found.append(answer["letter"])
            if answer["end"]:
                break
    return found


def request(prompt: np.ndarray[Any, Any], temperature: float) -> list[Any]:
    """Return the inputs of one request."""
    values = {"prompt": ("INT64", prompt), "temperature": ("FP32", np.array(temperature, np.float32))}
    inputs = [triton.InferInput(name, list(value.shape), datatype) for name, (datatype, value) in values.items()]
    for item, (_, value) in zip(inputs, values.values()):
        item.set_data_from_numpy(value)
    return inputs


def streamed(
    client: Any, prompt: np.ndarray[Any, Any], temperature: float, seed: int, most: int, show: Any
) -> tuple[list[int], list[float]]:
    """Return the letters that the server writes, and when each came."""
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put(error or result))
    begun, found, times = time.monotonic(), [], []
    for k in range(most):
        given = {"sequence_id": seed + 1, "sequence_start": k == 0, "sequence_end": k == most - 1}
        client.async_stream_infer(
            "writer", request(prompt if k == 0 else prompt[:0], temperature), **given, **({"parameters": {"seed": seed}} if k == 0 else {})
        )
    while len(found) < most:
        answer = answers.get(timeout=60)
        if isinstance(answer, Exception):
            raise answer
        found.append(int(answer.as_numpy("output['letter']")[0]))
        times.append(time.monotonic() - begun)
        show(found[-1])
        if answer.as_numpy("output['end']")[0]:
            break
    client.stop_stream(cancel_requests=True)
    return found, times


def main() -> int:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="steps of training (default 400: a minute and a half)")
    parser.add_argument("--temperature", type=float, default=0.6, help="how daring it writes (default 0.6)")
    parser.add_argument("--letters", type=int, default=300, help="how many it writes at most (default 300)")
    parser.add_argument("--prompt", default=PROMPT, help=f"what it begins with, up to {LONGEST_PROMPT} letters (default {PROMPT!r})")
    asked = parser.parse_args()
    torch.manual_seed(0)
    text = corpus()
    letters = "".join(sorted(set(text)))
    unknown = sorted(set(asked.prompt) - set(letters))
    if unknown or not 0 < len(asked.prompt) <= LONGEST_PROMPT:
        parser.error(f"a prompt has 1 to {LONGEST_PROMPT} letters of {letters!r}")
    writer = trained(text, letters, asked.steps)
    prompt = torch.tensor([letters.index(letter) for letter in asked.prompt])

    sizes = {"prompt": {0: dycl_tvm.Dim("T", min=0, max=LONGEST_PROMPT)}}
    artifact = dycl_tvm.build(writer, (prompt, torch.tensor(asked.temperature)), dynamic_shapes=sizes, name="writer", progress=True)
    with tempfile.TemporaryDirectory() as folder:
        files = [str(artifact.export_library(Path(folder) / "writer.so")), str(artifact.save_params(Path(folder) / "writer.params"))]
        command = [sys.executable, "-m", "dycl_tvm.cli", "serve", *files, "--http-port", "-1", "--grpc-port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            assert server.stdout is not None
            try:
                return _compare(writer, prompt, asked, letters, server.stdout.readline())
            finally:
                server.terminate()


def _compare(writer: Writer, prompt: torch.Tensor, asked: Any, letters: str, line: str) -> int:
    print(f"\n{line}")
    ports = re.findall(r"127\.0\.0\.1:(\d+)", line)
    client = triton.InferenceServerClient(f"127.0.0.1:{ports[-1]}")
    same = True
    for seed in range(3):
        print(asked.prompt, end="", flush=True)
        found, times = streamed(
            client, prompt.numpy(), asked.temperature, seed, asked.letters, lambda letter: print(letters[letter], end="", flush=True)
        )
        expected = written_by_eager(writer, prompt, torch.tensor(asked.temperature), seed, asked.letters)
        same &= found == expected
        rate, verdict = len(found) / times[-1], "the same" if found == expected else "NOT the same"
        print(f"\n    first letter after {times[0] * 1e3:.1f} ms, {rate:.0f} letters a second, {verdict} as eager\n")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
