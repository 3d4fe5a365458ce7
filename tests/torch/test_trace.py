"""`tedsl.torch.trace`: functions and modules as programs that are scheduled by hand."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import tedsl as te
from tedsl.target import Target, TargetKind

torch: Any = pytest.importorskip("torch")
tt: Any = pytest.importorskip("tedsl.torch")
pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def test_names_and_a_schedule_by_hand() -> None:
    x, w, b = torch.randn(8, 16), torch.randn(16, 32), torch.randn(32)
    program = tt.trace(lambda x, w, b: torch.relu(x @ w + b), x, w, b)
    assert [tensor.name for tensor in program.inputs] == ["x", "w", "b"]
    (relu,) = program.outputs
    s = te.create_schedule(program)
    i, j = s[relu].op.axis
    _, _, row, column = s[relu].tile(i, j, 4, 16)
    s[relu].vectorize(column)
    s[relu].unroll(row)
    fast = program.build(s, target="cpu")
    torch.testing.assert_close(fast(x, w, b), torch.relu(x @ w + b))


def test_without_a_schedule_it_runs_where_the_example_is(monkeypatch: Any) -> None:
    """Also on a machine with a GPU, which kernels of the language are built for by default."""
    gpu = Target.parse("cuda")
    monkeypatch.setattr(sys.modules["tedsl.build"], "default_target", lambda: gpu)
    x = torch.randn(4)
    built = tt.trace(torch.relu, x).build()
    assert built.kernel.target.kind is TargetKind.CPU
    assert torch.equal(built(x), torch.relu(x))


def test_a_module_brings_its_parameters() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.LayerNorm(7)).eval()
    x = torch.randn(3, 5)
    program = tt.trace(model, x)
    names = [tensor.name for tensor in program.inputs]
    assert names == ["input", "0_weight", "0_bias", "1_weight", "1_bias"]
    torch.testing.assert_close(program.build(target="cpu")(x), model(x))


def test_structures_of_arguments_and_results() -> None:
    def function(pair: Any, named: Any) -> Any:
        return {"sum": pair[0] + pair[1], "rest": (named["z"] * 2, pair[0].max(0))}

    given = ([torch.randn(3), torch.randn(3)], {"z": torch.randn(2, 2)})
    found = tt.trace(function, *given).build(target="cpu")(*given)
    torch.testing.assert_close(found, function(*given))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(5, 7).t(),
        lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)[:, :, :, 0],
        lambda: torch.randn(9, 12)[1::2, ::3],
        lambda: torch.randn(7).expand(5, 7),
        lambda: torch.randn(3, 1, 4).expand(3, 6, 4).permute(2, 0, 1),
        lambda: torch.randn(0, 4),
        lambda: torch.tensor(3.0),
    ],
)
def test_strides_are_read_in_place(make: Any) -> None:
    x = make()
    found = tt.trace(lambda x: (x * 2, x.sum(-1) if x.dim() else x), x).build(target="cpu")
    expected = (x * 2, x.sum(-1) if x.dim() else x)
    torch.testing.assert_close(found(x), expected)
    torch.testing.assert_close(found(x.contiguous()), expected)


def test_an_index_outside_is_the_error_of_pytorch() -> None:
    table = torch.randn(10, 4)
    program = tt.trace(lambda i, t: torch.nn.functional.embedding(i, t), torch.tensor([1]), table)
    call = program.build(target="cpu")
    torch.testing.assert_close(call(torch.tensor([9]), table), table[9:])
    with pytest.raises(IndexError, match="out of range"):
        call(torch.tensor([10]), table)


def test_what_is_not_taken_says_why() -> None:
    with pytest.raises(tt.NotTaken, match="complex"):
        tt.trace(lambda x: x * 1j, torch.randn(3))
    with pytest.raises(tt.NotTaken, match="no converter"):
        tt.trace(lambda x: x.sort()[0], torch.randn(3))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "uint8", "bool", "float64"])
def test_promotion_is_that_of_pytorch(dtype: str) -> None:
    x = (torch.rand(6) * 4).to(getattr(torch, dtype))
    scalar, other = torch.tensor(3), torch.rand(6) * 3

    def function(x: Any, scalar: Any, other: Any) -> Any:
        return x + scalar, x * 2.5, x / 2, x + other, x.sum(), x > 1, torch.exp(x), x == scalar

    found = tt.trace(function, x, scalar, other).build(target="cpu")(x, scalar, other)
    for a, b in zip(found, function(x, scalar, other), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int64", "bool", "float32"])
def test_what_reads_nothing(dtype: str) -> None:
    kind = getattr(torch, dtype)

    def function(x: Any) -> Any:
        return torch.full((3, 2), 1, dtype=kind), torch.ones((), dtype=kind)

    torch.testing.assert_close(
        tt.trace(function, torch.ones(2)).build(target="cpu")(torch.ones(2)), function(None)
    )


def test_sixteen_bit_floats_are_rounded_at_each_operation() -> None:
    a, b, c, d = (torch.randn(999).bfloat16() for _ in range(4))

    def function(a: Any, b: Any, c: Any, d: Any) -> Any:
        return a * b - c * d, a / (1 - b) + c

    found = tt.trace(function, a, b, c, d).build(target="cpu")(a, b, c, d)
    for ours, theirs in zip(found, function(a, b, c, d), strict=True):
        assert torch.equal(ours, theirs)


IN_PLACE = {
    "add_.Scalar": lambda x: torch.ops.aten.add_.Scalar(x, 2),
    "clamp_min_.Tensor": lambda x: torch.ops.aten.clamp_min_.Tensor(x, x * 0.5),
    "selu_": lambda x: torch.nn.functional.selu(x, inplace=True),
    "relu6_": lambda x: torch.nn.functional.relu6(x, inplace=True),
    "square_": lambda x: x.square_(),
    "true_divide_": lambda x: x.true_divide_(3),
    "clip_": lambda x: x.clip_(-0.5, 0.5),
    "fill_diagonal_": lambda x: x.fill_diagonal_(1),
    "view": lambda x: x.t()[1:].mul_(2),
}


@pytest.mark.parametrize("name", list(IN_PLACE))
def test_what_is_changed_is_the_functions_own(name: str) -> None:
    def function(x: Any) -> Any:
        own = x * 1.5
        IN_PLACE[name](own)
        return own + x

    x = torch.randn(5, 7, requires_grad=True)
    built = tt.trace(function, x).build(target="cpu")
    torch.testing.assert_close(built(x), function(x))
    ours, theirs = (torch.autograd.grad(f(x).sin().sum(), x)[0] for f in (built, function))
    torch.testing.assert_close(ours, theirs)


def test_a_change_without_a_converter_is_refused_in_words() -> None:
    with pytest.raises(tt.NotTaken, match=r"polygamma\.default has no converter"):
        tt.trace(lambda x: (x * 1).polygamma_(1), torch.rand(3))


@pytest.mark.parametrize("mask", ["none", "causal", "given"])
def test_attention_is_products_and_a_softmax(mask: str) -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        given = torch.ones(5, 5).tril().bool() if mask == "given" else None
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, given, is_causal=mask == "causal"
        )

    q, k, v = (torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3))
    program = tt.trace(function, q, k, v)
    built = program.build(target="cpu")
    torch.testing.assert_close(built(q, k, v), function(q, k, v))
    assert program.backward.outputs
    ours, theirs = (
        torch.autograd.grad(f(q, k, v).square().sum(), (q, k, v)) for f in (built, function)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_samples_at_a_grid(mode: str, padding: str, corners: bool) -> None:
    def function(x: Any, grid: Any) -> Any:
        return torch.nn.functional.grid_sample(x, grid, mode, padding, corners)

    for extents in ((5, 4), (2, 5, 1)):
        x = torch.randn(2, 3, *extents)
        grid = torch.randn(2, *(3 for _ in extents), len(extents)) * 1.7
        torch.testing.assert_close(
            tt.trace(function, x, grid).build(target="cpu")(x, grid), function(x, grid)
        )


def test_a_cubic_sample_is_not_taken() -> None:
    x, grid = torch.randn(1, 2, 4, 4), torch.rand(1, 3, 3, 2)
    with pytest.raises(tt.NotTaken, match="a cubic sample reads sixteen places"):
        tt.trace(lambda x, g: torch.nn.functional.grid_sample(x, g, "bicubic"), x, grid)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("corners", [False, True])
def test_volumes_are_upsampled(dtype: str, corners: bool) -> None:
    x = torch.randn(2, 1, 3, 4, 3).to(getattr(torch, dtype))
    for how in ({"size": (5, 2, 7)}, {"scale_factor": 1.7}, {"size": (1, 4, 3)}):

        def function(x: Any, how: Any = how) -> Any:
            return torch.nn.functional.interpolate(
                x, mode="trilinear", align_corners=corners, **how
            )

        found = tt.trace(function, x).build(target="cpu")(x)
        exact = function(x.double()).to(x.dtype)  # eager rounds 16-bit floats on the way
        torch.testing.assert_close(found, exact, rtol=2 * torch.finfo(x.dtype).eps, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int32"])
def test_what_no_eight_bits_hold_is_rounded_as_pytorch_does(dtype: str) -> None:
    given = torch.tensor([1e3, 448.0, 465.0, -1e4, 0.3, 7.0], dtype=getattr(torch, dtype))
    if dtype != "int32":
        ends = torch.tensor([float("inf"), -float("inf"), float("nan")])
        given = torch.cat([given, ends.to(given.dtype)])
    for name in ("float8_e4m3fn", "float8_e5m2"):

        def function(x: Any, name: str = name) -> Any:
            return x.to(getattr(torch, name)).float()

        found = tt.trace(function, given).build()(given)
        torch.testing.assert_close(found, function(given), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("right", [False, True])
def test_bounds_end_with_nan_where_they_are_sorted(right: bool) -> None:
    bounds = torch.tensor([-float("inf"), 0, 0, 0, float("nan")])
    given = torch.tensor([0.0, -1.0, -float("inf"), float("nan")])

    def function(bounds: Any, x: Any) -> Any:
        return torch.searchsorted(bounds, x, right=right)

    found = tt.trace(function, bounds, given).build()(bounds, given)
    torch.testing.assert_close(found, torch.tensor([4, 1, 1, 5] if right else [1, 1, 0, 5]))
