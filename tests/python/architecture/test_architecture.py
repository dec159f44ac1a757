# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The shape of the code base: which room may import which, and what no file may hold."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "python" / "dycl_tvm"
MAX_LINES = 600

#: Rooms that each room may import from (itself aside). What is not listed may be imported by nobody but tests.
ALLOWED: dict[str, set[str]] = {
    "_version": set(),
    "errors": {"hcfg"},  # for annotations only, see test_errors_import_nothing_at_run_time
    "garbage": set(),
    "cache": {"errors"},
    "bound": set(),
    "progress": {"errors"},
    "compare": set(),
    "cpu_features": set(),
    # Shares nothing with the front ends: that is the worth of the check.
    "verify": {"errors", "hcfg", "runtime", "compile", "codegen", "progress", "target", "garbage"},
    "hcfg": {"errors", "runtime"},
    "frontend": {"bound", "errors", "garbage", "hcfg", "runtime"},
    "passes": {"errors", "hcfg"},
    "backends": {"cpu_features", "errors"},
    "compile": {"cache", "errors", "hcfg", "backends"},
    "codegen": {"cache", "cpu_features", "errors", "hcfg", "compile", "runtime", "_version"},
    "runtime": {"errors", "_version"},
    "zoo": set(),
    "target": {"cpu_features", "errors", "runtime"},
    "example_inputs": {"errors", "hcfg"},
    "onnx_export": {"errors", "hcfg", "runtime", "_version"},
    "coverage": {"errors", "hcfg", "runtime"},
    "artifact": {"errors", "hcfg", "passes", "compile", "codegen", "progress", "runtime", "target", "onnx_export", "verify"},
    "options": {"errors", "passes", "compile", "codegen", "target", "verify"},
    "staging": {"errors", "hcfg", "frontend", "progress", "example_inputs"},
    "quantization": {"staging", "hcfg", "passes", "coverage", "errors", "progress"},
    "build": {
        *("options", "staging", "hcfg", "passes", "compile", "codegen", "verify", "artifact", "quantization"),
        *("errors", "garbage", "progress", "target", "example_inputs"),
    },
    "deploy": {"cache", "codegen", "errors", "runtime", "target"},
    "serve": {"errors", "runtime", "_version"},
    "cli": {
        *("_version", "artifact", "build", "cache", "compare", "coverage", "deploy", "errors", "example_inputs", "frontend", "hcfg"),
        *("passes", "progress", "runtime", "serve", "staging", "target", "verify", "zoo"),
    },
}
#: Imports that a room may not have at all, anywhere in it.
FOREIGN = {
    "runtime": {"torch", "tvm", "tvm_ffi"},
    "serve": {"torch", "tvm", "tvm_ffi"},
    "zoo": {"tvm", "tvm_ffi", "dycl_tvm"},
    "hcfg": {"tvm", "tvm_ffi"},
    "passes": {"tvm", "tvm_ffi"},
    "frontend": {"tvm", "tvm_ffi"},
    "errors": {"torch", "tvm", "tvm_ffi"},
}


def _files() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py"))


def _room(path: Path) -> str:
    part = path.relative_to(PACKAGE).parts[0]
    return part.removesuffix(".py")


