"""Ctrl-C while a search runs: it ends where nothing is half done, and what was learnt is kept.

Imports nothing of the package.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

INSISTENT = 3
"""Presses from which on the wait is over: whatever runs is left at once."""
DESPERATE = 6
"""Presses that are not held back either."""


class Interrupts:
    """Takes Ctrl-C for as long as it is a context; contexts of one may be nested.

    The first press asks the search to end, which it does at its next step; a second one changes
    nothing, since it is ending already; the third raises KeyboardInterrupt wherever the program is,
    unless presses are held.  What is left by it ends in peace: they are held from then on.  Outside
    the main thread, or where the program handles Ctrl-C itself, that is left as it was.

    Attributes:
        presses: how many there were.
        wake: called at a press, to end a wait; from a signal handler, so it must not block.
    """

    def __init__(self) -> None:
        self.presses = 0
        self.wake: Callable[[], object] | None = None
        self._installed = False
        self._depth = 0
        self._held = False
        self._due = False

    @property
    def requested(self) -> bool:
        """True once the search should end."""
        return self.presses > 0

    def __enter__(self) -> Interrupts:
        self._depth += 1
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._pressed)
            self._installed = True
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._installed and not self._depth:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._installed = False
            self._held = False

    def hold(self) -> None:
        """From now on a third press waits for `heed`, or for the end of the context.

        What has to run whole is the `finally` of a `try` that ends with this call: a press before
        it leaves the `try`, and one after it is held.
        """
        self._held = True

    def heed(self) -> None:
        """Presses are heeded again.

        Raises:
            KeyboardInterrupt: one was held.
        """
        self._held, due, self._due = False, self._due, False
        if due:
            raise KeyboardInterrupt

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        self.presses += 1
        if self.presses >= DESPERATE or (self.presses >= INSISTENT and not self._held):
            self._held = True
            signal.default_int_handler(number, frame)
        self._due |= self.presses >= INSISTENT
        if self.wake is not None:
            self.wake()
