# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``link``: generated dispatcher, kernels and fixed runtime become one shared library; ``save_params`` writes its weights."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dycl_tvm.codegen import toolchain
from dycl_tvm.codegen.cpu_levels import CPULevel, chooser
from dycl_tvm.codegen.cross import compiler_for, glibc_bound
from dycl_tvm.codegen.dispatcher import generate
from dycl_tvm.codegen.gate import check_library
from dycl_tvm.codegen.machine import Machine, machine_of
from dycl_tvm.codegen.metadata import metadata_of
from dycl_tvm.codegen.sanitizers import SANITIZERS, link_flags, sanitizing
from dycl_tvm.codegen.text import string
from dycl_tvm.codegen.weights import weight_tensors
from dycl_tvm.compile.program import KernelLibrary, Program
from dycl_tvm.errors import CompileError
from dycl_tvm.runtime.params import data_digest, write_params
from dycl_tvm.runtime.trailer import append_trailer
from dycl_tvm.runtime.writing import replacing

#: Packed functions of the runtime: a kernel of that name could not be linked.
RESERVED_SYMBOLS = frozenset(
    (
        "create", "destroy", "run", "num_outputs", "output", "copy_output", "to_device", "path", "kernel_runs", "set_num_threads",
        "reset_state", "metadata", "abi_version", "manual_seed", "cancel", "run_within", "unload",
        "set_priority", "create_up_to",
    )
)  # fmt: skip


#: What may look at a dispatcher before it is linked: its program, the compiler, its objects with those of the runtime, the metadata.
Watch = Callable[[Program, toolchain.Compiler, Sequence[Path], dict[str, Any]], None]


@dataclass(frozen=True)
class Linked:
    """A library that was written. ``seconds`` is by step."""

    path: Path
    fingerprint: str
    seconds: dict[str, float]


def fingerprint_of(source: str, digest: str) -> str:
    """Return what ties a library to its params file: a hash of the dispatcher's text and of the weights."""
    return hashlib.sha256(f"dycl-fingerprint-1\0{digest}\0{source}".encode()).hexdigest()


def save_params(program: Program, path: str | os.PathLike[str], better: Sequence[CPULevel] = ()) -> None:
    """Write the params file of a program. It belongs to the library that :func:`link` makes of the same program and levels."""
    programs = [program, *(level.program for level in better)]
    digest = data_digest(weight_tensors(*programs))
    write_params(path, weight_tensors(*programs), fingerprint_of("\0".join(_sources(programs)), digest), digest)


def _sources(programs: Sequence[Program]) -> list[str]:
    return [generate(p, k if len(programs) > 1 else None) for k, p in enumerate(programs)]


