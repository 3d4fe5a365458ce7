"""The grammar of `drawn_modules`: what one line of a drawn module may be.

Each step is given a source of chance and the shape of `x`, and returns the text of an expression
and the constructors of the submodules that stand for `$` in it, or None where it does not fit.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from random import Random
from typing import Any

from sources import ROOT

torch: Any = importlib.import_module("torch")
NAMES: dict[str, Any] = {
    "torch": torch,
    "nn": torch.nn,
    "F": torch.nn.functional,
    "math": math,
    "inf": math.inf,
}
Shape = tuple[int, ...]
Step = Callable[[Random, Shape], "tuple[str, ...] | None"]


def _read() -> dict[str, list[str]]:
    """The expressions of `tests/data/drawn_steps.txt`, one a line, by the section they are in.

    `D` stands for a dimension and `K` for a number that its extent allows.
    """
    found: dict[str, list[str]] = {}
    section = ""
    for line in (ROOT / "tests/data/drawn_steps.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
            found[section] = []
        elif line:
            found[section].append(line)
    return found


TEXTS = _read()


def _pointwise(pick: Random, shape: Shape) -> tuple[str, ...]:
    return (pick.choice(TEXTS["pointwise"]),)


def _row(pick: Random, shape: Shape) -> tuple[str, ...] | None:
    if not shape:
        return None
    d = pick.randrange(-len(shape), len(shape))
    text = pick.choice(TEXTS["rows"])
    return (text.replace("K", str(pick.randint(1, shape[d]))).replace("D", str(d)),)


def _reshape(pick: Random, shape: Shape) -> tuple[str, ...]:
    return (pick.choice(TEXTS["shapes"]),)


def _loss(pick: Random, shape: Shape) -> tuple[str, ...] | None:
    text = pick.choice(TEXTS["losses"])
    return (text,) if len(shape) > 1 else None


def _norm(pick: Random, shape: Shape) -> tuple[str, ...] | None:
    if len(shape) < 2:
        return None
    spatial, channels = len(shape) - 2, shape[1]
    groups = pick.choice([n for n in range(1, channels + 1) if channels % n == 0])
    plane = max(spatial, 1)
    if plane > 3:
        return ("$(x)", f"nn.LayerNorm({shape[-1]})")
    made = pick.choice(
        [
            f"nn.BatchNorm{plane}d({channels})",
            f"nn.BatchNorm{plane}d({channels}, affine=False, momentum=None)",
            f"nn.BatchNorm{plane}d({channels}, track_running_stats=False)",
            f"nn.InstanceNorm{plane}d({channels}, affine=True, track_running_stats=True)",
            f"nn.InstanceNorm{plane}d({channels})",
            f"nn.GroupNorm({groups}, {channels})",
            f"nn.LayerNorm({shape[-1]})",
            f"nn.LayerNorm({list(shape[1:])}, bias=False)",
            f"nn.RMSNorm({shape[-1]})",
            f"nn.LocalResponseNorm({pick.randint(1, 4)})",
            f"nn.PReLU({channels})",
            f"nn.Dropout{plane}d(0.2)",
            "nn.Softmax2d()",
        ]
    )
    return "$(x)", made


def _linear(pick: Random, shape: Shape) -> tuple[str, ...] | None:
    if not shape:
        return None
    last, out = shape[-1], pick.randint(1, 9)
    return pick.choice(
        [
            ("$(x)", f"nn.Linear({last}, {out})"),
            ("$(x)", f"nn.Linear({last}, {out}, bias=False)"),
            ("$(x, y[..., :1].expand_as(x))", f"nn.Bilinear({last}, {last}, {out})"),
            ("x + $(x)", f"nn.Linear({last}, {last})"),
            ("F.relu($(x)) @ $.weight", f"nn.Linear({last}, {out})", f"nn.Linear({last}, {out})"),
            ("$(x.flatten(1).abs().long().clamp(max=6))", f"nn.Embedding(7, {out})"),
            ("$(x.flatten(1).abs().long().clamp(max=6))", f"nn.Embedding(7, {out}, padding_idx=1)"),
            (
                "$(x.flatten(1).abs().long().clamp(max=6))",
                f"nn.EmbeddingBag(7, {out}, mode='{pick.choice(('sum', 'mean', 'max'))}')",
            ),
        ]
    )


def _convolution(pick: Random, shape: Shape) -> tuple[str, ...] | None:
    spatial = len(shape) - 2
    if not 1 <= spatial <= 3:
        return None
    channels, out = shape[1], pick.randint(1, 6)
    kernel = tuple(pick.randint(1, 3) for _ in range(spatial))
    stride, dilation = pick.randint(1, 2), pick.choice((1, 1, 1, 2))
    groups = pick.choice([1, 1, channels])
    out *= groups
    if pick.random() < 0.3:
        more = f", output_padding={pick.randint(0, max(stride, dilation) - 1)}"
        return (
            "$(x)",
            f"nn.ConvTranspose{spatial}d({channels}, {out}, {kernel}, stride={stride}, "
            f"padding={pick.randint(0, 1)}, dilation={dilation}, groups={groups}{more}, "
            f"bias={pick.random() < 0.5})",
        )
    padding = pick.choice(("0", "1", "'same'", "(2" + ", 0" * (spatial - 1) + ",)"))
    stride = 1 if "same" in padding else stride
    mode = pick.choice(("zeros", "zeros", "zeros", "reflect", "circular", "replicate"))
    return (
        "$(x)",
        f"nn.Conv{spatial}d({channels}, {out}, {kernel}, stride={stride}, padding={padding}, "
        f"dilation={dilation}, groups={groups}, padding_mode={mode!r}, bias={pick.random() < 0.7})",
    )


def _pool(pick: Random, shape: Shape) -> tuple[str, ...] | None:
    spatial = len(shape) - 2
    if not 1 <= spatial <= 3:
        return None
    k, s, ceil = pick.randint(1, 3), pick.randint(1, 3), pick.random() < 0.4
    n = spatial
    sizes = [pick.randint(1, 4) for _ in range(spatial)]
    texts = [
        f"F.max_pool{n}d(x, {k}, {s}, padding={k // 2}, ceil_mode={ceil})",
        f"F.max_pool{n}d(x, {k}, {s}, dilation={pick.randint(1, 2)})",
        f"F.max_pool{n}d(x, {k}, {s}, return_indices=True)[1].float() * 0.01",
        f"F.avg_pool{n}d(x, {k}, {s}, padding={k // 2}, ceil_mode={ceil})",
        f"F.avg_pool{n}d(x, {k}, {s}, padding={k // 2}, count_include_pad=False)",
        f"F.adaptive_avg_pool{n}d(x, {sizes})",
        f"F.adaptive_avg_pool{n}d(x, 1)",
        f"F.adaptive_max_pool{n}d(x, {sizes})",
        f"F.lp_pool{n}d(x.abs() + 0.1, 2, {k}, {s})",
        f"F.max_unpool{n}d(*F.max_pool{n}d(x, 2, return_indices=True), 2)",
        f"F.fractional_max_pool{n}d(x, 2, output_size={sizes})",
        f"-F.max_pool{n}d(-x, {k}, {s})",
    ]
    if n > 1:
        texts.append(f"F.avg_pool{n}d(x, {k}, {s}, divisor_override=3)")
    return (pick.choice(texts),)


def _sequence(pick: Random, shape: Shape) -> tuple[str, ...] | None:
    if len(shape) not in (2, 3):
        return None
    width, out = shape[-1], pick.randint(1, 6)
    both, layers = pick.random() < 0.4, pick.randint(1, 2)
    heads = pick.choice([n for n in range(1, width + 1) if width % n == 0])
    more = f"num_layers={layers}, bidirectional={both}"
    return pick.choice(
        [
            ("$(x)[0]", f"nn.GRU({width}, {out}, {more})"),
            ("$(x)[0]", f"nn.LSTM({width}, {out}, {more}, batch_first=True)"),
            ("$(x)[0]", f"nn.RNN({width}, {out}, {more}, nonlinearity='relu')"),
            ("$(x, x, x)[0]", f"nn.MultiheadAttention({width}, {heads}, batch_first=True)"),
            ("$(x)", f"nn.TransformerEncoderLayer({width}, {heads}, 7, dropout=0.1)"),
            ("$(x)", f"nn.TransformerEncoderLayer({width}, {heads}, 7, norm_first=True)"),
            ("$(x, y)", f"nn.TransformerDecoderLayer({width}, {heads}, 7, dropout=0.0)"),
            ("$(x)", f"nn.GRUCell({width}, {out})"),
            ("$(x)[1]", f"nn.LSTMCell({width}, {out})"),
        ]
    )


def _weighted(*steps: tuple[int, Step]) -> list[Step]:
    return [step for count, step in steps for _ in range(count)]


STEPS: list[Step] = _weighted(
    (6, _pointwise),
    (5, _row),
    (4, _reshape),
    (1, _loss),
    (2, _norm),
    (2, _linear),
    (3, _convolution),
    (2, _pool),
    (1, _sequence),
)
TYPES = ("float32", "bfloat16", "float16", "int64", "float64", "bfloat16", "int64", "float16")
LIES = (
    "x",
    "x.mT.contiguous().mT",
    "x.repeat_interleave(2, -1)[..., ::2]",
    "x.repeat(2, *[1] * (x.dim() - 1))[x.shape[0]:]",
    "x[..., :1].clone().expand_as(x)",
    "x.permute(*range(1, x.dim()), 0).contiguous().permute(-1, *range(x.dim() - 1))",
)
"""How an input may lie in memory."""


def _change(pick: Random, shape: Shape) -> tuple[str, ...] | None:
    """A value is changed in place, the input where it still is one, or a view of it."""
    if not shape:
        return None
    d = pick.randrange(-len(shape), len(shape))
    text = pick.choice(TEXTS["changes"])
    return (text.replace("K", str(pick.randint(1, shape[d]))).replace("D", str(d)),)


WIDE: list[Step] = [*STEPS, *_weighted((3, _change))]
"""The steps of a module that may change what it is given."""


def shape(pick: Random) -> Shape:
    """The shape of an input: odd sizes, batches and channels of one among them."""
    rank = pick.choice((1, 2, 2, 3, 3, 4, 4, 4, 5))
    largest = {1: 40, 2: 17, 3: 9, 4: 8, 5: 5}[rank]
    return tuple(pick.randint(1 if d < 2 else 2, largest) for d in range(rank))
