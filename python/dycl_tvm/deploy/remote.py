# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A network on another machine over TVM's RPC, called like a local one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from dycl_tvm.errors import InputError, RemoteError, UsageError
from dycl_tvm.runtime.largest_sizes import checked
from dycl_tvm.runtime.priorities import Priority, priority_number
from dycl_tvm.runtime.seeds import seed_bits
from dycl_tvm.runtime.structure import flatten, flatten_call, is_call, unflatten
from dycl_tvm.runtime.tensors import is_shape_of, type_text
from dycl_tvm.runtime.trailer import levels_of, read_trailer


def connect(rpc: str = "", *, key: str = "", tracker: str = "", timeout: float = 0, wait: float = 60) -> Any:
    """Connect to an RPC server: TVM's own in Python, or ``dycl-rpc-server``.

    Parameters
    ----------
    rpc : str, optional
        ``HOST:PORT`` of the server.
    key : str, optional
        What the server was started with; with a tracker, the kind of device that is wanted.
    tracker : str, optional
        ``HOST:PORT`` of a tracker that is asked for a server, instead of ``rpc``.
    timeout : float, optional
        Seconds after which the server ends the session; 0 for no bound.
    wait : float, optional
        Seconds to wait until the server has a place that is free, or the tracker a server.

    Returns
    -------
    tvm.rpc.RPCSession

    Raises
    ------
    RemoteError
        If nobody answers, or the key is another.
    """
    import tvm.rpc

    if bool(rpc) == bool(tracker):
        raise UsageError("give the address of a server or that of a tracker, as HOST:PORT")
    host, port = _address(rpc or tracker)
    if tracker:
        _see_if_anybody_answers(host, port)
    with _remote_errors(f"{host}:{port}"):
        if tracker:
            session = tvm.rpc.connect_tracker(host, port)
            # The tracker answers when a server is free.
            session._sock.settimeout(wait)
            try:
                return session.request(key, session_timeout=timeout, max_retry=1)
            except RuntimeError as error:
                if "timed out" not in str(error):
                    raise
                raise RemoteError(f"{host}:{port}: no server with the key '{key}' was free for {wait:g} s") from None
        return _within(wait, lambda: tvm.rpc.connect(host, port, key=key, session_timeout=timeout), f"{host}:{port}")


