"""Kernels that compile at once, in threads: LLVM, Triton's passes and ptxas let others run.

Python itself runs in one thread at a time, so that what is scheduled and lowered takes as long as
before, while compilers work beside it.  Imports `processor`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Self, TypeVar

from tedsl.errors import BackendError
from tedsl.processor import usable_cores

ENVIRONMENT = "TEDSL_COMPILE_THREADS"
"""How many threads compile, and how many processes beside this one, the processors by default; with
1 everything runs in the caller's thread."""

Item = TypeVar("Item")
Result = TypeVar("Result")
_POOL: ContextVar[ThreadPoolExecutor] = ContextVar("compiling")


def threads() -> int:
    """How many kernels compile at once.

    Raises:
        BackendError: the variable of the environment is no positive integer.
    """
    named = os.environ.get(ENVIRONMENT)
    if not named:
        return usable_cores()
    if not named.isdecimal() or int(named) < 1:
        raise BackendError(
            f"{ENVIRONMENT} is {named!r}",
            facts=[("allowed", "an integer from 1 on")],
            hint="take it out of the environment to compile with all processors",
        )
    return int(named)


def in_parallel(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`function` of each item, in the order of the items.

    The caller's thread takes part, from the last item on.  Within a function that runs so the same
    threads are used again.

    Raises:
        Exception: that of the first item, in their order, of which the function raised one.
    """
    pool = _POOL.get(None)
    if pool is not None:
        return _shared(pool, function, items)
    if min(threads(), len(items)) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads() - 1, "tedsl-compile") as pool:
        token = _POOL.set(pool)
        try:
            return _shared(pool, function, items)
        finally:
            _POOL.reset(token)


def _shared(
    pool: ThreadPoolExecutor, function: Callable[[Item], Result], items: Sequence[Item]
) -> list[Result]:
    futures = [pool.submit(copy_context().run, function, item) for item in items]
    try:
        for place in reversed(range(len(items))):
            if futures[place].cancel():
                with _Here[Result]() as outcome:
                    outcome.set_result(function(items[place]))
                futures[place] = outcome
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


class _Here(Future[Result]):
    """The outcome of a call in this thread, made by `with`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Exception):  # raised where the first error of all is
            self.set_exception(error)
        return isinstance(error, Exception)
