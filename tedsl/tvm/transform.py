"""TVM's module `transform`: the context that its scripts build in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from tedsl.tvm.modules import of_te

__all__ = ["PassContext", "build_config"]


def PassContext(
    opt_level: int = 2,
    required_pass: Sequence[str] | None = None,
    disabled_pass: Sequence[str] | None = None,
    instruments: Sequence[object] | None = None,
    config: Mapping[str, object] | None = None,
) -> AbstractContextManager[None]:
    """A context in which nothing is different: which passes there are, `te.build` says.

    `te.lower(s, dump=print)` shows what each does.
    """
    return nullcontext()


def build_config(**config: object) -> AbstractContextManager[None]:
    """What `PassContext(config=...)` was called before."""
    return PassContext(config=config)


__getattr__ = of_te
