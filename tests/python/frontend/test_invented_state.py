# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Correctness rests on detection: state of kinds that no code names is kept as in eager, on every path and in every call, or refused."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import linecache
import subprocess
import sys
import sysconfig
import textwrap
import types
from pathlib import Path

import pytest
import torch
from differential import same
from invented_kinds import KINDS, LIBRARY, MODEL, OF_PLACES, PLACES, RIGHT

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.frontend.python.source import locate
from dycl_tvm.frontend.trace.heap.journal import Journal
from dycl_tvm.frontend.trace.heap.places import Place
from dycl_tvm.frontend.trace.heap.settings import SETTINGS
from dycl_tvm.hcfg.interpreter import graph_initial, interpret

#: One in so many of the structures is tried with a kind.
SHARE = 3
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
    (folder / "library.py").write_text(LIBRARY)
    return folder


@pytest.fixture
def library(request, installed, monkeypatch):
    """The file of a library whose functions run rewritten, or natively."""
    if getattr(request, "param", "rewritten") == "native":
        roots = (*locate._library_roots(), f"{installed}/")
        monkeypatch.setattr(locate, "_library_roots", lambda: roots)
    locate.is_library_file.cache_clear()
    yield installed / "library.py"
    locate.is_library_file.cache_clear()


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """Whatever a program sets is set back; PyTorch's test utilities, which another test may have imported, let nothing be set."""
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)
    before, recursion = SETTINGS.read(), sys.getrecursionlimit()
    yield
    SETTINGS.write(before)
    sys.setrecursionlimit(recursion)


def load(name, file):
    """Import a module anew: what it keeps is as at first."""
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def program(kind, place, held):
    made, change, read = KINDS[kind]
    body = PLACES[place]
    for word, text in (("CHANGE", change), ("READ", read)):
        body = body.replace(word, text.replace("KEPT", "kept"))
    text = MODEL.replace("        PLACE", textwrap.indent(body.strip(), " " * 8))
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


#: A program of each kind of state in some of the structures; every structure with some of the kinds. Libraries run rewritten and natively.
CASES = [*[(kind, "rewritten") for kind in KINDS], *[(kind, "native") for kind in KINDS if kind.startswith("library")]]
STRUCTURES = [(place, held) for place in PLACES for held in (True, False)]


@pytest.mark.parametrize(("number", "library"), [*enumerate(how for _, how in CASES)], indirect=["library"], ids=map("-".join, CASES))
def test_state_of_any_kind_is_right_or_refused(number, compiled, library):
    kind = CASES[number][0]
    right, wrong = 0, []
    for place, held in STRUCTURES[number % SHARE :: SHARE]:
        text = program(kind, place, held)
        name = f"{kind}_{place}_{held}"
        try:
            right += agrees(lambda text=text, name=name: model_of(text, name, compiled, library))
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)
    assert right or kind not in RIGHT
    if CASES[number] == (kind, "rewritten") and kind in RIGHT:
        assert right == len(STRUCTURES[number % SHARE :: SHARE])


def kinds_of_places(base=Place):
    """Return the classes of places, by name."""
    found = {} if inspect.isabstract(base) else {base.__name__: base}
    for cls in base.__subclasses__():
        found.update(kinds_of_places(cls))
    return found


@pytest.fixture
def touched(monkeypatch):
    """The kinds of the places that are saved; each is taken apart and put together again when it is."""
    kinds, touch = set(), Journal.touch

    def checked(journal, place, surely=True):
        kinds.add(type(place).__name__)
        contents = place.read()
        structure, items = place.flatten(contents)
        same = place.unflatten(contents, items)
        assert len(place.labels(contents)) == len(items)
        assert place.flatten(same)[0] == structure
        assert all(a is b for a, b in zip(place.flatten(same)[1], items))
        place.write(same)
        touch(journal, place, surely)

    monkeypatch.setattr(Journal, "touch", checked)
    return kinds


@pytest.mark.parametrize(("place", "library"), [(p, OF_PLACES.get(p, ("", ""))[1]) for p in kinds_of_places()], indirect=["library"])
def test_a_place_of_any_kind_keeps_the_contract(place, compiled, library, touched):
    """It is undone, joined, left by jumps, rolled, peeled, forked and kept between calls."""
    assert place in OF_PLACES, "give the new kind of place a kind of state"
    kind = OF_PLACES[place][0]
    settings, right = SETTINGS.read(), 0
    for number, structure in enumerate(PLACES):
        for held in (True, False) if structure == "if" else (number % 2 == 0,):
            text = program(kind, structure, held)
            try:
                right += agrees(
                    lambda text=text, structure=structure, held=held: model_of(text, f"{kind}_{structure}_{held}", compiled, library)
                )
            finally:
                SETTINGS.write(settings)
    assert place in touched
    assert right or place in ("Context", "Settings"), "what the process has is not a network's to change: only these are refused"


UNUSED = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.plain, self.pair = invented.Plain(), (invented.GetSet(), 1)
        self.members, self.bump = [invented.Member()], invented.Plain().bump
        self.table = {invented.Plain(): 1, "a": 2}

    def forward(self, x):
        if self.plain is not None and isinstance(self.plain, invented.Plain) and type(self.plain) is invented.Plain:
            x = x + 1
        if x.sum() > 0 and self.pair[1] and len(self.members) == 1:
            x = x * self.table["a"]
        return x - 2 if getattr(self, "plain", None) is self.plain else x
"""


def test_compiled_objects_that_are_held_and_not_used_stay_as_they_are(compiled, library):
    model = model_of(f"import torch\n{UNUSED}", "unused", compiled, library)
    held = dict(vars(model))
    assert agrees(lambda: model)
    assert all(vars(model)[name] is x for name, x in held.items())


def test_use_of_compiled_code_that_is_not_known_is_refused_where_it_stands(compiled, library):
    uses = ("self.plain.get()", "self.pair[0].next", "self.members[0].n", "self.bump()", "str(self.plain)", "[*self.table][0].get()")
    for use in (*uses, "[*map(self.bump, [1])]"):
        text = UNUSED.replace("        return x - 2", f"        {use}\n        return x - 2")
        with pytest.raises(UnsupportedError, match=r"compiled code of \w+") as error:
            stage(model_of(f"import torch\n{text}", "used", compiled, library), (CALLS[0],))
        assert error.value.origin.code.strip() == use
