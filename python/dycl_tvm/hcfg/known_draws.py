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

#: So many numbers that those which are rounded otherwise, one in a thousand, are among them.
_SIZE = 1 << 15
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
        "float32": "35316c2081cd",
        "float64": "aa7a94d47082",
        "float16": "e1a6f29109df",
        "bfloat16": "e79aafc01a27",
    },
    "normal": {
        "float32": "a46cbfa9d55d",
        "float64": "0443e2ddf1f8",
        "float16": "7ec2de9b066a",
        "bfloat16": "b77a1d86faaf",
    },
    "log_normal": {
        "float32": "b64d673d7119",
        "float64": "1b2a36ad7801",
        "float16": "9d4a05a4986c",
        "bfloat16": "eee3a3f6997c",
    },
    "cauchy": {
        "float32": "33cac5fd9848",
        "float64": "42488db2a107",
        "float16": "e034b2dc1be7",
        "bfloat16": "a0222eaac325",
    },
    "exponential": {
        "float32": "b7196be406ea",
        "float64": "70702e446947",
        "float16": "7ed4b4abb9e5",
        "bfloat16": "e8e91bfd6769",
    },
    "geometric": {
        "float32": "ff1ab8441283",
        "float64": "f4df83107902",
        "float16": "cf0e1cb90c45",
        "bfloat16": "d1021cc1b2d7",
        "int64": "ff6d9e881b5f",
        "int32": "22dba3fc11e2",
        "int16": "7390254b643f",
        "int8": "bb157e632833",
        "uint8": "bb157e632833",
    },
    "bernoulli": {
        "float32": "2a746c2df47c",
        "float64": "49796b4742af",
        "float16": "81a5de004340",
        "bfloat16": "3a19f617b497",
        "int64": "d1c1402d31f0",
        "int32": "627d14fa3689",
        "int16": "e0b434310bcf",
        "int8": "87abb9e192f2",
        "uint8": "87abb9e192f2",
        "bool": "87abb9e192f2",
    },
    "bernoulli_each": {
        "float32": "e4ab45b86101",
        "float64": "7f279dd4d416",
        "float16": "eeffa02b9759",
        "bfloat16": "24c9ac3cbb9e",
        "int64": "e42c5ef1afa6",
        "int32": "8174898005ff",
        "int16": "bacfe60c28a2",
        "int8": "55708344e1c1",
        "uint8": "55708344e1c1",
        "bool": "55708344e1c1",
    },
    "normal_each": {
        "float32": "0a34111edfc0",
        "float64": "03124f6e22ba",
        "float16": "b5fc4ea72360",
        "bfloat16": "14cbf4fe7408",
    },
    "poisson": {
        "float32": "a0dced2e5e32",
        "float64": "80ba92ce0bbd",
        "float16": "2cbb04ae4ca6",
        "bfloat16": "29f4493de93d",
    },
    "gamma": {
        "float32": "9ea708c17c56",
        "float64": "c3341fec5a82",
    },
    "integers": {
        "float32": "58ce24d26976",
        "float64": "423e7e26d860",
        "float16": "fd4d0c7ab78d",
        "bfloat16": "62f719805889",
        "int64": "eba9e8874a2d",
        "int32": "349b54d8e97d",
        "int16": "b0b8c5646c85",
        "int8": "62a2573a6399",
        "uint8": "62a2573a6399",
        "uint16": "b0b8c5646c85",
        "uint32": "349b54d8e97d",
        "uint64": "eba9e8874a2d",
        "bool": "898a63252b4d",
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
        "int64": "4a3c3a11cd60",
    },
}
