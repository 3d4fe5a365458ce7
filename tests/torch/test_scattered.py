"""Folds into places that only data say: numbers against PyTorch's, and what a GPU runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.schedules import schedule_for

torch: Any = pytest.importorskip("torch")
tt: Any = pytest.importorskip("tedsl.torch")
aten: Any = torch.ops.aten
Drawn = tuple[Callable[..., Any], list[Any]]
FOLDS = ("sum", "amax", "amin", "mean", "prod")


class Draw:
    """Operators with drawn shapes, types and indices, of which many are equal."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.dtype = self.one(torch.float32, torch.float32, torch.int64, torch.int32)

    def one(self, *items: Any) -> Any:
        return self.random.choice(items)

    def numbers(self, *shape: int) -> Any:
        return torch.randint(-4, 5, shape).to(self.dtype)

    def shape(self) -> tuple[int, ...]:
        return tuple(self.one(1, 3, 7, 16, 33) for _ in range(self.one(1, 2, 2, 3)))

    def places(self, extent: int, *shape: int, below: bool = False) -> Any:
        return torch.randint(-extent if below else 0, extent, shape)

    def index_add(self) -> Drawn:
        shape = self.shape()
        d, rows = self.random.randrange(len(shape)), self.one(1, 20, 70)
        source = self.numbers(*shape[:d], rows, *shape[d + 1 :])
        start = self.one(self.numbers(*shape), torch.zeros(shape, dtype=self.dtype))
        alpha, twice = self.one(1, 2), self.one(1, 2)

        def added(x: Any, t: Any, y: Any) -> Any:
            return x.index_add(d, t, y * twice, alpha=alpha)

        return added, [start, self.places(shape[d], rows), source]

    def scatter(self) -> Drawn:
        shape = self.shape()
        d, rows = self.random.randrange(len(shape)), self.one(1, 20, 70)
        own = [min(n, self.one(n, 2)) for n in shape]
        own[d] = rows
        how, include = self.one(*FOLDS), self.one(True, False)
        if how == "mean":
            self.dtype = torch.float32
        source = self.numbers(*own) if how != "prod" else self.numbers(*own).sign()

        def folded(x: Any, t: Any, y: Any) -> Any:
            return x.scatter_reduce(d, t, y, how, include_self=include)

        return folded, [self.numbers(*shape), self.places(shape[d], *own), source]

    def index_put(self) -> Drawn:
        shape = self.shape()
        count = self.random.randint(1, len(shape))
        first = self.random.randint(0, len(shape) - count)
        many = self.one((12,), (3, 5))
        given = [self.places(n, *many, below=True) for n in shape[first : first + count]]
        source = self.numbers(*shape[:first], *many, *shape[first + count :])

        def added(x: Any, y: Any, *t: Any) -> Any:
            return aten.index_put(x, [None] * first + list(t), y, True)

        return added, [self.numbers(*shape), source, *given]

    def embedding(self) -> Drawn:
        self.dtype = torch.float32
        rows, width, padding = self.one(4, 19), self.one(1, 8, 33), self.one(-1, 2)
        many = self.one((40,), (6, 9))

        def gradient(y: Any, t: Any) -> Any:
            return aten.embedding_dense_backward(y, t, rows, padding, False)

        return gradient, [self.numbers(*many, width), self.places(rows, *many)]


KINDS = (Draw.index_add, Draw.scatter, Draw.index_put, Draw.embedding)


def drawn(seed: int) -> Drawn:
    draw = Draw(seed)
    return draw.one(*KINDS)(draw)


@pytest.mark.cpu
@pytest.mark.parametrize("seed", range(24))
def test_numbers_are_those_of_pytorch(seed: int) -> None:
    function, arguments = drawn(seed)
    torch._dynamo.reset()
    told: list[str] = []
    options = {"explain": told.append}
    compiled = torch.compile(function, backend="tedsl", options=options)
    torch.testing.assert_close(compiled(*arguments), function(*arguments))
    assert "in tedsl's kernels" in told[0]


@pytest.mark.ptxas
@pytest.mark.parametrize("seed", range(24, 36))
def test_numbers_of_a_gpu_are_those_of_pytorch(seed: int) -> None:
    function, arguments = drawn(seed)
    program = tt.trace(function, *[each.to("meta") for each in arguments])
    s = scattered(program, "triton-interpret")
    kernel = te.build(s, target="triton-interpret")
    given = zip(program.inputs, arguments, strict=True)
    read = {stage.name for stage in s.stages}
    found = kernel(**{each.name: array.numpy() for each, array in given if each.name in read})
    found = found[0] if isinstance(found, tuple) else found
    np.testing.assert_allclose(np.asarray(found), function(*arguments).numpy(), rtol=1e-6)


