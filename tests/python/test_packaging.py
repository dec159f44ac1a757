# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The wheel is complete: installed into a fresh environment it compiles, links and runs. The pins are those that are installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement

import dycl_tvm

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]


def _wheels() -> Any:
    spec = importlib.util.spec_from_file_location("dycl_wheels", ROOT / "cmake" / "wheels.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


#: What `make wheel` runs.
WHEELS = _wheels()


def _run(command: Sequence[str | Path], cwd: Path, code: int = 0, **env: str) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, env={**clean, **env})
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as a user's pip would, from a copy of the tree so that nothing is left behind in it."""
    folder = tmp_path_factory.mktemp("wheel")
    return _wheel_of(WHEELS.copy_of_tree(folder), folder)


def _wheel_of(tree: Path, folder: Path) -> Path:
    _run([sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, tree], folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path) -> Path:
    """A fresh virtual environment with the wheel; the dependencies are those of the environment that tests."""
    folder = wheel.parent / "venv"
    _run([sys.executable, "-m", "venv", "--without-pip", folder], wheel.parent)
    python = folder / "bin" / "python"
    _run([sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel], wheel.parent)
    site = _run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], wheel.parent).strip()
    # A path in a .pth file is searched last and its own .pth files are not read, so an editable install there plays no part.
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder


