# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Random numbers are those that eager draws from the same seed, on every path, and the generator is left as eager leaves it."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import random
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeding_library as library
import torch
import torch.nn.functional as F
from differential import given, same
from programs_random import PROGRAMS, made
from torch import nn
from torch.utils.checkpoint import checkpoint

import dycl_tvm
from dycl_tvm.errors import UnsupportedError, UsageError, VerificationError
from dycl_tvm.frontend.python.source import locate
from dycl_tvm.hcfg import known_draws
from dycl_tvm.hcfg.draws import DEFAULT_GENERATOR
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.nodes import HCFG, Constant, TensorOp
from dycl_tvm.verify.control import check_control

INPUTS = [(torch.linspace(-2, 2, 20).reshape(4, 5).sin() + k,) for k in (0.1, 0.5, -0.7)]


def check_against_eager(
    program: Any, seed: int, run: Callable[[tuple[Any, ...]], Any], rounds: int = 2, inputs: list[tuple[Any, ...]] = INPUTS
) -> None:
    """Compare calls in succession; ``run`` makes one."""
    eager = copy.deepcopy(program)
    torch.manual_seed(seed)
    for args in inputs * rounds:
        with torch.no_grad():
            want = eager(*copy.deepcopy(args))
        state = torch.get_rng_state()
        got = run(args)
        assert same(want, got), f"seed {seed}: eager {want}, built {got}"
        torch.set_rng_state(state)


def _skip_other_halves(name: str) -> None:
    kinds = itertools.product(("uniform", "normal", "normal_each"), (torch.float16, torch.bfloat16))
    if name in ("dtypes", "parameters") and not all(known_draws.is_known(*kind) for kind in kinds):
        with pytest.raises(UnsupportedError, match="draws other random numbers of b?float16"):
            dycl_tvm.stage(made(name), INPUTS[0])
        pytest.skip("this PyTorch draws other numbers of 16 bits: they are refused")


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("passes", [False, True])
def test_draws_are_those_of_eager(name: str, passes: bool) -> None:
    _skip_other_halves(name)
    program = made(name)
    graph = dycl_tvm.stage(program, INPUTS[0], passes=passes)
    variables = [v.name for v in graph.state]
    for seed in (0, 1, 2**40 + 7):
        torch.manual_seed(seed)
        state = [v.initial.data if isinstance(v.initial, Constant) else v.initial for v in graph.state]
        if DEFAULT_GENERATOR in variables:
            state[variables.index(DEFAULT_GENERATOR)] = torch.get_rng_state()

        def run(args: tuple[Any, ...], state: list[Any] = state) -> Any:
            result, _ = interpret(graph, given(graph, args), state)
            if DEFAULT_GENERATOR in variables:
                assert torch.equal(state[variables.index(DEFAULT_GENERATOR)], torch.get_rng_state()), "another state than eager's"
            return result

        check_against_eager(program, seed, run)


@pytest.mark.parametrize("name", PROGRAMS)
def test_artefacts_draw_what_eager_draws(name: str, tmp_path: Path) -> None:
    _skip_other_halves(name)
    program = made(name)
    dycl_tvm.build(program, INPUTS[0]).export_library(tmp_path / "net.so", embed_params=True)
    module = dycl_tvm.load(tmp_path / "net.so")
    for seed in (0, 1):
        module.reset_state()
        module.manual_seed(seed)
        check_against_eager(program, seed, lambda args: module(*args))


def _differs(program: Any, change: Callable[[HCFG, TensorOp], None]) -> None:
    """Change each draw of a graph, and demand that the check against eager finds it."""
    graph = dycl_tvm.stage(program, INPUTS[0], passes=False)
    draws = [s for b in graph.blocks for s in b.steps if isinstance(s, TensorOp) and s.op == "dycl_random.uniform.default"]
    assert draws
    for draw in draws:
        change(graph, draw)
    with pytest.raises(VerificationError):
        check_control(program, graph, INPUTS[0], {})


