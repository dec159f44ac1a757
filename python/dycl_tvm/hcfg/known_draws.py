# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Whether this PyTorch draws the random numbers that libraries draw.

The runtime computes what PyTorch 2.13 gives, bit by bit. Other versions round some numbers of some types in another way, and so do builds
for other processors. Which they are is not listed: each kind of draw is tried once in a process, and its numbers are compared by a digest.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable

import torch

from dycl_tvm.hcfg.draws import CPU

_SIZE = 2048
_SEED = 5
_Numbers = tuple[torch.Tensor, torch.Tensor]


def _ramp(dtype: torch.dtype) -> torch.Tensor:
    return torch.linspace(0.05, 3.0, _SIZE, dtype=torch.float64).to(dtype)


_draws = CPU.draws
#: Draws with parameters that are no special cases, by the operator's name: of one type from one state.
_TRIALS: dict[str, Callable[[torch.Tensor, torch.dtype], list[_Numbers]]] = {
    "uniform": lambda s, t: [_draws.uniform(s, [_SIZE], -1.7, 2.1, t)],
    "normal": lambda s, t: [_draws.normal(s, [_SIZE], -1.7, 2.1, t, one_by_one) for one_by_one in (False, True)],
    "log_normal": lambda s, t: [_draws.log_normal(s, [_SIZE], -0.7, 0.6, t)],
    "cauchy": lambda s, t: [_draws.cauchy(s, [_SIZE], -0.7, 0.6, t)],
    "exponential": lambda s, t: [_draws.exponential(s, [_SIZE], 1.3, t)],
    "geometric": lambda s, t: [_draws.geometric(s, [_SIZE], 0.1, t)],
    "bernoulli": lambda s, t: [_draws.bernoulli(s, [_SIZE], 0.3, t)],
    "bernoulli_each": lambda s, t: [_draws.bernoulli_each(s, _ramp(p) / 4, t) for p in (torch.float32, torch.float64)],
    "normal_each": lambda s, t: [_draws.normal_each(s, _ramp(t) - 1, _ramp(t), one_by_one) for one_by_one in (False, True)],
    "poisson": lambda s, t: [_draws.poisson(s, _ramp(t) * 20)],
    "gamma": lambda s, t: [_draws.gamma(s, _ramp(t))],
    "integers": lambda s, t: [_draws.integers(s, [_SIZE], 0, 2 if t == torch.bool else 100, t)],
    "permutation": lambda s, t: [_draws.permutation(s, 100, t)],
    "multinomial": lambda s, t: [
        _draws.multinomial(s, _ramp(weights), 64, again, columns)
        for weights in ((torch.float32, torch.float64) if t == torch.int64 else ())
        for again in (False, True)
        for columns in (False, True)
    ],
}


def digest(name: str, dtype: torch.dtype) -> str:
    """Return the digest of the numbers that this PyTorch draws, and of the states after them; empty if it draws none of this type."""
    state = torch.Generator().manual_seed(_SEED).get_state()
    try:
        made = [tensor.contiguous().view(torch.uint8).numpy().tobytes() for numbers in _TRIALS[name](state, dtype) for tensor in numbers]
    except (RuntimeError, ValueError, TypeError):
        return ""
    return hashlib.sha256(b"".join(made)).hexdigest()[:12] if made else ""


@functools.cache
def is_known(name: str, dtype: torch.dtype) -> bool:
    """Tell whether a library draws the numbers that this PyTorch draws.

    Parameters
    ----------
    name : str
        Of an operator of :mod:`dycl_tvm.hcfg.draws`, such as ``normal``.
    dtype : torch.dtype
        Of the numbers.
    """
    name = name.removesuffix("_some")
    known = DIGESTS.get(name, {}).get(str(dtype).removeprefix("torch."))
    return known is not None and digest(name, dtype) == known


