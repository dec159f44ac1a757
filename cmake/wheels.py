# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``make wheel``: wheels of the compiler and of the runtime alone, for x86-64 and aarch64, for every Linux with glibc 2.17 or later.

``dycl-tvm-runtime`` has what runs, serves and inspects libraries and needs NumPy only: the modules of some rooms that can be imported
without torch and TVM. It is the package ``dycl_tvm`` under another name, so one of the two is installed, not both.
The extension module of calls is compiled by zig, which has the headers of every glibc. Each wheel is looked at again when it is made: the
machine of its binary, the libraries that it asks for, and the newest glibc whose symbols it uses.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from dycl_tvm.codegen.toolchain import OLDEST_GLIBC, zig

ROOT = Path(__file__).resolve().parents[1]
TREE = ("setup.py", "pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "NOTICE", "python", "src", "cmake")
GLIBC = tuple(map(int, OLDEST_GLIBC.split(".")))
MACHINES = {"x86_64": "X86-64", "aarch64": "AArch64"}
#: The rooms of the runtime.
RUNTIME_ROOMS = ("runtime", "serve", "cli", "coverage", "hcfg")
COMPILER_LIBRARIES = {"torch", "tvm", "tvm_ffi", "onnx", "cloudpickle"}
#: Libraries of a system, which every program has.
SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-aarch64.so.1", "ld-linux-x86-64.so.2"}


def imports(path: Path) -> set[str]:
    """Return what a module imports when it is imported: not what its functions do, nor what is for type checkers only."""
    found: set[str] = set()
    waiting: list[ast.AST] = list(ast.parse(path.read_text(encoding="utf-8")).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)
    return found


def modules_of_runtime(package: Path) -> set[str]:
    """Return the names of the modules of its rooms that can do without the compiler's libraries, and of what they import."""
    files = {}
    for path in package.rglob("*.py"):
        name = ".".join(("dycl_tvm", *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__")
        files[name] = path
    direct = {name: imports(path) for name, path in files.items()}
    reached: dict[str, set[str]] = {}
    for name in files:
        seen, waiting = set[str](), [name]
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                parents = {one.rpartition(".")[0]} if one.startswith("dycl_tvm.") else set()
                waiting += direct.get(one, set()) | parents
        reached[name] = seen
    light = {name for name in files if not {other.split(".")[0] for other in reached[name]} & COMPILER_LIBRARIES}
    kept = {name for name in light if name == "dycl_tvm" or name.split(".")[1] in RUNTIME_ROOMS}
    return {other for name in kept for other in reached[name] if other in files}


def copy_of_tree(folder: Path) -> Path:
    """Return a folder with what a wheel is made of, so that nothing is left behind in the tree."""
    tree = folder / "tree"
    tree.mkdir()
    skip = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    for item in TREE:
        source = ROOT / item
        shutil.copytree(source, tree / item, ignore=skip) if source.is_dir() else shutil.copy2(source, tree / item)
    return tree


def make_runtime(tree: Path) -> None:
    """Turn a copy of the source tree into that of the runtime."""
    package = tree / "python" / "dycl_tvm"
    kept = modules_of_runtime(package)
    for path in list(package.rglob("*.py")):
        name = ".".join(("dycl_tvm", *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__")
        if name not in kept:
            path.unlink()
    project = tree / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    for pattern, new in (
        (r'^name = "dycl-tvm"$', 'name = "dycl-tvm-runtime"'),
        (
            r"^description = .*$",
            'description = "Runs, serves and inspects the shared libraries that dycl-tvm makes of dynamic neural networks"',
        ),
        (r"^dependencies = \[\n.*?^\]$", 'dependencies = ["numpy>=1.26"]'),
        (r'^dycl_tvm = \["py.typed".*\]$', 'dycl_tvm = ["py.typed"]'),
    ):
        text, count = re.subn(pattern, new, text, flags=re.MULTILINE | re.DOTALL if "\\n" in pattern else re.MULTILINE)
        assert count == 1, f"pyproject.toml has changed: {pattern}"
    before, rest = text.split("[project.optional-dependencies]\n", 1)
    extras, after = rest.split("\n[project.scripts]", 1)
    served = [line for line in extras.splitlines() if line.startswith(("serve = ", "ray = "))]
    text = f"{before}[project.optional-dependencies]\n" + "\n".join(served) + f"\n\n[project.scripts]{after}"
    project.write_text(text, encoding="utf-8")


def compiler(folder: Path, machine: str) -> Path:
    """Return a command that compiles for a machine as g++ does, and as the libraries of models are compiled for boards."""
    path = folder / f"c++-{machine}"
    made = zig(machine)
    variables = [f"{name}={value}" for name, value in made.environment]
    words = shlex.join(["env", *variables, *made.command, *made.flags, *made.link_flags])
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def look_at(wheel: Path, machine: str) -> str:
    """Check what a wheel's binaries need, and return it in words."""
    said = []
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as held:
        binaries = [name for name in held.namelist() if name.endswith(".so")]
        assert len(binaries) == 1, f"{wheel.name} has {binaries}"
        for name in binaries:
            text = _output("readelf", "-W", "-h", "-d", "-V", held.extract(name, folder))
            assert re.search(rf"Machine:.*{MACHINES[machine]}", text), f"{name} is not for {machine}"
            needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
            assert needed <= SYSTEM_LIBRARIES, f"{name} asks for {sorted(needed - SYSTEM_LIBRARIES)}"
            glibc = max([tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_(\d+\.\d+)", text)], default=(0, 0))
            assert glibc <= GLIBC, f"{name} needs glibc {glibc}"
            said.append(f"{Path(name).name}: {machine}, glibc {'.'.join(map(str, glibc))}, {', '.join(sorted(needed)) or 'no library'}")
    return "; ".join(said)


def build(machine: str, runtime: bool, out: Path) -> Path:
    """Make one wheel."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree = copy_of_tree(folder)
        if runtime:
            make_runtime(tree)
        variables = {**os.environ, "CXX": str(compiler(folder, machine))}
        _output(
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            "-w",
            str(folder),
            str(tree),
            variables=variables,
        )
        (made,) = folder.glob("*.whl")
        _output(
            sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}", str(made)
        )
        (tagged,) = folder.glob("*.whl")
        print(f"{tagged.name}  {tagged.stat().st_size / 1e6:.1f} MB  ({look_at(tagged, machine)})", flush=True)
        out.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy2(tagged, out))


def _output(*command: str, variables: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, text=True, capture_output=True, env=variables)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-60:])
        sys.exit(f"{' '.join(command)} ended with {done.returncode}\n{last}")
    return done.stdout


def main() -> None:
    """Make the wheels that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the wheels (default dist)")
    parser.add_argument("--machine", choices=tuple(MACHINES), action="append", help="default: both (repeatable)")
    parser.add_argument("--only", choices=("compiler", "runtime"), help="default: both")
    asked = parser.parse_args()
    for runtime in (False, True):
        if asked.only in (None, "runtime" if runtime else "compiler"):
            for machine in asked.machine or MACHINES:
                build(machine, runtime, asked.out)


if __name__ == "__main__":
    main()
