# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The metadata of a library: what a loader shows and checks, as JSON."""

from __future__ import annotations

from typing import Any

from dycl_tvm.codegen.leaving import leaving_sides
from dycl_tvm.codegen.machine import Machine
from dycl_tvm.codegen.shipped import shipped_note, shipped_origin
from dycl_tvm.codegen.tables import Tables
from dycl_tvm.compile.program import CodeBlock, CondGoto, Fail, Goto, KernelCall, Pop, Program, Push, Slot, SwitchGoto
from dycl_tvm.hcfg.nodes import Origin
from dycl_tvm.hcfg.types import TensorType, Type
from dycl_tvm.runtime.trailer import ABI_VERSION, FORMAT_VERSION


def metadata_of(program: Program, machine: Machine, fingerprint: str, embedded_params: bool, code: str = "") -> dict[str, Any]:
    """Return the metadata of a program; ``code`` is the hash of its kernels, so that no two libraries have the same metadata."""
    tables, strip, leaves = Tables(program), program.strip_source, leaving_sides(program)
    return {
        "format": "dycl-library",
        "format_version": FORMAT_VERSION,
        "abi_version": ABI_VERSION,
        "name": program.name,
        "fingerprint": fingerprint,
        "code": code,
        "target": machine.for_code(program.amx).describe(),
        "device": None if program.device is None else {"kind": program.device.kind, "arch": program.device.arch},
        "input_structure": program.input_structure,
        "input_names": list(program.input_names),
        "inputs": [_input(program, k) for k in range(len(program.input_names))],
        "sizes": [{"name": s.name, "min": s.least, "max": s.most} for s in program.sizes],
        "special_sizes": program.special_sizes,
        "session_needs": [
            {"sizes": {s.name: [s.least, n] for s, n in zip(program.sizes, need.most) if n < s.most}, "arena_bytes": need.arena}
            for need in program.needs
        ],
        "input_pairs": [[p.first, p.second, p.kind] for p in program.input_pairs],
        "sites": [
            {"structure": s.structure, "types": [_type(t) for t in s.types], "origin": _origin(s.origin, strip)} for s in program.sites
        ],
        "decisions": [_decision(d, leaves.get(d.decision), strip) for d in tables.decisions],
        "flow": [_flow(block, strip) for block in program.blocks],
        "blocks": [_block(block, strip) for block in program.blocks],
        "kernels": [{"symbol": k.symbol, "backend": k.backend} for k in program.kernels],
        **_calls(program, tables, strip),
        "state": [s.name for s in program.state],
        "weights": len(program.weights),
        "arena_bytes": program.arena_bytes,
        "weights_bytes": sum(w.type.nbytes for w in program.weights),
        "embedded_params": embedded_params,
        "left_out": [shipped_note(text) for text in program.left_out],
        "certificate": program.certificate,
        "user_metadata": program.user_metadata,
    }


def _flow(block: CodeBlock, strip: bool) -> list[Any]:
    """Return where a block leads: the skeleton from which tools list the paths. A branch's targets are (false, true)."""
    end = block.end
    if isinstance(end, Goto):
        return ["goto", end.target]
    if isinstance(end, CondGoto):
        return ["decide", end.decision, [end.orelse.target, end.then.target]]
    if isinstance(end, SwitchGoto):
        return ["decide", end.decision, [goto.target for goto in end.targets]]
    if isinstance(end, Fail):
        return ["raise", f"{end.kind}: {end.message}", _origin(end.origin, strip)]
    return ["return", end.site]


def _decision(decision: CondGoto | SwitchGoto, leaves: int | None, strip: bool) -> dict[str, Any]:
    """Return what a decision is; ``leaves`` is the side at which a budget may let a run leave early."""
    kind = "switch" if isinstance(decision, SwitchGoto) else "branch"
    return {"kind": kind, "origin": _origin(decision.origin, strip), **({} if leaves is None else {"leaves": leaves})}


def _block(block: CodeBlock, strip: bool) -> dict[str, Any]:
    """Return what names a block.

    ``recursive`` says that it keeps something over a call of a recursive function; ``trips`` is how often the loop that begins here comes
    back at most.
    """
    recursive = any(isinstance(i, (Push, Pop)) for i in block.all_instrs())
    trips = {} if block.trips is None else {"trips": block.trips}
    return {"name": block.name, "origin": _origin(block.origin, strip), "recursive": recursive, **trips}


def _calls(program: Program, tables: Tables, strip: bool) -> dict[str, Any]:
    """Return the kernel calls, each with its block, the bytes of its tensors and the lines that it computes, and the lines."""
    block_of = {i.number: k for k, block in enumerate(program.blocks) for i in block.instrs if isinstance(i, KernelCall)}
    lines: dict[Origin, int] = {}
    calls = [
        {
            "kernel": c.kernel,
            "sub_dnn": c.sub_dnn,
            "block": block_of[c.number],
            "bytes": sum(slot.type.nbytes for slot in c.args),
            "lines": [lines.setdefault(origin, len(lines)) for origin in c.lines],
        }
        for c in tables.calls
    ]
    return {"calls": calls, "lines": [_origin(origin, strip) for origin in lines]}


def _input(program: Program, k: int) -> dict[str, Any]:
    """Return the type of an input; ``shape`` is the largest, ``sized`` says which dimensions the caller decides, and as what size."""
    home = program.inputs[k]
    found = _type(home.type) if isinstance(home, Slot) else {"type": home.kind}
    sized = {str(d.dim): d.text(size.name) for size in program.sizes for d in size.dims if d.input == k}
    return {**found, "sized": sized} if sized else found


def _type(type_: Type) -> dict[str, Any]:
    if isinstance(type_, TensorType):
        return {"type": "tensor", "dtype": type_.dtype, "shape": list(type_.shape)}
    return {"type": type_.kind}


def _origin(origin: Origin | None, strip: bool) -> dict[str, Any] | None:
    if origin is None:
        return None
    told = shipped_origin(origin, strip)
    return {"file": told.file, "line": told.line, "function": told.function, "code": told.code}
