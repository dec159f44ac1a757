# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Lists that loops of run-time length make longer, of tensors of another length each, of lists of numbers, and of dicts of these."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from differential import check, stage
from torch import nn

from dycl_tvm.errors import UnsupportedError

STARTS = [[0.0, 0.0, 0.0], [3.0, 0.0, 1.0], [0.0, 4.0, 2.0], [5.0, 5.0, 5.0], [-6.0, 1.0, 7.0], [9.0, -9.0, 2.5], [1.5, 1.5, -8.0]]
INPUTS = [(torch.tensor(x), torch.tensor(n)) for x in STARTS for n in (-20.0, 0.1, 3.0, 20.0)]


def picked(x, n):
    out = []
    while x.sum() < n:
        out.append(x[x > 1] * 2)
        x = x + 1
    return torch.cat(out) if out else x


def plain_ones_among_them(x, n):
    out = []
    while x.sum() < n:
        part = x[x > 1]
        if len(part) > 1:
            out.append(part)
        else:
            out.append(x[:2])
        x = x + 1
    return (torch.cat(out), out[0] + 1, len(out), out[-1].sum()) if out else x


def decoded(x, n):
    """Each trip decodes until something is large enough, or to a limit."""
    out = []
    while x.sum() < n:
        t = torch.zeros(0)
        for i in range(8):
            t = torch.cat([t, x[:1] + i])
            if t.sum() > x.abs().max() * 3:
                break
        out.append(t)
        x = x + 1.5
    return torch.cat(out) if out else x


def decoded_without_a_limit(x, n):
    """How long the tensor gets that the inner loop makes longer nobody can prove; it lies in memory as a new one does."""
    out = []
    while x.sum() < n:
        t, k = torch.zeros(1, 1), 0
        while k < x.abs().max() % 5:
            t, k = torch.cat([t, x[None, :1] + k], 1), k + 1
        out.append(t[0, 1:])
        x = x + 1.5
    return torch.cat(out) if out else x


def along_the_second_dimension(x, n):
    out, m = [], torch.stack([x, x * 2])
    while x.sum() < n:
        out.append(m[:, : int((x > 1).sum())].contiguous() + x.sum())
        m, x = m + 1, x + 1
    if not out:
        return m
    total = x.sum() * 0
    for part in out:
        total = total + part.sum() * (1 + part.shape[1])
    return torch.cat(out, 1), total, len(out)


def taken_away(x, n):
    out = [x[:1]]
    while x.sum() < n:
        out.append(x[x > 1])
        if len(out) > 3:
            x = x + out.pop(0).sum() * 0.01
        x = x + 1
    return torch.cat(out), len(out), torch.cat(out[1:]) if len(out) > 1 else None


def in_tuples(x, n):
    out, total, sums = [], 0.0, x * 0
    while x.sum() < n:
        out.append((x[x > 1], x.sum().item()))
        x = x + 1
    for part, number in out:
        total += number
        sums = sums + part.sum()
    return total, sums


def dicts(x, n):
    out, total = [], 0.0
    while x.sum() < n:
        out.append({"sum": x.sum().item(), "part": x[x > 1], "name": "a", "none": None})
        x = x + 1
    for r in out:
        total += r["sum"] + len(r["part"]) if r["name"] == "a" and r["none"] is None else 1.0
    return total, torch.cat([r["part"] for r in out]) if out else x, len(out)


def segments(x, n):
    """Slices of what a trip decodes, in a list of the trip; all are put into one behind it."""
    every, tokens_of_all = [], []
    while x.sum() < n:
        own, last = [], 0
        tokens = (x[x > 1] * 10).long()
        for at in torch.where(tokens > 20)[0].tolist():
            own.append({"tokens": tokens[last:at].tolist(), "start": last})
            last = at
        every.extend([{"id": i, **segment} for i, segment in enumerate(own, start=len(every))])
        tokens_of_all.extend([t for segment in own for t in segment["tokens"]])
        x = x + 1
    return torch.tensor(tokens_of_all), len(every), sum(s["id"] + s["start"] for s in every)


def empty_lists(x, n):
    out = []
    while x.sum() < n:
        if x[0] > 1:
            out.append({"tokens": [], "k": 1})
        else:
            out.append({"tokens": [1, 2, int(x[1])], "k": 2})
        x = x + 1
    return torch.tensor([t + r["k"] for r in out for t in r["tokens"]]), len(out)


@dataclass
class Decoded:
    tokens: list[int]
    score: float


def lists_in_objects(x, n):
    out = []
    while x.sum() < n:
        found = Decoded((x[x > 1] * 10).long().tolist(), x.max().item())
        out.append((found.tokens, found.score))
        x = x + 1
    return [t for tokens, score in out for t in tokens], sum(score for _, score in out)


def numbers_of_a_tensor(x, n):
    floats, ints = x[x > 1].tolist(), (x[x > 0] * 3).long().tolist()
    total = 0.0
    for v in floats:
        total += v
    ints.append(7)
    known = ints == [3, 7], ints != [7], ints == [], [9, 7] == ints
    return total, len(floats), len(ints), known, sorted(ints)[0], ints[-1], 7 in ints, max(ints)


