"""Decompositions of 16-bit floats: float32 within one operator, and one rounding of its results."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's samples need it")
samples: Any = pytest.importorskip("torch_samples")
tt: Any = pytest.importorskip("tedsl.torch")
tables: Any = pytest.importorskip("tedsl.torch.decompositions")
proxies: Any = pytest.importorskip("torch.fx.experimental.proxy_tensor")
pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]
aten: Any = torch.ops.aten
F = torch.nn.functional


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_results_are_those_of_float32_rounded(dtype: str) -> None:
    """Of every operator that PyTorch has samples of: a decomposition that rounds between gives
    other numbers, and infinities where sums or squares leave the range of float16."""
    kind = getattr(torch, dtype)
    once = {each: made for each, made in tables.table().items() if hasattr(made, "decomposition")}

    def narrow(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.dtype is kind

    met: set[Any] = set()
    for target, given in samples.recorded(once, kind, limit=2):
        if not any(map(narrow, samples.pytree.tree_leaves(given))):
            continue
        made = once[target]
        for scale in (1.0, 3000.0):
            (args, kwargs), (wide_args, wide_kwargs) = (
                samples.pytree.tree_map(
                    lambda x, wide=wide, scale=scale: scaled(x, scale, wide) if narrow(x) else x,
                    given,
                )
                for wide in (False, True)
            )
            found = samples.pytree.tree_leaves(made(*args, **kwargs))
            exact = samples.pytree.tree_leaves(made.decomposition(*wide_args, **wide_kwargs))
            rounded = [
                wanted.to(each.dtype) if isinstance(each, torch.Tensor) else wanted
                for each, wanted in zip(found, exact, strict=True)
            ]
            torch.testing.assert_close(
                found,
                rounded,
                rtol=torch.finfo(kind).eps,
                atol=0.0,
                equal_nan=True,
                msg=str(target),
            )
        met.add(target)
    assert len(met) >= 60


def scaled(tensor: Any, scale: float, wide: bool) -> Any:
    """The numbers times `scale` as the type holds them, or the same in float32."""
    found = (tensor.float() * scale).clamp(-6e4, 6e4).to(tensor.dtype)
    return found.float() if wide else found


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_whose_sum_leaves_float16_but_whose_result_does_not(
    reduction: str, weighted: bool
) -> None:
    torch.manual_seed(0)
    scores, labels = torch.randn(20000, 12) * 8, torch.randint(0, 12, (20000,))
    weight = torch.rand(12).half() + 0.5 if weighted else None
    scale = 1.0 if reduction == "mean" else 1e-3

    def loss(given: Any, dtype: Any = torch.float16) -> Any:
        weights = None if weight is None else weight.to(dtype)
        return F.cross_entropy(given * scale, labels, weights, reduction=reduction)

    def both(call: Any, given: Any) -> tuple[Any, Any]:
        leaf = given.detach().requires_grad_()
        found = call(leaf)
        return found.detach(), torch.autograd.grad(found, leaf)[0]

    narrow = scores.half()
    ours = both(torch.compile(loss, backend="tedsl"), narrow)
    exact = both(lambda given: loss(given, torch.float64), narrow.double())
    assert ours[0].dtype is torch.float16
    if reduction == "mean":
        torch.testing.assert_close(ours[0].double(), exact[0], rtol=2e-3, atol=0.0)
    torch.testing.assert_close(ours[1].double(), exact[1], rtol=1e-2, atol=1e-7)


def test_a_drawn_gradient_of_weights_by_a_mean_of_losses() -> None:
    """Row 15 of the seed 2026, at its size on a GPU."""
    torch.manual_seed(0)
    x, w, b = torch.randn(4096, 101).half(), torch.randn(12, 101).half(), torch.randn(12).half()
    labels = torch.randint(0, 12, (4096,))

    def f(x: Any, w: Any, b: Any, labels: Any) -> Any:
        result, back = torch.func.vjp(lambda w, b: F.cross_entropy(F.linear(x, w, b), labels), w, b)
        return (result, *back(torch.ones_like(result)))

    found = tt.trace(f, x, w, b, labels).build(target="cpu")(x, w, b, labels)
    exact = f(x.double(), w.double(), b.double(), labels)
    for ours, right in zip(found, exact, strict=True):
        assert ours.dtype is torch.float16
        off = (ours.double() - right).abs().max()
        assert float(off) <= 2e-3 * float(right.abs().max())


@pytest.mark.parametrize(
    "call",
    [
        lambda x, i: aten.take(x, i),
        lambda x, i: aten.index_copy(x, 0, i, x[:3]),
        lambda x, i: aten.pixel_shuffle(x[None, :, :, None].expand(1, 8, 8, 8), 2),
    ],
    ids=["take", "index_copy", "pixel_shuffle"],
)
def test_what_only_moves_elements_stays_narrow(call: Any) -> None:
    """A table that is indexed is not copied as float32."""
    graph = proxies.make_fx(call, decomposition_table=tables.table())(
        torch.randn(8, 8).half(), torch.tensor([0, 2, 5])
    )
    kinds = {n.meta["val"].dtype for n in graph.graph.nodes if n.op == "call_function"}
    assert torch.float16 in kinds
    assert torch.float32 not in kinds
