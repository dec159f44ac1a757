# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Correctness rests on detection: state of kinds that no code names is kept as in eager, on every path and in every call, or refused."""

from __future__ import annotations

import copy
import importlib.util
import linecache
import subprocess
import sys
import sysconfig
import textwrap
import types
from pathlib import Path

import invented_kinds
import pytest
import torch
from differential import same

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.frontend.python.source import locate
from dycl_tvm.hcfg.interpreter import graph_initial, interpret

CALLS = [torch.full((2, 3), v) for v in (0.5, -1.0, 0.1, 0.4, -0.2, 2.0)]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """The path of the compiled module."""
    out = tmp_path_factory.mktemp("invented") / f"invented{sysconfig.get_config_var('EXT_SUFFIX')}"
    source = Path(__file__).with_name("invented.c")
    include = sysconfig.get_paths()["include"]
    if not Path(include, "Python.h").exists():
        pytest.skip("Python's headers are not installed")
    subprocess.run(["cc", "-O1", "-w", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(out)], check=True)
    return out


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """The folder of a library, beside Python's own."""
    folder = tmp_path_factory.mktemp("lib") / "site-packages"
    folder.mkdir()
    (folder / "library.py").write_text(invented_kinds.LIBRARY)
    return folder


@pytest.fixture(params=["rewritten", "native"])
def library(request, installed, monkeypatch):
    """The file of a library whose functions run rewritten, or as they are."""
    if request.param == "native":
        roots = (*locate._library_roots(), f"{installed}/")
        monkeypatch.setattr(locate, "_library_roots", lambda: roots)
    locate.is_library_file.cache_clear()
    yield installed / "library.py"
    locate.is_library_file.cache_clear()


def load(name, file):
    """Import a module anew: what it keeps is as at first."""
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def program(kind, place, held):
    made, change, read = invented_kinds.KINDS[kind]
    body = invented_kinds.PLACES[place]
    for word, text in (("CHANGE", change), ("READ", read)):
        body = body.replace(word, text.replace("KEPT", "kept"))
    text = invented_kinds.MODEL.replace("        PLACE", textwrap.indent(body.strip(), " " * 8))
    return text.replace("MADE", made).replace("HELD", str(held))


def model_of(text, name, compiled, library):
    """Run a program as if it stood in a file, with modules of its own."""
    file = f"<written by a test>/{name}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    module = types.ModuleType(name)
    module.invented, module.library = load("invented", compiled), load("library", library)
    sys.modules[name] = module
    exec(compile(text, file, "exec"), module.__dict__)
    return module.Model().eval()


def agrees(make):
    """Whether a program is right in a sequence of calls; False if it is refused."""
    try:
        graph = stage(make(), (CALLS[0],))
    except UnsupportedError:
        return False
    eager, state = make(), [graph_initial(v.initial) for v in graph.state]
    for x in CALLS:
        with torch.no_grad():
            want = copy.deepcopy(eager(x.clone()))
        got = interpret(graph, [x.clone()], state)[0]
        assert same(want, got), f"eager {want}\nstaged {got}"
    return True


@pytest.mark.parametrize("kind", invented_kinds.KINDS)
def test_state_of_any_kind_is_right_or_refused(kind, compiled, library):
    wrong = []
    for place in invented_kinds.PLACES:
        for held in (True, False):
            text = program(kind, place, held)
            name = f"{kind}_{place}_{held}"
            try:
                agrees(lambda text=text, name=name: model_of(text, name, compiled, library))
            except AssertionError as error:
                wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)