def _one_draw_for_all(graph: HCFG, draw: TensorOp) -> None:
    draw.args = (graph.entry.params[-1], *draw.args[1:])


def _other_numbers(graph: HCFG, draw: TensorOp) -> None:
    draw.args = (*draw.args[:2], 0.001, *draw.args[3:])


@pytest.mark.parametrize("name", ["equal_draws", "unused"])
def test_the_check_of_builds_sees_a_draw_from_the_wrong_state(name: str) -> None:
    _differs(made(name), _one_draw_for_all)


@pytest.mark.parametrize("name", ["equal_draws", "loop"])
def test_the_check_of_builds_sees_other_numbers(name: str) -> None:
    _differs(made(name), _other_numbers)


def test_a_graph_begins_with_the_seed_of_a_new_generator() -> None:
    call = dycl_tvm.stage(lambda x: x + torch.rand(4, 5), INPUTS[0]).interpret()
    (x,) = INPUTS[0]
    first = x + torch.rand(4, 5, generator=torch.Generator())
    assert torch.equal(call(x), first)
    assert not torch.equal(call(x), first)
    call.reset()
    assert torch.equal(call(x), first)
    call.manual_seed(-3)
    assert torch.equal(call(x), x + torch.rand(4, 5, generator=torch.Generator().manual_seed(-3)))
    with pytest.raises(UsageError, match="64 bits"):
        call.manual_seed(1 << 64)


def test_staging_leaves_generators_alone() -> None:
    program = made("OwnGenerator")
    before, own = torch.get_rng_state(), program.generator.get_state()
    dycl_tvm.build(program, INPUTS[0])
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(own, program.generator.get_state())


def test_dropout_in_training_mode_on_purpose() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 5)).eval()
    model[2].train()
    graph = dycl_tvm.stage(model, INPUTS[0])
    call = graph.interpret()
    call.manual_seed(4)
    check_against_eager(model, 4, lambda args: call(*args))
    with pytest.raises(UsageError, match=r"model\.eval\(\)"):
        dycl_tvm.stage(model.train(), INPUTS[0])


GENERATOR = torch.Generator().manual_seed(9)
BY_A_LIBRARY: dict[str, Callable[[Any], Any]] = {
    "forked": lambda x: (library.forked(), x),
    "seeded": lambda x: (library.seeded(), x, torch.rand(2)),
    "saved": lambda x: (library.saved(), x),
    "rewound": lambda x: (library.rewound(GENERATOR), x),
    "rewound, made here": lambda x: (library.rewound(torch.Generator().manual_seed(4)), x),
    "reseeded": lambda x: (library.reseeded(GENERATOR), torch.rand(2, generator=GENERATOR), x),
    "reseeded, made here": lambda x: (library.reseeded(torch.Generator()), x),
    "checkpoint": lambda x: checkpoint(lambda y: F.dropout(y, 0.5, True), x, use_reentrant=False),
}


@contextlib.contextmanager
def as_library(monkeypatch: pytest.MonkeyPatch, module: types.ModuleType) -> Iterator[None]:
    """Take a module for a library, whose functions run as they are."""
    roots = (*locate._library_roots(), str(module.__file__))
    monkeypatch.setattr(locate, "_library_roots", lambda: roots)
    locate.is_library_file.cache_clear()
    try:
        yield
    finally:
        monkeypatch.undo()
        locate.is_library_file.cache_clear()


@pytest.mark.parametrize("name", BY_A_LIBRARY)
def test_a_library_seeds_the_generators_of_the_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with as_library(monkeypatch, library):
        GENERATOR.manual_seed(9)
        call = dycl_tvm.stage(BY_A_LIBRARY[name], INPUTS[0]).interpret()
    call.manual_seed(2)
    check_against_eager(BY_A_LIBRARY[name], 2, lambda args: call(*args))


