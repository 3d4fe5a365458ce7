"""Where a result lives, and the options of its kernel: set_scope, launch."""

from __future__ import annotations

from tedsl.scheduling.call import Call, caller
from tedsl.scheduling.methods.handle import StageHandle, primitive
from tedsl.scheduling.primitives import places


class StorageMethods(StageHandle):
    """Primitives about the memory of a stage and the launch of its kernel."""

    __slots__ = ()

    @primitive
    def set_scope(self, scope: str) -> None:
        """Say where the result of this stage lives while it is attached.

        Args:
            scope: `"local"` (registers, stack), `"shared"` (staged by the copy engine) or
                `"global"` (device memory).  TVM's `"warp"` and `"wmma.*"` are registers as well,
                since the compiler finds matrix products; `"shared.dyn"` is `"shared"`.

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
