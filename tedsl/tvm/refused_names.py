"""Names of TVM's tensor expressions that this language leaves out on purpose: each says what to
write instead.

Imports `errors`.
"""

from __future__ import annotations

from typing import NoReturn

from tedsl.errors import ExprError


def extern_primfunc(input_tensors: object, primfunc: object, **kwargs: object) -> NoReturn:
    """Refused: there are no PrimFuncs here.

    Raises:
        ExprError: always.
    """
    raise ExprError(
        "te.extern_primfunc takes a PrimFunc of TVM's TIR, and there is none here",
        subject="extern_primfunc",
        hint="write the loops as te.compute or te.scan, or call other code with te.extern(shape, "
        "inputs, fcompute)",
    )


def create_prim_func(ops: object, *args: object, **kwargs: object) -> NoReturn:
    """Refused: there are no PrimFuncs here.

    Raises:
        ExprError: always.
    """
    raise ExprError(
        "te.create_prim_func makes a PrimFunc of TVM's TIR, and there is none here",
        subject="create_prim_func",
        hint="te.lower(tensors) or te.lower(schedule) gives the loops, which print; te.build(...) "
        "compiles them",
    )


class Hybrid:
    """`te.hybrid`, whose scripts are refused: imperative Python is no expression."""

    def script(self, function: object) -> NoReturn:
        """Refused.

        Raises:
            ExprError: always.
        """
        name = str(getattr(function, "__name__", "f"))
        raise ExprError(
            "hybrid scripts are left out: their loops and stores say how to run, which is the "
            "schedule's part here",
            subject=f"hybrid.script({name})",
            hint=f"write what {name} computes as te.compute (branches: te.if_then_else; loops that "
            "add up: te.sum over a te.reduce_axis), a loop that reads what it has stored as "
            "te.scan, and anything else as te.extern with a Python function",
        )

    def build(self, *args: object, **kwargs: object) -> NoReturn:
        """Refused, as `script`.

        Raises:
            ExprError: always.
        """
        raise ExprError(
            "there are no hybrid modules",
            subject="hybrid.build",
            hint="te.build(te.create_schedule(...)) makes a kernel",
        )


hybrid = Hybrid()
