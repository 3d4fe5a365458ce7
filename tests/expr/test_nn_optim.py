"""Steps of optimisers against formulas in numpy and against PyTorch, over several steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from nn_values import DTYPES, TOLERANCE, Inputs, needs_torch, torch

import tedsl as te
from tedsl.expr.numerics import numpy_dtype
from tedsl.tensor.printer import operations

nn = te.nn


def sgd_formula(
    p: Any,
    g: Any,
    b: Any,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> tuple[Any, Any]:
    g = g + weight_decay * p
    b = g if b is None or not momentum else momentum * b + (1 - dampening) * g
    step = g + momentum * b if nesterov else b
    return p - lr * step, b


def adam_formula(
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    step: int,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
) -> tuple[Any, Any, Any]:
    if decoupled:
        p = p * (1 - lr * weight_decay)
    else:
        g = g + weight_decay * p
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g * g
    away = np.sqrt(v / (1 - betas[1] ** step)) + eps
    return p - lr / (1 - betas[0] ** step) * m / away, m, v


def close(found: Any, wanted: Any, dtype: str) -> None:
    assert found.dtype == numpy_dtype(te.DType(dtype))
    bound = TOLERANCE[dtype]
    np.testing.assert_allclose(found.astype("f8"), wanted, rtol=bound, atol=bound)


SGD: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.1},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
    {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", SGD)
def test_sgd(options: dict[str, Any], dtype: str) -> None:
    given = Inputs(dtype)
    p, g, b = given.normal(3, 5), given.normal(3, 5), given.normal(3, 5)
    p64, g64, b64 = (given.wide(each) for each in (p, g, b))
    for buffer, before in ((None, None), (b, b64))[: 2 if "momentum" in options else 1]:
        made = nn.sgd(p, g, buffer, lr=0.1, **options)
        wanted = sgd_formula(p64, g64, before, 0.1, **options)
        close(given.found(made[0]), wanted[0], dtype)
        if "momentum" in options:
            assert made[1] is not None
            close(given.found(made[1]), wanted[1], dtype)
        else:
            assert made[1] is None


ADAM: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.1, "lr": 0.1},
    {"betas": (0.0, 0.5), "eps": 1e-3, "lr": 0.1},
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", ADAM)
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("step", [1, 2, 10_000])
def test_adam(step: int, decoupled: bool, options: dict[str, Any], dtype: str) -> None:
    given = Inputs(dtype)
    p, g, m, v = (*(given.normal(3, 5) for _ in range(3)), given.uniform(3, 5))
    wide: list[Any] = [given.wide(each) for each in (p, g, m, v)]
    rule = nn.adamw if decoupled else nn.adam
    options = {"weight_decay": 0.01 if decoupled else 0.0, **options}
    wanted = adam_formula(*wide, step=step, **options, decoupled=decoupled)
    count = given.given(np.array(step), "step")
    for number in (step, count, te.const(step)):
        for made, value in zip(rule(p, g, m, v, number, **options), wanted, strict=True):
            close(given.found(made), value, dtype)


def test_corrections_of_early_steps_are_accurate() -> None:
    """1 - 0.999 in float32 is off by 5e-5 of itself, which the first steps would be too."""
    given = Inputs()
    p, g = given.given(np.zeros(4, "f4")), given.given(np.full(4, 1e-3, "f4"), "g")
    zero, step = given.given(np.zeros(4, "f4"), "z"), given.given(np.array(1), "step")
    new = given.found(nn.adam(p, g, zero, zero, step, lr=1.0, eps=0.0)[0])
    np.testing.assert_allclose(new, -1.0, rtol=5e-7)


def test_mixed_dtypes() -> None:
    """Parameters of 16 bits with states of 32: each result in its own dtype, rounded once."""
    given = Inputs("float32")
    half = Inputs("bfloat16")
    m, v, rate = given.normal(40), given.uniform(40), given.given(np.array(0.05, "f4"), "lr")
    p, g = half.normal(40), half.normal(40)
    given.values |= half.values
    made = nn.adamw(p, g, m, v, 3, lr=rate)
    assert [each.dtype for each in made] == ["bfloat16", "float32", "float32"]
    wide: list[Any] = [given.wide(each) for each in (p, g, m, v)]
    wanted = adam_formula(*wide, step=3, lr=0.05, weight_decay=0.01, decoupled=True)
    once = wanted[0].astype(numpy_dtype(te.DType.bfloat16)).astype("f8")
    found = given.found(made[0]).astype("f8")
    np.testing.assert_allclose(found, once, rtol=2**-8)
    assert (found == once).mean() > 0.9
    close(given.found(made[1]), wanted[1], "float32")
    buffer = nn.sgd(p, g, m, lr=rate, momentum=0.5)[1]
    assert buffer is not None and buffer.dtype == "float32"


def test_no_elements_and_no_dimensions() -> None:
    given = Inputs()
    for shape in ((0, 3), ()):
        p, g, m, v = (*(given.normal(*shape) for _ in range(3)), given.uniform(*shape))
        assert given.found(nn.adam(p, g, m, v, 1)[0]).shape == shape
        assert given.found(nn.sgd(p, g)[0]).shape == shape


# Lists ------------------------------------------------------------------------------------------


def tensors(shapes: Sequence[tuple[int, ...]]) -> list[list[te.Tensor]]:
    """Parameters, gradients and two states."""
    return [
        [te.placeholder(shape, name=f"{what}{n}") for n, shape in enumerate(shapes)]
        for what in "pgmv"
    ]


def outputs(lists: Sequence[Sequence[te.Tensor]]) -> list[te.Tensor]:
    return [tensor for each in lists for tensor in each]


def test_lists_are_single_steps_of_one_correction() -> None:
    p, g, m, v = tensors([(4,), (2, 3)])
    step = te.placeholder((), "int32", name="step")
    lists = nn.foreach_adam(p, g, m, v, step)
    assert [len(each) for each in lists] == [2, 2, 2]
    names = [op.name for op in operations(outputs(lists))]
    assert names.count("adam.correction") == 1
    assert {"adam.0", "adam.1"} <= set(names)
    assert len(nn.foreach_sgd(p, g, lr=0.1)[1]) == 0
    assert len(nn.foreach_sgd(p, g, m, momentum=0.5)[1]) == 2
    assert nn.foreach_adamw([], [], [], [], 1) == ([], [], [])


SHAPES = [(40,), (40,), (5, 8), (3, 7)]


def trained(shapes: Sequence[tuple[int, ...]], steps: int, gradients: Any) -> list[Any]:
    """Parameters after some steps of AdamW by one kernel, from zeros."""
    p, g, m, v = tensors(shapes)
    step, rate = te.placeholder((), "int32", name="step"), te.placeholder((), name="lr")
    made = outputs(nn.foreach_adamw(p, g, m, v, step, lr=rate, weight_decay=0.1))
    kernel = te.build(made, target="cpu", cache=False)
    values: dict[str, Any] = {
        t.name: np.zeros(s, "f4") for x in (p, m, v) for t, s in zip(x, shapes, strict=True)
    }
    count = len(shapes)
    for number in range(1, steps + 1):
        values |= {f"g{n}": each for n, each in enumerate(gradients[number - 1])}
        values |= {"step": np.array(number, "i4"), "lr": np.array(0.1 / number, "f4")}
        found: Any = kernel(*(values[buffer.name] for buffer in kernel.module.inputs))
        for place, what in enumerate("pmv"):
            for n in range(count):
                values[f"{what}{n}"] = found[place * count + n]
    return [values[f"p{n}"] for n in range(count)]


@pytest.mark.cpu
def test_numbers_given_at_the_call() -> None:
    given = Inputs()
    p, g, m, v = (*(given.normal(9, name=name) for name in "pgm"), given.uniform(9))
    rate, step = te.var("rate", "float32"), te.var("step")
    kernel = te.build(list(nn.adam(p, g, m, v, step, lr=rate)), target="cpu", cache=False)
    named = {tensor.name: value for tensor, value in given.values.items()}
    arrays = [named[buffer.name] for buffer in kernel.module.inputs]
    p64, g64, m64, v64 = (given.wide(each) for each in (p, g, m, v))
    for number, lr in ((1, 0.1), (7, 0.01)):
        found: Any = kernel(*arrays, rate=lr, step=number)
        for got, want in zip(found, adam_formula(p64, g64, m64, v64, number, lr), strict=True):
            close(got, want, "float32")


def drawn_gradients(steps: int) -> list[list[Any]]:
    random = np.random.default_rng(4)
    return [[random.standard_normal(s).astype("f4") for s in SHAPES] for _ in range(steps)]


@pytest.mark.cpu
def test_training_by_one_kernel() -> None:
    gradients = drawn_gradients(4)
    for n, found in enumerate(trained(SHAPES, 4, gradients)):
        p, m, v = (np.zeros(SHAPES[n]) for _ in range(3))
        for step in range(1, 5):
            options: dict[str, Any] = {"weight_decay": 0.1, "decoupled": True}
            g = gradients[step - 1][n].astype("f8")
            p, m, v = adam_formula(p, g, m, v, step, lr=0.1 / step, **options)
        np.testing.assert_allclose(found, p, rtol=1e-5, atol=1e-6)


def kernels_of(target: str) -> dict[str, list[int]]:
    """Which parameters' steps share a loop, a grid or nothing, from the printed schedule."""
    p, g, m, v = tensors([(40,), (40,), (5, 8), (3, 7)])
    lr = te.placeholder((), name="lr")
    made = nn.foreach_adam(p, g, m, v, 2, lr=lr)
    text = str(te.build(outputs(made), target=target, cache=False).schedule)
    parts = [part for part in text.split("\nkernel ")[1:] if part.startswith("adam.")]
    return {part.split(":")[0]: [n for n in range(4) if f"adam.{n}.v0[" in part] for part in parts}


