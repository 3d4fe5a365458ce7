"""The errors a user of tedsl can meet.  Imports nothing of tedsl.

Every error carries its facts as fields; the text is made only when it is asked for, so that a
search that rejects thousands of candidates pays nothing for messages nobody reads.  The docstring
of each class is its page: what it means, code that meets it, what it then says, and code that does
not; `explain` prints it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

Fact = tuple[str, str] | tuple[str, Callable[[], str]]
"""A label and a text, or what gives the text."""


class TedslError(RuntimeError):
    """Base of all errors raised on purpose; a `RuntimeError`, as those of TVM are.

    The text has one line that names the thing and the value given, lines of facts (`legal`,
    `allowed`, `called`, ...), and `do`: what to do instead.  The same are fields.  Catch the
    classes that you can do something about, not this one: it includes `InternalError`.

    Wrong::

        try:
            te.placehodler((8,))
        except Exception:
            pass  # an error of the language, a slip of the pen and a bug look alike

    Right::

        try:
            te.placeholder((-1,), name="A")
        except te.ExprError as error:
            print(error.reason, error.hint)

    Args:
        reason: one sentence that names the thing and the value given.
        subject: what was being done, printed before the reason, e.g. `compute_at(B, at=C.k)`.
        facts: (label, text) lines printed below, e.g. `("legal", "root")`; a text that takes a
            search to find is given as a function, which is called when it is read; one that is
            empty is left out.
        hint: what to do instead.
        called: `file.py:line` of the user's call, where known.

    `kernel` is the stage in whose kernel the error arose, where that is known.
    """

    def __init__(
        self,
        reason: str,
        *,
        subject: str = "",
        facts: Sequence[Fact] = (),
        hint: str = "",
        called: str = "",
    ) -> None:
        super().__init__(reason)
        self.kernel = ""
        self.reason = reason
        self.subject = subject
        self._facts = tuple(facts)
        self.hint = hint
        self.called = called

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """The (label, text) lines below the reason."""
        told = [(label, text if isinstance(text, str) else text()) for label, text in self._facts]
        self._facts = tuple((label, text) for label, text in told if text)
        return tuple((label, text) for label, text in told if text)

    def __str__(self) -> str:
        head = f"{self.subject}: {self.reason}" if self.subject else self.reason
        rows = list(self.facts)
        if self.called:
            rows.append(("called", self.called))
        if self.hint:
            rows.append(("do", self.hint))
        return "\n".join([head, *(f"  {label:<7} {text}" for label, text in rows)])


class ExprError(TedslError):
    """A tensor expression that has no meaning: wrong rank, dtype, shape, a read outside a tensor.

    Raised when the tensor is defined.  A read has to be inside for every value of the indices;
    conditions around it count, so guard the edge where there is none.

    Wrong::

        A = te.placeholder((8,), name="A")
        step = te.compute((8,), lambda i: A[i + 1] - A[i], name="step")

    Says::

        compute step: A[i + 1] is outside A: i = 7 reads A[8], A has 8
          do      change the index or the shape, or guard the read with te.if_then_else or where=

    Right::

        A = te.placeholder((8,), name="A")
        step = te.compute((7,), lambda i: A[i + 1] - A[i], name="step")
        edge = te.compute((8,), lambda i: te.if_then_else(i < 7, A[i + 1], 0.0) - A[i], name="edge")
    """


class ScheduleError(TedslError):
    """A schedule primitive that is not legal here.  The schedule is as it was before the call.

    Raised by the call itself, with the loops there are or the places that are legal, and a
    counterexample where one exists: two iterations, or an index and a size.

    Wrong::

        A = te.placeholder((64, 256), name="A")
        k = te.reduce_axis((0, 256), name="k")
        B = te.compute((64,), lambda i: te.sum(A[i, k], axis=k), name="B")
        s = te.create_schedule(B)
        s[B].parallel(k)

    Says::

        parallel(B.k): k is a reduce axis: its iterations write the same elements of B, so running \
them on different threads is a race: k = 0 and k = 1 both update B[0]
          loops   [i, k]
          legal   i
          do      make it data-parallel with s.rfactor(B, k), call s[B].atomic() first, so that \
parts are combined one at a time, or use vectorize, whose lanes are combined afterwards

    Right::

        A = te.placeholder((64, 256), name="A")
        k = te.reduce_axis((0, 256), name="k")
        B = te.compute((64,), lambda i: te.sum(A[i, k], axis=k), name="B")
        s = te.create_schedule(B)
        part, _ = s[B].split(k, nparts=4)
        partial = s.rfactor(B, part)
        s[partial].parallel(s[partial].op.axis[0])
    """

    def __init__(
        self,
        reason: str,
        *,
        primitive: str = "",
        stage: str = "",
        axis: str = "",
        subject: str = "",
        facts: Sequence[Fact] = (),
        hint: str = "",
        called: str = "",
    ) -> None:
        super().__init__(reason, subject=subject, facts=facts, hint=hint, called=called)
        self.primitive = primitive
        self.stage = stage
        self.axis = axis


class LowerError(TedslError):
    """A legal schedule that the chosen target cannot carry out.

    Raised by `te.build` and `te.lower`: the schedule means the same on every target, but a value of
    Triton has no more than 1048576 elements, and the CPU has no copy engine.

    Wrong::

        A = te.placeholder((1 << 21,), name="A")
        B = te.compute((1 << 21,), lambda i: A[i] * 2.0, name="B")
        s = te.create_schedule(B)
        s[B].vectorize(B.op.axis[0])
        te.lower(s, target="cuda:sm_90")

    Says::

        a tile of kernel B has 2097152 elements
          tile    i: 2097152
          allowed 1048576 in Triton
          do      split the vectorized loops by smaller factors, and leave the outer parts serial \
