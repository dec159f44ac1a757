# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Complex numbers as compiled: one build of many operators against PyTorch, transforms against float64, and networks that use them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import dycl_tvm
from dycl_tvm.compare import difference
from dycl_tvm.errors import UnsupportedError

G = torch.Generator().manual_seed(0)
Z = torch.randn(3, 4, dtype=torch.complex64, generator=G)
W = torch.randn(3, 4, dtype=torch.complex64, generator=G) * 3
M = torch.randn(2, 4, 5, dtype=torch.complex64, generator=G)
#: Numbers at which careless formulas overflow, cancel or divide by zero.
AWKWARD = torch.tensor([1e30 + 1e30j, 1e-30 + 1e-30j, 3e-20, 1 + 1e-4j, -1 + 1e-6j, -4, -4j, 1e-3 + 80j, 0.6 + 0.8j, 88 + 1j])

RISING = torch.tensor([0.5, 1.0, 0.75])

FUNCTIONS = {
    "arithmetic": lambda z, w, m, a: (z + w, z - 2 * w, z * w, z / w, 1 / w, z * 2j, 3 - z, torch.add(z, w, alpha=1j), z.real * w, z**3),
    "parts": lambda z, w, m, a: (z.real, z.imag, z.conj().imag, torch.complex(z.real, w.imag), torch.view_as_real(z), z.abs(), z.angle()),
    "functions": lambda z, w, m, a: (z.exp(), w.log(), w.sqrt(), w.rsqrt(), z.sin(), z.cos(), z.tanh(), z.tan(), z**w, z**0.3, z.sgn()),
    "awkward": lambda z, w, m, a: (a.abs(), a.angle(), a.log(), a.sqrt(), a.sgn(), a[1:].reciprocal(), (a / a).real, a[3:].exp()),
    "products": lambda z, w, m, a: (z @ w.mT, z @ w.mH, torch.einsum("ij,bjk->bik", z, m), torch.vdot(z[0], w[0]), m.mH @ m, z @ m),
    "choices": lambda z, w, m, a: (torch.where(z.real > 0, z, w), z == w, torch.cat([z, w], 1), torch.stack([z, w]), z[:, [2, 0]]),
    "sums": lambda z, w, m, a: (z.sum(), z.mean(1), z.cumsum(0), z.prod(1), z.var(), torch.linalg.norm(z), m.flip(1).roll(1, 2)),
    "changes": lambda z, w, m, a: (z.masked_fill(z.real > 0, 1j), torch.zeros_like(z), -z, z.index_add(0, torch.tensor([1]), w[:1])),
    "rows": lambda z, w, m, a: (torch.fft.fft(z[0]), torch.fft.ihfft(z.real[1]), torch.fft.hfft(w[0]), torch.fft.rfft(w.real[2], n=97)),
    "powers": lambda z, w, m, a: (z ** (3 + 0j), z**2, z ** (0.5 + 0j), 2**z, z**0),
    "frames": lambda z, w, m, a: torch.istft(z, 3, 1, onesided=False, return_complex=True, window=RISING),
    "wide": lambda z, w, m, a: (z.to(torch.complex128) * w, z.real.to(torch.complex64), z.to(torch.complex128).abs()),
}  # fmt: skip


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """All functions as one network."""

    def forward(z, w, m, a):
        return {name: function(z, w, m, a) for name, function in FUNCTIONS.items()}

    art = dycl_tvm.build(forward, (Z, W, M, AWKWARD))
    folder = tmp_path_factory.mktemp("complex")
    loaded = dycl_tvm.load(art.export_library(folder / "m.so"), art.save_params(folder / "m.params"))
    return loaded(Z, W, M, AWKWARD)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators(compiled, name):
    wanted = FUNCTIONS[name](Z, W, M, AWKWARD)
    if name == "awkward":
        for got, want in zip(compiled[name], wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=3e-6, atol=0.0)
    assert difference(wanted, compiled[name], rtol=3e-6) is None


#: Small lengths, those of audio, a prime and one with a large prime factor.
LENGTHS = (1, 2, 3, 7, 16, 97, 100, 400, 512, 1024, 2 * 521, 1201)


def _all_transforms(*rows):
    return [
        (
            torch.fft.fft(x),
            torch.fft.ifft(x),
            torch.fft.rfft(x.real),
            torch.fft.irfft(x, n=x.shape[-1], norm="ortho"),
            torch.fft.ihfft(x.imag),
        )
        for x in rows
    ]