def _within(seconds: float, connect: Callable[[], Any], where: str) -> Any:
    """Return what ``connect`` gives; TVM's waits for a server's answer for ever.

    Raises
    ------
    RemoteError
        If it takes longer.
    """
    done: list[Any] = []

    def work() -> None:
        try:
            done.append((connect(), None))
        except Exception as error:  # is raised again by who waits
            done.append((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if not done:
        raise RemoteError(f"{where}: no answer for {seconds:g} s; all places of the server are taken, or it is no RPC server")
    session, error = done[0]
    if error is not None:
        raise error
    return session


class RemoteModule:
    """A network in one session on another machine.

    Parameters
    ----------
    remote : tvm.rpc.RPCSession
        From :func:`connect` or from ``tvm.rpc``.
    library, params : path-like
        The artefact, on this machine; it is uploaded. ``params`` is left out where the weights are inside the library.
    largest_sizes : mapping, optional
        As for :func:`dycl_tvm.load`.

    Attributes
    ----------
    metadata : dict
        As that of a :class:`dycl_tvm.Module`.
    last_path : str
        The path of the last call, as text.

    Raises
    ------
    RemoteError
        If the other machine refuses the files, or cannot be reached any more.
    """

    def __init__(
        self,
        remote: Any,
        library: str | os.PathLike[str],
        params: str | os.PathLike[str] | None = None,
        largest_sizes: Mapping[str, int] | None = None,
    ) -> None:
        self.metadata = read_trailer(library)
        self.last_path = ""
        self._remote = remote
        # A name of its own: the loader on the other side knows libraries by their names.
        stem = f"model-{self.metadata['fingerprint'][:12]}"
        self._files = [f"{stem}.so"]
        with _remote_errors("the session"):
            remote.upload(os.fspath(library), target=self._files[0])
            if params is not None:
                self._files.append(f"{stem}.params")
                remote.upload(os.fspath(params), target=self._files[1])
            self._module = remote.load_module(self._files[0])
            if len(levels_of(self.metadata)) > 1:  # the CPU there decides which code it is
                self.metadata = json.loads(self._module["metadata"]())
            self._functions = {name: self._module[name] for name in ("run", "num_outputs", "output", "path", "destroy", "reset_state")}
            given, sizes = self._files[1] if params is not None else "", checked(largest_sizes)
            create = self._module["create_up_to" if sizes else "create"]
            self._session = create(given, *(part for size in sizes.items() for part in size))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network there.

        Parameters
        ----------
        *args, **kwargs
            As those of the model. Tensors of this machine are uploaded; those of :meth:`to_device`, and others that are on the other
            machine already, are used as they are.

        Returns
        -------
        The structure that the model returns; tensors are NumPy arrays.

        Raises
        ------
        InputError
            If the arguments have another structure than the model's.
        RemoteError
            If the other machine refuses the inputs, the network raises, or the connection is lost.
        """
        arguments = self._tensors(args, kwargs)
        with _remote_errors("the session"):
            site = int(self._functions["run"](self._session, *arguments))
            types = self.metadata["sites"][site]["types"]
            leaves = [_host(self._functions["output"](self._session, k), types[k]) for k in range(len(types))]
            self.last_path = str(self._functions["path"](self._session))
        return unflatten(self.metadata["sites"][site]["structure"], lambda k, _: leaves[k])

    def to_device(self, tensor: Any) -> Any:
        """Upload a tensor to the memory in which the network runs there: that of the GPU, if it was built for one.

        Parameters
        ----------
        tensor : array-like
            A NumPy array, a torch tensor, or a tensor on the other machine.

        Returns
        -------
        tvm.runtime.Tensor
            On the other machine; an argument for any number of calls, which then copy nothing. It needs no device functions of TVM's
            there, so its contents cannot be read back.
        """
        with _remote_errors("the session"):
            if not hasattr(tensor, "copyfrom"):
                tensor = _uploaded(*_as_array(tensor), self._remote.cpu())
            return self._module["to_device"](self._session, tensor)

    def seconds(self, *args: Any, number: int = 10, repeat: int = 3, on_device: bool = False, **kwargs: Any) -> float:
        """Return the least seconds of a run, measured there: the mean of ``number`` runs, ``repeat`` times.

        With ``on_device`` the inputs are copied to the GPU before and the outputs stay there; otherwise both copies are measured too.
        """
        arguments = self._tensors(args, kwargs)
        if on_device:
            arguments = [self.to_device(a) if hasattr(a, "copyfrom") else a for a in arguments]
        with _remote_errors("the session"):
            timer = self._module.time_evaluator("run", self._remote.cpu(), number=number, repeat=repeat)
            return float(min(timer(self._session, *arguments).results))

    def reset_state(self) -> None:
        """Put the state variables back to their initial values."""
        with _remote_errors("the session"):
            self._functions["reset_state"](self._session)

    def manual_seed(self, seed: int) -> None:
        """Give the random numbers of this session a seed, as ``torch.manual_seed`` does in PyTorch."""
        with _remote_errors("the session"):
            self._module["manual_seed"](self._session, (seed_bits(seed) + (1 << 63)) % (1 << 64) - (1 << 63))

    def set_num_threads(self, num_threads: int) -> None:
        """Give this session threads of its own; 0 goes back to one for each core."""
        with _remote_errors("the session"):
            self._module["set_num_threads"](self._session, num_threads)

    def set_priority(self, priority: Priority) -> None:
        """Say how important the calls of this session are there beside others: see :meth:`dycl_tvm.runtime.Module.set_priority`."""
        number = priority_number(priority)
        with _remote_errors("the session"):
            self._module["set_priority"](self._session, number)

    def close(self) -> None:
        """End the session there and remove the uploaded files; the connection stays."""
        with _remote_errors("the session"):
            self._functions["destroy"](self._session)
            for name in self._files:
                self._remote.remove(name)

    def _tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        structure, names = self.metadata["input_structure"], self.metadata["input_names"]
        try:
            pairs = flatten_call(structure, args, kwargs, names) if is_call(structure) else flatten(structure, args)
        except (TypeError, ValueError) as error:
            raise InputError(f"'{self.metadata['name']}' {error}") from None
        device = self._remote.cpu()
        with _remote_errors("the session"):
            return [_upload(leaf, want, device, name) for (_, leaf), want, name in zip(pairs, self.metadata["inputs"], names)]


def _upload(leaf: Any, want: dict[str, Any], device: Any, name: str) -> Any:
    if want["type"] != "tensor":
        if hasattr(leaf, "shape") and len(leaf.shape) != 0:
            raise InputError(f"input '{name}': expected a Python {want['type']}, got a tensor")
        return {"int": int, "float": float, "bool": bool}[want["type"]](leaf)
    there = hasattr(leaf, "copyfrom")
    array, dtype = (leaf, str(leaf.dtype)) if there else _as_array(leaf)
    if (dtype, want["dtype"]) == ("uint16", "bfloat16"):
        dtype = "bfloat16"  # NumPy has no such type: its bits
    if not is_shape_of(want, array.shape) or dtype != want["dtype"]:
        raise InputError(f"input '{name}': expected {type_text(want)}, got {dtype}{list(array.shape)}")
    return leaf if there else _uploaded(array, dtype, device)


def _as_array(tensor: Any) -> tuple[np.ndarray, str]:
    """Return a compact array and the tensor's data type; bfloat16 as its bits."""
    if hasattr(tensor, "detach"):
        import torch

        tensor = tensor.detach().cpu().contiguous()
        if tensor.dtype == torch.bfloat16:
            return tensor.view(torch.uint16).numpy(), "bfloat16"
        tensor = tensor.numpy()
    array = np.asarray(tensor, order="C")
    return array, str(array.dtype)


def _uploaded(array: np.ndarray, dtype: str, device: Any) -> Any:
    import tvm.runtime

    made = tvm.runtime.empty(array.shape, dtype, device)
    if dtype == "bfloat16":
        import ml_dtypes

        array = array.view(ml_dtypes.bfloat16)
    made.copyfrom(array)
    return made


def _host(value: Any, declared: dict[str, Any]) -> Any:
    if declared["type"] == "tensor":
        array = value.numpy()
        return array.view(np.uint16) if declared["dtype"] == "bfloat16" else array
    return {"int": int, "float": float, "bool": bool}[declared["type"]](value)


def _see_if_anybody_answers(host: str, port: int) -> None:
    """Raise at once where TVM would try a tracker for a minute."""
    try:
        socket.create_connection((host, port), timeout=10).close()
    except OSError as error:
        raise RemoteError(f"nobody answers at {host}:{port}: {error.strerror or error}") from None


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise UsageError(f"an address is written HOST:PORT, got {text!r}")
    return host.strip("[]"), int(port)


@contextlib.contextmanager
def _remote_errors(where: str) -> Iterator[None]:
    """Turn what TVM's RPC raises into an error of ours, with the words of the other side."""
    try:
        yield
    except (InputError, UsageError, RemoteError):
        raise
    except (OSError, RuntimeError, ValueError, TypeError, AttributeError, KeyError, MemoryError) as error:
        raise RemoteError(f"{where}: {_words(str(error))}") from error


#: The user's line in an error of the network. TVM's stacks, of C++ and Python, have a comma behind the number.
_USERS_LINE = re.compile(r'  File ".*", line \d+(?! *,)')


def _words(text: str) -> str:
    """Return what the other side said, with the user's line and without the two stacks of C++ around it."""
    said = text.rpartition("Error caught from RPC call:")[2].strip()
    lines: list[str] = []
    where: list[str] = []
    for line in said.splitlines():
        if _USERS_LINE.match(line) or (where and line.startswith("    ") and len(where) < 2):
            where.append(line)
        elif line.strip() and not line.startswith(("  File ", "    ", "Traceback", "  [")):
            lines.append(line)
    words = re.sub(r"Check failed: .*? is (true|false): ", "", " ".join(line.strip() for line in lines) or said)
    if "cannot find server that matches key" in words:
        return "the server has another key"
    if any(sign in words for sign in ("Channel closes", "SockChannel", "kShutdown")):
        return f"the connection is lost: the server ended the session ({words})"
    return "\n".join([words, *where])