def test_the_wheel_has_every_file(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "python" / "dycl_tvm"
    modules = {f"dycl_tvm/{p.relative_to(package).as_posix()}" for p in package.rglob("*.py")}
    modules |= {"dycl_tvm/py.typed", "dycl_tvm/backends/tir_cpu/tuned.json"}
    assert sorted(modules - held) == []
    runtime = ROOT / "src" / "runtime"
    sources = {f"dycl_tvm/src/{p.name}" for p in runtime.iterdir() if p.suffix in (".cc", ".h", ".map")}
    sources |= {f"dycl_tvm/rpc_server/{p.name}" for p in (ROOT / "src" / "rpc_server").iterdir()}
    headers = {f"dycl_tvm/include/{p.relative_to(runtime / 'include').as_posix()}" for p in (runtime / "include").rglob("*.h")}
    assert sources
    assert headers
    assert sorted((sources | headers) - held) == []
    if Path(sysconfig.get_path("include"), "Python.h").is_file():
        assert "dycl_tvm/runtime/_calls.abi3.so" in held
        assert re.search(r"-cp310-abi3-linux_\w+\.whl$", wheel.name)
    assert any(name.endswith("licenses/LICENSE") for name in held)
    assert any(name.endswith("licenses/NOTICE") for name in held)
    assert not [name for name in held if name.startswith(("tests", "src/", "build"))]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with dycl-tvm-runtime and NumPy, and nothing else."""
    folder = tmp_path_factory.mktemp("runtime")
    tree = WHEELS.copy_of_tree(folder)
    WHEELS.make_runtime(tree)
    wheel = _wheel_of(tree, folder)
    _run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], folder)
    python = folder / "venv" / "bin" / "python"
    _run([sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel], folder)
    site = Path(_run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder).strip())
    for item in Path(sysconfig.get_path("purelib")).glob("numpy*"):
        (site / item.name).symlink_to(item)
    return folder / "venv"


def test_the_runtime_runs_libraries_without_compiler_and_torch(environment: Path, runtime: Path, tmp_path: Path) -> None:
    (tmp_path / "user_net.py").write_text("def model(x):\n    return x + 1 if x.sum() > 0 else x * 2\n", encoding="utf-8")
    _run([environment / "bin" / "dycl-tvm", "compile", "user_net.py:model", "-i", "2x3", "-o", "net.so", "-q"], tmp_path)
    python, command = runtime / "bin" / "python", runtime / "bin" / "dycl-tvm"
    bare = {"PATH": "", "CXX": "none", "CC": "none"}
    program = """
        import importlib.util, numpy, dycl_tvm
        for name in ("torch", "tvm", "tvm_ffi", "onnx", "cloudpickle"):
            assert importlib.util.find_spec(name) is None, name
        module = dycl_tvm.load("net.so", "net.params")
        assert (module(numpy.ones((2, 3), "float32")) == 2).all() and (module(-numpy.ones((2, 3), "float32")) == -2).all()
        try:
            dycl_tvm.build
        except ImportError as error:
            print(error)
    """
    said = _run([python, "-c", textwrap.dedent(program)], tmp_path, **bare)
    assert "pip install dycl-tvm" in said
    assert "float32[2, 3]" in _run([command, "run", "net.so"], tmp_path, **bare)
    assert "arena" in _run([command, "inspect", "net.so"], tmp_path, **bare)
    compiling = [command, "compile", "user_net.py:model", "-i", "2x3", "-o", "other.so"]
    assert "dycl-tvm-runtime is installed here" in _run(compiling, tmp_path, code=2, **bare)


def test_the_installed_package_compiles_and_runs(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "user_net.py").write_text(
        textwrap.dedent("""
            import torch

            def model(x):
                return (x + 1, "high") if x.sum() > 0 else (x * 2, "low")
        """),
        encoding="utf-8",
    )
    command = environment / "bin" / "dycl-tvm"
    where = _run([environment / "bin" / "python", "-c", "import dycl_tvm; print(dycl_tvm.__file__)"], tmp_path).strip()
    assert Path(where).is_relative_to(environment), "the installed package must be the one that is tested"
    assert "dycl-tvm 0." in _run([command, "--version"], tmp_path)
    # Objects of the runtime that are kept are used only if every source in the wheel is what they were made of.
    _run([command, "compile", "user_net.py:model", "-i", "2x3", "-o", "net.so", "-q"], tmp_path)
    text = _run([command, "run", "net.so", "--seed", "1"], tmp_path)
    assert "float32[2, 3]" in text
    assert "'high'" in text or "'low'" in text


@pytest.fixture(scope="module")
def manylinux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the runtime as `make wheel` makes it for this kind of machine."""
    if importlib.util.find_spec("ziglang") is None or platform.machine() != "x86_64":
        pytest.skip("made on x86-64 machines by zig: pip install 'dycl-tvm[cross]'")
    return Path(WHEELS.build("x86_64", True, tmp_path_factory.mktemp("manylinux")))


def test_auditwheel_agrees_with_the_tag(manylinux: Path) -> None:
    if importlib.util.find_spec("auditwheel") is None:
        pytest.skip("without auditwheel: pip install 'dycl-tvm[dev]'")
    said = " ".join(
        _run(
            [sys.executable, "-m", "auditwheel", "show", manylinux], manylinux.parent, PYTHONPATH=os.pathsep.join(filter(None, sys.path))
        ).split()
    )
    assert f'is consistent with the following platform tag: "{manylinux.stem.rpartition("-")[2]}"' in said


#: Runs a program in another root: the first argument is where that has its /proc, the second the root itself.
_INSIDE = ("unshare", "-Urm", "sh", "-c", 'mount --rbind /proc "$0/proc" && exec chroot "$@"')
#: The same, with the system's /dev, which PyTorch reads, and a folder of packages that is /packages there.
_WITH_PACKAGES = (
    *("unshare", "-Urm", "sh", "-c"),
    'mount --bind "$0" "$1/packages" && mount --rbind /dev "$1/dev" && mount --rbind /proc "$1/proc" && exec chroot "$@"',
)
#: What the programs of a bare root may use besides its own files.
_LIBRARY = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x", flags=re.MULTILINE)


@pytest.fixture
def bare_root(manylinux: Path, tmp_path: Path) -> Path:
    """A folder for chroot with Python, NumPy, the wheel and the libraries that these ask for: no compiler, no shell, no other package."""
    root = tmp_path / "root"
    (root / "proc").mkdir(parents=True)
    if subprocess.run([*_INSIDE, root, "/", "/bin/true"], capture_output=True).returncode:
        pytest.skip("this system lets no user make a namespace and mount /proc in it (unshare -Urm), as containers need it")
    base, version = Path(sys.base_prefix), f"python{sys.version_info[0]}.{sys.version_info[1]}"
    standard = Path(sysconfig.get_path("stdlib"))
    leave_out = shutil.ignore_patterns("site-packages", "test", "tests", "idlelib", "tkinter", "ensurepip", "config-*", "__pycache__")
    for source in (Path(f"{base}/bin/{version}"), standard):
        target = root / source.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target, ignore=leave_out) if source.is_dir() else shutil.copy2(source, target)
    site = root / standard.relative_to("/") / "site-packages"
    _run([sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", site, manylinux], tmp_path)
    for item in Path(sysconfig.get_path("platlib")).glob("numpy*"):
        shutil.copytree(item, site / item.name, ignore=leave_out)
    _copy_libraries(root, [root / base.relative_to("/") / "bin" / version, *(path for path in root.rglob("*.so*") if path.is_file())])
    return root


def _copy_libraries(root: Path, programs: Sequence[Path], of_packages: str = "") -> None:
    """Copy the system's libraries that programs ask for; packages bring their own."""
    found = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False).stdout
    own = (str(root), of_packages or str(root))
    for library in {Path(name) for name in _LIBRARY.findall(found) if not name.startswith(own)}:
        target = root / library.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library.resolve(), target)


