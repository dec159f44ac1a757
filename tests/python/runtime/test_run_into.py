# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Results that a run puts into tensors of the caller: by the kernel that makes them, or by a copy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import handmade
import numpy as np
import pytest
import torch

import dycl_tvm
from dycl_tvm.codegen.outputs import direct_homes
from dycl_tvm.compile.program import CodeBlock, CondGoto, CopyTensor, Goto, HostInstr, Leave, Program, Reg, Site, Slot, StateHome, Weight
from dycl_tvm.errors import InputError, RunError, UsageError
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.runtime import Module, capi

X = np.arange(4, dtype="float32")
F4 = handmade.F4
A, B, STATE, BIAS = Slot(F4, "input", 0), Slot(F4, "input", 1), Slot(F4, "state", 0), Slot(F4, "weight", 0)
HOME, OTHER, PLAIN = Slot(F4, "arena", 1, 0), Slot(F4, "arena", 2, 0), handmade.arena(64)


def _memory(count: int = 4, at: int = 0) -> np.ndarray:
    room = np.zeros(count + 32, np.float32)
    start = -room.ctypes.data % 64 // 4 + at
    return room[start : start + count]


def _tensor(array: np.ndarray) -> capi.DLTensor:
    shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
    code, bits = capi.DL_DTYPES[array.dtype.name]
    made = capi.DLTensor(array.ctypes.data, capi.DL_CPU, 0, array.ndim, code, bits, 1, shape, None, 0)
    made.kept = array, shape
    return made


def _run(module: Module, outputs: list[np.ndarray | None], *inputs: Any) -> tuple[int, list[int]]:
    """Run in C; return the site and where the tensors lie that it tells of."""
    values = (capi.Value * len(inputs))()
    tensors = [_tensor(x) if isinstance(x, np.ndarray) else None for x in inputs]
    for value, given, tensor in zip(values, inputs, tensors):
        value.type = capi.INT if tensor is None else capi.TENSOR
        if tensor is None:
            value.v_int = given
        else:
            value.address = ctypes.addressof(tensor)
    targets = [None if out is None else _tensor(out) for out in outputs]
    addresses = (ctypes.c_void_p * max(len(outputs), 1))(*(t if t is None else ctypes.addressof(t) for t in targets))
    library, session, site = module._library, module._session, ctypes.c_int32()
    status = library.dycl_run_into(session, values, len(inputs), addresses, len(outputs), None, ctypes.byref(site))
    capi.check(library, status)
    count, places = ctypes.c_size_t(), []
    library.dycl_num_outputs(session, ctypes.byref(count))
    for k in range(count.value):
        capi.check(library, library.dycl_output(session, k, ctypes.byref(values_ := capi.Value())))
        places.append(capi.DLTensor.from_address(values_.address).data if values_.type == capi.TENSOR else 0)
    return site.value, places


def _program(blocks: list[CodeBlock], sites: list[list[Any]], inputs: int = 2, **more: Any) -> Program:
    n = Reg(0, "int")
    types = ["tensor"] * inputs + ["int"]
    made = [Site(handmade.leaves(*("tensor" if isinstance(t, TensorType) else t.kind for t in site)), site) for site in sites]
    return Program(
        "Into", handmade.call_structure(*types), ["a", "b", "n"][:inputs] + ["n"], [A, B][:inputs] + [n], blocks, made,
        handmade.KERNELS, [Weight("bias", F4, torch.tensor([10.0, 20.0, 30.0, 40.0]))], ["int", "bool"], 256, **more,
    )  # fmt: skip


def _choose() -> Program:
    """``forward(a, b, n)``: a + 1 and b for n < 1, else 2 * a + 1 and the bias; the results are of two homes at one place."""
    less = Reg(1, "bool")
    blocks = [
        CodeBlock("entry", [HostInstr("lt", less, (Reg(0, "int"), 1))], CondGoto(0, less, Goto(1), Goto(2))),
        CodeBlock("less", [handmade.call(0, "k_inc", A, HOME)], Leave(0, (HOME, B))),
        CodeBlock("more", [handmade.call(1, "k_twice", A, PLAIN), handmade.call(2, "k_inc", PLAIN, OTHER)], Leave(1, (OTHER, BIAS))),
    ]
    return _program(blocks, [[F4, F4], [F4, F4]])


