# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Complex tensors in programs: views of their parts, lazy conjugates, changes in place, joins, loops and state."""

from __future__ import annotations

import copy

import pytest
import torch
from differential import check, same, stage

import dycl_tvm
from dycl_tvm.errors import UnsupportedError, UsageError

X = [(torch.randn(3, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(k)) + k - 1,) for k in range(3)]


def through_a_conjugate(x):
    x = x.clone()
    y = x.conj()
    y.add_(1j)
    y[0] = 2j
    return x, y, y.is_conj(), x.is_conj()


def through_parts(x):
    x = x.clone()
    x.real.mul_(2)
    x.imag += 1
    x.imag[0] = 3
    x.conj().imag.sub_(5)
    x.real = x.imag
    return x, x.real, x.conj().imag


def through_other_types(x):
    pairs = torch.view_as_real(x).clone()
    z = torch.view_as_complex(pairs)
    z *= 1j
    z[0] = 0
    flat = z.view(torch.float32)
    flat[:, ::2] += 1
    return pairs, z, flat, z.storage_offset(), flat[1].storage_offset(), flat.stride()


def joined_marks(x):
    """One side is marked as a conjugate, the other is not."""
    y = x.conj() if x.real.sum() > 0 else x * 2
    z = y.clone()
    z += 1
    return y.imag, y.is_conj(), y.imag.is_neg(), z


def joined_conjugates(x):
    y = x.conj() if x.real.sum() > 0 else (x * 2).conj()
    return y.imag, y.clone(), y.is_conj(), y.conj().is_conj()


def view_of_a_joined_conjugate(x):
    y = x.conj() if x.real.sum() > 0 else (x * 2).conj()
    return torch.view_as_real(y)


def changed_through_one_of_two(x):
    a, b = x.clone(), x.clone()
    y = a.conj() if x.real.sum() > 0 else b.conj()
    y.mul_(2j)
    return a, b


def marks_of_other_strides(x):
    y = x.conj() if x.real.sum() > 0 else (x.T.clone().T * 2).conj()
    return y.imag, y.imag.is_neg(), y.is_conj(), y.conj().is_conj(), y.clone().is_conj(), y.T.is_conj(), y


def marks_that_change_in_a_loop(x):
    y, k = x, 0
    while k < int(x.abs().sum()) % 3:
        y, k = y.mH.mT, k + 1
    a, b, n = x, x.conj(), 0
    while a.real.sum() > -2 and n < 3:
        a, b, n = b - 1, a, n + 1
    return y, y.is_conj(), y.imag, a, b.is_conj()


def grown(x):
    y, k = x[:1], 0
    while y.abs().sum() < 40 and k < 4:
        y, k = torch.cat([y, x[:1] + k]).conj(), k + 1
    return y.sum(0), k


def no_kernel(x):
    """What PyTorch has no kernels for, whatever the elements."""
    try:
        return x < 1
    except NotImplementedError:
        pass
    y = torch.view_as_real(x).flatten().clone()
    try:
        y = torch.view_as_complex(y[1:5].view(2, 2))
    except RuntimeError:
        y += 1
    return y if x.real.sum() > 0 else torch.relu(x.real)


def truth(x):
    return [v * 2 if v else v + 1 for v in x[0]], x[1, 1] or x[0, 0], complex(2, 1) * x


def loop(x):
    steps = 0
    while x.abs().max() < 50:
        x = x * (1 + 1j)
        steps += 1
    return x, steps


def marked_in_a_loop(x):
    y = x
    while y.abs().max() < 50:
        y = (y * 2).conj()
    return y.is_conj(), y.imag.is_neg(), y.imag


def changed_in_a_loop(x):
    y = x.clone()
    v, r = y.conj(), y.real
    while v.abs().max() < 50:
        v.mul_(1 + 1j)
        y.imag.add_(r)
    return y, v


def conjugates_by_index(x):
    rows = x.conj()
    row = rows[int(x.real[:, 0].argmax())]
    return row.is_conj(), row.imag, row * 1j


def mark_that_changes_in_a_loop(x):
    s, y = x.abs().sum(), x
    while s < 100:
        y = y.conj()
        s = s * 2
    return y.imag


