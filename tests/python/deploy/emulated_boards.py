# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Boards on this machine: qemu's user mode with the board's CPU, and the glibc that is on the board.

The systems of the boards are Ubuntu's: JetPack 4 is 18.04, JetPack 5 is 20.04, JetPack 6 is 22.04. Ubuntu has each one's aarch64 libc and
libstdc++ as packages of files for cross-compilers. ``apt-get`` fetches them with folders of its own, so nothing on this machine changes.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from dycl_tvm.cache import cache_dir

MIRROR = "http://archive.ubuntu.com/ubuntu"

#: What a root is made of, by the version of its glibc: Ubuntu's release, and the packages with their SHA-256. The list of packages is not
#: verified by a key of Ubuntu's, which other systems do not have; the files are, by these sums.
_ROOTS = {
    "2.27": ("bionic", {
        "libc6-arm64-cross=2.27-3ubuntu1cross1": "3b7ac882761276bf76653dcf0bb31c1741aa56ec173092db4d7d4af5487962d3",
        "libgcc1-arm64-cross=1:8-20180414-1ubuntu2cross1": "2e82cd69458a2e9ea05f08b0b60afc5b74e8afe7734dfa0dcf6155b104c155f4",
        "libstdc++6-arm64-cross=8-20180414-1ubuntu2cross1": "1acb17cd5826b0c6a725e50310cb7bcf921e432ec7cb8fa4d082bcbbf8a218bf",
    }),
    "2.31": ("focal", {
        "libc6-arm64-cross=2.31-0ubuntu7cross1": "a8ec67816102ebafdc62e43e407cd1e80a70f04e42a058a5922cd6426083b522",
        "libgcc-s1-arm64-cross=10-20200411-0ubuntu1cross1": "428a0ce6793c442f1c3e60bf71117b16ea7910a149d1e6c22c8e011b6a0226fa",
        "libstdc++6-arm64-cross=10-20200411-0ubuntu1cross1": "876bac40944d45533a1281e82e6eb3a6fa74cb0bb38324ec06e31a53458debf7",
    }),
    "2.35": ("jammy", {
        "libc6-arm64-cross=2.35-0ubuntu1cross3": "32b6264502998dd170d21eff60b6686be8c682012df18e6cc9fdffcf42c5faae",
        "libgcc-s1-arm64-cross=12-20220222-1ubuntu1cross1": "595e10b9fed48e171721cbd8288aefb88942427d4c52e91375f3903564633472",
        "libstdc++6-arm64-cross=12-20220222-1ubuntu1cross1": "0a8c1b999bdd719cb6b795a4cc73d946f1b75bd364814ff3e76db7ccdf66bf99",
    }),
}  # fmt: skip


