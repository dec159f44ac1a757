# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The session: what staging shares between layers that do not know each other."""

from __future__ import annotations

import pytest
import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.exported.session import ExportedSession
from dycl_tvm.frontend.trace.session import OfOneRun, Session, current, staging
from dycl_tvm.frontend.trace.values.constants import Constants, constants
from dycl_tvm.frontend.trace.values.recording import recording
from dycl_tvm.frontend.trace.values.tensors import fresh, read
from dycl_tvm.hcfg.nodes import HCFG, Return, ReturnSite, Value
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.hcfg.verify import verify


class Kept:
    def __init__(self) -> None:
        self.items: list[int] = []


class KeptForOneRun(OfOneRun):
    def __init__(self) -> None:
        self.items: list[int] = []


def test_what_a_layer_keeps_is_found_by_its_class() -> None:
    session, other = Session(lambda: None), Session(lambda: None)
    session.get(Kept).items.append(1)
    assert session.get(Kept).items == [1]
    assert other.get(Kept).items == []
    mine = Kept()
    session.keep(mine)
    assert session.get(Kept) is mine


def test_a_new_run_forgets_what_belongs_to_one() -> None:
    session = Session(lambda: None)
    session.get(Kept).items.append(1)
    session.get(KeptForOneRun).items.append(1)
    session.guard_depth = session.native_depth = 2
    session.begin_run([])
    assert session.get(Kept).items == [1]
    assert session.get(KeptForOneRun).items == []
    assert not session.may_be_caught()


def test_a_session_is_under_way_only_while_it_records() -> None:
    session = Session(lambda: None)
    with pytest.raises(RuntimeError, match="outside of staging"):
        current()
    with pytest.raises(KeyError), recording(session, []):
        assert staging() and current() is session
        raise KeyError
    assert not staging()


def test_what_a_run_changes_is_taken_back_at_its_end() -> None:
    session, items = Session(lambda: None), [1]
    with recording(session, []):
        session.heap.changing(items)
        items.append(2)
    assert items == [1]


def test_any_front_end_records_a_graph_with_it() -> None:
    """What docs/adding-a-front-end.md says."""
    session, weight = Session(lambda: None), torch.ones(2, 3)
    session.get(Constants).names = {id(weight): "w"}
    entry = session.builder.entry
    entry.params = [Value(TensorType((2, 3), "float32"), "x")]
    with recording(session, []):
        x = fresh(entry.params[0])
        y = x.clone()
        y[0] = 0.0
        result = read(y + weight)
        assert constants().of(weight).name == "w"
        session.builder.terminate(Return(ReturnSite({"leaf": 0, "type": "tensor"}, None), [result], []))
    graph = HCFG("net", {"dict": [["x", {"leaf": 0, "type": "tensor"}]]}, ["x"], [entry])
    verify(graph)
    assert [constant.name for constant in graph.constants() if constant.name] == ["w"]


def test_an_exported_program_decides_nothing() -> None:
    session = ExportedSession({})
    session.builder.entry.params = [Value(TensorType((), "float32"), "x")]
    with recording(session, []), pytest.raises(UnsupportedError, match="tests a value that is known only at run time"):
        bool(fresh(session.builder.entry.params[0]) > 0)