def _imports(path: Path) -> list[tuple[str, int]]:
    """Return (dotted name, line) of everything that a file imports, those inside functions too."""
    found: list[tuple[str, int]] = []
    package = ["dycl_tvm", *path.relative_to(PACKAGE).with_suffix("").parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            found += [(f"{base}.{alias.name}", node.lineno) for alias in node.names]
    return found


def _target_room(dotted: str) -> str | None:
    parts = dotted.split(".")
    return parts[1] if parts[0] == "dycl_tvm" and len(parts) > 1 else None


@pytest.mark.parametrize("path", _files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_follow_the_direction_of_the_data(path: Path) -> None:
    room = _room(path)
    if room == "__init__":
        return  # the public names come from everywhere, lazily; see test_public_package_is_light
    assert room in ALLOWED, f"{path}: a new room must be placed in ALLOWED"
    for dotted, line in _imports(path):
        to = _target_room(dotted)
        if to is not None and to != room:
            assert to in ALLOWED[room], f"{path}:{line}: {room} may not import {to}"
        foreign = dotted.split(".")[0] in FOREIGN.get(room, set()) and to != room
        assert not foreign, f"{path}:{line}: {room} may not import {dotted}"


def test_no_cycles_between_rooms() -> None:
    """Measured on the imports that are really there; those under TYPE_CHECKING in errors do not run."""
    graph: dict[str, set[str]] = {}
    for path in _files():
        room = _room(path)
        if room in ("__init__", "errors"):
            continue
        graph.setdefault(room, set()).update(to for dotted, _ in _imports(path) if (to := _target_room(dotted)) and to != room)
    found = cycle_in({room: sorted(to) for room, to in graph.items()})
    assert not found, " -> ".join(found)


def _modules() -> dict[str, Path]:
    """Return every file of the package by its dotted name."""
    return {".".join(("dycl_tvm", *p.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): p for p in _files()}


def _imported_modules(path: Path, modules: dict[str, Path]) -> Iterator[tuple[str, int]]:
    """Yield (module, line) of what a file imports of the package: a name of a module counts as the module."""
    for dotted, line in _imports(path):
        module = dotted if dotted in modules else dotted.rpartition(".")[0]
        if module in modules and modules[module] != path:
            yield module, line


def cycle_in(graph: dict[str, list[str]]) -> list[str]:
    """Return the nodes of one cycle, in order; nothing if there is none."""
    done: set[str] = set()

    def visit(node: str, way: list[str]) -> list[str]:
        if node in way:
            return [*way[way.index(node) :], node]
        if node not in done:
            for to in graph.get(node, []):
                if found := visit(to, [*way, node]):
                    return found
            done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := visit(node, []))), [])


def test_no_cycles_between_files() -> None:
    """Imports inside of functions and for type checkers count too; the annotations of errors do not run."""
    modules = _modules()
    graph = {
        name: [to for to, _ in _imported_modules(path, modules)]
        for name, path in modules.items()
        if name not in ("dycl_tvm", "dycl_tvm.errors")  # the public names come from everywhere, lazily
    }
    found = cycle_in(graph)
    assert not found, " -> ".join(found)


def test_a_cycle_is_found() -> None:
    assert cycle_in({"a": ["b", "c"], "b": ["d"], "c": ["b"], "d": []}) == []
    assert cycle_in({"a": ["b"], "b": ["c"], "c": ["d", "b"]}) == ["b", "c", "b"]


#: The front end from the bottom to the top: a file may import those of its own layer and of the layers below.
FRONTEND_LAYERS = (
    ("trace.bounded", "trace.clock", "trace.control_flow", "trace.limits", "trace.procedures", "trace.record", "trace.unrecorded"),
    ("trace.by_code",),
    ("trace.budget",),
    ("trace.decisions",),
    ("trace.heap",),
    ("trace.session",),
    ("trace.modes",),
    ("trace.values",),
    ("trace.join",),
    ("trace.results", "trace.dimensions", "trace.special_sizes", "trace.alike_results", "trace.signature"),
    ("onnx", "exported", "python.source"),
    (
        "python.trampolines",
        "python.state_decisions",
        "python.twins",
        "python.kept_lengths",
        "python.variants",
        "python.finalizers",
        "python.holders",
        "python.lives_on",
        "python.made_objects",
        "python.state_sharing",
        "python.persistent_state",
        "python.no_trace",
        "python.program",
        "python.attributes",
    ),
    ("python.flow",),
    ("python.calls",),
    ("python.operators",),
    ("python.explore", "python.first_call", "python.stage_model"),
)


def _layer(module: str) -> int | None:
    """Return the layer of a module of the front end; None if it has none."""
    name = module.removeprefix("dycl_tvm.frontend.")
    if name == "python":  # the package shows its one function
        return len(FRONTEND_LAYERS)
    for number, layer in enumerate(FRONTEND_LAYERS):
        if any(name == prefix or name.startswith(f"{prefix}.") for prefix in layer):
            return number
    return None


def test_the_front_end_is_in_layers() -> None:
    modules = {name: path for name, path in _modules().items() if name.startswith("dycl_tvm.frontend.")}
    unplaced = [name for name in modules if _layer(name) is None and name != "dycl_tvm.frontend.trace"]
    assert not unplaced, f"place them in FRONTEND_LAYERS: {unplaced}"
    upwards = []
    for name, path in modules.items():
        for to, line in _imported_modules(path, modules):
            here, there = _layer(name), _layer(to)
            assert here is not None and there is not None
            siblings = {name.split(".")[2], to.split(".")[2]}
            if there > here or (here == there and len(siblings) > 1):
                upwards.append(f"{path.relative_to(PACKAGE)}:{line} imports {to}")
    assert not upwards