@pytest.fixture(scope="module")
def choose(tmp_path_factory: pytest.TempPathFactory) -> Module:
    return handmade.build_and_load(_choose(), tmp_path_factory.mktemp("into"))


def test_kernels_write_where_the_caller_wants_results(choose: Module) -> None:
    first, second = _memory(), _memory()
    for n in (0, 1, 0):
        _, places = _run(choose, [first, second], X, X + 5, n)
        assert places[0] == first.ctypes.data  # the view is of the caller's memory: nothing was copied
        np.testing.assert_array_equal(first, [2 * X + 1, X + 1][n == 0])
        np.testing.assert_array_equal(second, [[10, 20, 30, 40], X + 5][n == 0])
    other = _memory()
    assert _run(choose, [other], X + 1, X, 0)[1][0] == other.ctypes.data
    np.testing.assert_array_equal(other, X + 2)
    np.testing.assert_array_equal(first, X + 1)  # a later run leaves it alone
    for outputs in ([], [None, second]):
        assert _run(choose, outputs, X + 2, X, 0)[1][0] not in (first.ctypes.data, other.ctypes.data)
        np.testing.assert_array_equal(choose(X + 2, X, 0)[0], X + 3)
    np.testing.assert_array_equal(other, X + 2)


def test_memory_that_is_not_aligned_is_copied_to(choose: Module) -> None:
    odd = _memory(at=1)
    assert _run(choose, [odd], X, X, 1)[1][0] != odd.ctypes.data
    np.testing.assert_array_equal(odd, 2 * X + 1)


@pytest.mark.parametrize("first, second", [(0, 16), (16, 0), (16, 32), (32, 16), (4, 20), (20, 4), (2, 18), (18, 2), (0, 32), (32, 0)])
def test_outputs_that_overlap_inputs(choose: Module, first: int, second: int) -> None:
    """Inputs a and b lie at 0 and 16; results may be written over them in any order."""
    memory = _memory(48)
    for n in (0, 1):
        memory[:] = -1
        memory[:4], memory[16:20] = X, X + 5
        _run(choose, [memory[first : first + 4], memory[second : second + 4]], memory[:4], memory[16:20], n)
        np.testing.assert_array_equal(memory[first : first + 4], [X + 1, 2 * X + 1][n])
        np.testing.assert_array_equal(memory[second : second + 4], [X + 5, [10, 20, 30, 40]][n])


def test_what_outputs_cannot_go_to(choose: Module) -> None:
    _, places = _run(choose, [], X, X, 0)
    own = np.ctypeslib.as_array((ctypes.c_float * 4).from_address(places[0]))
    weight = np.ctypeslib.as_array((ctypes.c_float * 4).from_address(_run(choose, [], X, X, 1)[1][1]))
    wrong: list[tuple[list[Any], str]] = [
        ([np.zeros(4)], "another type or shape"),
        ([_memory(5)], "another type or shape"),
        ([_memory(4).reshape(2, 2)], "another type or shape"),
        ([own], "the session's memory"),
        ([weight], "the weights"),
        ([None, None, _memory()], "2 at most"),
    ]
    memory = _memory(8)
    wrong.append(([memory[:4], memory[2:6]], "another output"))
    for outputs, message in wrong:
        with pytest.raises(UsageError, match=message):
            _run(choose, outputs, X, X, 0)
    np.testing.assert_array_equal(choose(X, X, 0)[0], X + 1)


def test_state_and_what_is_returned_twice(tmp_path: Path) -> None:
    """``forward(a, n)``: returns (s, y, y, n) and keeps y = s + a; the old value of s is read after it was written over."""
    old = handmade.arena(128)
    body = [handmade.call(0, "k_add", STATE, A, HOME)]
    end = Leave(0, (old, HOME, HOME, Reg(0, "int")), (CopyTensor(old, STATE), CopyTensor(STATE, HOME)))
    state = [StateHome("s", STATE, 0)]
    program = _program([CodeBlock("entry", body, end)], [[F4, F4, F4, handmade.INT]], 1, state=state)
    module = handmade.build_and_load(program, tmp_path)
    outputs: list[np.ndarray | None] = [_memory(), _memory(), _memory()]
    total = np.array([10, 20, 30, 40], "float32")
    for _ in range(3):
        _run(module, outputs, X + 1, 7)
        for out, want in zip(outputs, (total, total + X + 1, total + X + 1)):
            np.testing.assert_array_equal(out, want)
        total = total + X + 1
    with pytest.raises(UsageError, match="output 3 is a tensor on no path"):
        _run(module, [*outputs, _memory()], X, 7)


