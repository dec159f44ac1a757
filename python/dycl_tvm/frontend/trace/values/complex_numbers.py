# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Complex numbers of Python that are known only at run time: there are none. Complex tensors are tensors like others."""

from __future__ import annotations

from typing import NoReturn

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current


def refuse_complex() -> NoReturn:
    """Refuse a complex number of Python."""
    raise UnsupportedError(
        "a complex number of Python known only at run time",
        current().origin(),
        "read its parts: t.real.item(), t.imag.item(); or keep it a tensor: torch.complex(re, im), t * 1j",
    )
