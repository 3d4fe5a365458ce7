"""Who is told after each step of a schedule: whatever runs inside `watched`, and nobody else.

The watcher is a context variable, so a thread or task of its own has none.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tedsl.scheduling.handles.schedule import Schedule

Watcher = Callable[["Schedule"], None]

_WATCHERS: ContextVar[tuple[Watcher, ...]] = ContextVar("watchers", default=())


@contextmanager
def watched(watcher: Watcher) -> Generator[None]:
    """Within the block, `watcher` is called with the schedule after each step that is accepted.

    A `TedslError` that it raises takes the step back.
    """
    token = _WATCHERS.set((*_WATCHERS.get(), watcher))
    try:
        yield
    finally:
        _WATCHERS.reset(token)


def tell(schedule: Schedule) -> None:
    """Call the watchers, the outermost first; none of them sees the steps of another."""
    watchers = _WATCHERS.get()
    if not watchers:
        return
    token = _WATCHERS.set(())
    try:
        for watcher in watchers:
            watcher(schedule)
    finally:
        _WATCHERS.reset(token)