def _straight(values: tuple[Slot, ...], *calls: Any, types: list[Any] | None = None) -> Program:
    return _program([CodeBlock("entry", list(calls), Leave(0, values))], [types or [v.type for v in values]])


@pytest.mark.parametrize(
    "program, homes",
    [
        (_choose, [(0, 1), (0, 2)]),
        (lambda: _straight((HOME,)), [(0, 1)]),
        (lambda: _straight((HOME, HOME)), []),  # it cannot be at two places
        (lambda: _straight((A, BIAS, PLAIN)), []),
        # another result needs the home to be larger, or elsewhere
        (lambda: _straight((HOME,), handmade.call(0, "k_inc", Slot(TensorType((8,), "float32"), "arena", 1, 0), PLAIN)), []),
        (lambda: _straight((HOME,), handmade.call(0, "k_inc", Slot(F4, "arena", 1, 64), PLAIN)), []),
        (lambda: _straight((HOME,), types=[TensorType((2, 2), "float32")]), []),
    ],
)
def test_homes_that_may_be_elsewhere(program: Callable[[], Program], homes: list[tuple[int, int]]) -> None:
    made = program()
    slots = [s for b in made.blocks for i in b.all_instrs() for s in getattr(i, "args", ()) if isinstance(s, Slot)]
    returned = [v for b in made.blocks if isinstance(b.end, Leave) for v in b.end.values if isinstance(v, Slot)]
    assert direct_homes(made, slots + returned) == homes


def test_two_results_that_are_needed_at_once_are_not_one_memory() -> None:
    """On one path leaf 0 is of one home, on another of one that lies beside it."""
    beside = Slot(F4, "arena", 2, 64)
    blocks = [CodeBlock("one", [], Leave(0, (HOME,))), CodeBlock("two", [], Leave(1, (beside,)))]
    assert direct_homes(_program(blocks, [[F4], [F4]]), [HOME, beside]) == [(0, 1)]


@pytest.mark.parametrize("direct", [False, True])
def test_bind(choose: Module, direct: bool) -> None:
    out = _memory(), _memory()
    bound = choose.bind(out=out, direct=direct)
    assert bound(X, X, 0) is out
    np.testing.assert_array_equal(out, [X + 1, X])
    assert bound(a=out[0], b=out[1], n=1) is out
    np.testing.assert_array_equal(out, [2 * (X + 1) + 1, [10, 20, 30, 40]])
    with pytest.raises(InputError):
        bound(X, X, 1.5)


def test_bind_after_a_failure(tmp_path: Path) -> None:
    module = handmade.build_and_load(_straight((HOME,), handmade.call(0, "k_inc", A, HOME), handmade.call(1, "k_fail", HOME)), tmp_path)
    for direct, left in ((False, X * 0), (True, X + 1)):
        out = _memory()
        with pytest.raises(RunError):
            module.bind(out=(out,), direct=direct)(X, X, 0)
        np.testing.assert_array_equal(out, left)


class _Refines(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(24, 24)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.layer(x))
        for _ in range(3):
            if y.mean() > 0.2:
                return y * 2, y.sum(1)
            y = torch.relu(self.layer(y)) + x
        return self.layer(y).softmax(1), y.sum(0, keepdim=True).expand(8, 24)[:, 3]


def test_a_network_on_all_its_paths(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = _Refines().eval()
    artifact = dycl_tvm.build(network, (torch.randn(8, 24),))
    assert "kDirect[]" in artifact.source()
    artifact.export_library(tmp_path / "model.so", embed_params=True)
    module = dycl_tvm.load(tmp_path / "model.so")
    out = torch.empty(8, 24), torch.empty(8)
    bound, sites = module.bind(out=out, direct=True), set()
    with torch.no_grad():
        for scale in (0.0, 0.1, 0.2, 0.3, 0.5, 1.0, 3.0):
            x = torch.randn(8, 24) * scale
            want = network(x)
            bound(x)
            sites.add(module.last_path.site)
            assert torch.allclose(out[0], want[0], atol=1e-5)
            assert torch.allclose(out[1], want[1], atol=1e-4)
            in_place = x.clone()
            module.bind(out=(in_place, out[1]), direct=True)(in_place)
            assert torch.equal(in_place, out[0])
    assert len(sites) > 1
