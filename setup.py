# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Builds the C++ part by CMake and puts it into the package; everything else is in pyproject.toml.

A wheel holds the sources and headers of the fixed runtime, which every compiled network links, and the CMake package for C++ hosts. An
editable install uses those of the source tree.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
#: Without Python's headers (Debian: python3-dev) or DLPack's there is no extension module, and the wheel is for any platform.
HAS_HEADERS = Path(sysconfig.get_path("include"), "Python.h").is_file() and importlib.util.find_spec("tvm_ffi") is not None
#: A tree without the code generator is that of dycl-tvm-runtime (cmake/wheels.py), which links nothing.
LINKS = (ROOT / "python" / "dycl_tvm" / "codegen" / "__init__.py").is_file()


class BuildRuntime(build_py):
    """Runs CMake and installs its result beside the Python files; into a source tree only the extension module, which it lacks."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self._install(Path(self.build_lib) / "dycl_tvm", *([] if LINKS else ["--component", "python"]))
        elif HAS_HEADERS and shutil.which("cmake") is not None:
            self._install(ROOT / "python" / "dycl_tvm", "--component", "python")

    def _install(self, package: Path, *options: str) -> None:
        cmake = shutil.which("cmake")
        if cmake is None:
            sys.exit("cmake is missing: install it (Debian and Ubuntu: apt-get install cmake, or pip install cmake) and try again")
        folder = Path(self.get_finalized_command("build").build_temp) / "cmake"
        folder.mkdir(parents=True, exist_ok=True)
        configure = [cmake, "-S", str(ROOT), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={sys.executable}"]
        configure.append(f"-DDYCL_PYTHON={'ON' if HAS_HEADERS else 'OFF'}")
        # all else is installed as sources, and compiled where models are linked
        building = [cmake, "--build", str(folder), "--parallel", str(os.cpu_count() or 1), "--target", "dycl_calls"]
        installing = [cmake, "--install", str(folder), "--prefix", str(package.resolve()), *options]
        for command in (configure, *([building] if HAS_HEADERS else []), installing):
            try:
                subprocess.run(command, check=True)
            except subprocess.CalledProcessError as err:
                sys.exit(f"building the C++ part failed: {' '.join(command)} ended with {err.returncode}")


class WithExtension(Distribution):
    """A distribution whose wheel is for a platform: CMake builds the extension module, of which setuptools knows nothing."""

    def has_ext_modules(self) -> bool:
        return HAS_HEADERS


setup(
    cmdclass={"build_py": BuildRuntime},
    distclass=WithExtension,
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if HAS_HEADERS else {},
)
