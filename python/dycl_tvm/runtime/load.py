# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``load``: open a compiled network. Needs neither torch nor TVM."""

from __future__ import annotations

import os

from dycl_tvm.errors import ArtifactError
from dycl_tvm.runtime import capi
from dycl_tvm.runtime.module import Model, Module
from dycl_tvm.runtime.trailer import check_machine, read_trailer


def load(library: str | os.PathLike[str], params: str | os.PathLike[str] | None = None, num_threads: int | None = None) -> Module:
    """Load a compiled network.

    Parameters
    ----------
    library : path-like
        What ``Artifact.export_library`` wrote.
    params : path-like, optional
        What ``Artifact.save_params`` wrote; left out when the weights are inside the library.
    num_threads : int, optional
        Threads of this module alone. Left out: the module shares the process's threads (``DYCL_NUM_THREADS``, or one for each core).

    Returns
    -------
    Module
        Call it like the model.

    Raises
    ------
    ArtifactError
        If a file is damaged, of another version, for another machine, or if the two do not belong together. No code of the
        library has run by then.
    """
    path = os.path.abspath(os.fspath(library))
    metadata = read_trailer(path)
    check_machine(path, metadata)
    if params is None and metadata["weights"] and not metadata["embedded_params"]:
        raise ArtifactError(f"'{library}' has its weights in a params file; give the path of the file that was saved with it")
    # The checked file is the one that is loaded only if nobody replaces it in between; a loader cannot hand bytes to dlopen.
    model = Model(capi.open_library(path), metadata, None if params is None else os.fspath(params))
    return Module(model, num_threads)
