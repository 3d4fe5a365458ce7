"""What `te.auto` stands for: the choices that each primitive offers for its arguments, as knobs.

    s[C].split(k, factor=te.auto)  -->  s[C].split(k, factor=s.knob("C.split.k.factor", [...], 32))

Every choice is one that the primitive accepts where it is called.  Imports the schedule's handles.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any

from tedsl.errors import ScheduleError
from tedsl.expr.nodes import Axis, AxisKind
from tedsl.scheduling.handles.auto import auto
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.plan.relations import constant, extents

if TYPE_CHECKING:
    from tedsl.scheduling.handles.schedule import Schedule

# The longest piece that a split offers, and how many divisors beside the powers of two.
LONGEST = 4096
DIVISORS = 8
# Loops whose orders are all offered; of more loops it is the innermost.
ORDERED = 4


@dataclass(frozen=True, slots=True)
class Asked:
    """A call with something to choose: the handle, the primitive, and its other arguments."""

    handle: Any
    primitive: str
    given: Mapping[str, Any]

    @property
    def schedule(self) -> Schedule:
        """The schedule of the handle."""
        found: Schedule = getattr(self.handle, "schedule", self.handle)
        return found

    @property
    def on_cpu(self) -> bool:
        """True when the schedule is known to be for the CPU."""
        return self.schedule.target == "cpu"

    @property
    def on_gpu(self) -> bool:
        """True when the schedule is known to be for a GPU."""
        return self.schedule.target is not None and not self.on_cpu

    def knob(self, label: str, choices: Sequence[Any], default: Any) -> Any:
        """The choice; where one is left there is no knob."""
        kept = list(dict.fromkeys(choices))
        if len(kept) == 1:
            return kept[0]
        parts = (getattr(self.handle, "name", ""), self.primitive, label)
        name = ".".join(part for part in parts if part)
        return self.schedule.knob(name, kept, default if default in kept else kept[0])

    def label(self, axis: object) -> str:
        """The axis as traces call it."""
        found = labels(self.handle.plan).get(axis) if isinstance(axis, Axis) else None
        return found or ""


def decide(handle: Any, method: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
    """Call a primitive with choices in the place of `te.auto`."""
    name = method.__name__
    whole = WHOLE.get(name)
    if whole is not None and any(arg is auto for arg in args):
        return whole(handle, method, args)
    bound = inspect.signature(method).bind(handle, *args, **kwargs)
    for parameter, value in list(bound.arguments.items()):
        if value is not auto:
            continue
        offer = OFFERS.get((name, parameter))
        if offer is None:
            raise _refusal(handle, name, parameter)
        bound.arguments[parameter] = offer(Asked(handle, name, bound.arguments), parameter)
    if any(value is SKIP for value in bound.arguments.values()):
        return None
    return method(*bound.args, **bound.kwargs)


def _refusal(handle: Any, primitive: str, parameter: str) -> ScheduleError:
    known = [f"{name}({what})" for name, what in OFFERS] + list(WHOLE)
    return ScheduleError(
        f"{primitive} does not choose {parameter} by itself",
        primitive=primitive,
        stage=getattr(handle, "name", ""),
        subject=f"{primitive}({parameter}=te.auto)",
        facts=[("te.auto", ", ".join(sorted(known)))],
        hint="give a value, or name the choices: s.knob(name, choices)",
    )


class Skip:
    """What a choice of "not at all" stands for."""


SKIP = Skip()


def sizes(extent: int | None, on_cpu: bool) -> list[int]:
    """Pieces of a loop: powers of two up to its (padded) extent, on the CPU its divisors too."""
    most = LONGEST if extent is None else min(LONGEST, 1 << max(0, extent - 1).bit_length())
    found = [1 << n for n in range(most.bit_length())]
    if extent is not None and on_cpu:
        divisors = [n for n in range(3, min(extent, 256) + 1) if extent % n == 0]
        found += [n for n in divisors if n & (n - 1)][:DIVISORS]
    return sorted(found)


def _extent(asked: Asked, axis: object) -> int | None:
    known = extents(asked.handle.plan)
    return constant(known[axis]) if isinstance(axis, Axis) and axis in known else None


def _factor(asked: Asked, parameter: str) -> int:
    """Pieces near 32; for `nparts` near 8."""
    axis = asked.given.get("parent")
    extent = _extent(asked, axis)
    wanted = 32 if parameter == "factor" else 8
    default = wanted if extent is None else max(1, min(wanted, 1 << (extent.bit_length() - 1)))
    label = f"{asked.label(axis)}.{parameter}"
    return asked.knob(label, sizes(extent, not asked.on_gpu), default)


def _tile(handle: Any, method: Callable[..., Any], args: Sequence[Any]) -> Any:
    """`tile(x, y, te.auto, te.auto)`: as for `split`."""
    count = len(args) // 2
    asked = Asked(handle, "tile", {})
    chosen = list(args)
    for place in range(count, len(args)):
        axis = args[place - count]
        if chosen[place] is auto:
            extent = _extent(asked, axis)
            default = 32 if extent is None else max(1, min(32, 1 << (extent.bit_length() - 1)))
            choices = sizes(extent, not asked.on_gpu)
            chosen[place] = asked.knob(asked.label(axis), choices, default)
    return method(handle, *chosen)


def _reorder(handle: Any, method: Callable[..., Any], args: Sequence[Any]) -> Any:
    """`reorder(te.auto)`: an order of all loops; `reorder(x, y, te.auto)`: of these."""
    axes = [arg for arg in args if arg is not auto] or list(handle.leaf_iter_vars)
    fixed, free = axes[:-ORDERED], axes[-ORDERED:]
    asked = Asked(handle, "reorder", {})
    names = {asked.label(axis): axis for axis in free}
    legal = [
        order
        for order in permutations(names)
        if _accepts(handle, method, [*fixed, *(names[name] for name in order)])
    ]
    order = asked.knob("", legal or [tuple(names)], tuple(names))
    return method(handle, *fixed, *(names[name] for name in order))


def _accepts(handle: Any, method: Callable[..., Any], args: Sequence[Any]) -> bool:
    """True when the call would be legal; it is made on a copy."""
    copy = handle.schedule.copy()
    try:
        method(copy[handle.name], *args)
    except ScheduleError:
        return False
    return True


def _loop(asked: Asked, parameter: str) -> Any:
    """One of the loops, or none; by default none, but the innermost data loop for lanes and the
    outermost for threads."""
    method: Callable[..., Any] = getattr(asked.handle.__class__, asked.primitive)
    names = {text: axis for axis, text in labels(asked.handle.plan).items()}
    loops = [asked.label(axis) for axis in asked.handle.leaf_iter_vars]
    legal = [name for name in loops if _accepts(asked.handle, method, [names[name]])]
    data = [name for name in legal if names[name].kind is AxisKind.DATA]
    default = None
    if asked.primitive == "vectorize" and data:
        default = data[-1]
    elif asked.primitive == "parallel" and data:
        default = data[0]
    taken = asked.knob(parameter, [None, *legal], default)
    return SKIP if taken is None else names[taken]


def _place(asked: Asked, _: str) -> Any:
    """The legal places in the given stage, the outermost by default."""
    schedule = asked.schedule
    wanted = schedule.resolve(asked.given["stage"], "compute_at", ("", 0))
    legal = {
        text: axis
        for stage, axis in asked.handle.legal_places()
        if stage.name == wanted
        for text in (Asked(stage, "", {}).label(axis),)
    }
    if not legal:
        raise ScheduleError(
            f"no loop of {wanted} is a legal place for {asked.handle.name}",
            primitive="compute_at",
            stage=asked.handle.name,
            subject=f"compute_at({asked.handle.name}, at=te.auto)",
            hint="leave it at root",
        )
    return legal[asked.knob(wanted, list(legal), next(iter(legal)))]


def _of(*choices: Any, default: Any, cpu: Any = None) -> Callable[[Asked, str], Any]:
    """Fixed choices; on the CPU, where they change nothing, there is none."""

    def offer(asked: Asked, parameter: str) -> Any:
        if cpu is not None and asked.on_cpu:
            return cpu
        axis = asked.label(asked.given.get("axis"))
        return asked.knob(".".join(p for p in (axis, parameter) if p), choices, default)

    return offer


def _stages(asked: Asked, parameter: str) -> int:
    """Iterations in flight: no more than there are."""
    if asked.on_cpu:
        return 1
    axis = asked.given.get("axis")
    extent = _extent(asked, axis)
    most = 5 if extent is None else max(1, min(5, extent))
    label = ".".join(p for p in (asked.label(axis), parameter) if p)
    return asked.knob(label, range(1, most + 1), min(3, most))


OFFERS: Mapping[tuple[str, str], Callable[[Asked, str], Any]] = {
    ("split", "factor"): _factor,
    ("split", "nparts"): _factor,
    ("pipeline", "num_stages"): _stages,
    ("pipeline", "flatten"): _of(False, True, default=False, cpu=False),
    ("launch", "num_warps"): _of(1, 2, 4, 8, 16, 32, default=4, cpu=4),
    ("launch", "num_stages"): _stages,
    ("launch", "maxnreg"): _of(None, 64, 96, 128, 168, default=None),
    ("vectorize", "axis"): _loop,
    ("unroll", "axis"): _loop,
    ("parallel", "axis"): _loop,
    ("pipeline", "axis"): _loop,
    ("reverse", "axis"): _loop,
    ("compute_at", "axis"): _place,
    ("partition", "policy"): _of("auto", "always", "never", "ends", default="auto"),
    ("prefetch", "offset"): _of(1, 2, 3, 4, default=1, cpu=1),
    ("dot", "use"): _of(True, False, default=True),
    ("pragma", "pragma_value"): _of(0, 4, 16, 64, 256, default=16),
}
WHOLE: Mapping[str, Callable[[Any, Callable[..., Any], Sequence[Any]], Any]] = {
    "tile": _tile,
    "reorder": _reorder,
}
