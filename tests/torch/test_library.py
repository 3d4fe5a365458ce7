"""What PyTorch's libraries keep on a GPU, and the precision and the memory of what is taken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tedsl as te
from tedsl.expr.nodes import Reduce
from tedsl.expr.visit import walk

torch = pytest.importorskip("torch")
tt: Any = pytest.importorskip("tedsl.torch")
attention: Any = pytest.importorskip("tedsl.torch.attention")
decisions: Any = pytest.importorskip("tedsl.torch.backend.decisions")
library: Any = pytest.importorskip("tedsl.torch.backend.library")
context: Any = pytest.importorskip("tedsl.torch.importer.context")
precision: Any = pytest.importorskip("tedsl.torch.precision")
registry: Any = pytest.importorskip("tedsl.torch.importer.registry")
make_fx: Any = torch.fx.experimental.proxy_tensor.make_fx
F: Any = torch.nn.functional
FAMILIES = (registry.Family.PRODUCT, registry.Family.CONVOLUTION)


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def kept(function: Any, *arguments: Any) -> list[bool]:
    """Of each product and convolution whether a GPU keeps the library's call."""
    with torch.no_grad():
        graph = make_fx(function, tracing_mode="fake")(*arguments).graph
    found = [(node, registry.entry_of(node.target)) for node in graph.nodes]
    return [
        library.is_faster(node, entry.family)
        for node, entry in found
        if entry is not None and entry.family in FAMILIES
    ]


def given(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.empty(shape, dtype=dtype)


def test_float32_of_full_precision_is_multiplied_by_tensor_cores() -> None:
    operands = given(4096, 4096), given(4096, 4096)
    assert kept(torch.mm, *operands) == [False]
    torch.set_float32_matmul_precision("high")
    assert kept(torch.mm, *operands) == [True]


def test_products_that_memory_bounds_are_taken() -> None:
    short = torch.bfloat16
    assert kept(torch.mm, given(4096, 4096, dtype=short), given(4096, 4096, dtype=short)) == [True]
    assert kept(torch.mm, given(8, 4096, dtype=short), given(4096, 4096, dtype=short)) == [False]
    assert kept(torch.mm, *(given(64, 64, dtype=torch.float64) for _ in "ab")) == [True]


def test_convolutions_pass_on_images() -> None:
    x, w = given(32, 128, 56, 56), given(128, 128, 3, 3)

    def both(x: Any, w: Any) -> Any:
        return F.conv2d(F.conv2d(x, w), w)

    thin = given(32, 64, 112, 112), given(64, 64, 3, 3)
    assert kept(both, x, w) == [True, True]
    assert kept(F.conv2d, *thin) == [False]
    deep = given(16, 96, 64, 64), given(96, 1, 7, 7)
    assert kept(lambda x, w: F.conv2d(x, w, groups=96), *deep) == [False]


def test_phases_of_a_transposed_convolution_have_to_be_put_in_order() -> None:
    x, w = given(16, 64, 64, 64), given(64, 128, 3, 3)
    assert kept(lambda x, w: F.conv_transpose2d(x, w), x, w) == [False]
    assert kept(lambda x, w: F.conv_transpose2d(x, w, stride=2), x, w) == [True]


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="older names")
def test_settings_by_their_newer_names() -> None:
    """Reading the older names raises then."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert precision.rounds(convolution=False)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert not precision.rounds(convolution=False)


@pytest.mark.parametrize("rounds", [True, False])
def test_convolutions_are_rounded_as_pytorch_is_told(
    rounds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a device to ask, that of all tensors is said to be one of NVIDIA's."""
    monkeypatch.setattr(
        context.Context, "tf32", lambda _, convolution=False: precision.rounds(convolution)
    )

    def function(x: Any, w: Any, a: Any) -> Any:
        return F.conv2d(x, w).flatten(1) @ a

    x, w, a = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3), torch.ones(64, 5)
    with torch.backends.cudnn.flags(allow_tf32=rounds):
        s = te.create_schedule(tt.trace(function, x, w, a).outputs)
    bodies = [body for stage in s.stages for body in getattr(stage.op, "bodies", ())]
    sums = [node.tf32 for node in walk(*bodies) if isinstance(node, Reduce)]
    assert sorted(sums) == [False, rounds]


def test_results_lie_as_pytorch_has_them() -> None:
    """What is read again and returned is computed once, with channels last, and not copied."""

    def function(x: Any, y: Any, w: Any) -> Any:
        found = x + y
        return found, F.max_pool2d(found * w, 2)

    x, y = (torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last) for _ in "xy")
    w = torch.randn(8, 1, 1)
    program = tt.trace(function, x, y, w)
    kernel = te.build(program.outputs, "cpu")
    assert len(kernel.module.funcs) == 2
    for found, wanted in zip(program.build()(x, y, w), function(x, y, w), strict=True):
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()


@pytest.mark.parametrize("grads", [True, False])
def test_attention_of_float32_is_written_out_without_derivatives(
    grads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_wide(*tensors: Any) -> bool:  # the condition without that of the device
        asked = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
        return all(each.dtype is torch.float32 for each in tensors) and not asked

    monkeypatch.setattr(attention, "_is_wide", is_wide)
    torch._dynamo.reset()
    report = tt.Report()
    q, k, v = (torch.randn(2, 3, 17, 8) for _ in "qkv")
    call = torch.compile(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        backend="tedsl",
        options={"report": report, "products": True},
    )
    with torch.set_grad_enabled(grads):
        found = call(q.requires_grad_(grads), k, v)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(q, k, v, is_causal=True))
    assert (report.graphs[0].taken > 0) is not grads
