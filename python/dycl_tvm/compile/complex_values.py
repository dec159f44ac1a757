# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Complex tensors while they are imported: two real expressions, and what lies in memory where they cross a border."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx

from dycl_tvm.compile.ops.context import OpContext
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.hcfg.nodes import Origin
from dycl_tvm.hcfg.types import PARTS, TensorType


class ComplexValue:
    """A complex tensor: its parts, its memory, or both, each made when it is first asked for.

    Parameters
    ----------
    bb : relax.BlockBuilder
    re, im : relax expression, optional
    whole : relax expression, optional
        The same numbers as they lie in memory, the last dimension of two.
    """

    def __init__(self, bb: relax.BlockBuilder, re: Any = None, im: Any = None, whole: Any = None) -> None:
        self._bb, self._re, self._im, self._whole = bb, re, im, whole

    def parts(self) -> tuple[Any, Any]:
        """Return the real and the imaginary part."""
        if self._re is None:
            self._re, self._im = (self._part(k) for k in (0, 1))
        return self._re, self._im

    def whole(self) -> Any:
        """Return the numbers as they lie in memory."""
        if self._whole is None:
            shape = OpContext.shape(self._re)

            def element(re: Any, im: Any, *i: Any) -> Any:
                return tirx.if_then_else(i[-1] == 0, re(*i[:-1]), im(*i[:-1]))

            ctx = OpContext(self._bb, [TensorType((*shape, 2), OpContext.dtype(self._re))])
            self._whole = ctx.compute(element, self._re, self._im, name="interleaved")
        return self._whole

    def _part(self, which: int) -> Any:
        rank = len(OpContext.shape(self._whole))
        part = self._bb.emit(relax.op.strided_slice(self._whole, axes=[rank - 1], begin=[which], end=[which + 1]))
        return self._bb.emit(relax.op.reshape(part, OpContext.shape(self._whole)[:-1]))

    def fitted(self, type_: TensorType) -> ComplexValue:
        """Give the parts the dtype that PyTorch says."""
        ctx = OpContext(self._bb, [type_])
        self._re, self._im = (ctx.cast(part, type_.parts.dtype) for part in self.parts())
        return self

    def check(self, type_: TensorType, op: str, origin: Origin | None) -> None:
        """Refuse what has another type than PyTorch says: a defect of an operator's function."""
        want = TensorType(type_.shape, type_.parts.dtype)
        given = [self._whole] if self._re is None else [self._re, self._im]
        for expr in given:
            have = TensorType(OpContext.shape(expr), OpContext.dtype(expr))
            if have != (type_.parts if self._re is None else want) or not type_.is_complex:
                raise UnsupportedError(f"{op} gives complex numbers whose parts are {have} where {type_} is expected", origin)


@dataclass
class AsReal:
    """What ``view_as_real`` gives, until it is read as one tensor: mostly only one of the parts is."""

    value: ComplexValue

    def check(self, type_: TensorType, op: str, origin: Origin | None) -> None:
        """See :meth:`ComplexValue.check`."""
        whole = next(dtype for dtype, part in PARTS.items() if part == type_.dtype)
        self.value.check(TensorType(type_.shape[:-1], whole), op, origin)
