# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What ``build`` returns: the compiled network, ready to be written to disk, and a report on it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from dycl_tvm import codegen
from dycl_tvm.codegen.machine import runs_here
from dycl_tvm.hcfg.analysis import count_paths, natural_loops
from dycl_tvm.hcfg.nodes import HCFG, Branch, SubDNNCall, Switch
from dycl_tvm.hcfg.sizes import Span, sizes_text
from dycl_tvm.progress import Phases
from dycl_tvm.runtime.certificate import summary
from dycl_tvm.target import hint
from dycl_tvm.verify.dispatcher import Dispatcher

if TYPE_CHECKING:
    import tvm

    from dycl_tvm.compile import Lowered
    from dycl_tvm.compile.stats import Offload
    from dycl_tvm.passes import PassStats
    from dycl_tvm.target import ResolvedTarget

PathLike = Union[str, "os.PathLike[str]"]


@dataclass
class Report:
    """Figures of one build.

    ``paths`` counts the ways from the entry to a return or raise; a loop counts as one block with all its ways out. ``arena_lower_bound``
    is the largest set of bytes that are live together, below which no memory plan can be. ``unscheduled`` names the kernels that are
    plain loops. ``families`` counts the places that each family of CPU kernels computes, ``generic`` are the convolutions and products
    that none takes, ``generic_kernels`` all kernels that have the generic schedule; ``measured`` and ``estimated`` count the different
    convolutions and products whose kernel was chosen by a measurement (of this build, or in a tuning file) and by the cost model.
    ``halved`` counts the float32 tensors between kernels that are stored as bfloat16, each distinct sub-DNN once.
    ``offload`` has, for each backend, what it took and what its cost hook left: operators, multiply-accumulates and regions, each place
    of a distinct sub-DNN counted once. ``seconds`` is by phase, in the order in which they ran. ``special_sizes``
    are those that have a path of their own. ``better`` says what the library has for better CPUs besides; the other figures are those of
    the least CPU.
    """

    name: str
    target: str
    blocks: int
    branches: int
    loops: int
    paths: int
    return_sites: int
    sub_dnns: int
    sub_dnn_calls: int
    kernels: int
    kernel_calls: int
    arena_bytes: int
    weights: int
    weights_bytes: int
    arena_lower_bound: int = 0
    unscheduled: tuple[str, ...] = ()
    kernels_by_backend: dict[str, int] = field(default_factory=dict)
    offload: dict[str, Offload] = field(default_factory=dict)
    families: dict[str, int] = field(default_factory=dict)
    generic: tuple[str, ...] = ()
    generic_kernels: tuple[str, ...] = ()
    in_place: int = 0
    measured: int = 0
    estimated: int = 0
    halved: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    passes: Any = None
    certificate: dict[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    special_sizes: tuple[dict[str, Span], ...] = ()
    better: tuple[str, ...] = ()

    def __str__(self) -> str:
        backends = ", ".join(f"{n} by {b}" for b, n in sorted(self.kernels_by_backend.items()))
        seconds = ", ".join(f"{phase} {took:.1f}" for phase, took in self.seconds.items())
        rows = [
            ("target", self.target),
            *([("vectors", vectors)] if (vectors := hint(self.target)) else []),
            ("control flow", f"{self.blocks} blocks, {self.branches} branches, {self.loops} loops"),
            ("paths", f"{_count(self.paths)} to {self.return_sites} return sites"),
            *([("specialised", "; ".join(map(sizes_text, self.special_sizes)))] if self.special_sizes else []),
            ("sub-DNNs", f"{self.sub_dnns} different, called at {self.sub_dnn_calls} places"),
            ("kernels", f"{self.kernels} different ({backends}), called at {self.kernel_calls} places"),
            ("families", ", ".join(f"{n} {f}" for f, n in self.families.items()) or "none"),
            ("choices", f"{self.measured} measured, {self.estimated} estimated"),
            *([("stored", f"{self.halved} tensors between kernels as bfloat16")] if self.halved else []),
            ("arena", f"{_bytes(self.arena_bytes)}, the largest live set is {_bytes(self.arena_lower_bound)}; {self.in_place} in place"),
            ("weights", f"{self.weights} tensors, {_bytes(self.weights_bytes)}"),
            *(("besides", line) for line in self.better),
            ("seconds", f"{sum(self.seconds.values()):.1f} ({seconds})"),
        ]
        rows += [("verified", line) for line in summary(self.certificate)]
        rows += [("left out", line) for line in self.left_out]
        rows += [("offload", line) for line in self._offload_lines()]
        if self.generic_kernels:
            rows.append(("no family", f"{len(self.generic_kernels)} kernels: {_names(self.generic_kernels)}"))
        if self.generic:
            rows.append(("slow", f"{len(self.generic)} products have no family: {_names(self.generic, 3)}"))
        if self.unscheduled:
            rows.append(("slow", f"{len(self.unscheduled)} kernels are plain loops: {_names(self.unscheduled)}"))
        return "\n".join([self.name, *(f"  {key:<13}{value}" for key, value in rows)])

    def _offload_lines(self) -> Iterator[str]:
        """Say of each external backend how much it took, and how much it would have taken without its cost hook."""
        nodes = sum(o.nodes for o in self.offload.values())
        macs = sum(o.macs for o in self.offload.values())
        for name, o in self.offload.items():
            if name in ("tir_cpu", "tvm") or not o.regions + o.rejected:
                continue
            taken = f"{o.nodes / nodes:.0%} of operators, {o.macs / max(1, macs):.0%} of multiply-accumulates in {o.regions} regions"
            all_nodes, all_macs = o.nodes + o.rejected_nodes, o.macs + o.rejected_macs
            yield f"{name}: {taken}" + (
                f"; {all_nodes / nodes:.0%}, {all_macs / max(1, macs):.0%} in {o.regions + o.rejected} without its cost hook"
                if o.rejected
                else ""
            )


class Artifact:
    """A compiled network. Made by :func:`dycl_tvm.build`.

    Attributes
    ----------
    hcfg : HCFG
        The heterogeneous control flow graph after all passes; ``print(art.hcfg)``, ``art.hcfg.to_dot()``.
    ir_module : tvm.IRModule
        One global Relax function for each sub-DNN.
    target : ResolvedTarget
        What it was compiled for.
    """

    def __init__(
        self,
        hcfg: HCFG,
        lowered: Lowered,
        code: codegen.Code,
        target: ResolvedTarget,
        passes: PassStats,
        phases: Phases,
        better: Sequence[codegen.CPULevel] = (),
    ) -> None:
        self.hcfg = hcfg
        self.target = target
        self._lowered = lowered
        self._code = code
        self._passes = passes
        self._phases = phases
        #: What the library has besides, for better CPUs.
        self._better = better

    @property
    def certificate(self) -> dict[str, Any]:
        """What the build has proved about itself, as it stands in the library; see docs/verification.md."""
        return self._lowered.program.certificate

    @property
    def user_metadata(self) -> dict[str, str]:
        """What the library tells of itself in its user's words: ``build(user_metadata=...)``."""
        return dict(self._lowered.program.user_metadata)

    @property
    def ir_module(self) -> tvm.IRModule:
        """The Relax module, one global function for each sub-DNN."""
        return self._lowered.ir_module

    def source(self) -> str:
        """Return the generated C++ of the dispatcher."""
        return self._code.source

    def export_library(self, path: PathLike, embed_params: bool = False, *, cxx: str = "", sanitize: str = "") -> Path:
        """Write the shared library.

        Parameters
        ----------
        path : path-like
            Usually ends in ``.so``. With ``.a`` it is a static library, for one model inside a C++ program:
            ``dycl::Module::FromApi(dycl_api(DYCL_ABI_VERSION))``; link it before ``dycl_tvm::host``.
        embed_params : bool, optional
            Put the weights inside, so that this is the only file.
        cxx : str, optional
            The C++ compiler, with options, such as ``"aarch64-linux-gnu-g++ --sysroot=/opt/board"``. Left out: ``CXX``, or the one
            of this machine; zig for other machines.
        sanitize : str, optional
            ``"address"``, ``"undefined"`` or ``"thread"``: a library for a program that is compiled with ``-fsanitize=`` the same, to find
            a mistake in that program. It is slow, and no other program loads it.

        Raises
        ------
        CompileError
            If the tool-chain fails; the message holds its words.
        BuildGateError
            If the library could not run on its target, because of too new a glibc for one.
        VerificationError
            If the compiled dispatcher does something else than the program that it was generated from.
        """
        out = Path(path)
        with self._phases.phase("link", f"write {out}"):
            codegen.link(
                self._lowered.program,
                self._code.library,
                out,
                self.target.target,
                embed_params,
                glibc=self.target.glibc,
                cxx=cxx,
                watch=self._watch(),
                sanitize=sanitize,
                better=self._better,
            )
        return out

    def _watch(self) -> codegen.Watch | None:
        """Return what checks the dispatcher while it is linked: where the build is checked at all, and the dispatcher runs here."""
        level = self.certificate.get("level", "off")
        runs = self._lowered.program.device is None and self.target.is_native and runs_here(self.target.target)
        return Dispatcher(seed=self.certificate["seed"]).watch if level != "off" and runs else None

    def save_params(self, path: PathLike) -> Path:
        """Write the weights. They belong to this artefact's library and to no other."""
        out = Path(path)
        with self._phases.phase("params", f"write {out}"):
            codegen.save_params(self._lowered.program, out, self._better)
        return out

    def export_onnx(self, path: PathLike, *, split: bool = False, external_data: bool | None = None) -> Path:
        """Write the network as ONNX, control flow included. Needs the extra ``onnx``.

        Parameters
        ----------
        path : path-like
            A file, or a folder for ``split``.
        split : bool, optional
            False: one model with ``If`` and ``Loop``; its first output is the number of the return site, see
            :class:`dycl_tvm.onnx_export.OnnxModel`. True: one model for each sub-DNN and a JSON description of the graph around them, see
            :class:`dycl_tvm.onnx_export.SplitModel`.
        external_data : bool, optional
            Put the weights of the one model into a file of their own; by default if there is more than 1 GiB of them.

        Raises
        ------
        UsageError
            If onnxscript is missing.
        UnsupportedError
            For operators and control flow that ONNX has no form for.
        """
        from dycl_tvm import onnx_export

        out = Path(path)
        with self._phases.phase("onnx", f"write {out}"):
            return (
                onnx_export.export_split(self.hcfg, out) if split else onnx_export.export_model(self.hcfg, out, external_data=external_data)
            )

    def report(self) -> Report:
        """Return figures of the build: sub-DNNs, kernels, paths, bytes, seconds by phase."""
        program = self._lowered.program
        terminators = [block.terminator for block in self.hcfg.blocks]
        by_backend: dict[str, int] = {}
        for kernel in program.kernels:
            by_backend[kernel.backend] = by_backend.get(kernel.backend, 0) + 1
        return Report(
            name=program.name,
            target=str(self.target),
            blocks=len(self.hcfg.blocks),
            branches=sum(isinstance(t, (Branch, Switch)) for t in terminators),
            loops=len(natural_loops(self.hcfg).loops),
            paths=count_paths(self.hcfg),
            return_sites=len(self.hcfg.return_sites()),
            sub_dnns=len(self.hcfg.sub_dnns()),
            sub_dnn_calls=sum(isinstance(s, SubDNNCall) for b in self.hcfg.blocks for s in b.steps),
            kernels=len(program.kernels),
            kernel_calls=len(program.calls()),
            arena_bytes=program.arena_bytes,
            weights=len(program.weights),
            weights_bytes=sum(w.type.nbytes for w in program.weights),
            arena_lower_bound=self._lowered.stats.arena_lower_bound,
            unscheduled=self._lowered.stats.unscheduled,
            kernels_by_backend=by_backend,
            families=self._lowered.stats.families,
            generic=self._lowered.stats.generic,
            generic_kernels=self._lowered.stats.generic_kernels,
            in_place=self._lowered.stats.in_place,
            measured=self._lowered.stats.measured,
            estimated=self._lowered.stats.estimated,
            halved=self._lowered.stats.halved,
            offload=dict(self._lowered.stats.offload),
            seconds=dict(self._phases.seconds),
            passes=self._passes,
            certificate=self.certificate,
            left_out=tuple(self._lowered.program.left_out),
            special_sizes=tuple(self.hcfg.special_sizes),
            better=tuple(self._besides()),
        )

    def _besides(self) -> Iterator[str]:
        """Say of each better CPU what the library has for it."""
        known = set(codegen.weight_names(self._lowered.program))
        for level in self._better:
            program = level.program
            own = {n: w.type.nbytes for n, w in zip(codegen.weight_names(program), program.weights) if n not in known}
            known |= set(own)
            yield (
                f"{level.machine.mcpu}: {len(program.kernels)} kernels, an arena of {_bytes(program.arena_bytes)}, "
                f"{_bytes(sum(own.values()))} of weights"
            )

    def __repr__(self) -> str:
        return f"<Artifact {self.hcfg.name} for {self.target}>"


def _count(number: int) -> str:
    return str(number) if number < 10**7 else f"about {number:.1e}"


def _names(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
