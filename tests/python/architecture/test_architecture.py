# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The shape of the code base: which room may import which, and what no file may hold."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
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
    "progress": set(),
    "compare": set(),
    # Shares nothing with the front ends: that is the worth of the check.
    "verify": {"errors", "hcfg", "runtime", "compile", "codegen", "target"},
    "hcfg": {"errors", "runtime"},
    "frontend": {"errors", "hcfg", "runtime"},
    "passes": {"errors", "hcfg"},
    "backends": {"errors", "hcfg"},
    "compile": {"errors", "hcfg", "backends", "runtime"},
    "codegen": {"errors", "hcfg", "compile", "runtime", "_version"},
    "runtime": {"errors", "_version"},
    "zoo": set(),
    "target": {"errors", "runtime"},
    "example_inputs": {"errors"},
    "onnx_export": {"errors", "hcfg", "runtime", "_version"},
    "coverage": {"errors", "hcfg", "runtime"},
    "artifact": {"errors", "hcfg", "passes", "compile", "codegen", "progress", "target", "onnx_export", "verify"},
    "build": {
        "errors",
        "hcfg",
        "frontend",
        "passes",
        "compile",
        "codegen",
        "garbage",
        "progress",
        "target",
        "example_inputs",
        "artifact",
        "verify",
    },
    "deploy": {"codegen", "errors", "runtime", "target"},
    "cli": {
        *("_version", "artifact", "build", "compare", "coverage", "deploy", "errors", "example_inputs", "frontend", "hcfg"),
        *("passes", "progress", "runtime", "target", "verify", "zoo"),
    },
}
#: Imports that a room may not have at all, anywhere in it.
FOREIGN = {
    "runtime": {"torch", "tvm", "tvm_ffi"},
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
    done: list[str] = []

    def visit(room: str, way: tuple[str, ...]) -> None:
        assert room not in way, " -> ".join((*way, room))
        if room not in done:
            for to in sorted(graph.get(room, ())):
                visit(to, (*way, room))
            done.append(room)

    for room in sorted(graph):
        visit(room, ())


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
