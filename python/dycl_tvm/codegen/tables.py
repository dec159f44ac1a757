# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The static tables of a dispatcher: tensors, kernels, calls, origins, inputs, sites, decisions, state, weights.

Each distinct slot of a program is one row of the table of tensors; the generated code names tensors by row.
"""

from __future__ import annotations

from typing import Union

from dycl_tvm.codegen.outputs import direct_homes
from dycl_tvm.codegen.shipped import shipped_origin
from dycl_tvm.codegen.text import DTYPES, comment, float_literal, int_literal, string, table, table_ref
from dycl_tvm.codegen.weights import weight_names
from dycl_tvm.compile.program import (
    CondGoto,
    Fail,
    HostInstr,
    Kernel,
    Leave,
    Program,
    Slot,
    SwitchGoto,
    slots_of,
)
from dycl_tvm.errors import CompileError
from dycl_tvm.hcfg.nodes import Origin
from dycl_tvm.hcfg.types import TensorType, Type

Decision = Union[CondGoto, SwitchGoto]

_SPACES = {"input": 0, "weight": 1, "state": 2, "arena": 3}
_ALIGN = 64


class Tables:
    """The tables of one program. Rows are numbered in an order that depends on nothing but the program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.tensors: dict[Slot, int] = {}
        self.origins: dict[Origin, int] = {}
        self.calls = program.calls()
        self.decisions = sorted((b.end for b in program.blocks if isinstance(b.end, (CondGoto, SwitchGoto))), key=lambda end: end.decision)
        self._dims: dict[tuple[int, ...], int] = {}
        self._dim_list: list[int] = []
        _check_dense("kernel call", [c.number for c in self.calls])
        _check_dense("decision", [d.decision for d in self.decisions])
        self._collect_slots()
        self._collect_origins()

    def tensor(self, slot: Slot) -> int:
        """Return the row of a slot."""
        return self.tensors[slot]

    def origin(self, origin: Origin | None) -> str:
        """Return the row of an origin as C++."""
        return "kNone" if origin is None else str(self.origins[origin])

    def _collect_slots(self) -> None:
        program = self.program
        found: dict[Slot, None] = {slot: None for slot in program.inputs if isinstance(slot, Slot)}
        found.update((home.home, None) for home in program.state if isinstance(home.home, Slot))
        for block in program.blocks:
            for instr in block.all_instrs():
                found.update((slot, None) for slot in slots_of(instr))
            if isinstance(block.end, Leave):
                found.update((value, None) for value in block.end.values if isinstance(value, Slot))
        for slot in found:
            self._check_slot(slot)
        # The runtime relies on it that the views of inputs stand first, and those of a home together.
        for slot in sorted(found, key=lambda s: (_SPACES[s.space], s.index if s.space == "arena" else 0)):
            self.tensors[slot] = len(self.tensors)

    def _check_slot(self, slot: Slot) -> None:
        if slot.space == "arena" and (slot.offset % _ALIGN or slot.offset + slot.type.nbytes > self.program.arena_bytes):
            raise CompileError(f"internal: the slot {slot} does not lie in the arena of {self.program.arena_bytes} bytes")

    def _collect_origins(self) -> None:
        def add(origin: Origin | None) -> None:
            if origin is not None:
                self.origins.setdefault(origin, len(self.origins))

        for site in self.program.sites:
            add(site.origin)
        for decision in self.decisions:
            add(decision.origin)
        for block in self.program.blocks:
            for instr in block.all_instrs():
                if isinstance(instr, HostInstr):
                    add(instr.origin)
            if isinstance(block.end, Fail):
                add(block.end.origin)

    def dims(self, shape: tuple[int, ...]) -> int:
        """Return where the extents of a shape begin in the table of extents."""
        if shape not in self._dims:
            self._dims[shape] = len(self._dim_list)
            self._dim_list.extend(shape)
        return self._dims[shape]

    def definitions(self) -> str:
        """Return all tables as C++."""
        program = self.program
        tensors = [
            f"{{Space::k{s.space.capitalize()}, {_tensor_type(s.type)}, {s.index}, {s.offset}, {self.dims(s.type.shape)}}},"
            f"  // {row}: {s.type}"
            for s, row in self.tensors.items()
        ]
        weights = [
            f"{{{string(name)}, {_tensor_type(w.type)}, {self.dims(w.type.shape)}}},"
            for name, w in zip(weight_names(program), program.weights)
        ]
        direct = [self._direct_row(leaf, home) for leaf, home in direct_homes(program, list(self.tensors))]
        args: list[str] = []
        calls: list[str] = []
        first = 0
        for call in self.calls:
            calls.append(
                f"{{{call.kernel}, {first}, {len(call.args)}}},  // {call.number}: {call.sub_dnn}: {program.kernels[call.kernel].symbol}"
            )
            args.append(" ".join(f"{self.tensor(slot)}," for slot in call.args))
            first += len(call.args)
        leaves = [self._leaf_row(t) for s in program.sites for t in s.types]
        parts = [
            table("int64_t", "kDims", _wrapped(self._dim_list)),
            table("TensorDesc", "kTensors", tensors),
            table("KernelDesc", "kKernels", [self._kernel_row(k) for k in program.kernels]),
            "// The tensors of each call, one call a line.\n" if args else "",
            table("uint32_t", "kArgs", [row for row in args if row]),
            table("CallDesc", "kCalls", calls),
            table("OriginDesc", "kOrigins", [_origin_row(shipped_origin(o, program.strip_source)) for o in self.origins]),
            table("InputDesc", "kInputs", self._input_rows()),
            table("SizeDesc", "kSizes", self._size_rows()),
            table("SizedDim", "kSizedDims", [f"{{{d.input}, {d.dim}, {d.factor}, {d.constant}}}," for s in program.sizes for d in s.dims]),
            *self._needs(),
            table("InputPair", "kInputPairs", self._input_pairs()),
            table("SiteDesc", "kSites", self._site_rows()),
            table("LeafDesc", "kLeaves", leaves),
            table("DirectDesc", "kDirect", direct),
            table("DecisionDesc", "kDecisions", [self._decision_row(d) for d in self.decisions]),
            table("StateDesc", "kState", self._state_rows()),
            table("WeightDesc", "kWeights", weights),
        ]
        self._counts = {
            "kDims": len(self._dim_list), "kTensors": len(tensors), "kKernels": len(program.kernels), "kArgs": first,
            "kCalls": len(calls), "kOrigins": len(self.origins), "kInputs": len(program.inputs),
            "kSizes": len(program.sizes), "kSizedDims": sum(len(s.dims) for s in program.sizes),
            "kNeeds": len(program.needs), "kNeedSizes": len(program.needs) * len(program.sizes),
            "kInputPairs": len(self._input_pairs()), "kSites": len(program.sites),
            "kLeaves": len(leaves), "kDirect": len(direct),
            "kDecisions": len(self.decisions), "kState": len(program.state), "kWeights": len(weights),
        }  # fmt: skip
        return "\n".join(part for part in parts if part)

    def program_desc(self, level: int | None = None) -> str:
        """Return the definition of ``kProgram``, or of that of a level (after :meth:`definitions`)."""
        program = self.program
        refs = "".join(f"    {table_ref(name, count)},\n" for name, count in self._counts.items())
        leaves = max((len(site.types) for site in program.sites), default=0)
        return (
            f"extern const ProgramDesc kProgram{'' if level is None else level} = {{\n"
            f"    {string(program.name)},\n    {program.arena_bytes},  // bytes of the arena\n{refs}"
            f"    {leaves},  // most leaves of a return site\n    Run,\n"
            f"    {'&kDevice' if program.device else 'nullptr'},\n    {str(bool(program.amx)).lower()},  // kernels use AMX\n}};\n"
        )

    def _kernel_row(self, kernel: Kernel) -> str:
        # On a device a kernel is not a function of the host but a row of the table of launches.
        function = "nullptr" if self.program.device else f"__tvm_ffi_{kernel.symbol}"
        return f"{{{string(kernel.symbol)}, {function}}},  // {kernel.backend}"

    def _input_rows(self) -> list[str]:
        rows = []
        for name, place in zip(self.program.entry_names, self.program.inputs, strict=True):
            kind = "Tensor" if isinstance(place, Slot) else place.kind.capitalize()
            tensor = str(self.tensor(place)) if isinstance(place, Slot) else "kNone"
            rows.append(f"{{{string(name)}, Kind::k{kind}, {tensor}}},")
        return rows

    def _size_rows(self) -> list[str]:
        rows, first = [], 0
        for size in self.program.sizes:
            rows.append(f"{{{size.least}, {size.most}, {first}, {len(size.dims)}}},")
            first += len(size.dims)
        return rows

    def _needs(self) -> list[str]:
        """Return what sessions for smaller sizes need: bytes of the arena, and the sizes."""
        needs = self.program.needs
        return [
            table("uint64_t", "kNeeds", [f"{need.arena}," for need in needs]),
            table("int64_t", "kNeedSizes", [" ".join(f"{n}," for n in need.most) for need in needs]),
        ]

    def _input_pairs(self) -> list[str]:
        return [f"{{{p.first}, {p.second}, InputPair::k{p.kind.capitalize()}}}," for p in self.program.input_pairs]

    def _site_rows(self) -> list[str]:
        rows, first = [], 0
        for site in self.program.sites:
            rows.append(f"{{{len(site.types)}, {self.origin(site.origin)}, {first}}},")
            first += len(site.types)
        return rows

    def _leaf_row(self, type_: Type) -> str:
        if isinstance(type_, TensorType):
            return f"{{Kind::kTensor, {_tensor_type(type_)}, {self.dims(type_.shape)}}},"
        return f"{{Kind::k{type_.kind.capitalize()}, DType::kBool, 0, 0}},"

    def _direct_row(self, leaf: int, home: int) -> str:
        rows = [row for slot, row in self.tensors.items() if slot.space == "arena" and slot.index == home]
        return f"{{{leaf}, {rows[0]}, {len(rows)}}},"

    def _decision_row(self, decision: Decision) -> str:
        is_switch = "true" if isinstance(decision, SwitchGoto) else "false"
        return f"{{{is_switch}, {self.origin(decision.origin)}}},"

    def _state_rows(self) -> list[str]:
        rows = []
        for state in self.program.state:
            if isinstance(state.home, Slot):
                rows.append(f"{{{string(state.name)}, Kind::kTensor, {self.tensor(state.home)}, {int(state.initial)}, {{0}}}},")
                continue
            kind = state.home.kind
            # Designated, because a union without a name takes its first member.
            value = {
                "int": lambda v: f"{{.i = {int_literal(int(v))}}}",
                "float": lambda v: f"{{.f = {float_literal(float(v))}}}",
                "bool": lambda v: f"{{.i = {int(bool(v))}}}",
            }[kind](state.initial)
            rows.append(f"{{{string(state.name)}, Kind::k{kind.capitalize()}, kNone, kNone, {value}}},")
        return rows


def _tensor_type(type_: TensorType) -> str:
    return f"DType::{DTYPES[type_.dtype]}, {len(type_.shape)}"


def _origin_row(origin: Origin) -> str:
    return f"{{{string(origin.file)}, {origin.line}, {string(origin.function)}, {string(comment(origin.code))}}},"


def _wrapped(values: list[int], width: int = 16) -> list[str]:
    return [" ".join(f"{v}," for v in values[i : i + width]) for i in range(0, len(values), width)]


def _check_dense(what: str, sites: list[int]) -> None:
    if sites != list(range(len(sites))):
        raise CompileError(f"internal: the numbers of the {what}s of the program are not 0 .. {len(sites) - 1}")
