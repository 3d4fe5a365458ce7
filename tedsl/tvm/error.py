"""TVM's module `error`: what its scripts catch."""

from __future__ import annotations

from tedsl.errors import InternalError, TedslError

TVMError = TedslError

__all__ = ["InternalError", "TVMError"]