def ends_in(x, n):
    """The last two of as many as the run says."""
    marks = 0
    while x.sum() < n:
        part = x[x > 1].ge(2)
        if part[-2:].tolist() == [False, True]:
            marks += 1
        x = x + 0.5
    return marks, x


def containers_of_operators(x, n):
    while x.sum() < n:
        pairs, others = [(0, 0)] * 2, [0.5] + [1.5]
        pairs[1], others[0] = (0, 1), 2.0
        named = {"a": 1} | {"b": 2}
        named["a"] = 3
        x = x + pairs[1][1] + others[0] + named["a"]
    return x


PROGRAMS = [
    picked,
    plain_ones_among_them,
    decoded,
    decoded_without_a_limit,
    along_the_second_dimension,
    taken_away,
    in_tuples,
    dicts,
    segments,
    empty_lists,
    lists_in_objects,
    numbers_of_a_tensor,
    ends_in,
    containers_of_operators,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_right(program):
    graph = check(program, INPUTS, paths=3, max_length=40)
    assert len(graph.blocks) < 100


def changed_behind(x, n):
    out = []
    while x.sum() < n:
        d = {"v": x.sum().item()}
        out.append(d)
        d["v"] = 0.0
        x = x + 1
    return sum(r["v"] for r in out)


def changed_in_the_list(x, n):
    out = []
    while x.sum() < n:
        out.append({"v": x.sum().item()})
        x = x + 1
    for r in out:
        r["v"] = r["v"] * 2
    return sum([r["v"] for r in out])


def a_list_within_is_changed(x, n):
    out = []
    while x.sum() < n:
        numbers = (x[x > 1] * 10).long().tolist()
        out.append((numbers, 1))
        numbers.append(5)
        x = x + 1
    return torch.tensor([t for r, _ in out for t in r])


def changed_in_place(x, n):
    out = []
    while x.sum() < n:
        y = x[x > 1]
        out.append(y)
        y.add_(1)
        x = x + 1
    return torch.cat(out) if out else x


def which_dict(x, n):
    out, k = [], 0
    while x.sum() < n:
        d = {"v": x.sum().item()}
        out.append(d)
        k += out[0] is d
        x = x + 1
    return k


def which_tuple(x, n):
    out, k = [], 0
    while x.sum() < n:
        d = (x.sum().item(), 2)
        out.append(d)
        k += (out[0] is d) + 10 * (out[0] is out[0])
        x = x + 1
    return k


@pytest.mark.parametrize(
    "program",
    [changed_behind, changed_in_the_list, a_list_within_is_changed, changed_in_place, which_dict, which_tuple],
    ids=lambda f: f.__name__,
)
def test_refused(program):
    """Rows hold what an item was when it was appended, and not which object."""
    with pytest.raises(UnsupportedError):
        stage(program, INPUTS[0], max_length=40)


class Decoder(nn.Module):
    """What openai's Whisper does: windows from where the last decoded timestamp says, until the audio ends."""

    WINDOW, LIMIT, END, STAMPS = 8, 8, 5, 8

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encode = nn.Linear(self.WINDOW, 8)
        self.tokens, self.places = nn.Embedding(13, 8), nn.Embedding(self.LIMIT + 1, 8)
        self.attend, self.out = nn.Linear(8, 8), nn.Linear(8, 13)

    def decode(self, segment: torch.Tensor) -> tuple[torch.Tensor, float]:
        state = self.encode(segment) * 3
        tokens, keys, silence = torch.zeros(1, 1, dtype=torch.long), None, 0.0
        for i in range(self.LIMIT):
            new = self.tokens(tokens[:, -1:]) + self.places(torch.tensor([[i]])) + state
            keys = new if keys is None else torch.cat([keys, new], 1)
            mixed = (self.attend(new) @ keys.mT).softmax(-1) @ keys
            scores = self.out(torch.tanh(mixed))[:, -1] * 5
            if i == 0:
                silence = scores.softmax(-1)[0, 1].item()
            token = scores.argmax(-1)
            if token.item() == self.END:
                break
            tokens = torch.cat([tokens, token[:, None]], 1)
        return tokens[0, 1:], silence

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        content, seek = audio.shape[-1], 0
        pieces: list[torch.Tensor] = []
        while seek < content:
            size = min(self.WINDOW, content - seek)
            segment = audio[seek : seek + self.WINDOW]
            segment = nn.functional.pad(segment, (0, self.WINDOW - segment.shape[-1]))
            tokens, silence = self.decode(segment)
            if silence > 0.5:
                seek += size
                continue
            stamps = tokens.ge(self.STAMPS)
            ends_alone = stamps[-2:].tolist() == [False, True]
            consecutive = torch.where(stamps[:-1] & stamps[1:])[0] + 1
            if len(consecutive) > 0:
                slices = consecutive.tolist()
                if ends_alone:
                    slices.append(len(tokens))
                last = 0
                for at in slices:
                    pieces.append(tokens[last:at])
                    last = at
                seek += size if ends_alone else max(int(tokens[last - 1].item()) - self.STAMPS, 1)
            else:
                pieces.append(tokens)
                seek += size
        return torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.long)


def test_windows_until_the_end():
    audio = [(torch.randn(20, generator=torch.Generator().manual_seed(k)) * (0.2 + k % 4),) for k in range(24)]
    graph = check(Decoder(), audio, paths=5, max_length=120)
    assert len(graph.blocks) < 150
