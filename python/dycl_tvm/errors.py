# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The exceptions of dycl_tvm. Messages show the user's file, line and code, say what is wrong and what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dycl_tvm.hcfg.nodes import Origin


class DyclError(Exception):
    """Base of all errors of this package."""


class UsageError(DyclError, ValueError):
    """A public function was called with arguments that make no sense; the message says what to give."""


class TargetError(UsageError):
    """A target string, tag or dict that is unknown or not supported."""


class UnsupportedError(DyclError):
    """The user's program cannot be compiled.

    Parameters
    ----------
    reason : str
        What is not supported, in one sentence.
    origin : Origin, optional
        The user's file, line and code; the caret stands under its column.
    suggestion : str, optional
        What to write instead.
    """

    def __init__(self, reason: str, origin: Origin | None = None, suggestion: str = "") -> None:
        self.reason, self.origin, self.suggestion = reason, origin, suggestion
        super().__init__(self._text())

    def origin_text(self) -> str:
        """Return the user's file, line and code with the caret; nothing where they are unknown."""
        if self.origin is None:
            return ""
        where = f" in {self.origin.function}" if self.origin.function else ""
        lines = [f'File "{self.origin.file}", line {self.origin.line}{where}']
        if self.origin.code:
            lines += [f"    {self.origin.code}", "    " + " " * self.origin.column + "^"]
        return "\n".join(lines)

    def _text(self) -> str:
        lines = [self.origin_text()] if self.origin is not None else []
        lines.append(self.reason)
        if self.suggestion:
            lines.append(f"Instead: {self.suggestion}")
        return "\n".join(lines)


class ForwardError(UnsupportedError):
    """The forward raised an exception while it was compiled: one of its own, or for lack of something here."""


class PathExplosionError(UnsupportedError):
    """Too many paths that cannot share their continuation; the message names the ``if`` that forks."""


class DataDependentShapeError(UnsupportedError):
    """The shape of a result depends on values known only at run time."""


class StateError(UnsupportedError):
    """A call leaves something with the model that it did not have before, and that the next call would find."""


class StagingLimitError(UnsupportedError):
    """Staging the program takes more time, memory or depth than it may; the message names the line that costs most."""


class InternalError(DyclError):
    """Something failed in this package that should not: a defect, never a wrong artefact. Its cause is kept.

    Parameters
    ----------
    doing : str
        What was being done.
    error : BaseException
    origin : Origin, optional
        The user's line that was being looked at.
    """

    def __init__(self, doing: str, error: BaseException, origin: Origin | None = None) -> None:
        self.origin = origin
        where = f'File "{origin.file}", line {origin.line}\n    {origin.code}\n' if origin is not None else ""
        super().__init__(
            f"{where}{type(error).__name__} while {doing}: {error}\n"
            "This is a defect of dycl_tvm. Please report it, with the whole traceback, the versions of dycl_tvm, PyTorch and TVM, "
            "and the smallest model that shows it."
        )


class InvariantError(DyclError):
    """An HCFG that breaks an invariant: a defect of this package, never of the user's program."""


class VerificationError(DyclError):
    """What was built does something else than the model: a defect of this package, found before anything was written.

    The message shows the smallest path on which the two differ, with the user's lines, and both results.
    """


class CompileError(DyclError):
    """A kernel could not be compiled or linked; the message holds the tool's own words."""


class BuildGateError(CompileError):
    """A library was linked but could not run on its target: the machine, the glibc or the libraries that it needs are others."""


class ArtifactError(DyclError):
    """An artefact or a params file that is damaged, of another version or target, or that does not belong together."""


class RemoteError(DyclError):
    """A network on another machine could not be loaded or run, or the connection is lost; the message has the other side's words."""


class InputError(DyclError, ValueError):
    """A call's inputs are wrong: count, structure, dtype, shape or device. The message names the input."""


class DeviceError(DyclError, RuntimeError):
    """The GPU or its driver: missing, too old, of another architecture than the library's, or failed in a run."""


class CancelledError(DyclError):
    """A call was cancelled from outside: ``Module.cancel()``. The module can be called again, and its state is as before the call."""


class DeadlineError(DyclError, TimeoutError):
    """A call had not ended at its deadline. The module can be called again, and its state is as before the call."""


class RunError(DyclError, RuntimeError):
    """The network ended in a run-time error, such as an exception that its forward raises on this path.

    ``kind`` is the name of the exception type, ``IndexError`` for one.
    """

    def __init__(self, message: str, kind: str = "RuntimeError") -> None:
        self.kind = kind
        super().__init__(message)

    @staticmethod
    def of(message: str, kind: str) -> RunError:
        """Return the error of a kind: what eager raises as an IndexError is one here too."""
        return (RunIndexError if kind == "IndexError" else RunError)(message, kind)


class RunIndexError(RunError, IndexError):
    """The network ended in an IndexError: an index is out of range."""
