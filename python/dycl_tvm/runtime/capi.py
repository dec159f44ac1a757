# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``dycl/dycl.h`` for ctypes: the structures, the functions, and errors as exceptions."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any

from dycl_tvm.errors import ArtifactError, CancelledError, DeadlineError, DeviceError, DyclError, InputError, RunError, UsageError

OK, ERROR_INPUT, ERROR_ARTIFACT, ERROR_RUN, ERROR_MEMORY, ERROR_USAGE, ERROR_DEVICE, ERROR_CANCELLED, ERROR_DEADLINE = range(9)
TENSOR, INT, FLOAT, BOOL = range(4)
PARAMS_FROM_PATH, PARAMS_FROM_MEMORY, PARAMS_FROM_DESCRIPTOR = range(3)

#: DLPack's (code, bits) of each dtype.
DL_DTYPES = {
    "float64": (2, 64), "float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16), "int64": (0, 64), "int32": (0, 32),
    "int16": (0, 16), "int8": (0, 8), "uint8": (1, 8), "bool": (6, 8), "uint16": (1, 16), "uint32": (1, 32), "uint64": (1, 64),
    "complex64": (5, 64), "complex128": (5, 128),
}  # fmt: skip
DL_NAMES = {code: name for name, code in DL_DTYPES.items()}
DL_CPU, DL_CUDA = 1, 2


class DLTensor(ctypes.Structure):
    """DLPack's view of a tensor."""

    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _ValueUnion(ctypes.Union):
    _fields_ = [("tensor", POINTER(DLTensor)), ("address", c_void_p), ("v_int", c_int64), ("v_float", c_double), ("v_bool", c_int64)]


class Value(ctypes.Structure):
    """``DyclValue``; ``address`` is that of the tensor, which ctypes sets and reads faster than a pointer."""

    _anonymous_ = ("u",)
    _fields_ = [("type", c_int32), ("reserved", c_int32), ("u", _ValueUnion)]


class PathEntry(ctypes.Structure):
    """``DyclPathEntry``."""

    _fields_ = [("decision", c_uint32), ("choice", c_uint32)]


class ModelInfo(ctypes.Structure):
    """``DyclModelInfo``."""

    _fields_ = [("struct_size", c_size_t), ("arena_bytes", c_uint64), ("weight_bytes", c_uint64), ("session_bytes", c_uint64)] + [
        (name, c_uint32) for name in ("num_inputs", "num_sites", "num_decisions", "num_kernels", "num_calls", "num_state")
    ]


class ModelOptions(ctypes.Structure):
    """``DyclModelOptions``."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("copy_params", c_int32),
        ("reserved", c_int32),
        ("params_from", c_int32),
        ("params_fd", c_int32),
        ("params_offset", c_uint64),
        ("params_size", c_uint64),
        ("params_data", c_void_p),
    ]


class LargestSize(ctypes.Structure):
    """``DyclLargestSize``."""

    _fields_ = [("name", c_char_p), ("most", c_int64)]


class SessionOptions(ctypes.Structure):
    """``DyclSessionOptions``."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("arena", c_void_p),
        ("arena_bytes", c_uint64),
        ("largest_sizes", POINTER(LargestSize)),
        ("num_largest_sizes", c_size_t),
    ]


class Extent(ctypes.Structure):
    """``DyclExtent``."""

    _fields_ = [("least", c_int64), ("most", c_int64), ("step", c_int64), ("size", c_int32), ("reserved", c_int32)]


