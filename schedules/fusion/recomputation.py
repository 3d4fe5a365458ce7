"""Whether to compute a pointwise stage again at every read, or to store it: on a GPU by the bytes
and instructions that either takes."""

from __future__ import annotations

from tedsl.devices import GpuDevice
from tedsl.expr.nodes import Cast, TensorRead
from tedsl.expr.visit import axes_of, walk
from tedsl.schedules.analysis.nests import cost, is_reduction, nbytes_of, plain, same_axes, triangle
from tedsl.schedules.analysis.views import View, reads_of, volume
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.gemm.cost_model import LAUNCH
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import ComputeOp, Tensor

# Instructions of a load: its address, its mask and itself.
LOADED = 4
# Instructions of rounding to fewer bits, and of widening the result again: few lanes convert.
ROUNDED = 2
# Instructions of an SM in a clock.
ISSUED = 128
# Instructions of an element beyond which nothing is computed again: of a chain of small stages each
# would otherwise compute all before it.
MOST = 48
# The share of all elements up to which few are read.
FEW = 1 / 8


def recomputes(s: Schedule, view: View, name: str) -> bool:
    """True when the stage `name` takes no longer where all of its readers compute it than where it
    is stored once and read.

    Each of its readers may be a kernel, and reads again what the stage reads for the elements that
    it reads, but for results that read it element by element: one loop stores them. What a reader
    computes several times, as at the shifted places of a stencil, costs instructions alone.
    """
    op, gpu, users = view[name], gpu_of(s), view.readers[name]
    points, read = volume(op.axes), reads_of(op)
    times = evaluations(view, name)
    results = {s[t].name for t in s.outputs}
    together = {user for user, each in users if user in results and _in_step(view[user], each)}
    apart = [share for user, share in _shares(view, name).items() if user not in together]
    kernels = sum(apart) + bool(together)
    loaded = sum(_for_each(tensor, points) for tensor in {each.tensor for each in read})
    stored = sum(out.dtype.nbytes for out in op.outputs)
    work = cost(op) + ROUNDED * _roundings(op) + LOADED * len(read)
    if work > MOST:
        return False
    again = kernels * loaded + _bytes_meanwhile(gpu, times * work)
    once = loaded + (1 + kernels) * stored + _bytes_meanwhile(gpu, work + LOADED * times)
    launch = LAUNCH * gpu.bytes_cycle * gpu.sms
    return again <= once + (launch / points if points else 0)


def mostly_one(view: View, name: str) -> bool:
    """True where all readers of a stage but one read few of its elements."""
    return sum(share > FEW for share in _shares(view, name).values()) <= 1


def _shares(view: View, name: str) -> dict[str, float]:
    """How large a share of the elements of a stage each of its readers reads."""
    points, shares = volume(view[name].axes), dict[str, float]()
    for user, read in view.readers[name]:
        shares[user] = shares.get(user, 0.0) + _evaluations(view[user], read, points)
    return {user: min(1.0, share) for user, share in shares.items()}


def evaluations(view: View, name: str) -> float:
    """How often the readers of a stage compute each of its elements, if none is stored."""
    points = volume(view[name].axes)
    return sum(_evaluations(view[user], each, points) for user, each in view.readers[name])


def _in_step(reader: ComputeOp, read: TensorRead) -> bool:
    """True for a pointwise reader of the elements at its own places."""
    return not is_reduction(reader) and same_axes(plain(read), reader.axes)


def _roundings(op: ComputeOp) -> int:
    """How often a value is rounded to fewer bits."""
    found = (node for node in walk(*op.bodies) if isinstance(node, Cast) and node.dtype.is_float)
    return sum(node.dtype.nbytes < node.a.dtype.nbytes for node in found)


def _evaluations(reader: ComputeOp, read: TensorRead, points: int | None) -> float:
    """How often a reader computes each element that it reads, for one of its reads."""
    used = axes_of(*read.indices)
    if triangle(reader) in used:  # a running fold takes each element of a block once
        used -= {*reader.reduce_axes}
    size = volume([axis for axis in (*reader.axes, *reader.reduce_axes) if axis in used])
    return 1.0 if size is None or not points else size / points


def _for_each(tensor: Tensor, points: int | None) -> float:
    """Bytes of a tensor for each of so many points."""
    nbytes = nbytes_of(tensor)
    return nbytes / points if nbytes and points else tensor.dtype.nbytes


def _bytes_meanwhile(gpu: GpuDevice, instructions: float) -> float:
    """The bytes that memory moves in the time of so many instructions."""
    return instructions / ISSUED * gpu.bytes_cycle
