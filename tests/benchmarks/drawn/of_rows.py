"""Rows that reduce: any axes, extremes with positions, softmax and norms with their gradients,
statistics of batches, losses, scans.  Imports `grammar` and `pieces`."""

from __future__ import annotations

from collections.abc import Sequence

from grammar import Draw, Value, kind
from pieces import before, chain, in_parts

REDUCTIONS = ("sum", "mean", "amax", "amin", "var", "norm")


def _kept(shape: Sequence[int], axes: Sequence[int], keep: bool) -> tuple[int, ...]:
    sizes = [(1 if n in axes else size) for n, size in enumerate(shape)]
    return tuple(size for n, size in enumerate(sizes) if keep or n not in axes)


def _axes(d: Draw, rank: int) -> tuple[int, ...]:
    """Any subset of the axes; one of them half the time."""
    return (d.whole(0, rank - 1),) if d.chance(0.5) else tuple(d.some_of(range(rank)))


def _reduced(d: Draw, value: Value, axes: Sequence[int], keep: bool = False) -> Value:
    name, shape = d.one_of(REDUCTIONS), _kept(value.shape, axes, keep)
    if name == "norm":
        text = f"torch.linalg.vector_norm({value}, dim={tuple(axes)}, keepdim={keep})"
    else:
        text = f"{value}.{name}(dim={tuple(axes)}, keepdim={keep})"
    return d.let(text, shape)


@kind
def reduction(d: Draw) -> object:
    """Over any subset of axes, with anything pointwise before and after."""
    shape = d.shape(d.whole(1, 4))
    value = chain(d, d.input(shape, laid=0.15), 0, 2)
    return chain(d, _reduced(d, value, _axes(d, len(shape))), 0, 2)


@kind
def several_reductions(d: Draw) -> object:
    """Of the same values, over the same axes or others, and what reads both."""
    shape = d.shape(d.whole(2, 3))
    value = chain(d, d.input(shape), 0, 2)
    axes = _axes(d, len(shape))
    first = _reduced(d, value, axes, keep=True)
    if d.chance(0.5):
        centred = d.let(f"{value} - {first}", shape)
        return f"({first}, {_reduced(d, centred, axes)})"
    others = axes if d.chance(0.5) else _axes(d, len(shape))
    return f"({first}, {_reduced(d, value, others)})"


@kind
def extreme_with_position(d: Draw) -> object:
    """The largest or smallest along an axis, and where it is."""
    shape = d.shape(d.whole(1, 3))
    value = d.input(shape)
    if d.chance(0.5):  # nothing that makes elements equal: of those either position is right
        value = d.let(f"{value} * {d.input(shape)}", shape)
    axis = d.whole(0, len(shape) - 1)
    text = d.one_of(("{}.argmax({})", "{}.argmin({})", "{}.max({})", "{}.min({})"))
    found = text.format(value, axis)
    if "arg" in found:
        return found
    d.line(f"best, place = {found}")
    return "(best, place)"


@kind
def softmax_like(d: Draw) -> object:
    """Softmax and its relatives over any axis."""
    shape = d.shape(d.whole(1, 4))
    axis = d.whole(0, len(shape) - 1)
    value = before(d, d.input(shape))
    if d.chance(0.3):
        mask = d.input(shape[-2:], "bool", "below", 2)
        value = d.let(f"{value}.masked_fill({mask}, -1e4)", shape)
    text = d.one_of(
        (
            "F.softmax({}, {})",
            "F.log_softmax({}, {})",
            "torch.logsumexp({}, {})",
            "F.softmin({}, {})",
            "torch.exp({0} - {0}.amax({1}, True)) + 0.5",
        )
    ).format(value, axis)
    if "logsumexp" in text:
        return chain(d, d.let(text, _kept(shape, (axis,), False)), 0, 1)
    return chain(d, d.let(text, shape), 0, 2)


@kind
def softmax_gradient(d: Draw) -> object:
    """Backwards through a softmax of any axis."""
    shape = d.shape(d.whole(2, 3))
    axis = d.whole(0, len(shape) - 1)
    name = d.one_of(("softmax", "log_softmax"))
    x, g = d.input(shape), d.input(shape)
    d.line(f"result, back = torch.func.vjp(lambda x: F.{name}(x, {axis}), {x})")
    return f"back({g})[0]"


def _normed(d: Draw, shape: Sequence[int]) -> tuple[str, list[Value]]:
    """A norm as a text with places for a value and its parameters."""
    what = d.whole(0, 4)
    if what == 0:
        parameters = [d.input(shape[-1:]), d.input(shape[-1:])]
        return f"F.layer_norm({{}}, ({shape[-1]},), {{}}, {{}})", parameters
    if what == 1:
        return f"F.rms_norm({{}}, ({shape[-1]},), {{}})", [d.input(shape[-1:])]
    if what == 2 and len(shape) > 2:
        groups = d.one_of([n for n in range(1, 33) if shape[1] % n == 0])
        return f"F.group_norm({{}}, {groups}, {{}}, {{}})", [d.input((shape[1],)) for _ in "ab"]
    if what == 3 and len(shape) > 2:
        return "F.instance_norm({})", []
    return f"F.normalize({{}}, dim={d.whole(0, len(shape) - 1)})", []


