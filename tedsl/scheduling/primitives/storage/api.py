"""Where a result lives, and the options of its kernel: store_at, store_root, rolling_buffer,
set_scope, launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tedsl.expr.nodes import Axis
from tedsl.late import late
from tedsl.scheduling.primitives.call import Call, StageName, caller
from tedsl.scheduling.primitives.stage_handle import StageHandle, primitive
from tedsl.tensor.tensor import Operation, Tensor

if TYPE_CHECKING:
    from tedsl.scheduling.handles.stage import Stage
    from tedsl.scheduling.primitives.placement import rewrite as places
else:
    places = late("tedsl.scheduling.primitives.placement.rewrite")


class StorageMethods(StageHandle):
    """Primitives about the memory of a stage and the launch of its kernel."""

    __slots__ = ()

    @primitive
    def store_at(self, stage: Stage | Tensor | Operation | str, axis: Axis) -> None:
        """Store this stage inside a loop further out than the one that it is computed in: a sliding
        window.

        Args:
            stage: the stage whose loop that is.
            axis: a loop around the one given to `compute_at`.

        Requires: the stage is attached; the loops between the two places are serial (the
            iterations share the storage).  Where the region that is read moves on steadily along
            one of these loops, each iteration computes only what the one before did not, the first
            one all; elsewhere each computes all it reads.  A new `compute_at` takes it back.  On
            the GPU a tile in registers cannot be read in part: building refuses it.

        Rewrites:
            for y: { B[y .. y+2] = f(..); C[y] = B[y] + B[y+1] + B[y+2] }
            --> s[B].store_at(s[C], yo), with y in yo
            for yo: { alloc B; for y: { B[y+2] = f(y+2) (y = 0: B[0..2]); C[y] = ... } }
        """
        file, line = caller(1)
        target = self.schedule.resolve(stage, "store_at", (file, line))
        shown = (("", StageName(self.name)), ("at", axis))
        call = Call("store_at", self.name, (StageName(target), axis), {}, file, line, shown)
        self._commit(call, places.store_at(self.schedule.plan, call, target, axis))

    @primitive
    def store_root(self) -> None:
        """Store this stage outside all loops of the kernel that it is computed in.  (Halide's name;
        there it is also outside the kernel.)

        Requires: as for `store_at`.

        Rewrites:
            for y: { alloc B; B[y .. y+2] = f(..); C[y] = g(B[y .. y+2]) }
            -->
            alloc B; for y: { B[y+2] = f(y+2) (y = 0: B[0..2]); C[y] = g(B[y .. y+2]) }
        """
        call = self._call("store_root", ())
        self._commit(call, places.store_root(self.schedule.plan, call))

    @primitive
    def rolling_buffer(self) -> None:
        """Give this stage memory only for the window of it that is read at a time: element i lies
        at i modulo the size of the window.  (Halide: `fold_storage`.)

        Without `store_at` or `store_root` before, it is stored just outside of the loop that it is
        computed in.

        Requires: a stage inside a loop, and a region that moves on steadily along one of the loops
            between that and where it is stored.

        Rewrites:
            alloc B[n+2]; for y: { B[y+2] = f(y+2); C[y] = B[y] + B[y+1] + B[y+2] }
            -->
            alloc B[3]; for y: { B[(y+2) % 3] = f(y+2); C[y] = B[y % 3] + ... }
        """
        call = self._call("rolling_buffer", ())
        self._commit(call, places.rolling_buffer(self.schedule.plan, call))

    @primitive
    def set_scope(self, scope: str) -> None:
        """Say where the result of this stage lives while it is attached.

        Args:
            scope: `"local"` (registers, stack), `"shared"` (staged by the copy engine) or
                `"global"` (device memory).  TVM's `"warp"` and `"wmma.*"` are registers as well,
                since the compiler finds matrix products; what follows a dot names a buffer, and
                is dropped: `"shared.dyn"` is `"shared"`.

        Requires: outputs of the schedule are `"global"`.

        Rewrites: nothing but the scope; at root a result is in device memory.
        """
        call = self._call("set_scope", (scope,))
        self._commit(call, places.set_scope(self.schedule.plan, call, scope))

    @primitive
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
            num_ctas: blocks of one cluster, a power of two up to 16; one on a device that has no
                clusters (sm_90 and later).
            maxnreg: registers of one thread, at most 255.

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