#: The digests of PyTorch 2.13 on processors with AVX2, by operator and type.
DIGESTS: dict[str, dict[str, str]] = {
    "uniform": {
        "float32": "8399dff0c81f",
        "float64": "906ee524e696",
        "float16": "a34ca167e6c3",
        "bfloat16": "78ee8391b2ca",
    },
    "normal": {
        "float32": "18fc3dd6349f",
        "float64": "dbbf87c7f103",
        "float16": "de37b4182ae6",
        "bfloat16": "3f3f7ca8c299",
    },
    "log_normal": {
        "float32": "cd9a12a9a947",
        "float64": "4002e6fe39ab",
        "float16": "08031836457e",
        "bfloat16": "a48e5ac9d1ef",
    },
    "cauchy": {
        "float32": "50503acdc82e",
        "float64": "dc91ef199dbf",
        "float16": "220152c5cb09",
        "bfloat16": "66bfc7660c90",
    },
    "exponential": {
        "float32": "caff41464298",
        "float64": "fc73808d5056",
        "float16": "c895c5bee46b",
        "bfloat16": "c54028e68961",
    },
    "geometric": {
        "float32": "9ddc362303bd",
        "float64": "a2b9b3d15bb0",
        "float16": "a325808ed2d9",
        "bfloat16": "2ce030d602df",
        "int64": "fecf0e7b1fb0",
        "int32": "510b8b2b7191",
        "int16": "c76802ddfd3d",
        "int8": "2640fce6cad5",
        "uint8": "2640fce6cad5",
    },
    "bernoulli": {
        "float32": "d74c641bab63",
        "float64": "83a592f1970d",
        "float16": "621e68f76fa2",
        "bfloat16": "baec7f94364c",
        "int64": "1ac9e3eff39e",
        "int32": "d0690c54f8cb",
        "int16": "f531079db8d2",
        "int8": "d41e3bede90e",
        "uint8": "d41e3bede90e",
        "bool": "d41e3bede90e",
    },
    "bernoulli_each": {
        "float32": "3f6d85bfaf28",
        "float64": "54ba28ce085a",
        "float16": "a42242f46365",
        "bfloat16": "2fdd894bfb73",
        "int64": "73f6ddc3ebb5",
        "int32": "c4aca8f9b850",
        "int16": "1ac8b48725b8",
        "int8": "02502d1251b5",
        "uint8": "02502d1251b5",
        "bool": "02502d1251b5",
    },
    "normal_each": {
        "float32": "52a8ea4d5867",
        "float64": "2e19129d6336",
        "float16": "c12355f1ac13",
        "bfloat16": "ded0cf8bc5fc",
    },
    "poisson": {
        "float32": "b68984ca2277",
        "float64": "2d05d804e6c1",
        "float16": "39135c984d3d",
        "bfloat16": "ff913ee2c3fb",
    },
    "gamma": {
        "float32": "cf254777b7a7",
        "float64": "53c90deb52d6",
    },
    "integers": {
        "float32": "be553792a98e",
        "float64": "b5bb15d22ea2",
        "float16": "f0677ceec49a",
        "bfloat16": "effc32b5b80e",
        "int64": "bd4895b1323d",
        "int32": "dcfa394cb6fb",
        "int16": "3ba53b7bb695",
        "int8": "3d49f347e01f",
        "uint8": "3d49f347e01f",
        "uint16": "3ba53b7bb695",
        "uint32": "dcfa394cb6fb",
        "uint64": "bd4895b1323d",
        "bool": "3a8748113abd",
    },
    "permutation": {
        "float32": "0606e39cec65",
        "float64": "f26e76436f60",
        "float16": "bcfadde45208",
        "bfloat16": "0a43da8db58c",
        "int64": "a0cc2b7a5508",
        "int32": "4e3cc1ae33d5",
        "int16": "5a4eeb7aabdd",
        "int8": "30586baa4853",
        "uint8": "30586baa4853",
    },
    "multinomial": {
        "int64": "e744d6f6079b",
    },
}
