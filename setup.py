# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Builds the C++ part by CMake and puts it into the package; everything else is in pyproject.toml.

A wheel holds the sources and headers of the fixed runtime, which every compiled network links, and the CMake package for C++ hosts. An
editable install uses those of the source tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildRuntime(build_py):
    """Runs CMake and installs its result beside the Python files."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self._install_runtime(Path(self.build_lib) / "dycl_tvm")

    def _install_runtime(self, package: Path) -> None:
        cmake = shutil.which("cmake")
        if cmake is None:
            sys.exit("cmake is missing: install it (Debian and Ubuntu: apt-get install cmake, or pip install cmake) and try again")
        folder = Path(self.get_finalized_command("build").build_temp) / "cmake"
        folder.mkdir(parents=True, exist_ok=True)
        configure = [cmake, "-S", str(ROOT), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={sys.executable}"]
        for command in (
            configure,
            [cmake, "--build", str(folder), "--parallel", str(os.cpu_count() or 1)],
            [cmake, "--install", str(folder), "--prefix", str(package.resolve())],
        ):
            try:
                subprocess.run(command, check=True)
            except subprocess.CalledProcessError as err:
                sys.exit(f"building the C++ part failed: {' '.join(command)} ended with {err.returncode}")


setup(cmdclass={"build_py": BuildRuntime})
