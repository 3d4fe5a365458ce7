"""Chains of dependent reductions under the rules: one kernel, one pass, parts of long rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import rule_cases as c
from attentions import attention, gradients
from online_cases import Attention, normalised_product
from rule_cases import RuleCase
from rule_checks import drawn, interpreted

import tedsl as te
from tedsl.backends.triton.compile.offline import compile_offline
from tedsl.backends.triton.emit.module import emit
from tedsl.ir.nodes import Accumulate, Dot
from tedsl.ir.visit import walk_stmts
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.target import Target
from tedsl.tensor.tensor import ComputeOp, Tensor


def outputs(case: Attention) -> Sequence[Tensor]:
    g: dict[str, Any] = case.tensors()
    return [g["O"], g["LSE"]] if case.with_sums else [g["O"]]


BETWEEN = {
    "plain": Attention(queries=40, keys=70),
    "masked by select": Attention(causal="select"),
    "capped": Attention(cap=5.0, queries=64, keys=64),
    "biased": Attention(biased=True),
    "grouped": Attention(heads=4, groups=2),
    "rows that see nothing": Attention(causal="select", empty=True),
    "and its sums": Attention(with_sums=True),
}


def kernels(s: Schedule) -> int:
    stages = [stage for stage in s.plan.stages if isinstance(stage.op, ComputeOp)]
    return sum(stage.placement.at_root for stage in stages)


@pytest.mark.parametrize("name", BETWEEN)
def test_contractions_around_a_chain_are_one_kernel(name: str) -> None:
    case = RuleCase(name, lambda: outputs(BETWEEN[name]))
    s = interpreted(case, "cuda")
    assert kernels(s) == len(s.outputs)
    rng = random.Random(1)
    for _ in range(2):
        interpreted(case, "cuda", drawn(case, "cuda", rng))


def test_finite_values_make_masked_attention_one_kernel() -> None:
    """Blocks of keys that every row of a block sees come first, without a mask."""
    for finite, count in ((True, 1), (False, 2)):
        case = RuleCase(
            "causal", lambda f=finite: [attention(2, 70, 70, 32, causal=True, finite=f).result]
        )
        s = interpreted(case, "cuda", {"out.bm": 32, "out.bk": 32} if finite else None)
        assert (kernels(s) == 1) is (count == 1)


def test_any_number_of_keys_is_lowered() -> None:
    """The last piece of the keys would be masked product by product in one kernel."""
    n, m = te.size_var("n"), te.size_var("m")
    q, k, v = (
        te.placeholder((2, e, 64), "float16", name=x) for e, x in ((n, "q"), (m, "k"), (m, "v"))
    )

    def made() -> Tensor:
        return te.nn.attention(q, k, v, causal=True)

    assert kernels(interpreted(RuleCase("any", made, {"n": 20, "m": 70}), "cuda")) > 1


def test_a_fold_before_a_contraction_may_join_it() -> None:
    case = RuleCase("scaled", lambda: list(normalised_product(40, 100, 48).outputs))
    assert kernels(interpreted(case, "cuda")) == 2
    assert kernels(interpreted(case, "cuda", {"Y.chain": True})) == 1


@pytest.mark.ptxas
@pytest.mark.parametrize("descriptors", [False, True])
def test_both_contractions_use_the_multipliers(descriptors: bool) -> None:
    target = Target.parse("cuda:sm_90")
    result = attention(4, 512, 512, 64, "bfloat16").result
    module = lower(schedule_for(result, target, {"out.descriptors": descriptors}).plan, target)
    (info,) = compile_offline(emit(module, target), "sm_90")
    assert info.ptx.count("wgmma.mma_async") >= 2
    assert info.stack in (None, 0)


LONG = {
    "shares": lambda: c.softmax(3, 20000),
    "moments": lambda: c.layer_norm(2, 20000),
    "crossed": lambda: c.softmax(2, 3000, 4, axis=1),
}


@pytest.mark.parametrize("name", LONG)
def test_long_rows(name: str) -> None:
    """In one pass, and but for crossed rows in parts, whose moments or maxima are merged."""
    case, rng = RuleCase(name, LONG[name]), random.Random(2)
    forms: set[tuple[bool, bool]] = set()
    for _ in range(40):
        decisions = drawn(case, "cuda", rng)
        root = next(iter(decisions)).split(".")[0]
        form = (
            bool(decisions.get(f"{root}.online")),
            int(str(decisions.get(f"{root}.parts", 1))) > 1,
        )
        if form not in forms:
            forms.add(form)
            interpreted(case, "cuda", decisions)
    assert (True, False) in forms
    assert ((True, True) in forms) == (name != "crossed")


def made_within(s: Schedule) -> list[str]:
    """The stages that are computed inside kernels."""
    found = [stage for stage in s.plan.stages if isinstance(stage.op, ComputeOp)]
    return [stage.name for stage in found if stage.placement.axis is not None]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "keys"), [(64, 64), (70, 48)])
def test_contractions_of_contractions_store_no_operand(rows: int, keys: int, causal: bool) -> None:
    """Those that fold the rows share a kernel; what folds the keys has copies of its own."""
    case = RuleCase("gradients", lambda: gradients(2, rows, keys, 32, causal=causal))
    within = {"dq.within": True, "dk.within": True}
    sizes = {f"{name}.{knob}": 32 for name in ("dq", "dk") for knob in ("bm", "bk")}
    s = interpreted(case, "cuda", {**within, **sizes})
    assert kernels(s) == 3  # of which two run together
    assert s["dv"].plan.placement.leader
    assert {"S", "S.again", "dP", "dP.again", "P"} <= set(made_within(s))
    assert "transform_layout" in s.as_python()


def test_operands_that_fit_the_cache_are_stored() -> None:
    s = schedule_for(gradients(2, 64, 64, 32), "cuda")
    assert "recompute" not in s.as_python()
    large = schedule_for(gradients(4, 2048, 2048, 64, "bfloat16"), "cuda")
    assert large.as_python().count("recompute") == 4


def test_a_product_of_a_product_is_one_kernel() -> None:
    """(A B) C, of which A B is too large to be stored."""
    n, deep = 4096, 64
    a, b, c_ = (
        te.placeholder(shape, "bfloat16", name=name)
        for name, shape in (("a", (n, deep)), ("b", (deep, n)), ("c", (n, deep)))
    )
    k, j = te.reduce_axis((0, deep), "k"), te.reduce_axis((0, n), "j")
    wide = "float32"
    ab = te.compute(
        (n, n), lambda i, j: te.sum(a[i, k].astype(wide) * b[k, j].astype(wide), axis=k), name="ab"
    )
    abc = te.compute(
        (n, deep),
        lambda i, e: te.sum(
            ab[i, j].astype("bfloat16").astype(wide) * c_[j, e].astype(wide), axis=j
        ),
        name="abc",
    )
    s = schedule_for(abc, "cuda")
    assert kernels(s) == 1


@pytest.mark.ptxas
@pytest.mark.parametrize(("depth", "causal"), [(64, False), (128, True)])
def test_attention_and_its_gradients_on_hopper(depth: int, causal: bool) -> None:
    """Tiles come by descriptors, all products use the multipliers, (nearly) nothing spills."""
    target = Target.parse("cuda:sm_90")
    forward = attention(4, 4096, 4096, depth, "bfloat16", causal, finite=True).result
    backward = gradients(4, 4096, 4096, depth, "bfloat16", causal)
    for tensors, count in ((forward, 1), (backward, 2)):
        program = emit(lower(schedule_for(tensors, target).plan, target), target)
        infos = compile_offline(program, "sm_90")
        assert len(infos) == count
        for info in infos:
            assert "wgmma.mma_async" in info.ptx and "cp.async.bulk.tensor" in info.ptx
            assert info.shared <= 227 << 10
            assert info.stack is None or info.stack <= 32


@pytest.mark.parametrize("keys", [4096, 13502, 1000])
def test_products_of_the_last_keys_are_dots_too(keys: int) -> None:
    """Lanes beyond the last key are no results of the first product, whatever loop the condition
    stands in: what is only masked is no sum of products written out."""
    q, k, v = (te.placeholder((1, keys, 64), "float16", name=name) for name in "qkv")
    s = schedule_for(te.nn.attention(q, k, v, causal=True), "cuda:sm_90")
    module = lower(s.plan, Target.parse("cuda:sm_90"))
    found = [stmt for func in module.funcs for stmt in walk_stmts(func.body)]
    assert sum(isinstance(stmt, Dot) for stmt in found) >= 2
    folds = (stmt for stmt in found if isinstance(stmt, Accumulate))
    assert all(sum(t.extent > 1 for t in fold.tile) <= 2 for fold in folds)