class RunOptions(ctypes.Structure):
    """``DyclRunOptions``."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("deadline_ms", c_double),
        ("cancel_on_signal", c_int32),
        ("reserved", c_int32),
        ("budget_ms", c_double),
        ("needed_ns", c_void_p),
        ("num_needed", c_size_t),
        ("cancelled", c_void_p),
    ]


class ProfileOptions(ctypes.Structure):
    """``DyclProfileOptions``."""

    _fields_ = [("struct_size", c_size_t), ("events", c_void_p), ("capacity", c_size_t), ("every", c_uint32), ("reserved", c_uint32)]


class ThreadOptions(ctypes.Structure):
    """``DyclThreadOptions``."""

    _fields_ = [("struct_size", c_size_t), ("cpus", POINTER(c_int32)), ("num_cpus", c_size_t), ("nice", c_int32), ("reserved", c_int32)]


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "dycl_abi_version": (c_int32, []),
    "dycl_metadata": (c_char_p, []),
    "dycl_model_create_with": (c_int32, [c_char_p, POINTER(ModelOptions), POINTER(c_void_p)]),
    "dycl_params_fd": (c_int32, [c_void_p]),
    "dycl_model_destroy": (None, [c_void_p]),
    "dycl_model_info": (c_int32, [c_void_p, POINTER(ModelInfo)]),
    "dycl_session_create": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "dycl_session_create_with": (c_int32, [c_void_p, POINTER(SessionOptions), POINTER(c_void_p)]),
    "dycl_session_destroy": (None, [c_void_p]),
    "dycl_session_set_num_threads": (c_int32, [c_void_p, c_int32]),
    "dycl_session_set_device_branches": (c_int32, [c_void_p, c_int32]),
    "dycl_session_set_cuda_stream": (c_int32, [c_void_p, c_int32, c_void_p]),
    "dycl_run": (c_int32, [c_void_p, POINTER(Value), c_size_t, POINTER(c_int32)]),
    "dycl_run_with": (c_int32, [c_void_p, POINTER(Value), c_size_t, POINTER(RunOptions), POINTER(c_int32)]),
    "dycl_run_into": (
        c_int32,
        [c_void_p, POINTER(Value), c_size_t, POINTER(c_void_p), c_size_t, POINTER(RunOptions), POINTER(c_int32)],
    ),
    "dycl_cancel": (None, [c_void_p]),
    "dycl_num_outputs": (c_int32, [c_void_p, POINTER(c_size_t)]),
    "dycl_output": (c_int32, [c_void_p, c_size_t, POINTER(Value)]),
    "dycl_copy_output": (c_int32, [c_void_p, c_size_t, POINTER(DLTensor)]),
    "dycl_path": (c_int32, [c_void_p, POINTER(PathEntry), c_size_t, POINTER(c_size_t), POINTER(c_uint64)]),
    "dycl_path_cut": (c_int32, [c_void_p, POINTER(c_uint64)]),
    "dycl_path_text": (c_int32, [c_void_p, c_char_p, c_size_t, POINTER(c_size_t)]),
    "dycl_kernel_runs": (c_int32, [c_void_p, POINTER(c_uint64), c_size_t]),
    "dycl_call_runs": (c_int32, [c_void_p, POINTER(c_uint64), c_size_t]),
    "dycl_reset_state": (c_int32, [c_void_p]),
    "dycl_get_state": (c_int32, [c_void_p, c_void_p, c_size_t, POINTER(c_size_t)]),
    "dycl_set_state": (c_int32, [c_void_p, c_char_p, c_size_t]),
    "dycl_manual_seed": (c_int32, [c_void_p, c_uint64]),
    "dycl_profile_start": (c_int32, [c_void_p, POINTER(ProfileOptions)]),
    "dycl_profile_read": (c_int32, [c_void_p, c_void_p, c_size_t, POINTER(c_size_t), POINTER(c_uint64)]),
    "dycl_profile_stop": (c_int32, [c_void_p]),
    "dycl_set_log": (None, [c_void_p, c_void_p, c_int32]),
    "dycl_unload": (c_int32, [c_void_p]),
    "dycl_session_set_priority": (c_int32, [c_void_p, c_int32]),
    "dycl_session_needs": (c_int32, [c_void_p, POINTER(SessionOptions), POINTER(ModelInfo)]),
    "dycl_session_input_bounds": (c_int32, [c_void_p, c_size_t, POINTER(Extent), c_size_t, POINTER(c_size_t)]),
    "dycl_set_thread_options": (c_int32, [POINTER(ThreadOptions)]),
    "dycl_last_error": (c_char_p, []),
    "dycl_last_error_kind": (c_char_p, []),
}


class _Missing:
    """Stands for a function that a library has not, which was built by an earlier version: it is missed where it is asked for."""

    def __init__(self, path: str, name: str) -> None:
        self._path, self._name = path, name

    def __call__(self, *_: Any) -> Any:
        older = f"the library '{self._path}' is of an older version of dycl_tvm"
        raise ArtifactError(f"{older}: it has no {self._name}. Build the model again.")


def declare(library: ctypes.CDLL, path: str) -> None:
    """Declare the functions of a library.

    No list says which of them are new: what a library must have is decided by what is asked of it. Every library of this format
    has what the first release exported (``tests/abi``), and that is enough to load and to run.
    """
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name, None)
        if function is None:
            setattr(library, name, _Missing(path, name))
        else:
            function.restype, function.argtypes = result, arguments


def has(library: ctypes.CDLL, name: str) -> bool:
    """Whether a library has a function of the interface, or was built before there was such."""
    return not isinstance(getattr(library, name), _Missing)


def demand(library: ctypes.CDLL, name: str) -> None:
    """Refuse a library that has no such function, where it would pass over what it does not know.

    Raises
    ------
    ArtifactError
        If it has none.
    """
    if not has(library, name):
        getattr(library, name)()


def check(library: ctypes.CDLL, status: int) -> None:
    """Raise the exception of a status; the thread's error text says what is wrong."""
    if status == OK:
        return
    message = library.dycl_last_error().decode("utf-8", "replace")
    if status == ERROR_RUN:
        kind = library.dycl_last_error_kind().decode("utf-8", "replace")
        raise RunError.of(f"{kind}: {message}", kind)
    if status == ERROR_MEMORY:
        raise MemoryError(message)
    kinds: dict[int, type[DyclError]] = {
        ERROR_INPUT: InputError,
        ERROR_ARTIFACT: ArtifactError,
        ERROR_USAGE: UsageError,
        ERROR_DEVICE: DeviceError,
        ERROR_CANCELLED: CancelledError,
        ERROR_DEADLINE: DeadlineError,
    }
    raise kinds.get(status, DyclError)(message)
