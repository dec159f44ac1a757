# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Kernels that compute the first rows only: which trips they skip, and that what they compute is right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from kernel_utils import AVX2, machine

from dycl_tvm.backends.extents import Extent
from dycl_tvm.backends.front import with_front
from dycl_tvm.backends.lowering_passes import compile_kernels
from dycl_tvm.backends.tir_cpu.families.dense_blocked import FAMILY
from dycl_tvm.backends.tir_cpu.front import add_sizes
from dycl_tvm.backends.tir_cpu.words.workload import Dense

N = Extent(0, 1, 0)


@pytest.mark.parametrize(("rows", "k"), [(64, 256), (128, 1024)])
def test_rows_behind_what_is_wanted_are_not_computed(rows: int, k: int) -> None:
    """Tiles of many rows, and such as a kernel copies for itself: what is behind the last tile that is wanted stays as it was."""
    work = Dense(1, rows, 64, k)
    alone = replace(machine(), cores=1)  # what runs in threads needs the runtime
    plan = FAMILY.plans(work, alone)[0]
    front = with_front(FAMILY.kernel(work, plan, alone), (None, N, None))
    module = compile_kernels({"front": add_sizes(front).with_attr("global_symbol", "front")}, AVX2)
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype("float32") for shape in ((1, rows, k), FAMILY.packed(work, plan, alone).shape))
    weights = np.concatenate(list(w), 1)[:, :64]
    for n in (0, 1, plan.rows, rows // 2, rows - 1, rows):
        given: Any = [tvm.runtime.tensor(a) for a in (x, w, np.array(n, "int64"), np.full((1, rows, 64), 7, "float32"))]
        module["front"](*given)
        y = given[-1].numpy()[0]
        np.testing.assert_allclose(y[:n], (x[0] @ weights)[:n], rtol=1e-3, atol=1e-3)
        assert (y[n + plan.rows :] == 7).all()
