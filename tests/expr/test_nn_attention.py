"""Attention of te.nn against a loop over every query in float64, and against PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from nn_numbers import built, close, drawn, functions, given
from nn_values import DTYPES, needs_torch, torch

import tedsl as te
from tedsl.tensor.printer import print_graph

nn = te.nn
SLACK = {"float16": 4.0, "bfloat16": 4.0, "float32": 4.0, "float64": 4.0}


@dataclass(frozen=True)
class Case:
    """Attention over `batch` sequences; `biased` is the part of keys that a bias hides."""

    batch: int = 2
    heads: int = 4
    groups: int = 4
    queries: int = 20
    keys: int = 37
    depth: int = 16
    columns: int = 16
    causal: bool = False
    window: tuple[int | None, int | None] = (None, None)
    sloped: bool = False
    cap: float | None = None
    biased: float | None = None
    scale: float | None = None
    lengths: tuple[int, ...] | None = None

    def how(self) -> dict[str, Any]:
        return {
            "causal": self.causal,
            "window": self.window,
            "cap": self.cap,
            "scale": self.scale,
        }

    def arrays(self, dtype: str) -> dict[str, Any]:
        b, h, g = self.batch, self.heads, self.groups
        found = {
            "q": drawn((b, h, self.queries, self.depth), dtype, 1),
            "k": drawn((b, g, self.keys, self.depth), dtype, 2),
            "v": drawn((b, g, self.keys, self.columns), dtype, 3),
        }
        if self.sloped:
            found["slopes"] = 2.0 ** -np.arange(1.0, h + 1).astype("f4")
        if self.biased is not None:
            bias = drawn((h, 1, self.keys), "float32", 4)
            hidden = np.random.default_rng(5).random(bias.shape) < self.biased
            found["bias"] = np.where(hidden, np.float32(-np.inf), bias)
        if self.lengths is not None:
            found["lengths"] = np.array(self.lengths, "i4")
        return found

    def tensors(self, arrays: dict[str, Any]) -> tuple[te.Tensor, dict[te.Tensor, Any]]:
        values = {given(array, name): array for name, array in arrays.items()}
        q, k, v, *more = values
        named: dict[str, Any] = {tensor.name: tensor for tensor in more}
        return nn.attention(q, k, v, **self.how(), **named), values

    def reference(self, arrays: dict[str, Any]) -> Any:
        """Each query by itself, over the keys that it sees."""
        q, k, v = (arrays[name].astype("f8") for name in "qkv")
        found = np.zeros((*q.shape[:3], self.columns))
        for b, h, i in np.ndindex(*q.shape[:3]):
            group = h // (self.heads // self.groups)
            scores = self.scores(q[b, h, i], k[b, group], arrays, (b, h, i))
            seen = scores > -np.inf
            if seen.any():
                weights = np.exp(scores[seen] - scores[seen].max())
                found[b, h, i] = weights @ v[b, group][seen] / weights.sum()
        return found

    def scores(self, q: Any, k: Any, arrays: dict[str, Any], at: tuple[int, ...]) -> Any:
        """Of one query and all keys; -inf where a key is not seen."""
        b, h, i = at
        length = self.keys if self.lengths is None else self.lengths[b]
        own = i + length - self.queries
        found = np.full(self.keys, -np.inf)
        before, after = self.window
        for j in range(length):
            late = self.causal and j > own
            far = (before is not None and j < own - before) or (
                after is not None and j > own + after
            )
            if late or far:
                continue
            s = float(q @ k[j]) * (self.depth**-0.5 if self.scale is None else self.scale)
            s = s if self.cap is None else self.cap * math.tanh(s / self.cap)
            s -= float(arrays["slopes"][h]) * abs(own - j) if self.sloped else 0.0
            s += float(arrays["bias"][h, 0, j]) if self.biased is not None else 0.0
            found[j] = s
        return found


CASES: dict[str, Case] = {
    "plain": Case(),
    "scaled": Case(scale=0.7),
    "causal": Case(causal=True),
    "causal, as many queries as keys": Case(queries=20, keys=20, causal=True),
    "causal, more queries than keys": Case(queries=45, keys=33, causal=True),
    "window": Case(window=(5, 3)),
    "window of the past": Case(window=(4, None), causal=True),
    "window of itself": Case(window=(0, 0)),
    "capped": Case(cap=2.0, scale=1.0),
    "sloped": Case(sloped=True),
    "biased": Case(biased=0.0),
    "hidden by the bias": Case(biased=0.4),
    "all hidden by the bias": Case(biased=1.1),
    "lengths": Case(lengths=(37, 9)),
    "lengths of nothing": Case(lengths=(0, 1), causal=True),
    "grouped": Case(groups=2),
    "one head of keys": Case(groups=1, causal=True),
    "other columns": Case(columns=24),
    "one query": Case(queries=1, causal=True),
    "no queries": Case(queries=0),
    "one key": Case(keys=1, queries=1, depth=1, columns=1),
    "all together": Case(
        groups=2, causal=True, window=(7, None), sloped=True, cap=3.0, biased=0.2, lengths=(33, 30)
    ),
}
# On a GPU one kernel each.
FORMS = (
    "plain", "causal", "window", "capped", "sloped", "hidden by the bias", "lengths", "grouped",
    "causal, more queries than keys", "all together",
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_attention(name: str) -> None:
    case = CASES[name]
    arrays = case.arrays("float64")
    out, values = case.tensors(arrays)
    close(te.evaluate(out, values)[0], case.reference(arrays), "float64", 4.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["plain", "all together"])
def test_dtypes(name: str, dtype: str) -> None:
    case = CASES[name]
    arrays = case.arrays(dtype)
    out, values = case.tensors(arrays)
    close(te.evaluate(out, values)[0], case.reference(arrays), dtype)


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_leading_dimensions(lead: tuple[int, ...]) -> None:
    case = CASES["causal"]
    arrays = {name: drawn((*lead, 2, n, 8), seed=n) for name, n in (("q", 4), ("k", 6), ("v", 6))}
    q, k, v = (given(arrays[name], name) for name in "qkv")
    (found,) = te.evaluate(
        nn.attention(q, k, v, causal=True), dict(zip((q, k, v), arrays.values(), strict=True))
    )
    flat = {name: array.reshape(-1, *array.shape[-3:]) for name, array in arrays.items()}
    same = replace(
        case, batch=len(flat["q"]), heads=2, groups=2, queries=4, keys=6, depth=8, columns=8
    )
    close(found.reshape(-1, 2, 4, 8), same.reference(flat), "float64")


def test_queries_that_see_nothing_get_zeros() -> None:
    case = CASES["causal, more queries than keys"]
    arrays = case.arrays("float32")
    out, values = case.tensors(arrays)
    (found,) = te.evaluate(out, values)
    assert (found[:, :, : case.queries - case.keys] == 0).all()
    assert (found[:, :, case.queries - case.keys :] != 0).any(-1).all()


def test_what_lies_behind_the_length_does_not_matter() -> None:
    case = CASES["lengths"]
    arrays = case.arrays("float32")
    arrays["k"][1, :, 9:] = np.nan
    arrays["v"][1, :, 9:] = np.nan
    out, values = case.tensors(arrays)
    close(te.evaluate(out, values)[0], case.reference(arrays), "float32")


def test_large_scores_do_not_overflow() -> None:
    case = Case(scale=1e4)
    arrays = case.arrays("float32")
    out, values = case.tensors(arrays)
    (found,) = te.evaluate(out, values)
    np.testing.assert_allclose(found, case.reference(arrays), atol=1e-3)


@needs_torch
@pytest.mark.parametrize("causal", [False, True])
def test_against_torch(causal: bool) -> None:
    f = torch.nn.functional.scaled_dot_product_attention
    for groups in (4, 2):
        case = Case(groups=groups, queries=20, keys=20, causal=causal)
        arrays = case.arrays("float32")
        out, values = case.tensors(arrays)
        q, k, v = (torch.from_numpy(arrays[name]) for name in "qkv")
        wanted = f(q, k, v, is_causal=causal, enable_gqa=groups < 4)
        np.testing.assert_allclose(te.evaluate(out, values)[0], wanted.numpy(), atol=2e-6)
    case = Case(queries=20, keys=37, biased=0.4)
    arrays = case.arrays("float32")
    out, values = case.tensors(arrays)
    q, k, v = (torch.from_numpy(arrays[name]) for name in "qkv")
    wanted = f(q, k, v, attn_mask=torch.from_numpy(arrays["bias"]))
    np.testing.assert_allclose(te.evaluate(out, values)[0], wanted.numpy(), atol=2e-6)


@needs_torch
def test_causal_is_aligned_at_the_end() -> None:
    case = CASES["causal"]
    arrays = case.arrays("float32")
    out, values = case.tensors(arrays)
    q, k, v = (torch.from_numpy(arrays[name]) for name in "qkv")
    seen = torch.ones(case.queries, case.keys, dtype=torch.bool).tril(case.keys - case.queries)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    np.testing.assert_allclose(te.evaluate(out, values)[0], wanted.numpy(), atol=2e-6)


# Kernels ----------------------------------------------------------------------------------------


@pytest.mark.cpu
@pytest.mark.parametrize("name", ["plain", "lengths", "all together"])
def test_kernels_on_the_cpu(name: str) -> None:
    case = CASES[name]
    arrays = case.arrays("float32")
    out, values = case.tensors(arrays)
    found, _ = built(out, values, "cpu")
    close(found, case.reference(arrays), "float32")


@pytest.mark.ptxas
@pytest.mark.uncompiled("one of them is compiled by itself below")
@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_one_kernel(name: str) -> None:
    case = replace(CASES[name], batch=1 if CASES[name].lengths is None else 2)
    arrays = case.arrays("float32")
    out, values = case.tensors(arrays)
    found, kernel = built(out, values, "triton-interpret")
    close(found, case.reference(arrays), "float32")
    assert functions(kernel) == 1
    # Two for a block of keys, and two more where there are whole ones and the rest of them.
    assert kernel.source.count("tl.dot(") in (2, 4)


@pytest.mark.ptxas
def test_both_products_use_the_multipliers() -> None:
    q = te.placeholder((1, 8, 512, 64), "bfloat16", name="q")
    k, v = (te.placeholder((1, 2, 512, 64), "bfloat16", name=name) for name in "kv")
    kernel = te.build(nn.attention(q, k, v, causal=True), target="cuda:sm_90", cache=False)
    assert functions(kernel) == 1
    assert kernel.asm.count("wgmma.mma_async") >= 2
    for info in kernel.resources.values():
        assert info.stack == 0


@pytest.mark.cpu
def test_symbolic_sizes() -> None:
    b, n, m = (te.size_var(name) for name in "bnm")
    case = replace(CASES["causal"], groups=2)
    arrays = case.arrays("float32")
    q = te.placeholder((b, 4, n, 16), name="q")
    k, v = (te.placeholder((b, 2, m, 16), name=name) for name in "kv")
    values = dict(zip((q, k, v), arrays.values(), strict=True))
    out = nn.attention(q, k, v, causal=True)
    close(te.evaluate(out, values)[0], case.reference(arrays), "float32")
    close(built(out, values, "cpu")[0], case.reference(arrays), "float32")


# Pages ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pages:
    """Keys and values of three sequences, scattered over pages."""

    queries: int = 5
    size: int = 8
    most: int = 5
    lengths: tuple[int, ...] = (40, 11, 0)
    groups: int = 2
    dtype: str = "float32"

    def arrays(self) -> dict[str, Any]:
        pages, batch = 20, len(self.lengths)
        table = np.random.default_rng(2).permutation(pages)[: batch * self.most]
        return {
            "q": drawn((batch, 4, self.queries, 16), self.dtype, 1),
            "k": drawn((pages, self.size, self.groups, 16), self.dtype, 2),
            "v": drawn((pages, self.size, self.groups, 16), self.dtype, 3),
            "table": table.reshape(batch, self.most).astype("i4"),
            "lengths": np.array(self.lengths, "i4"),
        }

    def reference(self, arrays: dict[str, Any], case: Case) -> Any:
        """As attention over the keys and values that the table gathers."""
        gathered = dict(arrays)
        for name in "kv":
            found = arrays[name][arrays["table"]]
            shape = (len(self.lengths), self.size * self.most, self.groups, 16)
            gathered[name] = found.reshape(shape).swapaxes(1, 2)
        whole = replace(
            case,
            batch=len(self.lengths),
            groups=self.groups,
            queries=self.queries,
            keys=self.size * self.most,
            lengths=self.lengths,
        )
        return whole.reference(gathered)


def paged(pages: Pages, case: Case) -> tuple[te.Tensor, dict[te.Tensor, Any], Any]:
    """The result, values in which unused entries of the table point nowhere, what is wanted."""
    arrays = pages.arrays()
    wanted = pages.reference(arrays, case)
    for b, length in enumerate(pages.lengths):
        arrays["table"][b, -(-length // pages.size) :] = -123456789
    values = {given(array, name): array for name, array in arrays.items()}
    return nn.paged_attention(*values, **case.how()), values, wanted


@pytest.mark.parametrize(
    ("pages", "case"),
    [
        (Pages(), Case(causal=True)),
        (Pages(queries=1), Case(causal=True)),
        (Pages(groups=4, size=1, most=6, lengths=(6, 2, 5)), Case(causal=False)),
        (Pages(groups=1), Case(causal=True, window=(6, None), cap=4.0, scale=0.5)),
        (Pages(dtype="bfloat16"), Case(causal=True)),
    ],
)
def test_pages(pages: Pages, case: Case) -> None:
    out, values, wanted = paged(pages, case)
    close(te.evaluate(out, values)[0], wanted, pages.dtype)


@pytest.mark.cpu
def test_pages_on_the_cpu() -> None:
    out, values, wanted = paged(Pages(), Case(causal=True))
    close(built(out, values, "cpu")[0], wanted, "float32")


@pytest.mark.ptxas
def test_pages_are_gathered_in_one_kernel() -> None:
    out, values, wanted = paged(Pages(queries=16, dtype="float16"), Case(causal=True))
    found, kernel = built(out, values, "triton-interpret")
    close(found, wanted, "float16")
    assert functions(kernel) == 1


# Text and refusals ------------------------------------------------------------------------------


def test_stages_are_named(golden: Callable[..., None]) -> None:
    n = te.size_var("n")
    q = te.placeholder((2, 4, n, 64), "bfloat16", name="q")
    k, v = (te.placeholder((2, 2, n, 64), "bfloat16", name=name) for name in "kv")
    golden(print_graph(nn.attention(q, k, v)), "plain")
    slopes = te.placeholder((4,), name="slopes")
    lengths = te.placeholder((2,), "int32", name="lengths")
    masked = nn.attention(
        q, k, v, causal=True, window=(9, 9), slopes=slopes, cap=5.0, lengths=lengths
    )
    golden(print_graph(masked), "masked")


def p(*shape: Any, dtype: str = "float32", name: str = "v") -> te.Tensor:
    return te.placeholder(shape, dtype, name=name)


Q, K = p(2, 4, 5, 8, name="q"), p(2, 2, 7, 8, name="k")
PAGES, TABLE, LENGTHS = p(9, 4, 2, 8, name="k"), p(2, 3, dtype="int32"), p(2, dtype="int32")


def attend(q: te.Tensor = Q, k: te.Tensor = K, v: te.Tensor = K, **how: Any) -> Any:
    return lambda: nn.attention(q, k, v, **how)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (attend(p(5, 8)), r"attention: v has 2 dimensions, at least 3"),
        (attend(p(2, 4, 5, 8, dtype="int32")), r"v is int32, not a float"),
        (attend(k=p(2, 2, 7, 9)), r"v has the shape \[2, 2, 7, 9\], not \[2, any, any, 8\]"),
        (attend(v=p(2, 2, 8, 8)), r"v has the shape \[2, 2, 8, 8\], not \[2, 2, 7, any\]"),
        (attend(v=p(2, 2, 7, 8, dtype="float16")), r"v is float16 and q is float32[\s\S]*astype"),
        (attend(p(2, 5, 5, 8)), r"5 heads of queries for 2 heads of keys"),
        (attend(p(2, 0, 5, 8), p(2, 0, 7, 8), p(2, 3, 7, 8)), r"v has the shape \[2, 3, 7, 8\]"),
        (attend(p(2, te.var("h"), 5, 8)), r"h heads of queries for 2 heads[\s\S]*known numbers"),
        (attend(window=(-1, 2)), r"window is \(-1, 2\)[\s\S]*two ints of at least 0, or None"),
        (attend(window=(1, 2, 3)), r"window is \(1, 2, 3\)"),
        (attend(cap=0.0), r"cap is 0.0[\s\S]*above 0"),
        (attend(slopes=p(5)), r"v has the shape \[5\], not \[4\]"),
        (attend(slopes=p(4, dtype="int32")), r"v is int32, not a float"),
        (attend(bias=p(4, 6, 7)), r"bias: shapes [\s\S]* do not broadcast"),
        (attend(bias=p(1, 2, 4, 5, 7)), r"bias v of the shape \[1, 2, 4, 5, 7\] .* \[2, 4, 5, 7\]"),
        (attend(bias=p(5, 7, dtype="bool")), r"v is bool, not a float"),
        (attend(lengths=p(3, dtype="int32")), r"v has the shape \[3\], not \[2\]"),
        (attend(lengths=p(2)), r"v is float32, not an integer[\s\S]*astype"),
        (
            lambda: nn.paged_attention(Q, PAGES, PAGES, p(3, 3, dtype="int32"), LENGTHS),
            r"paged_attention: v has the shape \[3, 3\], not \[2, any\]",
        ),
        (
            lambda: nn.paged_attention(Q, PAGES, PAGES, p(2, 3), LENGTHS),
            r"v is float32, not an integer",
        ),
        (
            lambda: nn.paged_attention(Q, PAGES, p(9, 5, 2, 8), TABLE, LENGTHS),
            r"v has the shape \[9, 5, 2, 8\], not \[9, 4, 2, any\]",
        ),
        (lambda: nn.paged_attention(Q, PAGES, PAGES, TABLE, p(2)), r"v is float32, not an int"),
    ],
)
def test_refusals(call: Callable[[], te.Tensor], message: str) -> None:
    with pytest.raises(te.ExprError, match=message):
        call()


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
@pytest.mark.parametrize(("limits", "share"), [({"causal": True}, 0.6), ({"window": (63, 0)}, 0.3)])
def test_what_is_not_seen_is_not_computed(target: str, limits: Any, share: float) -> None:
    """The rules make one kernel, whose loop over the keys is as long as the query sees."""
    dtype = "float32" if target == "cpu" else "bfloat16"
    q, k, v = (te.placeholder((2, 1024, 64), dtype, name=name) for name in "qkv")
    (whole,) = te.explain(te.nn.attention(q, k, v), target).kernels
    (less,) = te.explain(te.nn.attention(q, k, v, **limits), target).kernels
    assert less.flops < share * whole.flops
