# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Numbers of 16 and 8 bits on a GPU: in what their products are added up, and how their weights lie in memory.

Three things happen to the Relax functions of a device's program.

* Operators on float16 that add up many terms, or are several roundings long, compute in float32 and round their result once, as PyTorch
  does. Products and convolutions keep their factors in float16.
* Where the user allows it (``accuracy="fp16"``), float32 weights of products and convolutions become float16. That is computed at build
  time, so that the weights file has half the size. Results stay float32.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import tvm
from tvm import relax

from dycl_tvm.backends.partition import constant_vars

#: Sums of products of two factors, whose lowering takes factors of two types.
_PRODUCTS = frozenset(("relax.matmul", "relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d"))
#: TVM's number for operators that element-wise ones may be fused behind.
_OUT_ELEMENTWISE_FUSABLE = 4
#: Operators that are computed in float32 where they are of float16.
_WIDE = frozenset(
    f"relax.{name}"
    for name in (
        "tanh", "sigmoid", "power", "rsqrt", "sum", "mean", "variance", "std", "prod", "cumsum", "cumprod", "einsum", "image.resize2d",
        "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.softplus", "nn.softmax", "nn.log_softmax", "nn.layer_norm", "nn.group_norm",
        "nn.batch_norm", "nn.instance_norm", "nn.rms_norm", "nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d", "nn.adaptive_avg_pool1d",
        "nn.adaptive_avg_pool2d", "nn.adaptive_avg_pool3d", "nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose",
    )
)  # fmt: skip


def prepare_narrow(mod: tvm.IRModule, constants: Mapping[str, Collection[int]], round_weights: bool, words: int) -> tvm.IRModule:
    """Return the module with float16 and integers of 8 bits as a GPU shall compute them.

    Parameters
    ----------
    mod : tvm.IRModule
        Before its operators are lowered.
    constants : mapping
        Name of a function to the parameters that are weights wherever it is called.
    round_weights : bool
        Whether weights of products may be rounded to float16.
    words : int
        How many integers of 8 bits the GPU multiplies at once; 1 if it does not.
    """
    mutator = _Narrow(mod, round_weights, words)
    for gv, fn in list(mod.functions_items()):
        if isinstance(fn, relax.Function):
            mutator.known = constant_vars(fn, constants.get(gv.name_hint, ()))
            mutator.builder_.update_func(gv, mutator.visit_expr(fn))
    # names of names would come between operators that are to be fused
    return relax.transform.CanonicalizeBindings()(mutator.builder_.get())


def _dtype(expr: Any) -> str:
    type_ = getattr(expr, "ty", None)
    return str(type_.dtype.dtype) if isinstance(type_, relax.TensorType) else ""


@relax.expr_functor.mutator
class _Narrow(relax.PyExprMutator):  # type: ignore[misc]  # TVM has no types
    def __init__(self, mod: tvm.IRModule, round_weights: bool, words: int) -> None:
        super().__init__(mod)
        self.round_weights, self.words = round_weights, words
        self.known: set[Any] = set()

    def visit_call_(self, call: Any) -> Any:
        name = getattr(call.op, "name", "")
        constant = len(call.args) == 2 and (call.args[1] in self.known or isinstance(call.args[1], tvm.ir.GenericConst))
        call = self.visit_expr_post_order(call)
        dtypes = [_dtype(a) for a in call.args]
        if name in _PRODUCTS:
            if dtypes == ["float16", "float16"] and _dtype(call) == "float16":
                return self._cast(self._product(call, call.args), "float16")
            if self.round_weights and constant and dtypes == ["float32", "float32"]:
                return self._product(call, [call.args[0], self._cast(call.args[1], "float16")])
            if set(dtypes) <= {"int8", "uint8"} and _dtype(call) == "int32":
                return self._words(call) if constant and self._in_words(call) else self._product(call, call.args, "int32")
        if name in _WIDE and _dtype(call) == "float16":
            wide = [self._cast(a, "float32") if d == "float16" else a for a, d in zip(call.args, dtypes)]
            return self._cast(self.builder_.emit(relax.Call(call.op, wide, call.attrs, call.ty_args)), "float16")
        return call

    def _cast(self, value: Any, dtype: str) -> Any:
        return self.builder_.emit(relax.op.astype(value, dtype))

    def _in_words(self, call: Any) -> bool:
        """Whether the channels of a convolution make whole words."""
        if call.op.name != "relax.nn.conv2d" or int(call.attrs.groups) > 1 or str(call.attrs.kernel_layout) != "OIHW":
            return False
        _, channels, *window = (int(size) for size in call.args[1].ty.shape)
        return self.words > 1 and channels % self.words == 0 and math.prod(window) > 1

    def _words(self, call: Any) -> Any:
        """Emit a convolution whose weights lie channel by channel."""
        return self._product(call, [call.args[0], self.builder_.emit(relax.op.permute_dims(call.args[1], [0, 2, 3, 1]))], "int32", "OHWI")

    def _product(self, call: Any, args: Any, sums: str = "float32", kernel_layout: str = "") -> Any:
        """Emit a product with sums and results of a type; its factors may be of two types, which the operator itself does not allow."""
        if call.op.name == "relax.matmul":
            product = relax.op.matmul(*args, out_dtype=sums)
        else:
            of = call.attrs
            make = getattr(relax.op.nn, call.op.name.rpartition(".")[2])
            layouts = (str(of.data_layout), kernel_layout or str(of.kernel_layout), str(of.out_layout or of.data_layout))
            sizes = ([int(v) for v in getattr(of, name)] for name in ("strides", "padding", "dilation"))
            product = make(*args, *sizes, int(of.groups), *layouts, sums)
        lowered = call.op.get_attr("FLegalize")(self.builder_, product)
        # TVM's analysis does not see a product in factors that are converted, and would fuse nothing behind it
        fn = self.builder_.get()[lowered.args[0]]
        self.builder_.update_func(lowered.args[0], fn.with_attr("op_pattern", _OUT_ELEMENTWISE_FUSABLE))
        return self.builder_.emit(lowered)
