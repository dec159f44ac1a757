# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The kernels of a program alone, as a library: the same objects that :func:`dycl_tvm.codegen.link` takes, without a dispatcher."""

from __future__ import annotations

from pathlib import Path

from dycl_tvm.codegen import toolchain
from dycl_tvm.compile.program import KernelLibrary

#: What kernels need of the fixed runtime: threads, scratch memory, a place for errors.
_RUNTIME = frozenset(
    (
        "thread_pool.o",
        "thread_settings.o",
        "process_pool.o",
        "callers_threads.o",
        "priorities.o",
        "worker.o",
        "forks.o",
        "log.o",
        "workspace.o",
        "host_process.o",
        "error.o",
    )
)


def link_kernels(library: KernelLibrary, out: Path) -> None:
    """Link the kernels of a program for this machine; each is exported as ``__tvm_ffi_<symbol>``.

    Parameters
    ----------
    library : KernelLibrary
    out : Path
        The shared library to write, in a folder that takes scratch files too.

    Raises
    ------
    CompileError
        If the tool-chain fails.
    """
    compiler = toolchain.find_compiler()
    inputs: list[str] = []
    for k, (name, contents) in enumerate(library.objects):
        path = out.parent / f"object{k}_{Path(name).stem}.o"
        path.write_bytes(contents)
        inputs.append(str(path))
    for k, (name, text) in enumerate(library.sources):
        source = out.parent / f"source{k}_{Path(name).name}"
        source.write_text(text)
        flags = [*toolchain.CXX_FLAGS, "-fvisibility=default", *toolchain.include_flags()]
        compiler.run([*flags, "-c", str(source), "-o", str(source.with_suffix(".o"))], f"compile {source.name}")
        inputs.append(str(source.with_suffix(".o")))
    runtime = [str(o) for o in toolchain.runtime_objects(compiler).objects if o.name in _RUNTIME]
    compiler.run(
        ["-shared", "-Wl,-Bsymbolic", "-o", str(out), *inputs, *runtime, *library.link_flags, *toolchain.LINK_LIBRARIES],
        "link the kernels for their check",
    )
