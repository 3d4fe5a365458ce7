"""The errors a user of tedsl can meet.  Imports nothing of tedsl.

Every error carries its facts as fields; the text is made only when it is asked for, so that a
search that rejects thousands of candidates pays nothing for messages nobody reads.
"""

from __future__ import annotations

from collections.abc import Sequence


class TedslError(Exception):
    """Base of all errors raised on purpose.  Fields: what was asked (`subject`), `reason`, `facts`,
    `hint`.

    Args:
        reason: one sentence that names the thing and the value given.
        subject: what was being done, printed before the reason, e.g. `compute_at(B, at=C.k)`.
        facts: (label, text) lines printed below, e.g. `("legal", "root")`.
        hint: what to do instead.
        called: `file.py:line` of the user's call, where known.
    """

    def __init__(
        self,
        reason: str,
        *,
        subject: str = "",
        facts: Sequence[tuple[str, str]] = (),
        hint: str = "",
        called: str = "",
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.subject = subject
        self.facts = tuple(facts)
        self.hint = hint
        self.called = called

    def __str__(self) -> str:
        head = f"{self.subject}: {self.reason}" if self.subject else self.reason
        rows = list(self.facts)
        if self.called:
            rows.append(("called", self.called))
        if self.hint:
            rows.append(("do", self.hint))
        return "\n".join([head, *(f"  {label:<7} {text}" for label, text in rows)])


class ExprError(TedslError):
    """A tensor expression that has no meaning: wrong rank, dtype, shape, or a read outside a
    tensor."""


class ScheduleError(TedslError):
    """A schedule primitive that is not legal here.  The schedule is as it was before the call."""

    def __init__(
        self,
        reason: str,
        *,
        primitive: str = "",
        stage: str = "",
        axis: str = "",
        subject: str = "",
        facts: Sequence[tuple[str, str]] = (),
        hint: str = "",
        called: str = "",
    ) -> None:
        super().__init__(reason, subject=subject, facts=facts, hint=hint, called=called)
        self.primitive = primitive
        self.stage = stage
        self.axis = axis


class LowerError(TedslError):
    """A legal schedule that the chosen target cannot carry out, e.g. a tile read at a shift on the
    GPU."""


class BackendError(TedslError):
    """The target's own compiler, driver or device refused, or an argument of a kernel call does not
    fit."""


class TuneError(TedslError):
    """A search that cannot start or found nothing that runs correctly."""


class InternalError(TedslError):
    """A bug in tedsl, never the user's fault.  The text holds what is needed for a report."""

    def __str__(self) -> str:
        return f"bug in tedsl, please report it: {super().__str__()}"