or bind them

    Right::

        A = te.placeholder((1 << 21,), name="A")
        B = te.compute((1 << 21,), lambda i: A[i] * 2.0, name="B")
        s = te.create_schedule(B)
        outer, inner = s[B].split(B.op.axis[0], factor=1024)
        s[B].bind(outer, "blockIdx.x")
        s[B].vectorize(inner)
        te.lower(s, target="cuda:sm_90")
    """


class BackendError(TedslError):
    """The target's own compiler, driver or device refused, or an argument of a kernel call does not
    fit; nothing has run.

    Wrong::

        import numpy as np

        A = te.placeholder((4, 8), name="A")
        B = te.compute((4, 8), lambda i, j: A[i, j] * 2.0, name="B")
        kernel = te.build(B, target="cpu")
        kernel(np.ones((8, 4), "float32"))

    Says::

        B: argument 1 (A): dimension 0 is 8, 4 expected
          given   float32[8, 4] on cpu (numpy)
          allowed A: float32[4, 8]
          do      the kernel was built for this size; use te.var for sizes that vary

    Right::

        import numpy as np

        n = te.size_var("n")
        A = te.placeholder((n, 8), name="A")
        B = te.compute((n, 8), lambda i, j: A[i, j] * 2.0, name="B")
        kernel = te.build(B, target="cpu")
        kernel(np.ones((4, 8), "float32"))
        kernel(np.ones((7, 8), "float32"))
    """


class TuneError(TedslError):
    """A search that cannot start or found nothing that runs correctly.

    In the second case the facts count the candidates by what went wrong; all are in the records
    (`python -m tedsl records list`).

    Wrong::

        x = te.placeholder((64, 64), name="x")
        te.autotune(te.nn.softmax(x), "cpu", trials=0)

    Says::

        autotune: trials=0 is no budget
          do      give trials above 0, or leave it out (64 trials by default)

    Right::

        x = te.placeholder((64, 64), name="x")
        te.autotune(te.nn.softmax(x), "cpu", budget="none")  # what the model holds for fastest
    """


class InternalError(TedslError):
    """A bug in tedsl, never the user's fault.  The text holds what is needed for a report.

    Add the definitions and the schedule as code.  A search lets this error out, and so should you:
    whoever catches it may get wrong results from what comes next.

    Wrong::

        def tuned(y):
            try:
                return te.autotune(y, "cpu", budget="none")
            except te.TedslError:  # hides bugs as well
                return te.build(y, target="cpu")

    Right::

        def tuned(y):
            try:
                return te.autotune(y, "cpu", budget="none")
            except te.TuneError:
                return te.build(y, target="cpu")

        x = te.placeholder((64, 64), name="x")
        print(tuned(te.nn.softmax(x)).schedule.as_python())  # the second half of a report
    """

    def __str__(self) -> str:
        return f"bug in tedsl, please report it: {super().__str__()}"


@contextmanager
def within(kernel: str) -> Generator[None]:
    """Errors of the body arose in the kernel of the stage `kernel`, unless they know it better."""
    try:
        yield
    except TedslError as error:
        error.kernel = error.kernel or kernel
        raise


PAGES: dict[str, type[TedslError]] = {
    kind.__name__: kind
    for kind in (
        *(TedslError, ExprError, ScheduleError, LowerError),
        *(BackendError, TuneError, InternalError),
    )
}
"""The classes that have a page, by name; the base comes first."""


def page(what: str | TedslError | type[TedslError]) -> str:
    """The page of an error: what it means, code that meets it, what to write instead.

    Args:
        what: a class, its name, an error that was caught, or the text of a traceback's last line.

    Raises:
        ExprError: nothing in `what` names a class of error.
    """
    found: type[TedslError] | None
    if isinstance(what, str):
        found = PAGES.get(what.strip().partition(":")[0].rpartition(".")[2])
    else:
        kind = what if isinstance(what, type) else type(what)
        found = next((each for each in reversed(PAGES.values()) if issubclass(kind, each)), None)
    if found is None:
        raise ExprError(
            f"there is no page about {what!r}",
            subject="errors.explain",
            facts=[("allowed", ", ".join(PAGES))],
            hint="give a class of error, its name, or an error that was caught",
        )
    return f"{found.__name__}: {inspect.cleandoc(found.__doc__ or '')}\n"


def explain(what: str | TedslError | type[TedslError]) -> None:
    """Print the page of an error.

    Args:
        what: as for `page`.

    Raises:
        ExprError: nothing in `what` names a class of error.
    """
    sys.stdout.write(page(what))
