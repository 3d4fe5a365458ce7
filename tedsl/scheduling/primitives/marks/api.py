"""How a loop runs: bind, vectorize, unroll, parallel, pipeline, reverse, serial, dot, pragma."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tedsl.expr.nodes import Axis
from tedsl.late import late
from tedsl.scheduling.handles.thread_axis import ThreadAxis
from tedsl.scheduling.primitives.stage_handle import StageHandle, primitive

if TYPE_CHECKING:
    from tedsl.scheduling.primitives.marks import rewrite as marks
    from tedsl.scheduling.primitives.tensorize import rewrite as tensorizing
    from tedsl.tensor import intrin as intrinsics
    from tedsl.tensor.intrin import TensorIntrin
else:
    intrinsics = late("tedsl.tensor.intrin")
    marks = late("tedsl.scheduling.primitives.marks.rewrite")
    tensorizing = late("tedsl.scheduling.primitives.tensorize.rewrite")


class MarkMethods(StageHandle):
    """Primitives that say how one loop runs."""

    __slots__ = ()

    @primitive
    def bind(self, axis: Axis, thread: str | ThreadAxis, descending: bool = False) -> None:
        """Bind a loop to the grid, or make it a block axis.

        Args:
            axis: the loop.
            thread: `"blockIdx.x|y|z"` or `te.program_id(0|1|2)`: a dimension of the grid (a
                parallel loop on the CPU); `"threadIdx.x|y|z"` or `"vthread"`: a block axis, as
                `vectorize` makes one.
            descending: for the grid: programs start with the last iteration, which is for loops
                whose last iterations take longest (the short ones fill the device's end).

        A loop of the grid moves out of all others.  What is computed at a loop of threads, or at a
        data loop inside one, is computed for all threads at once, at the loop around them.  In
        Triton such data loops are dimensions of the tile too, and so are the loops that index what
        the program holds; copies that are no tiles are left out.

        Requires: for the grid, a data axis (or a reduce axis of a stage that is `atomic`) of a
            stage at root, each dimension bound once; for a block axis, as for `vectorize`, but that
            others may be computed there.

        Rewrites:
            for i in 0..n: f(i)
            -->
            i = program_id(0): f(i)                   (blockIdx.x)
            f(lanes 0..n)                             (threadIdx.x)
        """
        call = self._call("bind", (axis, thread), descending=descending or None)
        self._commit(call, marks.bind(self.schedule.plan, call, axis, thread, descending))

    @primitive
    def vectorize(self, axis: Axis) -> None:
        """Run all iterations of a loop at once, as lanes of a tile (SIMD lanes on the CPU).

        Args:
            axis: the loop.  Lanes of a reduce axis accumulate by themselves and are combined after
                the loops.  On a GPU it is a dimension of the program's tile: a sum of products
                whose reduce axis, or an inner part of it, is vectorized is a matrix product
                (`tl.dot`), if the two data axes are vectorized, too, and each has 16 or more.

        Requires: a constant extent; nothing attached at or inside the loop; for a reduce axis a
            reducer known to combine in any order.  (TVM refuses reduce axes.)

        Rewrites:
            for i in 0..8: C[i] = A[i]
            -->
            C[0..8] = A[0..8]
        """
        call = self._call("vectorize", (axis,))
        self._commit(call, marks.vectorize(self.schedule.plan, call, axis))

    @primitive
    def unroll(self, axis: Axis) -> None:
        """Write a loop out.

        A loop stays one where the compilers would take too long over all its iterations, by an
        estimate of their instructions (some seconds of LLVM on the CPU, 20 s of Triton on a GPU);
        the kernel's source says so.

        Args:
            axis: the loop.

        Requires: a loop without another way of running.

        Rewrites:
            for i in 0..2: f(i)
            -->
            f(0); f(1)
        """
        call = self._call("unroll", (axis,))
        self._commit(call, marks.unroll(self.schedule.plan, call, axis))

    @primitive
    def parallel(self, axis: Axis) -> None:
        """Run the iterations of a loop on a pool of threads (programs of the grid on the GPU).

        Args:
            axis: the loop.

        Requires: a data axis, or a reduce axis of a stage that is `atomic`, without another way of
            running.

        Rewrites:
            for i in 0..n: f(i)
            -->
            parallel for i in 0..n: f(i)
        """
        call = self._call("parallel", (axis,))
        self._commit(call, marks.parallel(self.schedule.plan, call, axis))

    @primitive
    def atomic(self) -> None:
        """Let reduce loops run at the same time: each iteration folds its part in registers and
        combines it with the result in one indivisible step.

        What the result starts from (the reducer's identity, or `init=`) is stored by a nest before.
        Sums of floats are rounded in an order that may change from run to run, and their last bits
        with it; integers, minima and maxima are exact.  (Halide: `Func.atomic`.)

        On a target without such an update for the dtype the reduce loops run one iteration after
        the other, inside the other loops that run at the same time, as if they were serial: on the
        CPU of 16-bit floats; in Triton of integers of less than 32 bits and of bool, of 16-bit
        floats but for sums, and of minima and maxima of floats whose `init=` may be NaN.

        Requires: a stage at root, by itself; a reducer that is `+`, min, max, `&`, `|` or `^` of
            single values; an `init=` that reads no stage which is computed in loops.

        Rewrites:
            for i: for ko: for ki: B[i] += A[i, ko * f + ki]
            --> s[B].atomic(); s[B].parallel(ko)
            for i: B[i] = 0
            for i: parallel for ko:
                acc = 0; for ki: acc += A[i, ko * f + ki]
                atomic B[i] += acc
        """
        call = self._call("atomic", ())
        self._commit(call, marks.atomic(self.schedule.plan, call))

    @primitive
    def pipeline(self, axis: Axis, num_stages: int = 3, flatten: bool = False) -> None:
        """Start the loads of later iterations of a loop while earlier ones compute.

        Args:
            axis: the loop; it stays serial.
            num_stages: iterations in flight, at most 64.
            flatten: one pipeline across this loop and the loop inside it.

        Requires: a loop without another way of running.  In Triton the loop is `tl.range` with that
            many stages.  On the CPU an iteration prefetches what the one `num_stages - 1` later
            reads, a cache line at a time, where addresses are affine in the loop, the loops inside
            it have known extents, and no more than 128 KB of a tensor are read at once.

        Rewrites:
            for k: load(k); compute(k)
            -->
            load(0); load(1); for k: load(k + 2); compute(k)
        """
        call = self._call("pipeline", (axis,), num_stages=num_stages, flatten=flatten or None)
        self._commit(call, marks.pipeline(self.schedule.plan, call, axis, num_stages, flatten))

    @primitive
    def reverse(self, axis: Axis) -> None:
        """Run a loop from its last iteration to its first.

        For a loop that reads what another has just read: what that one read last is still in the
        caches, and is read first then.  Of a loop in parts (`cut`, or a tail with guards) the last
        part runs first; one that is pipelined fetches what lies before.

        Args:
            axis: the loop; it may be unrolled or pipelined, before or after.

        Requires: a data axis that is serial or unrolled, no steps of a scan; no stage that is
            stored outside it computes only what is new in each iteration (`store_at`), and no
            reduction shares it (`compute_with`).

        Rewrites:
            for i in 0..n: f(i)
            -->
            for i in 0..n: f(n - 1 - i)
        """
        call = self._call("reverse", (axis,))
        self._commit(call, marks.reverse(self.schedule.plan, call, axis))

    @primitive
    def serial(self, axis: Axis) -> None:
        """Make a loop plain again.

        Args:
            axis: the loop; of one that is tensorized, all loops of the intrinsic become plain.

        Requires: no loop inside it is bound to the grid.

        Rewrites:
            parallel for i: f(i)
            -->
            for i: f(i)
        """
        call = self._call("serial", (axis,))
        self._commit(call, marks.serial(self.schedule.plan, call, axis))

    @primitive
    def tensorize(self, axis: Axis, intrin: TensorIntrin | str) -> None:
        """Let an intrinsic compute what the loops from an axis inward compute.

        Args:
            axis: the outermost of these loops.
            intrin: what `te.decl_tensor_intrin` made, or its name.

        Where the target cannot call the intrinsic its loops run as they were: it has no code for
        the target; in Triton, an extent is no power of two or the loops are no reduction; they are
        part of a larger tile, or parts are combined atomically where they are stored.

        Requires: the loops, in their order, have the kinds and extents of the intrinsic's axes; the
        body is its expression; each operand moves along exactly the loops of its input's axes; no
        guard remains and nothing is computed inside.  A reduction's first value is stored by
        ordinary loops.

        Rewrites:
            for i in 0..4: for j in 0..4: for k in 0..4: C[i, j] += A[i, k] * B[k, j]
            -->
            mul4(A, B, C)
        """
        found = intrinsics.declared(intrin) if isinstance(intrin, str) else intrin
        name = found.name if isinstance(found, intrinsics.TensorIntrin) else intrin
        call = self._call("tensorize", (axis, name))
        if not isinstance(found, intrinsics.TensorIntrin):
            raise call.refuse(
                self.schedule.plan,
                f"{intrin!r} is no intrinsic",
                facts=[("declared", ", ".join(intrinsics.declared_names()) or "none")],
                hint="declare it with te.decl_tensor_intrin first",
            )
        self._commit(call, tensorizing.tensorize(self.schedule.plan, call, axis, found))

    @primitive
    def dot(
        self, axis: Axis, precision: str = "ieee", use: bool = True, finite: bool = False
    ) -> None:
        """Say how the products over a reduce axis are computed where they can be a matrix product.

        Args:
            axis: a reduce loop.
            precision: of float32 operands: `"ieee"` (exact products), `"tf32"`, or `"tf32x3"`
                (three TF32 products).
            use: False keeps a fold of single products, which may be faster for small tiles.
            finite: you know that no operand is infinite or NaN.  Then a sum whose `where=` involves
                rows or columns can be a matrix product as well, in which a masked product is 0
                times the other operand.

        Requires: a reduce axis.  Without this call products are exact and nothing is taken as
            finite.

        Rewrites:
            C[i, j] += A[i, k] * B[k, j]
            -->
            C[i, j] += tf32(A[i, k]) * tf32(B[k, j])
        """
        call = self._call(
            "dot",
            (axis,),
            precision=precision,
            use=None if use is True else use,
            finite=None if finite is False else finite,
        )
        self._commit(call, marks.dot(self.schedule.plan, call, axis, precision, use, finite))

    @primitive
    def pragma(self, axis: Axis, pragma_type: str, pragma_value: int | bool | None = None) -> None:
        """TVM's remarks about a loop.

        Args:
            axis: the loop.
            pragma_type: `"unroll"`, `"vectorize"` and `"parallel"` are the primitives of these
                names.  `"auto_unroll_max_step"` unrolls loops from the innermost outwards up to
                `axis` while they have at most `pragma_value` iterations together.
                `"unroll_explicit"`, `"parallel_launch_point"`, `"parallel_barrier_when_finish"` and
                `"parallel_stride_pattern"` change nothing: loops are unrolled as they stand, and
                the thread pool decides who runs which part.
            pragma_value: the number of iterations, for `"auto_unroll_max_step"`.

        Requires: as for the primitive of that name.

        Rewrites: as the primitive of that name.
        """
        call = self._call("pragma", (axis, pragma_type), pragma_value=pragma_value)
        plan = self.schedule.plan
        self._commit(call, marks.pragma(plan, call, axis, pragma_type, pragma_value))