@pytest.mark.cpu
def test_steps_of_equal_sizes_share_loops() -> None:
    """What the default rules make of a list on the CPU: one loop for vectors of one length.  Other
    lengths, and tensors of more dimensions, have kernels of their own."""
    assert kernels_of("cpu") == {"adam.0": [0, 1], "adam.2": [2], "adam.3": [3]}


@pytest.mark.ptxas
@pytest.mark.uncompiled(reason="only the printed schedule is looked at")
def test_small_steps_share_a_launch() -> None:
    assert kernels_of("triton-interpret") == {"adam.0": [0, 1, 2, 3]}


@pytest.mark.cpu
def test_a_kernel_in_tritons_interpreter() -> None:
    given = Inputs()
    p, g, b = (given.normal(3, 5, name=name) for name in "pgb")
    made = outputs([each for each in nn.foreach_sgd([p], [g], [b], momentum=0.9, nesterov=True)])
    kernel = te.build(made, target="triton-interpret", cache=False)
    values = {tensor.name: value for tensor, value in given.values.items()}
    found: Any = kernel(*(values[buffer.name] for buffer in kernel.module.inputs))
    wide: list[Any] = [given.wide(each) for each in (p, g, b)]
    wanted = sgd_formula(*wide, lr=1e-3, momentum=0.9, nesterov=True)
    for got, want in zip(found, wanted, strict=True):
        close(got, want, "float32")


