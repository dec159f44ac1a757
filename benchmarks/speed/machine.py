# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The machine and the versions, with its measured peaks."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "asimd", "sve", "bf16", "i8mm")
_PACKAGES = ("dycl-tvm", "apache-tvm", "torch", "onnxruntime", "openvino", "numpy")


def describe(work: Path, threads: int) -> dict[str, Any]:
    """Return what the head of the page says, by the name of each line, and as ``peaks`` GFLOP/s and GB/s with all threads."""
    info = _cpuinfo()
    found: dict[str, Any] = {
        "CPU": f"{info.get('model name', platform.machine())} (family {info.get('cpu family', '?')}, model {info.get('model', '?')})",
        "cores": f"{os.cpu_count()}; threads used: {threads}; load average at the start: {os.getloadavg()[0]:.1f}",
        "vector extensions": ", ".join(f for f in _FLAGS if f in (info.get("flags") or info.get("Features", "")).split()),
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {_version(name)}" for name in _PACKAGES),
    }
    try:
        one, every, read_one, read_every = peaks(work, threads)
        found["peaks"] = [every, read_every]
        found["measured FMA peak, float32"] = f"{one:.0f} GFLOP/s with 1 thread, {every:.0f} with {threads}"
        found["measured memory bandwidth, reading"] = f"{read_one:.1f} GB/s with 1 thread, {read_every:.1f} with {threads}"
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        found["measured peaks"] = f"none: {error}"
    return found


def peaks(work: Path, threads: int) -> tuple[float, float, float, float]:
    """Return the FMA peak in GFLOP/s with one and with all threads, and the memory bandwidth in GB/s likewise."""
    program = work / "peak"
    work.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CC", "cc")
    source = Path(__file__).with_name("peak.c")
    subprocess.run(
        [compiler, "-O3", "-march=native", "-ffp-contract=fast", "-pthread", str(source), "-o", str(program)], check=True, timeout=60
    )
    words = subprocess.run([str(program), str(threads)], check=True, capture_output=True, text=True, timeout=120).stdout.split()
    one, every, read_one, read_every = map(float, words)
    return one, every, read_one, read_every


def _cpuinfo() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    pairs = [line.split(":", 1) for line in lines if ":" in line]
    return {key.strip(): value.strip() for key, value in reversed(pairs)}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