@dataclass(frozen=True)
class Board:
    """A board: what its CPU is to LLVM and to qemu, the glibc of its system, its GPU, and the CUDA of its driver (10020 is 10.2).

    qemu knows no Carmel and no Cortex-A78; its Cortex-A76 has what their code uses, and refuses what they lack.
    """

    name: str
    mcpu: str
    qemu_cpu: str
    glibc: str
    gpu_target: str
    sm: int
    cuda: int
    tag: str = ""

    @property
    def target(self) -> str | dict[str, str]:
        """The board's host as a target."""
        return self.tag or {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": self.mcpu, "glibc": self.glibc}

    def command(self, *program: object, **environment: object) -> list[str]:
        """Return the command that runs a program on the board; skips the test where that cannot be emulated."""
        words = [qemu(), "-cpu", self.qemu_cpu, "-L", str(root(self.glibc))]
        for name, value in environment.items():
            words += ["-E", f"{name}={value}"]
        return [*words, *map(str, program)]


TX2 = Board("tx2", "cortex-a57", "cortex-a57", "2.27", "nvidia/jetson-tx2", 62, 10020)
XAVIER = Board("xavier", "carmel", "cortex-a76", "2.31", "nvidia/jetson-agx-xavier", 72, 11040)
ORIN = Board("orin", "cortex-a78", "cortex-a76", "2.35", "nvidia/jetson-agx-orin-32gb", 87, 12060)
BOARDS = (TX2, XAVIER, ORIN)
RASPBERRY_PI = Board("raspberry-pi-4", "", "cortex-a72", "2.31", "", 0, 0, "raspberry-pi/4b-aarch64")
#: Networks with the least number of paths that their inputs take: an early exit (two ways in all), a loop that ends by a sum, experts
#: chosen by index.
NETWORKS = {"cascade": 2, "act_rnn": 3, "moe_top1": 3}
ALL = "DYCL_ALL_BOARDS" in os.environ
#: Each board has one of them, and each of them one board; `make boards` runs all on all.
ON = {board: tuple(NETWORKS) if ALL else (name,) for board, name in ((TX2, "act_rnn"), (XAVIER, "moe_top1"), (ORIN, "cascade"))}


def qemu() -> str:
    """Return the emulator, or skip the test."""
    found = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if found is None:
        pytest.skip("qemu-user-static is not installed (make setup installs it where it may; apt-get install qemu-user-static)")
    return found


@functools.cache
def root(glibc: str) -> Path:
    """Return the folder with an aarch64 system of that glibc, fetched once and kept; skip the test where it cannot be."""
    release, packages = _ROOTS[glibc]
    made = kept(f"glibc-{glibc}", "".join(packages.values()), lambda scratch: _fetch(scratch, release, packages))
    return made / "usr" / "aarch64-linux-gnu"


def kept(name: str, contents: str, make: Callable[[Path], Path | str]) -> Path:
    """Return a folder that is made once and kept; skip the test where it cannot be.

    ``contents`` is what another folder of that name differs by; ``make`` returns the folder that it made in a scratch folder, or what went
    wrong.
    """
    out = cache_dir() / "emulation" / f"{name}-{hashlib.sha256(contents.encode()).hexdigest()[:12]}"
    if not out.is_dir():
        missing = [tool for tool in ("apt-get", "dpkg") if shutil.which(tool) is None]
        wrong = f"the aarch64 files of {name} cannot be fetched"
        if missing:
            pytest.skip(f"{wrong}: there is no {missing[0]}")
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
            made = make(Path(scratch))
            if isinstance(made, str):
                pytest.skip(f"{wrong}: {made}")
            try:
                os.replace(made, out)
            except OSError:
                assert out.is_dir()  # another process was first
    return out


def _fetch(scratch: Path, release: str, packages: dict[str, str]) -> Path | str:
    """Return the folder with the packages' files, or what went wrong."""
    apt = Apt(scratch, f"deb [trusted=yes arch=amd64] {MIRROR} {release} main", "amd64")
    for arguments in (["update"], ["download", *packages]):
        if wrong := apt.run(*arguments):
            return wrong
    found = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in scratch.glob("*.deb")}
    for name, digest in packages.items():
        if digest not in found:
            return f"{name} is another file than expected"
    return unpack(scratch, [found[digest] for digest in packages.values()])


class Apt:
    """``apt-get`` with folders of its own: nothing on this machine changes."""

    def __init__(self, scratch: Path, source: str, architecture: str) -> None:
        for name in ("lists/partial", "archives/partial", "parts"):
            (scratch / name).mkdir(parents=True)
        (scratch / "status").write_text("")
        (scratch / "sources.list").write_text(source + "\n")
        options = {
            "Dir::Etc::SourceList": scratch / "sources.list", "Dir::Etc::SourceParts": scratch / "parts", "Dir::State": scratch,
            "Dir::State::status": scratch / "status", "Dir::Cache": scratch, "APT::Architecture": architecture,
            "APT::Architectures": architecture, "APT::Sandbox::User": "", "Acquire::Languages": "none", "Debug::NoLocking": "1",
            "Acquire::http::Timeout": "20", "APT::Install-Recommends": "false",
        }  # fmt: skip
        self._scratch = scratch
        self._options = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]

    def run(self, *arguments: str) -> str:
        """Return what went wrong, or nothing."""
        command = ["apt-get", "-qq", "-y", *self._options, *arguments]
        done = subprocess.run(command, cwd=self._scratch, capture_output=True, text=True, check=False)
        return f"apt-get {arguments[0]}: {done.stderr.strip()[-300:]}" if done.returncode != 0 else ""


def unpack(scratch: Path, packages: Sequence[Path]) -> Path | str:
    """Return the folder with the files of packages, or what went wrong."""
    for package in packages:
        done = subprocess.run(["dpkg", "-x", str(package), str(scratch / "root")], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"dpkg -x {package.name}: {done.stderr.strip()[-300:]}"
    return scratch / "root"
