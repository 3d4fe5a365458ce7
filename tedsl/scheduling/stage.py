"""`Stage`: the handle through which a user schedules one operation.

Each method checks the type of its arguments, notes where it was called, and leaves the rest to
`primitives`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsIndex, TypeVar

from tedsl.expr.nodes import Axis, Expr
from tedsl.expr.tensor import ComputeOp, Operation, PlaceholderOp, Tensor
from tedsl.scheduling.call import Call, StageName, caller
from tedsl.scheduling.checks.arguments import choice
from tedsl.scheduling.checks.places import legal_attach_points
from tedsl.scheduling.names import labels
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.primitives import loops, marks, places
from tedsl.scheduling.threads import ThreadAxis

Made = TypeVar("Made", bound=tuple[Axis, ...])

if TYPE_CHECKING:
    from tedsl.scheduling.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Stage:
    """One operation of a schedule and how it runs.  Got from `s[T]`; it stays valid through
    rewrites of the graph.
    """

    schedule: Schedule
    name: str

    @property
    def plan(self) -> StagePlan:
        """What has been decided, as data."""
        return self.schedule.plan.stage(self.name)

    @property
    def op(self) -> ComputeOp | PlaceholderOp:
        """The operation as it is now; `.axis` and `.reduce_axis` are its root axes."""
        return self.plan.op

    @property
    def leaf_iter_vars(self) -> tuple[Axis, ...]:
        """The loops, outermost first."""
        return self.plan.leaf_axes

    def axis(self, label: str) -> Axis:
        """The axis called `label` in traces and printed loop nests, e.g. `i.outer`."""
        known = {text: axis for axis, text in labels(self.plan).items()}
        if label in known:
            return known[label]
        call = self._call("axis", (label,))
        raise call.refuse(
            self.schedule.plan,
            f"{self.name} has no axis {label!r}",
            facts=[("axes", ", ".join(known))],
            hint="use one of the axes listed",
        )

    def legal_places(self) -> tuple[tuple[Stage, Axis], ...]:
        """Every (stage, axis) that `compute_at` would accept now; a stage may also be at root."""
        return tuple(
            (Stage(self.schedule, name), axis)
            for name, axis in legal_attach_points(self.schedule.plan, self.name)
        )

    # Loop structure -------------------------------------------------------------------------------

    def split(
        self,
        parent: Axis,
        factor: SupportsIndex | Expr | None = None,
        nparts: SupportsIndex | Expr | None = None,
    ) -> tuple[Axis, Axis]:
        """Split a loop into two, one inside the other.

        Args:
            parent: the loop.
            factor: extent of the inner loop; it need not divide the extent, nor be smaller.
            nparts: extent of the outer loop, instead of `factor`.

        Returns:
            (outer, inner), with parent = outer * extent(inner) + inner.

        Requires: `parent` is a loop of this stage that has no mark.  Stages attached at it move to
        inner.

        Rewrites:
            for i in 0..n: f(i)
            -->
            for i.outer in 0..ceil(n / factor):
              for i.inner in 0..factor:
                if i.outer * factor + i.inner < n: f(i.outer * factor + i.inner)
        """
        call = self._call("split", (parent,), factor=factor, nparts=nparts)
        plan, made = loops.split(self.schedule.plan, call, parent, factor, nparts)
        return self._commit(call, plan, made)

    def tile(self, *arguments: SupportsIndex | Expr) -> tuple[Axis, ...]:
        """Split n loops and put the inner loops inside all outer loops.

        Args:
            arguments: n loops, then n factors: `tile(x, y, x_factor, y_factor)`.

        Returns:
            The n outer axes, then the n inner axes.

        Requires: as for `split` and `reorder`.

        Rewrites:
            for x: for y: f(x, y)
            -->
            for x.outer: for y.outer: for x.inner: for y.inner: f(...)
        """
        call = self._call("tile", arguments)
        plan, made = loops.tile(self.schedule.plan, call, arguments)
        return self._commit(call, plan, made)

    def fuse(self, *axes: Axis) -> Axis:
        """Make one loop of loops that stand directly inside each other.

        Args:
            axes: the loops, outermost first.

        Returns:
            The fused axis; of two, outer = fused // extent(inner) and inner = fused %
            extent(inner).

        Requires: adjacent loops in their order, all data or all reduce axes, without marks, and
            nothing attached between them.  (TVM also fuses data with reduce axes.)

        Rewrites:
            for i in 0..n: for j in 0..m: f(i, j)
            -->
            for i.j.fused in 0..n*m: f(i.j.fused // m, i.j.fused % m)
        """
        call = self._call("fuse", axes)
        plan, fused = loops.fuse(self.schedule.plan, call, axes)
        self._commit(call, plan, (fused,))
        return fused

    def reorder(self, *axes: Axis) -> None:
        """Let loops take each other's places.

        Args:
            axes: loops in the order they are to have, outermost first; loops not named stay where
                they are.

        Requires: loops bound to the grid stay outside all others, and attached stages at legal
        places.

        Rewrites:
            for i: for j: for k: f(i, j, k)
            --> reorder(k, i)
            for k: for j: for i: f(i, j, k)
        """
        call = self._call("reorder", axes)
        self._commit(call, loops.reorder(self.schedule.plan, call, axes))

    # How a loop runs ------------------------------------------------------------------------------

    def bind(self, axis: Axis, thread: str | ThreadAxis) -> None:
        """Bind a loop to the grid, or make it a block axis.

        Args:
            axis: the loop.
            thread: `"blockIdx.x|y|z"` or `te.program_id(0|1|2)`: a dimension of the grid (a
                parallel loop on the CPU); `"threadIdx.x|y|z"`: a block axis, the same as
                `vectorize`.

        Requires: for the grid, a data axis with no other loop outside it, of a stage at root, each
            dimension bound once; for a block axis, as for `vectorize`.

        Rewrites:
            for i in 0..n: f(i)
            -->
            i = program_id(0): f(i)                   (blockIdx.x)
            f(lanes 0..n)                             (threadIdx.x)
        """
        call = self._call("bind", (axis, thread))
        self._commit(call, marks.bind(self.schedule.plan, call, axis, thread))

    def vectorize(self, axis: Axis) -> None:
        """Run all iterations of a loop at once, as lanes of a tile (SIMD lanes on the CPU).

        Args:
            axis: the loop.  Lanes of a reduce axis accumulate by themselves and are combined after
                the loops.

        Requires: a constant extent; nothing attached at or inside the loop; for a reduce axis a
            reducer known to combine in any order.  (TVM refuses reduce axes.)

        Rewrites:
            for i in 0..8: C[i] = A[i]
            -->
            C[0..8] = A[0..8]
        """
        call = self._call("vectorize", (axis,))
        self._commit(call, marks.vectorize(self.schedule.plan, call, axis))

    def unroll(self, axis: Axis) -> None:
        """Write a loop out.

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

    def parallel(self, axis: Axis) -> None:
        """Run the iterations of a loop on a pool of threads (programs of the grid on the GPU).

        Args:
            axis: the loop.

        Requires: a data axis without another way of running.

        Rewrites:
            for i in 0..n: f(i)
            -->
            parallel for i in 0..n: f(i)
        """
        call = self._call("parallel", (axis,))
        self._commit(call, marks.parallel(self.schedule.plan, call, axis))

    def pipeline(self, axis: Axis, num_stages: int = 3, flatten: bool = False) -> None:
        """Start the loads of later iterations of a loop while earlier ones compute.

        Args:
            axis: the loop; it stays serial.
            num_stages: iterations in flight.
            flatten: one pipeline across this loop and the loop inside it.

        Requires: a loop without another way of running.

        Rewrites:
            for k: load(k); compute(k)
            -->
            load(0); load(1); for k: load(k + 2); compute(k)
        """
        call = self._call("pipeline", (axis,), num_stages=num_stages, flatten=flatten or None)
        self._commit(call, marks.pipeline(self.schedule.plan, call, axis, num_stages, flatten))

    def serial(self, axis: Axis) -> None:
        """Make a loop plain again.

        Args:
            axis: the loop.

        Requires: no loop inside it is bound to the grid.

        Rewrites:
            parallel for i: f(i)
            -->
            for i: f(i)
        """
        call = self._call("serial", (axis,))
        self._commit(call, marks.serial(self.schedule.plan, call, axis))

    def dot(self, axis: Axis, precision: str = "ieee") -> None:
        """Say how float32 products over a reduce axis are multiplied where they become a matrix
        product.

        Args:
            axis: a reduce loop.
            precision: `"ieee"` (exact products), `"tf32"`, or `"tf32x3"` (three TF32 products).

        Requires: a reduce axis.  Without this call products are exact.

        Rewrites:
            C[i, j] += A[i, k] * B[k, j]
            -->
            C[i, j] += tf32(A[i, k]) * tf32(B[k, j])
        """
        call = self._call("dot", (axis,), precision=precision)
        self._commit(call, marks.dot(self.schedule.plan, call, axis, precision))

    def pragma(self, axis: Axis, pragma_type: str) -> None:
        """TVM's spelling of `unroll` and `vectorize`.

        Args:
            axis: the loop.
            pragma_type: `"unroll"` or `"vectorize"`.

        Requires: as for the primitive of that name.

        Rewrites: as the primitive of that name.
        """
        call = self._call("pragma", (axis, pragma_type))
        plan = self.schedule.plan
        kind = choice(plan, call, "pragma", pragma_type, ("unroll", "vectorize"))
        change = marks.unroll if kind == "unroll" else marks.vectorize
        self._commit(call, change(plan, call, axis))

    # Where a stage is computed --------------------------------------------------------------------

    def compute_at(self, stage: Stage | Tensor | Operation | str, axis: Axis) -> None:
        """Compute this stage inside a loop of another, only the region that is read there.

        Args:
            stage: a stage that reads this one, or one whose loop encloses all readers.
            axis: a loop of that stage.

        Requires: every reader runs inside that loop; the loop is not (inside) a vectorized one, nor
            between loops of the grid.  `legal_places()` lists what is accepted.  The scope becomes
            `local` where it was `global`; `set_scope` after this call chooses another.

        Rewrites:
            for y: B[y] = f(y)
            for i: for j: C[i, j] = g(B[i], ...)
            --> s[B].compute_at(s[C], i)
            for i:
              B[i] = f(i)
              for j: C[i, j] = g(B[i], ...)
        """
        target = self.schedule.resolve(stage, "compute_at", caller(1))
        file, line = caller(1)
        shown = (("", StageName(self.name)), ("at", axis))
        args = (StageName(target), axis)
        call = Call("compute_at", self.name, args, {}, file, line, shown)
        self._commit(call, places.compute_at(self.schedule.plan, call, target, axis))

    def compute_inline(self) -> None:
        """Substitute this stage into its readers.

        Requires: one output, no reduction, not an output of the schedule, nothing attached in it.

        Rewrites:
            B[i] = A[i] + 1;  C[i] = B[i] * 2
            -->
            C[i] = (A[i] + 1) * 2
        """
        call = self._call("compute_inline", ())
        self._commit(call, places.compute_inline(self.schedule.plan, call))

    def compute_root(self) -> None:
        """Compute this stage by itself before its readers: a kernel of its own.

        Requires: no stage that it reads is attached where this stage was.

        Rewrites:
            for i: { B[i] = f(i); C[i] = g(B[i]) }
            -->
            for i: B[i] = f(i)
            for i: C[i] = g(B[i])
        """
        call = self._call("compute_root", ())
        self._commit(call, places.compute_root(self.schedule.plan, call))

    def set_scope(self, scope: str) -> None:
        """Say where the result of this stage lives while it is attached.

        Args:
            scope: `"local"` (registers, stack), `"shared"` (staged by the copy engine) or
                `"global"` (device memory).

        Requires: outputs of the schedule are `"global"`.

        Rewrites: nothing but the scope; at root a result is in device memory.
        """
        call = self._call("set_scope", (scope,))
        self._commit(call, places.set_scope(self.schedule.plan, call, scope))

    def launch(
        self,
        num_warps: int | None = None,
        num_stages: int | None = None,
        num_ctas: int | None = None,
        maxnreg: int | None = None,
    ) -> None:
        """Set launch options of this stage's kernel; those not given stay as they are.

        Args:
            num_warps: warps of one program, a power of two up to 32.
            num_stages: depth of software pipelines without one of their own.
            num_ctas: blocks of one cluster.
            maxnreg: registers of one thread.

        Requires: a stage at root.

        Rewrites: nothing; the GPU backend passes the options on.
        """
        options = {
            "num_warps": num_warps,
            "num_stages": num_stages,
            "num_ctas": num_ctas,
            "maxnreg": maxnreg,
        }
        file, line = caller(1)
        call = Call("launch", self.name, (), options, file, line)
        self._commit(call, places.launch(self.schedule.plan, call, options))

    # ----------------------------------------------------------------------------------------------

    def _call(self, primitive: str, args: tuple[object, ...], **kwargs: object) -> Call:
        file, line = caller(2)
        given = {key: value for key, value in kwargs.items() if value is not None}
        return Call(primitive, self.name, args, given, file, line)

    def _commit(self, call: Call, plan: Plan, made: Made = ()) -> Made:
        return self.schedule.commit(call, plan, made)

    def __repr__(self) -> str:
        return f"Stage({self.name})"
