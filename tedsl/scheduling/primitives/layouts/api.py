"""Another layout or element type of a stage: transform_layout, set_precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tedsl.expr.nodes import Axis
from tedsl.expr.promote import DTypeLike
from tedsl.late import late
from tedsl.scheduling.primitives.call import Call, caller
from tedsl.scheduling.primitives.schedule_handle import ScheduleHandle
from tedsl.scheduling.primitives.stage_handle import StageHandle, primitive
from tedsl.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tedsl.scheduling.handles.stage import Stage
    from tedsl.scheduling.primitives.layouts import rewrite as layouts
else:
    layouts = late("tedsl.scheduling.primitives.layouts.rewrite")


class LayoutMethods(StageHandle):
    """Primitives that change how the result of a stage is stored."""

    __slots__ = ()

    @primitive
    def transform_layout(self, fn: Callable[..., Any]) -> tuple[Axis, ...]:
        """Store the elements of this stage at other indices, and in a shape of other dimensions.

        Args:
            fn: from the data axes to the new indices, e.g. `lambda i, j: (i // 4, j, i % 4)`:
                permutations, splits by constants, fusions `i * extent(j) + j` and shifts, in any
                combination.  No two elements may have one place.

        Returns:
            The new data axes, in the order of the new indices; they are the loops of the stage.

        Requires: no split, fuse, reorder or mark of this stage before, and nothing attached in it.
            (For an input, `s.cache_read` and then the layout of the copy: packing.)  Places of the
            new shape where no element goes are padding: 0, or what the reduction starts from.  Of
            an output the loops and what reads it have the new axes; its elements stay where the
            caller's array has them, and padding is not stored.

        Rewrites:
            for i in 0..10: B[i] = f(i);  for i in 0..10: C[i] = B[i]
            --> s[B].transform_layout(lambda i: (i // 4, i % 4))
            for l0 in 0..3: for l1 in 0..4: B[l0, l1] = f(l0 * 4 + l1) if l0 * 4 + l1 < 10 else 0
            for i in 0..10: C[i] = B[i // 4, i % 4]
        """
        call = self._call("transform_layout", ())
        plan, call, axes = layouts.transform_layout(self.schedule.plan, call, fn)
        return self._commit(call, plan, axes)

    def set_precision(self, dtype: DTypeLike, compute: bool = False) -> None:
        """`s.set_precision(T, dtype, compute)` of this stage."""
        _set_precision(self.schedule, self, dtype, compute, caller(1))


class PrecisionMethods(ScheduleHandle):
    """The primitive that changes the element type of a stage."""

    @primitive
    def set_precision(
        self, tensor: Tensor | Stage, dtype: DTypeLike, compute: bool = False
    ) -> None:
        """Compute and store a stage in another element type.

        Calling it is consent to other rounding (and, for narrower floats, to overflow and
        underflow): results may differ from those of the definition by what this type rounds.

        Args:
            tensor: the stage (any output of it).
            dtype: a float for floats; for integers a wider one, which changes nothing.
            compute: compute in the type, too, which must be a wider float: the definition of the
                stage from what it reads, and in readers what is computed of it, until they round
                their own results.  A cast to a narrower float at the root of the definition goes
                away.

        Requires: no output of the schedule and no input (`s.cache_write` and `s.cache_read` make
            stages of which the type may change); a reduction by one operator (te.sum, te.max, ...),
            whose terms are computed as defined, then cast, then accumulated in `dtype`.

        Rewrites:
            B[i] = f(i);  C[i] = g(B[i])
            --> s.set_precision(B, "bfloat16")
            B[i] = bfloat16(f(i));  C[i] = g(float32(B[i]))

            B[i] = A[i] / 3;  C[i] = D[i] - B[i]
            --> s.set_precision(B, "float64", compute=True)
            B[i] = float64(A[i]) / 3;  C[i] = float32(float64(D[i]) - B[i])
        """
        _set_precision(self, tensor, dtype, compute, caller(1))


def _set_precision(
    schedule: ScheduleHandle,
    tensor: object,
    dtype: DTypeLike,
    compute: bool,
    site: tuple[str, int],
) -> None:
    name = schedule.resolve(tensor, "set_precision", site)
    args = (schedule.plan.stage(name).op.outputs[0], str(dtype))
    given = {} if compute is False else {"compute": compute}
    shown = (*(("", each) for each in args), *given.items())
    call = Call("set_precision", name, args, given, *site, shown=shown)
    plan, call = layouts.set_precision(schedule.plan, call, dtype, compute)
    schedule.commit(call, plan)