LIST = [1, 2, 3]
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "binomial": (lambda x: torch.binomial(x.abs(), x.sigmoid()), "random numbers in a way"),
    "dirichlet": (lambda x: torch._sample_dirichlet(x.abs()), "random numbers in a way"),
    "seed of chance": (lambda x: (torch.seed(), x)[1], "differs in every run"),
    "method of chance": (lambda x: x * torch.Generator().seed(), "differs in every run"),
    "number of the run": (lambda x: torch.randint(0, int(x.abs().sum()) + 1, (3,)), "known only at run time"),
    "size of the run": (lambda x: torch.randint(0, 5, (int((x > 0).sum()),)), "randint.. takes a number known only at run time"),
    "NumPy": (lambda x: x * np.random.rand(), "another result at every call"),
    "NumPy, an array": (lambda x: x + torch.from_numpy(np.random.rand(5)), "another result at every call"),
    "NumPy, as a size": (lambda x: x.new_zeros(np.random.randint(3)), "another result at every call"),
    "NumPy, in a list": (lambda x: torch.tensor([np.random.rand(), 1.0]), "another result at every call"),
    "NumPy, as a result": (lambda x: (x, np.random.rand()), "another result at every call"),
    "NumPy, compared": (lambda x: x if np.random.rand() is None else -x, "another result at every call"),
    "NumPy, shuffled": (lambda x: (np.random.shuffle(LIST), x)[1], "another result at every call"),
    "Python, a key": (lambda x: {random.random(): x}, "another result at every call"),
    "Python, a text": (lambda x: (x, f"{random.random()}"), "another result at every call"),
    "Python, sorted by": (lambda x: sorted([x, -x], key=lambda _: random.random())[0], "another result at every call"),
    "Python, in a library's hands": (lambda x: x * next(map(random.uniform, [0], [1])), "another result at every call"),
    "Python, of a class": (lambda x: x if isinstance(random.random(), float) else -x, "another result at every call"),
    "Python, a type": (lambda x: x if type(random.random()) is float else -x, "another result at every call"),
    "Python, a seed": (lambda x: (random.seed(1), x)[1], "another result at every call"),
    "Python, an error": (lambda x: (random.randint(3, 1), x)[1], "another result at every call"),
    "another device": (lambda x: torch.rand(2, generator=torch.Generator("meta")), "meta"),
}


class Layerdrop(nn.Module):
    """Draws by a generator of Python's or NumPy's, and looks at the number in some configurations only."""

    def __init__(self, draw: Callable[[], Any], drops: bool = False) -> None:
        super().__init__()
        self.draw, self.drops, self.layers = draw, drops, nn.ModuleList([nn.Linear(5, 5) for _ in range(2)])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            p = self.draw()
            if x.mean() > 0:
                p = self.draw()
            skip = self.drops and p < 0.5
            x = x if skip else layer(x)
        return x


_DRAWS = {
    "numpy": lambda: np.random.uniform(0, 1),
    "numpy, an array": lambda: np.random.rand(2, 3),
    "python": random.random,
    "python, bounds": lambda: random.randint(0, 5),
}


@pytest.mark.parametrize("name", _DRAWS)
def test_numbers_of_python_and_numpy_that_nothing_reads(name: str) -> None:
    states = random.getstate()[1], np.random.get_state()[2]
    model = Layerdrop(_DRAWS[name]).eval()
    call = dycl_tvm.stage(model, INPUTS[0]).interpret()
    assert states == (random.getstate()[1], np.random.get_state()[2])
    for args in INPUTS:
        assert same(model(*args), call(*args))
    with pytest.raises(UnsupportedError, match="another result at every call"):
        dycl_tvm.stage(Layerdrop(_DRAWS[name], drops=True).eval(), INPUTS[0])


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exact_is_refused(name: str) -> None:
    program, words = REFUSED[name]
    before = torch.get_rng_state()
    with pytest.raises(UnsupportedError, match=words):
        dycl_tvm.stage(program, INPUTS[0])
    assert torch.equal(before, torch.get_rng_state())