# PyTorch ----------------------------------------------------------------------------------------


@needs_torch
@pytest.mark.parametrize("options", SGD)
def test_sgd_against_torch(options: dict[str, Any]) -> None:
    given = Inputs()
    p, g = given.normal(3, 5), given.normal(3, 5, name="g")
    weight = given.torch(p).clone().requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.1, **options)
    buffer: te.Tensor | None = None
    for _ in range(3):
        weight.grad = given.torch(g).clone()
        optimizer.step()
        new, kept = nn.sgd(p, g, buffer, lr=0.1, **options)
        p, buffer = new, kept
    np.testing.assert_allclose(given.found(p), weight.detach().numpy(), rtol=1e-5, atol=1e-6)


@needs_torch
@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_against_torch(decoupled: bool) -> None:
    given = Inputs()
    p, g = given.normal(3, 5), given.normal(3, 5, name="g")
    m = v = given.given(np.zeros((3, 5), "f4"), "zero")
    weight = given.torch(p).clone().requires_grad_()
    rule, theirs = (nn.adamw, torch.optim.AdamW) if decoupled else (nn.adam, torch.optim.Adam)
    optimizer = theirs([weight], lr=0.1, weight_decay=0.1)
    for step in range(1, 4):
        weight.grad = given.torch(g).clone()
        optimizer.step()
        p, m, v = rule(p, g, m, v, step, lr=0.1, weight_decay=0.1)
    np.testing.assert_allclose(given.found(p), weight.detach().numpy(), rtol=1e-5, atol=1e-6)


X, Y = te.placeholder((3, 4), name="x"), te.placeholder((4,), name="y")
WHOLE = te.placeholder((3, 4), "int32", name="i")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.sgd(X, Y), r"sgd: y has the shape \[4\], not \[3, 4\]"),
        (lambda: nn.sgd(WHOLE, X), r"sgd: i is int32, not a float"),
        (lambda: nn.sgd(X, X, lr=Y), r"sgd: y has 1 dimensions, one number is needed"),
        (lambda: nn.sgd(X, X, X), r"the buffer x is given, and momentum is 0"),
        (lambda: nn.sgd(X, X, nesterov=True), r"nesterov with momentum 0\.0"),
        (
            lambda: nn.sgd(X, X, momentum=0.9, dampening=0.1, nesterov=True),
            r"dampening 0\.1[\s\S]*no dampening",
        ),
        (lambda: nn.sgd(X, X, momentum=-1), r"momentum is -1[\s\S]*0 or more"),
        (lambda: nn.sgd(X, X, weight_decay=-1), r"weight_decay is -1"),
        (lambda: nn.adam(X, X, X, Y, 1), r"adam: y has the shape \[4\], not \[3, 4\]"),
        (lambda: nn.adam(X, X, X, X, 0), r"adam: step is 0[\s\S]*from 1"),
        (lambda: nn.adam(X, X, X, X, Y), r"adam: y has 1 dimensions, one number"),
        (lambda: nn.adamw(X, X, X, X, 1, betas=(0.9, 1.5)), r"a beta is 1\.5[\s\S]*0\.0 \.\."),
        (lambda: nn.adamw(X, X, X, X, 1, eps=-1), r"adamw: eps is -1"),
        (lambda: nn.foreach_sgd([X], []), r"sgd: the lists have 1, 0 tensors"),
        (lambda: nn.foreach_adam([X], [X], [X], [], 1), r"the lists have 1, 1, 1, 0 tensors"),
        (lambda: nn.foreach_adamw([X], [Y], [X], [X], 1), r"adamw\.0: y has the shape"),
    ],
)
def test_refusals(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(te.ExprError, match=message):
        call()
