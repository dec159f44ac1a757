# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Whether the result of a network depends on the signs of eigenvectors and singular vectors, which nobody defines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dycl_tvm.errors import UnsupportedError, VerificationError
from dycl_tvm.hcfg import vectors
from dycl_tvm.hcfg.nodes import TensorOp
from dycl_tvm.verify.certificate import Control

_ACCEPT = "compute what does not depend on the signs, or accept the artefact's with build(..., open_signs=True)"


def refuse(places: Sequence[TensorOp], why: str, cause: Exception | None = None) -> None:
    """Refuse a network because of the vectors that it uses.

    Raises
    ------
    UnsupportedError
        With the first place at which there are such vectors.
    """
    what = "eigenvectors" if "eigh" in places[0].op else "singular vectors"
    raise UnsupportedError(f"the signs of {what} are left open by PyTorch, {why}", places[0].origin, _ACCEPT) from cause


def check_any_vectors(places: Sequence[TensorOp], check: Callable[[], Control]) -> Control:
    """Compare a model with its graph whose vectors are chosen at random, run by run.

    Raises
    ------
    UnsupportedError
        If the result depends on the choice, or if nobody knows.
    VerificationError
        If they differ for another reason.
    """
    try:
        with vectors.chosen(vectors.AT_RANDOM):
            control = check()
    except VerificationError as error:
        check()  # with the vectors of eager there is a difference too: that is the one to be told
        refuse(places, "and the result depends on them", error)
    if control.method == "none" or control.untaken:
        refuse(places, f"and whether the result depends on them could not be found out: {_unknown(control)}")
    return control


def _unknown(control: Control) -> str:
    return control.reason or f"no run took {control.untaken[0]}"


def note(place: TensorOp, any_signs: bool) -> str:
    """Return what the report says of vectors."""
    rest = "the result was the same for any in all runs of the check" if any_signs else "the result may depend on them"
    return f"the signs that LAPACK gives the vectors of {place.op.split('.')[1].lstrip('_')}() at {place.origin}; {rest}"
