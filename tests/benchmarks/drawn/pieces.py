"""What stands before and after the heart of a row: pointwise chains with operands of any broadcast,
norms, gates, residuals and statistics of rows.  Imports `grammar`."""

from __future__ import annotations

from collections.abc import Sequence

from grammar import Draw, Value

UNARY = (
    "F.relu({})",
    "F.gelu({})",
    "F.silu({})",
    "torch.tanh({})",
    "torch.sigmoid({})",
    "{} * 0.5",
    "{} + 1.25",
    "torch.abs({})",
    "torch.exp(-torch.abs({}))",
    "torch.clamp({}, -1.5, 1.5)",
    "F.leaky_relu({}, 0.1)",
    "torch.square({})",
    "F.softplus({})",
    "torch.sqrt(torch.abs({}) + 0.25)",
    "torch.where({0} > 0.0, {0}, 0.3 * {0})",
    "torch.cos({})",
    "F.hardswish({})",
)
BINARY = (
    "{} + {}",
    "{} * {}",
    "{} - {}",
    "torch.maximum({}, {})",
    "torch.minimum({}, {})",
    "torch.sigmoid({}) * {}",
    "{} / (1.5 + torch.abs({}))",
    "torch.where({0} > {1}, {0}, {1})",
)


def spread(d: Draw, shape: Sequence[int], laid: float = 0.3) -> Value:
    """A new operand that broadcasts to a shape."""
    kept = [size if d.chance(0.6) else 1 for size in shape]
    while len(kept) > 1 and kept[0] == 1 and d.chance(0.7):
        del kept[0]
    return d.input(kept, laid=laid)


def one_more(d: Draw, value: Value, laid: float = 0.3) -> Value:
    """One pointwise step: a function, or one of two operands."""
    if d.chance(0.6):
        return d.let(d.one_of(UNARY).format(value), value.shape)
    other = spread(d, value.shape, laid)
    pair = (value, other) if d.chance(0.7) else (other, value)
    return d.let(d.one_of(BINARY).format(*pair), value.shape)


def chain(d: Draw, value: Value, least: int = 0, most: int = 3) -> Value:
    """A few pointwise steps."""
    for _ in range(d.whole(least, most)):
        value = one_more(d, value)
    return value


def in_parts(d: Draw, value: Value) -> Value:
    """A value with an axis taken apart, and a statistic of the parts or across them."""
    axis = d.whole(0, len(value.shape) - 1)
    size = value.shape[axis]
    fitting = [n for n in range(2, 65) if size % n == 0 and n < size]
    if not fitting:
        return value
    part = d.one_of(fitting)
    shape = (*value.shape[:axis], size // part, part, *value.shape[axis + 1 :])
    value = d.let(f"{value}.reshape({shape})", shape)
    place = axis + d.whole(0, 1)
    if d.chance(0.25):
        return d.let(f"F.softmax({value}, {place})", shape)
    kept = (*shape[:place], *shape[place + 1 :])
    return d.let(f"{value}.{d.one_of(('amax', 'mean', 'sum'))}({place})", kept)


def before(d: Draw, value: Value) -> Value:
    """What an operand goes through first: mostly nothing."""
    return chain(d, value, 1, 2) if d.chance(0.3) else value


def after(d: Draw, value: Value) -> object:
    """What the result goes through last."""
    what = d.whole(0, 9)
    last = value.shape[-1]
    if what < 3:
        return value
    if what < 7:
        return chain(d, value, 1, 3)
    if what == 7:
        residual = d.input(value.shape)
        return d.let(f"{residual} + {d.one_of(UNARY).format(value)}", value.shape)
    if what == 8:
        weight = d.input((last,))
        names = ("F.layer_norm({}, ({},), {})", "F.rms_norm({}, ({},), {})")
        return d.let(d.one_of(names).format(value, last, weight), value.shape)
    names = ("{}.sum(-1)", "{}.amax(-1)", "F.softmax({}, -1)", "{0} / {0}.abs().sum(-1, True)")
    return d.let(d.one_of(names).format(value), value.shape)


def matrix(d: Draw, rows: int, columns: int, batch: Sequence[int] = ()) -> Value:
    """A new operand of a product, stored one way or the other."""
    if d.chance(0.5):
        return d.input((*batch, rows, columns), laid=0.1)
    stored = d.input((*batch, columns, rows), laid=0.1)
    return Value(f"{stored}.mT", (*batch, rows, columns))
