# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Modules that a program names: what it uses of them is followed, and what it comes to by other ways is not lost."""

from __future__ import annotations

import importlib
import sys
import textwrap

import pytest
import torch
from differential import check, stage

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.source.ownership import code_of, is_library
from dycl_tvm.frontend.trace.heap.reach import leads_to_all_modules, reach

X = [(torch.ones(2),), (-torch.ones(2),), (torch.full((2,), 2.0),)]
MODULES = {
    "lib_inner": """
        TABLE = {"n": 0}
        COUNT = 0
        NEVER_NAMED = [object()]
        def count(x):
            global COUNT
            COUNT += 1
            return x * COUNT
        def write(x):
            TABLE["n"] = TABLE["n"] + 1
            return x + TABLE["n"]
        def world(): return NEVER_NAMED
    """,
    "lib_outer": """
        import sys
        import torch
        import lib_inner
        from lib_inner import write
        def by_chain(x):
            if x.sum() > 0:
                lib_inner.TABLE["n"] += 1
            return x * lib_inner.TABLE["n"]
        def by_call(x):
            return lib_inner.count(x) + lib_inner.COUNT
        def by_store(x):
            lib_inner.COUNT += 2
            if x.sum() > 0: lib_inner.COUNT = lib_inner.COUNT + 1
            return x * lib_inner.COUNT
        def by_getattr(x):
            getattr(lib_inner, "TA" + "BLE")["n"] += 1
            return x * lib_inner.TABLE["n"]
        def by_alias(x):
            m = lib_inner
            m.TABLE["n"] += 3
            return x * m.TABLE["n"]
        def by_import(x):
            from lib_inner import TABLE
            TABLE["n"] += 1
            return x * TABLE["n"]
        def by_sys(x):
            table = sys.modules["lib_inner"].TABLE
            table["n"] += 1
            return x * table["n"]
        def by_search(x):
            return x * 2 if "lib_inner" in sys.modules and x.sum() > 0 else x
        def by_search_and_sys(x):
            modules = sys.modules
            return by_search(x) if "lib_inner" in sys.modules else x
        def by_name(x):
            return write(x) if x.sum() > 0 else x
        def by_dict(x):
            vars(lib_inner)["TABLE"]["n"] += 1
            return x * lib_inner.TABLE["n"]
    """,
}


@pytest.fixture
def library(tmp_path, monkeypatch):
    for name in ("lib_inner", "lib_outer"):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODULES[name]))
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield importlib.import_module("lib_outer")
    for name in ("lib_inner", "lib_outer"):
        sys.modules.pop(name, None)


WAYS = ("by_chain", "by_call", "by_store", "by_getattr", "by_alias", "by_import", "by_sys", "by_name", "by_dict")


@pytest.mark.parametrize("way", WAYS)
def test_state_of_a_module_is_right_or_refused(library, way):
    program, inner = getattr(library, way), sys.modules["lib_inner"]
    try:
        call = stage(program, X[0]).interpret()
    except UnsupportedError:
        assert way in ("by_getattr", "by_dict", "by_sys"), "the plain ways are followed"
        return
    assert (inner.TABLE, inner.COUNT) == ({"n": 0}, 0), "staging leaves no trace"
    for args in X * 2:
        assert torch.equal(program(*args), call(*args))


def test_a_search_for_the_name_of_a_module_leads_to_none(library):
    assert not leads_to_all_modules(library.by_search, code_of)
    assert leads_to_all_modules(library.by_sys, code_of) and leads_to_all_modules(library.by_search_and_sys, code_of)
    check(library.by_search, X, paths=2)


def test_what_nothing_names_is_not_looked_into(library):
    def found_from(way):
        return [x for _, x in reach([("", getattr(library, way))], is_library, code_of)]

    inner = sys.modules["lib_inner"]
    assert not any(x is inner.NEVER_NAMED for x in found_from("by_chain")), "it uses `TABLE` only"
    assert any(x is inner.TABLE for x in found_from("by_chain")) and any(x is inner for x in found_from("by_chain"))
    assert any(x is inner.NEVER_NAMED for x in found_from("by_alias")), "the module goes to a variable"


class Guards:
    """Code of its own for every look at an attribute, which looks at others."""

    def __getattribute__(self, name):
        guarded = super().__getattribute__("__dict__").get("guarded")
        if guarded is not None and name in guarded:
            raise AttributeError(name)
        return super().__getattribute__(name)


class Remembers(Guards):
    aliases = {"factor": "scale"}

    def __init__(self):
        self.scale = 3

    def __getattribute__(self, name):
        if name != "aliases" and name in super().__getattribute__("aliases"):
            name = super().__getattribute__("aliases")[name]
        return super().__getattribute__(name)


class Scales(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Remembers()

    def forward(self, x):
        return x * self.config.factor if x.sum() > self.config.scale else x


def test_an_object_with_code_for_its_attributes():
    check(Scales(), X, paths=2)
