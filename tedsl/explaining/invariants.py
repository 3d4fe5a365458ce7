"""What has to hold of counted bytes, whatever the program: an output is written whole, and a kernel
reads no more of a workspace than those before have written.  Imports `data` and `kernels`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tedsl.errors import InternalError
from tedsl.explaining.data import KernelCost
from tedsl.explaining.kernels import buffer_bytes
from tedsl.expr.nodes import Var
from tedsl.ir.nodes import Buffer, Module
from tedsl.runtime.arguments.sizes import Number


def require_whole(
    module: Module, costs: Sequence[KernelCost], values: Mapping[Var, Number]
) -> None:
    """Refuse counts that contradict the program.  What data decide is not judged.

    Args:
        module: the program.
        costs: of its kernels, in order.
        values: of its runtime scalars.

    Raises:
        InternalError: an output is not written whole, or more of a workspace is read than written.
    """
    written: dict[str, int | None] = {}
    inner = {buffer.name for buffer in module.workspaces}
    for cost in costs:
        for name, (read, _) in cost.touched.items():
            known = _plus(written.get(name, 0), cost.touched[name][1])
            if name in inner and read is not None and known is not None and read > known:
                raise _contradicted(cost.name, name, f"reads {read} bytes, of {known} written")
        for name, (_, own) in cost.touched.items():
            written[name] = _plus(written.get(name, 0), own)
        if cost.calls:
            written.update(dict.fromkeys(cost.writes))
    for buffer in module.outputs:
        whole, known = _size(buffer, values), written.get(buffer.name, 0)
        if known is not None and known < whole:
            raise _contradicted(module.name, buffer.name, f"{known} bytes written of {whole}")


def _plus(known: int | None, more: int | None) -> int | None:
    return None if known is None or more is None else known + more


def _size(buffer: Buffer, values: Mapping[Var, Number]) -> int:
    return buffer_bytes([buffer], values)


def _contradicted(where: str, name: str, what: str) -> InternalError:
    return InternalError(f"the bytes of {name} do not agree: {what}", facts=[("kernel", where)])
