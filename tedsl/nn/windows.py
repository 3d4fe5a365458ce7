"""Windows that slide over the spatial dimensions of a tensor: what convolutions and pooling share.

    position(window o, tap t) = o * stride + t * dilation - before          may lie in the padding
    count = (size + before + after - dilation * (taps - 1) - 1) // stride + 1

A tensor has spatial dimensions, channels, and a batch dimension or none, in one of two layouts that
are named alike for all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Const, Expr
from tedsl.late import late
from tedsl.tensor.axis import reduce_axis
from tedsl.tensor.compute import compute
from tedsl.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tedsl.index import prove, simplify
    from tedsl.tensor import bounds_check
else:
    bounds_check = late("tedsl.tensor.bounds_check")
    prove = late("tedsl.index.prove")
    simplify = late("tedsl.index.simplify")

Layout = Literal["channels_last", "channels_first"]
Ints = int | Sequence[int]
"""One number for all spatial dimensions, or one for each."""

_SPOTS = ("d", "h", "w")


class Place(NamedTuple):
    """The parts of an index or a shape, whatever the layout."""

    batch: tuple[Expr, ...]
    channel: Expr
    spots: tuple[Expr, ...]


Element = Callable[[Place], Expr]


@dataclass(frozen=True, slots=True)
class Space:
    """How tensors of `rank` spatial dimensions are laid out."""

    rank: int
    layout: Layout

    def join(self, place: Place) -> tuple[Expr, ...]:
        """The index, or shape, made of its parts."""
        batch, channel, spots = place
        if self.layout == "channels_first":
            return (*batch, channel, *spots)
        return (*batch, *spots, channel)

    def parts(self, indices: Sequence[Expr]) -> Place:
        """The parts of an index or shape."""
        own = len(indices) - self.rank - 1
        batch, rest = tuple(indices[:own]), tuple(indices[own:])
        if self.layout == "channels_first":
            return Place(batch, rest[0], rest[1:])
        return Place(batch, rest[-1], rest[:-1])

    def names(self, batch: bool = True) -> list[str]:
        """What the dimensions are called: n, h, w and c in the order of the layout."""
        spots = _SPOTS[-self.rank :]
        words = ["c", *spots] if self.layout == "channels_first" else [*spots, "c"]
        return ["n", *words] if batch else words

    def compute(
        self, like: Tensor, channels: Expr, counts: Sequence[Expr], element: Element, name: str
    ) -> Tensor:
        """The tensor of `element(place)`, with the batch of `like`."""
        batch = self.parts(like.shape).batch
        shape = self.join(Place(batch, channels, tuple(counts)))
        names = self.names(bool(batch))
        return compute(shape, lambda *i: element(self.parts(i)), name, varargs_names=names)


def require_layout(layout: str, subject: str) -> None:
    """Refuse a layout that there is not."""
    if layout not in get_args(Layout):
        raise ExprError(
            f"there is no layout {layout!r}",
            subject=subject,
            hint='give "channels_last" or "channels_first"',
        )


def space_of(x: Tensor, rank: int, layout: Layout, subject: str) -> Space:
    """The layout of `x`, whose rank is checked.

    Raises:
        ExprError: an unknown layout, or a tensor of another rank.
    """
    require_layout(layout, subject)
    space = Space(rank, layout)
    if x.ndim not in (rank + 1, rank + 2):
        raise ExprError(
            f"{x.name} has {x.ndim} dimensions, {rank + 1} or {rank + 2} are needed",
            subject=subject,
            facts=[("allowed", f"[{', '.join(space.names())}], or without n")],
            hint="reshape it with te.compute, or use the operator of another rank",
        )
    return space


def numbers(value: Ints, rank: int, least: int, what: str, subject: str) -> tuple[int, ...]:
    """`value` as one int for each of `rank` dimensions.

    Raises:
        ExprError: not as many, something that is no int, or less than `least`.
    """
    given = [value] * rank if isinstance(value, int) else list(value)
    wrong = [each for each in given if not isinstance(each, int) or isinstance(each, bool)]  # pyright: ignore[reportUnnecessaryIsInstance]
    if len(given) != rank or wrong or any(each < least for each in given):
        raise ExprError(
            f"{what} is {value!r}",
            subject=subject,
            facts=[("allowed", f"an int of at least {least}, or {rank} of them")],
            hint=f"give one {what} for all spatial dimensions, or one for each",
        )
    return tuple(given)


@dataclass(frozen=True, slots=True)
class Window:
    """How windows lie along one dimension of `size`: `count` of them, of `taps` elements each."""

    size: Expr
    taps: Expr
    stride: int
    before: Expr
    dilation: int
    count: Expr

    def position(self, window: Expr, tap: Expr) -> Expr:
        """The element under `tap`; below 0 or past the end in the padding."""
        return build.sub(
            build.add(build.mul(window, self.stride), build.mul(tap, self.dilation)), self.before
        )


class Padding(NamedTuple):
    """Elements that one dimension is padded with, before its first and after its last."""

    before: Expr | int
    after: Expr | int


def window(
    size: Expr,
    taps: Expr | int,
    stride: int,
    padding: Padding,
    dilation: int,
    subject: str,
    ceil_mode: bool = False,
) -> Window:
    """The windows along one dimension; with `ceil_mode` the last may reach past the padding, but
    starts before it.

    Raises:
        ExprError: no taps, or more than the padded dimension holds.
    """
    taps, before, after = (build.as_expr(each) for each in (taps, *padding))
    reach = build.add(build.mul(build.sub(taps, 1), dilation), 1)
    padded = build.add(build.add(size, before), after)
    room = reduced(build.sub(padded, reach))
    too_few = isinstance(taps, Const) and taps.value < 1
    if too_few or (isinstance(room, Const) and room.value < 0):
        raise ExprError(
            f"a window of {taps} elements, dilated by {dilation}, over {size} padded by {before} "
            f"and {after}",
            subject=subject,
            facts=[("allowed", f"windows that reach over 1 .. {reduced(padded)} elements")],
            hint="make the kernel smaller, or the padding larger",
        )
    count = build.add(build.floordiv(room, stride), 1)
    if ceil_mode:
        up = build.add(_ceil_div(room, stride), 1)
        # The last window starts at (count - 1) * stride - before, which must be below the size.
        count = build.minimum(up, _ceil_div(build.add(size, before), stride))
    return Window(size, taps, stride, before, dilation, reduced(count))


def _ceil_div(a: Expr, b: int) -> Expr:
    return build.floordiv(build.add(a, b - 1), b)


def reduced(extent: Expr) -> Expr:
    """A size in its simplest form; sizes that it uses are at least 1."""
    return extent if isinstance(extent, Const) else simplify.simplify(extent)


def tap_axes(taps: Sequence[Expr]) -> tuple[Expr, ...]:
    """A reduction axis for each extent; 0 where that is 1, which leaves the read a plain one."""
    return tuple(
        Const(0, extent.dtype) if is_one(extent) else reduce_axis((0, extent), name=f"k{spot}")
        for extent, spot in zip(taps, _SPOTS[-len(taps) :], strict=True)
    )


def is_one(extent: Expr) -> bool:
    """True for the constant 1."""
    return isinstance(extent, Const) and extent.value == 1


def axes_among(indices: Sequence[Expr]) -> list[Axis]:
    """Those of `indices` that are axes."""
    return [each for each in indices if isinstance(each, Axis)]


def guards(positions: Sequence[Expr], sizes: Sequence[Expr]) -> list[Expr]:
    """That each position lies within its size, but for what is so anyway: the fewer conditions, the
    fewer masks."""
    facts = bounds_check.facts_of_sizes(bounds_check.variables_in(*sizes))
    conditions: list[Expr] = []
    for position, size in zip(positions, sizes, strict=True):
        for each in (build.ge(position, 0), build.lt(position, size)):
            if not prove.prove(each, facts):
                conditions.append(each)
    return conditions


def positions_of(
    windows: Sequence[Window], spots: Sequence[Expr], taps: Sequence[Expr]
) -> tuple[Expr, ...]:
    """Where the `taps` of windows lie that are the `spots` of their dimensions."""
    return tuple(
        each.position(spot, tap) for each, spot, tap in zip(windows, spots, taps, strict=True)
    )