def test_transforms_are_as_exact_as_pytorchs(tmp_path):
    rows = [torch.randn(2, n, dtype=torch.complex64, generator=G) for n in LENGTHS]
    art = dycl_tvm.build(_all_transforms, tuple(rows))
    got = dycl_tvm.load(art.export_library(tmp_path / "m.so"), art.save_params(tmp_path / "m.params"))(*rows)
    own, exact = _all_transforms(*rows), _all_transforms(*(x.to(torch.complex128) for x in rows))
    for n, ours, theirs, wanted in zip(LENGTHS, got, own, exact, strict=True):
        for k in range(len(ours)):
            scale = float(wanted[k].abs().max())
            error, usual = (float((made[k] - wanted[k]).abs().max()) / scale for made in (ours, theirs))
            assert error <= max(4 * usual, 4e-7), f"transform {k} of length {n}: {error:.1e}, PyTorch's {usual:.1e}"


class FrontEnd(nn.Module):
    """Logarithms of the energies in mel-like bands, as speech models compute them; silence is given out as it is."""

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(400))
        self.register_buffer("bands", torch.rand(40, 201, generator=torch.Generator().manual_seed(1)))

    def forward(self, x):
        spectrum = torch.stft(x, 400, 160, window=self.window, return_complex=True)
        energy = spectrum.abs() ** 2
        if energy.max() < 1e-3:
            return energy[:, :40]
        return torch.log10((self.bands @ energy).clamp(min=1e-10))


class Filter(nn.Module):
    """There and back, with a filter learnt as complex numbers between, and a phase that lives on from call to call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(64))
        self.gain = nn.Parameter(torch.randn(33, 1, dtype=torch.complex64, generator=torch.Generator().manual_seed(2)))
        self.register_buffer("phase", torch.ones(33, 1, dtype=torch.complex64))

    def forward(self, x):
        spectrum = torch.stft(x, 64, 16, window=self.window, return_complex=True)
        self.phase = self.phase * torch.polar(torch.ones(33, 1), spectrum.abs().mean(-1, keepdim=True)[0])
        spectrum = spectrum * self.gain * self.phase
        if spectrum.abs().mean() > 5:
            spectrum = spectrum / spectrum.abs().amax()
        return torch.istft(spectrum, 64, 16, window=self.window, length=x.shape[-1])


class Mixing(nn.Module):
    """FNet's mixing of tokens and channels; layers are left out where the spectrum is small."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            mixed = torch.fft.fft2(x)
            if mixed.abs().max() < 60:
                continue
            x = layer(x + mixed.real)
        return x, torch.fft.fftshift(torch.fft.rfftn(x)).imag


@pytest.mark.parametrize(
    "model, inputs",
    [
        (FrontEnd, [torch.randn(1, 1600, generator=G), torch.zeros(1, 1600)]),
        (Filter, [torch.randn(1, 640, generator=G) * scale for scale in (1.0, 0.01, 3.0)]),
        (Mixing, [torch.randn(1, 10, 24, generator=G) * scale for scale in (1.0, 0.01, 3.0)]),
    ],
    ids=["front end", "filter", "mixing"],
)
def test_networks(model, inputs, tmp_path):
    torch.manual_seed(3)
    eager = model().eval()
    built = copy.deepcopy(eager)
    art = dycl_tvm.build(built, (inputs[0],))
    loaded = dycl_tvm.load(art.export_library(tmp_path / "m.so"), art.save_params(tmp_path / "m.params"))
    paths = set()
    for x in inputs:
        with torch.no_grad():
            assert difference(eager(x), loaded(x), rtol=2e-5) is None
        paths.add(str(loaded.last_path))
    assert len(paths) > 1


def test_arrays_at_the_border(tmp_path):
    """Without torch tensors complex inputs and results are arrays of NumPy, of any strides."""
    art = dycl_tvm.build(lambda z: (z * 2j, z.abs()), (Z,))
    loaded = dycl_tvm.load(art.export_library(tmp_path / "m.so"), art.save_params(tmp_path / "m.params"))
    for given in (Z.numpy(), Z.numpy().T.copy().T, Z.numpy()[::-1]):
        product, length = loaded(given)
        assert product.dtype == given.dtype and difference(given * 2j, product) is None and difference(abs(given), length) is None
    assert difference(Z.conj() * 2j, loaded(Z.conj())[0]) is None


def test_what_is_missing_says_so():
    with pytest.raises(UnsupportedError, match="missing for complex numbers"):
        dycl_tvm.build(lambda z: torch.linalg.ldl_factor(z), (torch.eye(3, dtype=torch.complex64),))