def test_the_wheel_runs_a_library_in_a_bare_root(bare_root: Path) -> None:
    artifact = dycl_tvm.build(_Steps(), (torch.ones(2, 3),), target="native", verify="off")
    artifact.export_library(bare_root / "net.so")
    artifact.save_params(bare_root / "net.params")
    names = {path.name for path in bare_root.rglob("*")}
    assert names.isdisjoint({"sh", "bash", "gcc", "cc", "g++", "c++", "clang", "ld", "as", "torch", "tvm", "ziglang"})
    program = """
        import os, numpy, dycl_tvm
        assert sorted(os.listdir("/")) == PLACES, os.listdir("/")
        module = dycl_tvm.load("/net.so", "/net.params")
        for value in (1, -1, 40):
            print(module(numpy.full((2, 3), value, "float32"))[0, 0], len(module.last_path.branches))
    """
    program = program.replace("PLACES", repr(sorted(path.name for path in bare_root.iterdir())))
    python = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    command = [*_INSIDE, bare_root, bare_root, python, "-c", textwrap.dedent(program)]
    said = [line.split() for line in _run(command, bare_root, PATH=os.environ["PATH"]).splitlines()]
    for (result, decisions), value in zip(said, (1, -1, 40), strict=True):
        eager = _Steps()(torch.full((2, 3), float(value)))
        assert float(result) == float(eager[0, 0])
        assert int(decisions) > 0
    without_proc = ["unshare", "-Ur", "chroot", bare_root, *command[-3:]]
    assert "mount /proc" in _run(without_proc, bare_root, code=1, PATH=os.environ["PATH"])


def test_the_package_in_a_bare_root_without_a_compiler(bare_root: Path, wheel: Path, tmp_path: Path) -> None:
    """It runs libraries and shows graphs; to build it takes a compiler, and the error says how to get one."""
    artifact = dycl_tvm.build(_Steps(), (torch.ones(2, 3),), target="native", verify="off")
    artifact.export_library(bare_root / "net.so", embed_params=True)
    standard = Path(sysconfig.get_path("stdlib")).relative_to("/")
    site = bare_root / standard / "site-packages"
    shutil.rmtree(site)
    _run([sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", site, wheel], tmp_path)
    packages = Path(sysconfig.get_path("purelib"))
    for name in ("packages", "dev", "tmp"):
        (bare_root / name).mkdir()
    for item in packages.iterdir():
        if not item.name.startswith(("dycl", "__editable__", "ziglang")) and item.suffix != ".pth":
            (site / item.name).symlink_to(Path("/packages") / item.name)
    asking = [path for name in ("torch", "tvm", "tvm_ffi", "numpy", "onnx") for path in (packages / name).rglob("*.so*")]
    _copy_libraries(bare_root, asking, str(packages))
    (bare_root / "net.py").write_text("def model(x):\n    return x + 1 if x.sum() > 0 else x * 2\n", encoding="utf-8")
    program = """
        import os, torch, dycl_tvm
        from dycl_tvm.cli.main import main
        module = dycl_tvm.load("/net.so")
        print(module(torch.full((2, 3), 40.0))[0, 0].item())
        os.chdir("/")
        print(main(["inspect", "net.py:model", "-i", "2x3"]))
        print(main(["compile", "net.py:model", "-i", "2x3", "-o", "made.so"]))
    """
    python = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    command = [*_WITH_PACKAGES, packages, bare_root, python, "-c", textwrap.dedent(program)]
    variables = {"PATH": os.environ["PATH"], "HOME": "/"}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stderr
    first, *graph, inspected, compiled = done.stdout.splitlines()
    assert float(first) == 41
    assert "net.py:2" in "".join(graph)
    assert (int(inspected), int(compiled)) == (0, 1)
    assert "there is no C++ compiler: install g++" in done.stderr
    assert "pip install 'dycl-tvm[cross]'" in done.stderr


class _Steps(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while x.abs().max() < 30:
            x = x * 3
        return x + 1 if x.sum() > 0 else x * 2


def _constraints() -> dict[str, Requirement]:
    found = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            assert re.fullmatch(r"==[\w.+]+", str(requirement.specifier)), f"not an exact pin: {line}"
            if requirement.marker is None or requirement.marker.evaluate():
                found[requirement.name.lower().replace("_", "-")] = requirement
    return found


def _declared() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    return [Requirement(text) for text in texts]


def test_every_dependency_is_pinned_within_its_range() -> None:
    pins = _constraints()
    for requirement in _declared():
        name = requirement.name.lower().replace("_", "-")
        assert name in pins, f"{name} has no line in constraints.txt"
        version = str(pins[name].specifier).removeprefix("==")
        assert requirement.specifier.contains(version, prereleases=True), f"{name}: {version} is outside of {requirement.specifier}"


@pytest.mark.parametrize("name", ["apache-tvm", "apache-tvm-ffi", "torch", "numpy"])
def test_the_pins_are_what_is_tested(name: str) -> None:
    """A build such as 2.13.0+cpu is the pinned version."""
    assert _constraints()[name].specifier.contains(importlib.metadata.version(name), prereleases=True)


@pytest.mark.xdist_group("one process")
def test_the_groups_of_tests_hold(request: pytest.FixtureRequest) -> None:
    """Where they do not, nothing fails: each process makes for itself what the tests of a group share."""
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@one process")