@kind
def norm_like(d: Draw) -> object:
    """Norms of layers, groups, instances and vectors, with what stands around them."""
    shape = d.shape(d.whole(2, 4))
    value = before(d, d.input(shape, laid=0.1))
    if d.chance(0.4):
        value = d.let(f"{value} + {d.input(shape)}", shape)
    text, parameters = _normed(d, shape)
    value = chain(d, d.let(text.format(value, *parameters), shape), 0, 2)
    return in_parts(d, value) if d.chance(0.3) else value


@kind
def norm_gradient(d: Draw) -> object:
    """Backwards through a norm, to its input and its parameters."""
    shape = d.shape(d.whole(2, 3))
    x, g = d.input(shape), d.input(shape)
    text, parameters = _normed(d, shape)
    inside = ["x", *(f"p{n}" for n in range(len(parameters)))]
    called = ", ".join(map(str, (x, *parameters)))
    d.line(f"run = lambda {', '.join(inside)}: {text.format(*inside)}")
    d.line(f"result, back = torch.func.vjp(run, {called})")
    return f"back({g})"


@kind
def batch_statistics(d: Draw) -> object:
    """Batch norm in training: statistics over everything but channels."""
    shape = d.shape(d.whole(2, 5))
    x = before(d, d.input(shape))
    w, b = d.input(shape[1:2]), d.input(shape[1:2])
    d.line(f"y = F.batch_norm({x}, None, None, {w}, {b}, training=True)")
    return chain(d, Value("y", shape), 0, 2)


@kind
def loss(d: Draw) -> object:
    """Losses, and divergences of two distributions."""
    rows, classes = d.shape(2)
    x = d.input((rows, classes))
    what = d.whole(0, 4)
    if what == 0:
        labels = d.indices((rows,), classes)
        smooth = d.one_of(("", ", label_smoothing=0.1", ", reduction='none'"))
        return f"F.cross_entropy({x}, {labels}{smooth})"
    y = d.input((rows, classes))
    if what == 1:
        d.line(f"p, q = F.log_softmax({x}, -1), F.log_softmax({y}, -1)")
        d.line("m = torch.log((p.exp() + q.exp()) * 0.5)")
        return "0.5 * ((p.exp() * (p - m)).sum(-1) + (q.exp() * (q - m)).sum(-1))"
    if what == 2:
        d.line(f"p, q = F.log_softmax({x}, -1), F.softmax({y}, -1)")
        return "F.kl_div(p, q, reduction='batchmean')"
    if what == 3:
        return f"F.cosine_similarity({x}, {y}, dim={d.whole(0, 1)})"
    names = ("F.mse_loss({}, {})", "F.smooth_l1_loss({}, {})", "F.l1_loss({}, {})")
    soft = "F.binary_cross_entropy_with_logits({}, torch.sigmoid({}))"
    return d.one_of((*names, soft)).format(x, y)


@kind
def scan(d: Draw) -> object:
    """Running sums, products and extremes along any axis."""
    shape = d.shape(d.whole(1, 3))
    axis = d.whole(0, len(shape) - 1)
    value = before(d, d.input(shape))
    what = d.one_of(("cumsum", "cumsum", "cumprod", "cummax", "logcumsumexp"))
    if what == "cummax":
        return chain(d, d.let(f"torch.cummax({value}, {axis}).values", shape), 0, 1)
    if what == "cumprod":
        value = d.let(f"1.0 + 0.001 * torch.tanh({value})", shape)
    return chain(d, d.let(f"torch.{what}({value}, {axis})", shape), 0, 1)


@kind
def recurrence(d: Draw) -> object:
    """A linear recurrence, h = a h + b: step by step, or by running sums of logarithms."""
    if d.chance(0.5):
        steps = d.whole(4, 12)
        rows, width = d.shape(2, d.part(d.scale.elements) // steps)
        a, b = d.input((steps, rows, width), content="positive"), d.input((steps, rows, width))
        d.line(f"h = {b}[0]")
        d.line("states = [h]")
        d.line(f"for n in range(1, {steps}):")
        d.line(f"    h = 0.5 * {a}[n] * h + {b}[n]")
        d.line("    states.append(h)")
        return d.one_of(("h", "torch.stack(states)"))
    batch, width = d.size(1, 8), d.size(4, 64)
    length = max(2, min(512, d.part(d.scale.elements) // (batch * width)))
    shape = batch, length, width
    a, b = d.input(shape, content="positive"), d.input(shape)
    d.line(f"s = torch.cumsum(-0.01 * {a}, 1)")
    return f"torch.exp(s) * torch.cumsum({b} * torch.exp(-s), 1)"