def scattered(program: Any, target: str) -> te.Schedule:
    """The rules' schedule, in which all that can be scattered is."""
    s = schedule_for(program.outputs, target)
    chosen = {knob.name: True for knob in s.knobs if knob.name.endswith(".scattered")}
    return schedule_for(program.outputs, target, chosen)


def traced(function: Any, *shapes: Any) -> te.Kernel:
    arguments = [torch.empty(*shape, dtype=dtype, device="meta") for *shape, dtype in shapes]
    return te.build(list(tt.trace(function, *arguments).outputs), target="cuda:sm_90")


@pytest.mark.ptxas
def test_what_is_added_up_is_computed_on_the_way() -> None:
    def means(x: Any, t: Any) -> Any:
        return torch.zeros(1024, 256, device=x.device).index_add(0, t, torch.exp(x) * 2)

    kernel = traced(means, (65536, 256, torch.float32), (65536, torch.int64))
    assert kernel.source.count("@triton.jit") == 2
    assert kernel.source.count("tl.store(") == 1 and "tl.exp(" in kernel.source
    several = "global.gpu.relaxed.add.v4.f32"  # of Triton 3.6, which asks for the old number, too
    assert f"red.{several}" in kernel.asm or f"atom.{several}" in kernel.asm


@pytest.mark.ptxas
def test_the_gradient_of_an_embedding_is_added_up_in_32_bits() -> None:
    def gradient(y: Any, t: Any) -> Any:
        return aten.embedding_dense_backward(y, t, 5000, -1, False)

    kernel = traced(gradient, (4096, 64, torch.bfloat16), (4096, torch.int64))
    assert kernel.source.count("tl.atomic_add(") == 1
    assert kernel.source.count("@triton.jit") == 3  # and zeros, and rounding


@pytest.fixture
def ordered() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("ordered")
def test_an_order_that_is_asked_for_is_kept() -> None:
    def added(x: Any, t: Any, y: Any) -> Any:
        return x.index_add(0, t, y)

    x, t, y = torch.zeros(9, 5), torch.randint(0, 9, (70,)), torch.randn(70, 5)
    meta = [each.to("meta") for each in (x, t, y)]
    with pytest.raises(te.TedslError, match="sums of floats whose order is asked for"):
        tt.trace(added, *meta)
    tt.trace(added, x, t, y)  # a CPU adds up in order
    tt.trace(added, meta[0].int(), t.to("meta"), meta[2].int())  # exact in any order


@pytest.mark.cpu
def test_indices_outside_raise_on_a_cpu() -> None:
    compiled = torch.compile(lambda x, t, y: x.index_add(0, t, y), backend="tedsl")
    with pytest.raises((IndexError, RuntimeError), match="ind"):
        compiled(torch.zeros(9, 5), torch.full((70,), 9), torch.randn(70, 5))


@pytest.mark.cpu
def test_as_many_rows_as_a_call_has() -> None:
    torch._dynamo.reset()
    told: list[str] = []
    compiled = torch.compile(
        lambda y, t: torch.zeros(11, 5).index_add(0, t, y),
        backend="tedsl",
        dynamic=True,
        options={"explain": told.append},
    )
    for rows in (30, 70, 100):
        y, t = torch.randn(rows, 5), torch.randint(0, 11, (rows,))
        torch.testing.assert_close(compiled(y, t), torch.zeros(11, 5).index_add(0, t, y))
    assert len(told) == 1 and "2 of 2 operators" in told[0]


def test_masked_places_count_from_the_end_too() -> None:
    """What PyTorch's own decompositions of two internal operators take for the first place."""
    x, values = torch.randn(8), torch.randn(4)
    mask, places = torch.tensor([True, False, True, True]), torch.tensor([3, 9, -2, -8])

    def both(x: Any, mask: Any, places: Any, values: Any) -> Any:
        read = aten._unsafe_masked_index(x, mask, [places], 1)
        return read, aten._unsafe_masked_index_put_accumulate(x, mask, [places], values)

    torch._dynamo.reset()
    found = torch.compile(both, backend="tedsl")(x, mask, places, values)
    for one, other in zip(found, both(x, mask, places, values), strict=True):
        torch.testing.assert_close(one, other)
