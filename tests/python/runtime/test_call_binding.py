# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A call's inputs come by position or by name, as in a call of the model itself."""

from __future__ import annotations

from typing import Any

import pytest

from dycl_tvm.runtime.structure import flatten_call, is_call


def _leaf(k: int) -> dict[str, Any]:
    return {"leaf": k, "type": "tensor"}


#: def forward(x, threshold, *rest, flag, **more)
FULL = {
    "dict": [
        ["x", _leaf(0)],
        ["threshold", {"const": 0.5}],
        ["rest", {"tuple": [_leaf(1), _leaf(2)]}],
        ["flag", {"list": [_leaf(3)]}],
        ["more", {"dict": [["m", _leaf(4)]]}],
    ],
    "varargs": "rest",
    "varkw": "more",
}
PLAIN = {"dict": [["x", _leaf(0)], ["y", _leaf(1)], ["scale", {"const": 2}]]}
PAIR = {"tuple": [{"tuple": [_leaf(0)]}, {"dict": [["y", _leaf(1)]]}]}


@pytest.mark.parametrize(
    "structure, args, kwargs, expected",
    [
        (
            FULL,
            ("X", 0.5, "a", "b"),
            {"flag": ["F"], "m": "M"},
            {"x": "X", "rest[0]": "a", "rest[1]": "b", "flag[0]": "F", "more['m']": "M"},
        ),
        (PLAIN, ("X", "Y"), {}, {"x": "X", "y": "Y"}),
        (PLAIN, ("X", "Y", 2), {}, {"x": "X", "y": "Y"}),
        (PLAIN, ("X",), {"y": "Y", "scale": 2}, {"x": "X", "y": "Y"}),
        (PLAIN, (), {"y": "Y", "x": "X"}, {"x": "X", "y": "Y"}),
        (PAIR, ("X",), {"y": "Y"}, {"x": "X", "y": "Y"}),
        (PAIR, (), {"y": "Y", "x": "X"}, {"x": "X", "y": "Y"}),
    ],
)
def test_inputs_by_position_and_by_name(structure: Any, args: tuple[Any, ...], kwargs: dict[str, Any], expected: dict[str, Any]) -> None:
    assert is_call(structure)
    assert dict(flatten_call(structure, args, kwargs, ["x", "y"])) == expected


@pytest.mark.parametrize(
    "structure, args, kwargs, words",
    [
        (PLAIN, ("X",), {}, "'y' is missing"),
        (PLAIN, ("X", "Y", 2, "Z"), {}, r"takes 3 positional inputs \(x, y, scale\), got 4"),
        (PLAIN, ("X", "Y"), {"x": "X"}, "'x' twice"),
        (PLAIN, ("X", "Y"), {"z": 1}, "no input 'z'; it has x, y, scale"),
        (PLAIN, ("X", "Y", 3), {}, "scale was fixed to 2"),
        (FULL, ("X", 0.5, "a"), {"flag": ["F"], "m": "M"}, "rest must be a tuple of 2 items"),
        (FULL, ("X", 0.5, "a", "b"), {"flag": ["F"], "n": "M"}, "more must be a dict with the keys"),
        (PAIR, ("X", "Y"), {}, "takes 1 positional"),
    ],
)
def test_what_does_not_fit_is_named(structure: Any, args: tuple[Any, ...], kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        flatten_call(structure, args, kwargs, ["x", "y"])