#: The folders of the CPU kernels from the bottom to the top; the files beside them choose, and stand above all of them.
KERNEL_LAYERS = ("words", "reading", "families")


def _kernel_layer(module: str) -> int:
    folder = module.removeprefix("dycl_tvm.backends.tir_cpu.").split(".")[0]
    return KERNEL_LAYERS.index(folder) if folder in KERNEL_LAYERS else len(KERNEL_LAYERS)


def test_kernels_know_nothing_of_what_chooses_them() -> None:
    modules = {name: path for name, path in _modules().items() if name.startswith("dycl_tvm.backends.tir_cpu.")}
    assert {_kernel_layer(name) for name in modules} == set(range(len(KERNEL_LAYERS) + 1))
    upwards = [
        f"{path.relative_to(PACKAGE)}:{line} imports {to}"
        for name, path in modules.items()
        for to, line in _imported_modules(path, modules)
        if _kernel_layer(to) > _kernel_layer(name)
    ]
    assert not upwards


def test_front_ends_do_not_know_each_other() -> None:
    modules = _modules()
    for name, path in modules.items():
        room = name.split(".")[2] if name.startswith("dycl_tvm.frontend.") else None
        for to, line in _imported_modules(path, modules) if room else ():
            other = to.split(".")[2] if to.startswith("dycl_tvm.frontend.") else room
            assert other in (room, "trace"), f"{path}:{line}: {room} may not import {to}"


def _loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(PACKAGE.parent)}, check=True)
    return set(out.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import dycl_tvm",
        "import dycl_tvm; dycl_tvm.load; dycl_tvm.UnsupportedError; dycl_tvm.__version__; dir(dycl_tvm)",
        "import dycl_tvm.runtime",
        "import dycl_tvm.serve",
        "import dycl_tvm.cli.main; dycl_tvm.cli.main.parser()",
    ],
)
def test_public_package_is_light(statement: str) -> None:
    assert not _loaded_after(statement) & {"torch", "tvm", "tvm_ffi", "onnx"}


def test_build_stays_a_function_after_its_module_is_imported() -> None:
    import importlib

    import dycl_tvm

    module = importlib.import_module("dycl_tvm.build")
    assert callable(dycl_tvm.build)
    assert dycl_tvm.build is module.build


def test_public_names_exist() -> None:
    import dycl_tvm

    for name in dycl_tvm.__all__:
        assert getattr(dycl_tvm, name) is not None
    with pytest.raises(AttributeError, match="bulid"):
        dycl_tvm.bulid  # noqa: B018


def _sources() -> list[Path]:
    found: list[Path] = []
    for folder in ("python", "src", "tests", "examples", "benchmarks", "docs", "cmake", ".ci"):
        found += [p for p in (ROOT / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts and ".egg-info" not in str(p)]
    found += [p for p in ROOT.iterdir() if p.is_file() and p.name not in (".git", "LICENSE")]
    return [p for p in found if p.suffix in {".py", ".cc", ".h", ".c", ".cpp", ".cmake", ".md", ".txt", ".toml", ".in", ""}]


def test_files_are_short() -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines()) for p in _sources() if p.suffix != ".md"}
    assert {name: n for name, n in lengths.items() if n > MAX_LINES} == {}


def test_sources_begin_with_the_licence() -> None:
    missing = []
    for path in _sources():
        if path.suffix in {".py", ".cc", ".h", ".c", ".cpp", ".cmake"} and path.stat().st_size:
            head = path.read_text(encoding="utf-8").splitlines()[:2]
            if not any("Licensed under the Apache License, Version 2.0" in line for line in head):
                missing.append(str(path.relative_to(ROOT)))
    assert not missing


def test_no_paths_of_one_machine() -> None:
    # Split so that this file does not find itself. The user called user is nobody.
    words = ["/ho" + r"me/(?!user/)\w", "/wo" + r"rk/", "/ro" + r"ot/", "/Us" + r"ers/", "/opt/wh" + "eels", "/opt/py" + "pi"]
    pattern = re.compile("|".join(words))
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in _sources()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found
