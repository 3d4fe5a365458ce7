"""What the front door does not take, as typed refusals.  Imports `errors` alone."""

from __future__ import annotations

from tedsl.errors import TedslError


class NotTaken(TedslError):
    """A node of a PyTorch graph that tensor expressions do not say; PyTorch runs it.

    `reason` is one sentence without the names of the graph, so that equal reasons can be counted.
    """


class CompilerFault(TedslError):
    """A region whose nodes were all taken and that was not compiled; PyTorch runs it.

    It is a fault of the compiler or of the importer, never of the user: reports tell it apart from
    what was left to PyTorch on purpose.
    """


FAULTS: tuple[type[Exception], ...] = (
    TedslError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What importing or compiling a region may raise where it is wrong; each becomes a refusal.
`RecursionError` and `NotImplementedError` are `RuntimeError`s."""


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of its text."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