def link(
    program: Program,
    library: KernelLibrary,
    out_path: str | os.PathLike[str],
    target: Any,
    embed_params: bool = False,
    glibc: str = "",
    cxx: str = "",
    watch: Watch | None = None,
    sanitize: str = "",
    better: Sequence[CPULevel] = (),
) -> Linked:
    """Compile the dispatcher of a program and link the library.

    Parameters
    ----------
    program : Program
        The lowered network.
    library : KernelLibrary
        Its kernels.
    out_path : path-like
        The shared library to write; a name that ends in ``.a`` gives a static one.
    target : tvm.target.Target or Machine
        What the kernels were compiled for; the loader checks it.
    embed_params : bool, optional
        Put the weights inside.
    glibc : str, optional
        The newest glibc that the library may need, such as ``2.27``. Left out: any for this machine, JetPack 4's for others.
    cxx : str, optional
        The C++ compiler, see :func:`dycl_tvm.codegen.cross.compiler_for`.
    watch : callable, optional
        Gets the objects of the dispatcher before they are linked with the kernels, and may refuse them.
    sanitize : str, optional
        ``address``, ``undefined`` or ``thread``: compile the C++ with that sanitizer.
    better : sequence of CPULevel, optional
        The same network for better CPUs, the best last: the library takes the last that its CPU runs.

    Raises
    ------
    CompileError
        If the tool-chain fails; the message holds its words.
    BuildGateError
        If what it made could not run on the target.
    """
    machine = target if isinstance(target, Machine) else machine_of(target)
    levels = [CPULevel(program, library, machine), *better]
    for kernel in (k for level in levels for k in level.program.kernels):
        if kernel.symbol in RESERVED_SYMBOLS:
            raise CompileError(f"internal: a kernel must not be called {kernel.symbol!r}")
    seconds: dict[str, float] = {}
    clock = _Clock(seconds)
    programs = [level.program for level in levels]
    sources = _sources(programs)
    digest = data_digest(weight_tensors(*programs))
    fingerprint = fingerprint_of("\0".join(sources), digest)
    code = _hash_of([level.library for level in levels])
    metadata = [metadata_of(level.program, level.machine, fingerprint, embed_params, code) for level in levels]
    for told in metadata if sanitize else ():
        told["sanitize"] = sanitize
    clock.lap("generate")
    plain = compiler_for(machine, glibc, cxx)
    compiler = sanitizing(plain, sanitize) if sanitize else plain
    out, exports = Path(out_path), toolchain.runtime_sources().exports
    with tempfile.TemporaryDirectory(prefix="dycl-link-") as scratch_name:
        scratch = Path(scratch_name)
        inputs = _Inputs(scratch, levels, sources, metadata, embed_params)
        if embed_params:
            write_params(scratch / "params.bin", weight_tensors(*programs), fingerprint, digest)
        if watch is not None:
            # the check runs in this process, for which code with a sanitizer is not made
            objects, runtime = _objects(plain, inputs.paths, program)
            clock.lap("compile")
            made = dict(zip(inputs.paths, objects))
            for k, level in enumerate(levels):
                own = [made[p] if p in made else _compile(plain, p, None) for p in inputs.of_level(k)]
                watch(level.program, plain, [*own, *runtime], metadata[k])
            clock.lap("verify")
        if watch is None or sanitize:
            objects, runtime = _objects(compiler, inputs.paths, program)
            clock.lap("compile")
        if out.suffix == ".a":
            _publish(_archive(plain, [*objects, *runtime], scratch), out)
            clock.lap("link")
            return Linked(out, fingerprint, seconds)
        library_path = scratch / "model.so"
        link_words = tuple(dict.fromkeys(flag for level in levels for flag in level.library.link_flags))
        command = [
            *link_flags(compiler, sanitize),
            *compiler.link_flags,
            f"-Wl,--version-script={exports}",
            "-o",
            str(library_path),
            *map(str, objects),
            *map(str, runtime),
            *link_words,
            *toolchain.LINK_LIBRARIES,
        ]
        compiler.run(command, f"link {out.name}")
        allowed = [*link_words, *([SANITIZERS[sanitize]] if sanitize else [])]
        check_library(library_path, machine.arch, glibc_bound(machine, glibc), exports, allowed, program.device)
        append_trailer(library_path, {**metadata[0], **({"levels": metadata} if better else {})})
        _publish(library_path, out)
    clock.lap("link")
    return Linked(out, fingerprint, seconds)


def _objects(compiler: toolchain.Compiler, inputs: Sequence[Path], program: Program) -> tuple[list[Path], list[Path]]:
    """Compile what is the library's own, and the fixed runtime."""
    fixed = toolchain.runtime_objects(compiler)
    # the driver of a GPU is looked for by libraries for GPUs only
    runtime = [o for o in fixed.objects if program.device is not None or not o.name.startswith("cuda_")]
    return [_compile(compiler, path, fixed.parsed) for path in inputs], runtime


def _archive(compiler: toolchain.Compiler, objects: list[Path], scratch: Path) -> Path:
    """Put everything into one object in an archive, for programs that have the model inside.

    Not as members of their own: a linker takes one only where a symbol is missing, but the runtime replaces weak symbols of the kernels.
    """
    whole, archive = scratch / "model.o", scratch / "model.a"
    compiler.run(["-r", "-nostdlib", "-o", str(whole), *map(str, objects)], "link the objects of the model")
    toolchain.run_tool(["ar", "rcsD", str(archive), str(whole)], "make the archive of the model")
    return archive


def _hash_of(libraries: Sequence[KernelLibrary]) -> str:
    digest = hashlib.sha256()
    for library in libraries:
        digest.update(json.dumps(library.link_flags).encode())
        for name, contents in [*library.objects, *((n, text.encode()) for n, text in library.sources)]:
            digest.update(f"{name}\0{len(contents)}\0".encode() + contents)
    return digest.hexdigest()


class _Clock:
    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._last = time.perf_counter()

    def lap(self, step: str) -> None:
        now = time.perf_counter()
        self._seconds[step], self._last = now - self._last, now