def test_a_wrong_parameter_is_the_programs_error() -> None:
    def program(x: Any) -> Any:
        try:
            return x.clone().uniform_(2, 1)
        except RuntimeError:
            return x

    call = dycl_tvm.stage(program, INPUTS[0]).interpret()
    assert torch.equal(call(*INPUTS[0]), INPUTS[0][0])
    with pytest.raises(RuntimeError, match="std"):
        dycl_tvm.stage(lambda x: x.clone().normal_(0, -1), INPUTS[0]).interpret()(*INPUTS[0])


def distributions_that_check_what_they_are_given(x):
    d = torch.distributions
    code = d.Normal(x, x.abs() + 1)
    picked = d.Categorical(logits=x).sample()
    kl = d.kl_divergence(code, d.Normal(torch.zeros_like(x), torch.ones_like(x))).sum()
    made = [code.rsample(), picked, d.Uniform(x - 1, x + 1).rsample(), d.Exponential(x.exp()).sample(), d.Bernoulli(x.sigmoid()).sample()]
    return *made, code.log_prob(x) if kl > 9 else d.Laplace(x, 1.0).sample(), code.entropy()


def test_distributions_with_the_checks_that_they_make_by_default(monkeypatch):
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)  # torch.compile takes them away, from the whole process
    program = distributions_that_check_what_they_are_given
    x = torch.linspace(-2, 2, 6).reshape(2, 3)
    call = dycl_tvm.stage(program, (x,)).interpret()
    call.manual_seed(5)
    torch.manual_seed(5)
    for scale in (1, 3, 0.2):
        torch.testing.assert_close(call(x * scale), program(x * scale), rtol=1e-6, atol=1e-6)
    with pytest.raises(Exception, match="Expected parameter loc"):
        call(x * torch.nan)


def test_a_draw_that_is_repeated_until_it_fits() -> None:
    """PyTorch's own loop, whose trips the numbers decide, runs as a loop of the user's."""
    if "while" not in inspect.getsource(nn.init):
        pytest.skip("this PyTorch draws them without a loop")

    def program(x: Any) -> Any:
        return x + torch.nn.init.trunc_normal_(torch.empty(4, 5), std=2.0), torch.rand(1)

    with pytest.raises(UnsupportedError, match="max_loop_trips"):
        dycl_tvm.stage(program, INPUTS[0])
    graph = dycl_tvm.stage(program, INPUTS[0], max_loop_trips=12)
    torch.manual_seed(3)
    state = [torch.get_rng_state()]
    check_against_eager(program, 3, lambda args: interpret(graph, given(graph, args), state)[0])


def test_draws_that_this_pytorch_makes_otherwise_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it does is found out by trying: here as if it drew other numbers of float64, and nothing else."""
    monkeypatch.setattr(known_draws, "DIGESTS", {**known_draws.DIGESTS, "normal": {**known_draws.DIGESTS["normal"], "float64": "0" * 12}})
    known_draws.is_known.cache_clear()
    try:
        with pytest.raises(UnsupportedError, match=r"draws other random numbers of float64 here \(normal\)"):
            dycl_tvm.stage(_Noisy(torch.float64), (torch.zeros(4),))
        dycl_tvm.stage(_Noisy(torch.float32), (torch.zeros(4),))
    finally:
        known_draws.is_known.cache_clear()


class _Noisy(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn(4, dtype=self.dtype)


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the numbers are those of PyTorch 2.13")
def test_all_draws_of_this_version_are_known() -> None:
    assert all(known_draws.is_known(name, getattr(torch, dtype)) for name, row in known_draws.DIGESTS.items() for dtype in row)
    assert not known_draws.is_known("gamma", torch.float16)
