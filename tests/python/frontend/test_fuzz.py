# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Differential fuzzing: random forwards, compiled, against eager. ``make fuzz`` runs more of them (DYCL_FUZZ_PROGRAMS)."""

from __future__ import annotations

import functools
import importlib.util
import os
import random
from pathlib import Path

import torch
from differential import leaves, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from programs import Generator

import dycl_tvm
from dycl_tvm.errors import PathExplosionError, UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.verify import verify
from dycl_tvm.passes import run_passes

PROGRAMS = int(os.environ.get("DYCL_FUZZ_PROGRAMS", "48"))
#: A program of more paths than this is refused, as a seventh of them are: what came of the paths is then thrown away.
MAX_PATHS = 150 if "DYCL_FUZZ_PROGRAMS" in os.environ else 50
#: Refusals that a random program may deserve: a loop's state that changes its type, or too many forks.
ALLOWED = ("trip count is known only at run time", "paths cannot share", "known at build time in one iteration")

#: Every so many programs one is compiled to a library; the others are run by the interpreter, after the passes.
COMPILED_EVERY = 25

counts = {"programs": 0, "refused": 0, "compiled": 0, "runs": 0}


def load(source: str, folder: Path):
    """Import a program from a file, so that its source can be found."""
    counts["programs"] += 1
    path = folder / f"program_{counts['programs']}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_one(source: str, folder: Path) -> None:
    """Stage a program and compare it with eager on inputs of several scales."""
    module = load(source, folder)
    torch.manual_seed(0)
    net = module.Net().eval()
    inputs = [(torch.randn(1, 4) * scale, torch.randn(1, 4) * scale) for scale in (0.1, 0.5, 1.0, 2.0) for _ in range(4)]
    try:
        graph = stage(net, inputs[0], max_paths=MAX_PATHS)
    except PathExplosionError:
        counts["refused"] += 1
        return
    except UnsupportedError as error:
        assert any(a in str(error) for a in ALLOWED), f"{error}\n\n{source}"
        counts["refused"] += 1
        return
    verify(graph)
    if counts["programs"] % COMPILED_EVERY == 0:
        counts["compiled"] += 1
        run = compiled(net, inputs[0], folder)
    else:
        run_passes(graph)
        run = functools.partial(interpreted, graph)
    for args in inputs:
        counts["runs"] += 1
        want, got = outcome(net, args), outcome(run, args)
        if isinstance(want, Exception) or isinstance(got, Exception):
            assert kind_of(want) == kind_of(got), f"eager {want!r}, compiled {got!r}\n\n{source}"
        else:
            assert same(want, got), f"eager    {want}\ncompiled {got}\n\n{source}"


def interpreted(graph, *args):
    """Run the graph by the reference interpreter."""
    return interpret(graph, leaves(args))[0]


def compiled(net, args, folder: Path):
    """Compile a program to a library, and load it."""
    art = dycl_tvm.build(net, args, target="llvm", max_paths=MAX_PATHS)
    library = folder / f"program_{counts['programs']}.so"
    return dycl_tvm.load(art.export_library(library), art.save_params(library.with_suffix(".params")))


def outcome(function, args):
    """Return the result of a call, or the exception that it raises."""
    try:
        with torch.no_grad():
            return function(*[a.clone() for a in args])
    except Exception as error:
        return error


def kind_of(x) -> str:
    """Return the name of an exception's type, as the user's program raises it."""
    return x.kind if isinstance(x, dycl_tvm.RunError) else type(x).__name__


#: `make fuzz` keeps what failed, and what it found interesting, in this folder, and begins with it the next time.
CORPUS = DirectoryBasedExampleDatabase("out/fuzz-corpus") if "DYCL_FUZZ_PROGRAMS" in os.environ else None


@settings(
    max_examples=PROGRAMS,
    deadline=None,
    database=CORPUS,
    derandomize="DYCL_FUZZ_PROGRAMS" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(choices=st.binary(min_size=800, max_size=800))
def test_random_programs(choices, tmp_path_factory):
    if not hasattr(test_random_programs, "folder"):
        test_random_programs.folder = tmp_path_factory.mktemp("programs")
    stream = iter(choices)
    run_one(Generator(lambda n: next(stream, 0) % n).program(), test_random_programs.folder)


def test_most_programs_are_accepted(tmp_path):
    """These are staged only: that programs do what they do in eager is shown above."""
    programs, refused = 8, 0
    for seed in range(programs):
        net = load(Generator(random.Random(seed).randrange).program(), tmp_path).Net().eval()
        try:
            stage(net, (torch.randn(1, 4), torch.randn(1, 4)), max_paths=MAX_PATHS)
        except UnsupportedError as error:
            refused += 1
            assert isinstance(error, PathExplosionError) or any(a in str(error) for a in ALLOWED), str(error)
    print(f"{refused} of {programs} programs refused")
    assert refused <= 0.35 * programs
