"""`tag_scope`: a tag for all operations defined in a block.  Imports nothing of tedsl."""

from __future__ import annotations

from contextlib import ContextDecorator
from contextvars import ContextVar, Token

_CURRENT: ContextVar[str] = ContextVar("tag", default="")


class TagScope(ContextDecorator):
    """The block or function in which operations without a tag of their own get this one; made by
    `tag_scope`."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self._tokens: list[Token[str]] = []

    def __enter__(self) -> TagScope:
        self._tokens.append(_CURRENT.set(self.tag))
        return self

    def __exit__(self, *error: object) -> None:
        _CURRENT.reset(self._tokens.pop())


def tag_scope(tag: str) -> TagScope:
    """Give a tag to the operations defined in a block, or in a function that it decorates.

    Args:
        tag: becomes `op.tag` of operations defined without `tag=`.  Of nested scopes the inner one
            counts.  (TVM refuses nested scopes.)

    Returns:
        For `with te.tag_scope("conv"): ...` or `@te.tag_scope("conv")`.
    """
    return TagScope(tag)


def current_tag() -> str:
    """The tag of the innermost scope, or nothing."""
    return _CURRENT.get()