class MarkedState(torch.nn.Module):
    """A conjugate is left for the next call where none was before."""

    def __init__(self):
        super().__init__()
        self.h = torch.zeros(3, 4, dtype=torch.complex64)

    def forward(self, x):
        was = self.h.is_conj()
        self.h = (self.h + x).conj()
        return was, self.h.imag


def with_numbers(x):
    s = x.real.sum().item()
    return x * s, s - x, x + 1j, 2 / x, x**2, x == s, x.sum() / 2


def rotary(x):
    frequencies = torch.polar(torch.ones(4), torch.arange(4.0))
    rotated = torch.view_as_real(
        torch.view_as_complex(x.real.clone(memory_format=torch.contiguous_format).view(3, 2, 2)) * frequencies[:2]
    ).flatten(1)
    return rotated if rotated.sum() > 0 else -rotated


class Marked(torch.nn.Module):
    """What it keeps is marked after some calls, and not before the first."""

    def __init__(self):
        super().__init__()
        self.h, self.kept, self.d = torch.ones(3, 4, dtype=torch.complex64) * 1j, None, {"p": torch.ones(3, 4)}

    def forward(self, x):
        r = self.h.is_conj(), self.h.imag, self.d["p"] * 2, self.d["p"].is_neg(), x if self.kept is None else self.kept.imag
        self.h = self.h.conj() if x.real.sum() > 0 else self.h + 1
        self.kept, self.d["p"] = x.conj(), x.conj().imag
        return r


class Memory(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(3, 4, dtype=torch.complex64))
        self.w = torch.nn.Parameter(torch.randn(4, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(5)))

    def forward(self, x):
        self.h = self.h * 0.5 + x @ self.w.mH
        self.h.imag.clamp_(-1, 1)
        return self.h.conj() if self.h.real.sum() > 0 else self.h


PROGRAMS = {
    through_a_conjugate: 1,
    through_parts: 1,
    through_other_types: 1,
    joined_marks: 2,
    joined_conjugates: 2,
    changed_through_one_of_two: 2,
    marks_of_other_strides: 2,
    grown: 1,
    no_kernel: 2,
    truth: 1,
    loop: 1,
    marked_in_a_loop: 1,
    changed_in_a_loop: 1,
    conjugates_by_index: 1,
    mark_that_changes_in_a_loop: 2,
    with_numbers: 1,
    rotary: 2,
    Memory(): 2,
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: getattr(p, "__name__", "state"))
def test_complex(program):
    check(program, X, paths=PROGRAMS[program])


@pytest.mark.parametrize("kind", [Memory, Marked, MarkedState])
def test_state_over_calls(kind):
    model = kind()
    call = dycl_tvm.stage(copy.deepcopy(model), X[0]).interpret()
    for (x,) in [*X, *X]:
        with torch.no_grad():
            assert same(model(x), call(x))


def test_marks_in_a_loop_of_few_trips():
    check(marks_that_change_in_a_loop, X, paths=2, max_loop_trips=4)


@pytest.mark.parametrize(
    "program, message",
    [
        (view_of_a_joined_conjugate, "unresolved conjugated tensors"),  # as by PyTorch
        (lambda x: x.clone().mul_(2) if x.sum().item() == 1 else x, "x.real.item()"),
        (lambda x: (lambda y: y.mul_(y.real))(x.clone()), "overlaps"),
        (lambda x: x * (x.real.sum().item() * 1j), "keep it a tensor"),
        (lambda x: x * complex(x.real.sum().item(), 1), "keep it a tensor"),
        (lambda x: x.conj().as_strided((2, 2), (1, 2)), "as other numbers"),
        (lambda x: torch.view_as_real(x).as_strided((2, 2), (1, 2)), "as other numbers"),
    ],
    ids=["conjugate", "item", "overlap", "product", "made of parts", "strides of a conjugate", "strides of parts"],
)
def test_refused(program, message):
    with pytest.raises(UnsupportedError, match=message):
        stage(program, X[0])


def test_a_lazy_example_is_refused():
    with pytest.raises(UsageError, match="resolve_conj"):
        dycl_tvm.stage(rotary, (X[0][0].conj(),))