class _Inputs:
    """The files that are to be compiled or linked, written into a folder.

    Attributes
    ----------
    paths : list of Path
        All of them; one that several levels have stands there once.
    """

    def __init__(
        self, scratch: Path, levels: Sequence[CPULevel], sources: Sequence[str], metadata: Sequence[dict[str, Any]], embed_params: bool
    ) -> None:
        self._scratch, self._machines = scratch, [level.machine.for_code(level.program.amx) for level in levels]
        self.paths: list[Path] = []
        several = len(levels) > 1
        #: What describes each level, without its kernels.
        self._described: list[list[Path]] = []
        for k, (source, told) in enumerate(zip(sources, metadata)):
            number = k if several else None
            name = "" if number is None else str(number)
            self._described.append(
                [
                    self._write(f"dispatcher{name}.cc", source.encode()),
                    self._write(f"artifact_info{name}.cc", _info_source(told, embed_params, number).encode()),
                ]
            )
        self._params = [self._write("params.S", _embed_source(scratch / "params.bin").encode())] if embed_params else []
        if several:
            self._write("chooser.cc", chooser(self._machines, range(len(levels))).encode())
        # Numbered: two backends may use one file name.
        for k, (file, contents) in enumerate(o for level in levels for o in level.library.objects):
            self._write(f"kernels{k}_{Path(file).stem}.o", contents)
        for k, (file, text) in enumerate(dict.fromkeys(s for level in levels for s in level.library.sources)):
            self._write(f"source{k}_{Path(file).name}", text.encode())

    def _write(self, name: str, contents: bytes) -> Path:
        path = self._scratch / name
        path.write_bytes(contents)
        self.paths.append(path)
        return path

    def of_level(self, k: int) -> list[Path]:
        """Return what makes a library of one level, but for its kernels and the runtime."""
        images = [p for p in self.paths if p.suffix == ".S" and p not in self._params]
        own = [*self._described[k], *self._params, *images]
        if len(self._machines) > 1:
            alone = self._scratch / f"chooser{k}.cc"
            alone.write_text(chooser(self._machines, [k]))
            own.append(alone)
        return own


def _compile(compiler: toolchain.Compiler, path: Path, parsed: Path | None) -> Path:
    if path.suffix == ".o":
        return path
    out = path.with_suffix(".o")
    flags = [*toolchain.CXX_FLAGS, *toolchain.include_flags()]
    if path.name.startswith("dispatcher"):
        # First the folder of the parsed header: a compiler that cannot use it goes on to the header itself.
        flags = [*toolchain.DISPATCHER_FLAGS, *([f"-I{parsed}"] if parsed is not None else []), *toolchain.include_flags()]
    if path.suffix == ".S":
        flags = []
    elif path.suffix == ".c":
        flags = ["-x", "c", *(f for f in flags if not f.startswith("-std="))]
    compiler.run([*flags, "-c", str(path), "-o", str(out)], f"compile {path.name}")
    return out


def _info_source(metadata: dict[str, Any], embed_params: bool, level: int | None = None) -> str:
    """Return the C++ of ``kArtifactInfo``, or of that of a level: what is known only once the dispatcher's text is."""
    number = "" if level is None else str(level)
    text = json.dumps(metadata, sort_keys=True, separators=(",", ":"))
    pieces = "\n".join(f"    {string(text[i : i + 100])}" for i in range(0, len(text), 100))
    told = "".join(f"    {string(key)}, {string(words)},\n" for key, words in metadata["user_metadata"].items())
    params = "DyclParamsBegin,\n    DyclParamsEnd" if embed_params else "nullptr,\n    nullptr"
    return (
        "// Licensed under the Apache License, Version 2.0; see LICENSE.\n"
        '#include "artifact_info.h"\n\n'
        'extern "C" __attribute__((visibility("hidden"))) const unsigned char DyclParamsBegin[], DyclParamsEnd[];\n\n'
        f"namespace dycl {{\nconst char* const kUserMetadata{number}[] = {{\n{told}    nullptr}};\n"
        f"extern const ArtifactInfo kArtifactInfo{number} = {{\n{pieces},\n"
        f"    {string(metadata['fingerprint'])},\n    {params},\n    kUserMetadata{number},\n    nullptr}};\n}}  // namespace dycl\n"
    )


def _embed_source(params: Path) -> str:
    """Return assembly that takes a file in as it is: quick for any size, unlike an array in C++."""
    return (
        '.section .rodata.params,"a"\n.balign 64\n'
        ".globl DyclParamsBegin\n.hidden DyclParamsBegin\nDyclParamsBegin:\n"
        f".incbin {string(str(params))}\n"
        ".globl DyclParamsEnd\n.hidden DyclParamsEnd\nDyclParamsEnd:\n"
        '.section .note.GNU-stack,"",%progbits\n'
    )


def _publish(library: Path, out: Path) -> None:
    """Move the library to its place in one step: who has the old one loaded keeps it."""
    with open(library, "rb") as source, replacing(out, library.stat().st_mode & 0o777) as file:
        shutil.copyfileobj(source, file, 1 << 20)
