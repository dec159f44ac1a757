# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The params file: the layout of safetensors, every tensor at a multiple of 64 bytes.

Eight bytes little-endian header size, a JSON header, the tensors. Gaps are tensors of their own (``__pad_0``), because the
layout allows no holes. ``__metadata__`` holds the format version, the fingerprint of the library that the file belongs to,
the number of bytes of all tensors and their SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dycl_tvm.errors import ArtifactError
from dycl_tvm.runtime.writing import replacing

FORMAT = "dycl-params"
FORMAT_VERSION = "1"
ALIGN = 64

#: Names of dtypes in a safetensors header.
FILE_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
#: NumPy has no bfloat16: its bits are read as uint16.
_NUMPY_DTYPES = {file: "uint16" if name == "bfloat16" else name for name, file in FILE_DTYPES.items()}


@dataclass(frozen=True)
class ParamTensor:
    """A tensor to be written: dtype as NumPy names it (or ``bfloat16``), and its row-major bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True)
class ParamsFile:
    """A params file that was read and checked. ``tensors`` maps names to read-only arrays (bfloat16 as uint16)."""

    fingerprint: str
    tensors: dict[str, np.ndarray]


def _chunks(tensors: Iterable[ParamTensor]) -> Iterator[tuple[str, dict[str, Any], memoryview]]:
    """Yield the tensors with the padding between them: name, header entry, bytes."""
    at = 0
    for k, tensor in enumerate(tensors):
        size = len(tensor.data)
        entry = {"dtype": FILE_DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        yield tensor.name, entry, tensor.data
        at += size
        if pad := -at % ALIGN:
            yield f"__pad_{k}", {"dtype": "U8", "shape": [pad], "data_offsets": [at, at + pad]}, memoryview(bytes(pad))
            at += pad


def data_digest(tensors: Iterable[ParamTensor]) -> str:
    """Return the SHA-256 of the tensors as they lie in the file."""
    digest = hashlib.sha256()
    for _, _, data in _chunks(tensors):
        digest.update(data)
    return digest.hexdigest()


def write_params(path: str | os.PathLike[str], tensors: Iterable[ParamTensor], fingerprint: str, digest: str = "") -> None:
    """Write a params file in one step: a reader sees the old file or the new one.

    Parameters
    ----------
    path : path-like
    tensors : iterable of ParamTensor
    fingerprint : str
        That of the library to which the file belongs.
    digest : str, optional
        What :func:`data_digest` gave for the same tensors, where it is known.
    """
    chunks = list(_chunks(tensors))
    write_laid_out(path, {name: entry for name, entry, _ in chunks}, [data for _, _, data in chunks], fingerprint, digest)


def write_laid_out(
    path: str | os.PathLike[str], entries: dict[str, dict[str, Any]], pieces: Sequence[memoryview], fingerprint: str, digest: str = ""
) -> None:
    """Write a params file of which it is known where each tensor lies in the data, which ``pieces`` make one after the other."""
    if not digest:
        hasher = hashlib.sha256()
        for data in pieces:
            hasher.update(data)
        digest = hasher.hexdigest()
    header: dict[str, Any] = {
        "__metadata__": {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "fingerprint": fingerprint,
            "data_bytes": str(sum(map(len, pieces))),
            "sha256": digest,
        }
    }
    header.update(entries)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGN)
    with replacing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for data in pieces:
            file.write(data)


def read_params(path: str | os.PathLike[str]) -> ParamsFile:
    """Read and check a params file.

    Raises
    ------
    ArtifactError
        If it is no params file, of another version, cut short, or damaged.
    """
    try:
        raw = np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise ArtifactError(f"cannot read the params file '{path}': {error}") from None
    size = int.from_bytes(raw[:8].tobytes(), "little")
    try:
        header = json.loads(raw[8 : 8 + size].tobytes()) if 8 + size <= raw.size else None
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise ArtifactError(f"'{path}' is not a params file, or its header is damaged")
    meta = header.pop("__metadata__", None)
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise ArtifactError(f"'{path}' is not a params file of dycl_tvm")
    if meta.get("format_version") != FORMAT_VERSION:
        raise ArtifactError(f"'{path}' has params format version {meta.get('format_version')!r}; this is for version {FORMAT_VERSION}")
    data = raw[8 + size :]
    if meta.get("data_bytes") != str(data.size):
        wrote = meta.get("data_bytes")
        raise ArtifactError(f"'{path}' is cut short or too long: {wrote} bytes of weights were written, {data.size} are there")
    if hashlib.sha256(data.data).hexdigest() != meta.get("sha256"):
        raise ArtifactError(f"'{path}' is damaged: its checksum does not match its contents")
    tensors = {}
    for name, entry in header.items():
        if not name.startswith("__pad_"):
            begin, end = entry["data_offsets"]
            tensors[name] = data[begin:end].view(_NUMPY_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return ParamsFile(meta["fingerprint"], tensors)
