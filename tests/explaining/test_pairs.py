"""Why pairs are not fused: refusals are those that forcing raises, numbers are those of a copy."""

from __future__ import annotations

import importlib
from typing import Any

import drawn_schedules
import hypothesis.strategies as st
import pytest
import rule_cases
from choices import Recorder
from hypothesis import HealthCheck, Phase, given, settings
from strategies import Case, computes

import tedsl as te
from tedsl.errors import BackendError, LowerError, ScheduleError
from tedsl.explaining.data import Attempt, Explanation, Pair, Relation, Verdict, Way
from tedsl.explaining.pairs import refusal_text
from tedsl.schedules import default_schedule
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.kernels.tree import kernel_leader
from tedsl.scheduling.plan.graph import runtime_sizes, tensors_read
from tedsl.scheduling.plan.inline import inline_stages
from tedsl.scheduling.trace.replay import replay_what_applies
from tedsl.target import Target
from tedsl.tensor.tensor import PlaceholderOp

pytestmark = pytest.mark.uncompiled("ways to fuse are looked at, not compiled")
UNHURRIED: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
ARCH = Target.parse("cuda:sm_90")


def forced(schedule: Schedule, attempt: Attempt) -> Schedule:
    """The schedule after the calls that an attempt names, made by hand."""
    reasons = dict.fromkeys(attempt.without, "taken back")
    made = schedule.copy()
    if reasons:
        made, _ = replay_what_applies(schedule.definition, schedule.trace, without=reasons)
    for line in attempt.code:
        exec(line, {"s": made})
    return made


def raised(schedule: Schedule, attempt: Attempt, target: str) -> str:
    """What forcing raises; empty when nothing does."""
    try:
        module = te.lower(forced(schedule, attempt), target)
        if target != "cpu":
            emit: Any = importlib.import_module("tedsl.backends.triton.emit.module").emit
            emit(module, ARCH)
    except (ScheduleError, LowerError, BackendError) as error:
        return refusal_text(error)
    return ""


def sizes_of(case: Case, schedule: Schedule) -> dict[str, int]:
    """The values of the sizes that the outputs depend on."""
    known = {var.name: value for var, value in case.sizes.items()}
    return {name: known[name] for name in runtime_sizes(schedule.plan)}


def check(schedule: Schedule, found: Explanation, target: str) -> int:
    """Every refusal is what forcing raises, the best attempt is legal; how many are illegal."""
    illegal = 0
    for pair in found.pairs:
        assert pair.reason and pair.attempts
        assert (pair.verdict is Verdict.ILLEGAL) == (pair.best is None)
        if pair.verdict is Verdict.ILLEGAL:
            assert pair.reason == pair.attempts[0].refused
            illegal += 1
        if pair.best is not None:
            assert str(pair.best.force(schedule)) == str(forced(schedule, pair.best))
        refused = [attempt for attempt in pair.attempts if attempt.refused]
        for attempt in refused if pair.best is None else [pair.best, *refused]:
            said = raised(schedule, attempt, target)
            if "the device allows" not in attempt.refused:
                assert said == attempt.refused, attempt.code
    return illegal


def pairs_are_of_two_kernels(schedule: Schedule, found: Explanation) -> None:
    """Each read of a stage of another kernel has its pair, and no other."""
    plan = inline_stages(schedule.plan)
    kernel = {stage.name: kernel_leader(plan, stage).name for stage in plan.stages}
    apart = {
        (plan.stage_of(tensor.op).name, stage.name)
        for stage in plan.stages
        for tensor in tensors_read(stage.op)
        if not isinstance(tensor.op, PlaceholderOp)
        if kernel[plan.stage_of(tensor.op).name] != kernel[stage.name]
    }
    assert apart == {(p.first, p.second) for p in found.pairs if p.relation is Relation.READS}


def test_forcing_what_is_refused_raises_that_very_reason_in_30_graphs() -> None:
    graphs: set[str] = set()
    for number in range(110):
        case = Recorder(number)(computes(externs=True))
        schedule = te.create_schedule(case.outputs)
        found = te.explain(schedule, "cpu", sizes=sizes_of(case, schedule))
        pairs_are_of_two_kernels(schedule, found)
        check(schedule, found, "cpu")
        if any(attempt.refused for pair in found.pairs for attempt in pair.attempts):
            graphs.add(repr(case))
    assert len(graphs) >= 30


def test_pairs_that_the_rules_leave_apart_are_illegal_for_the_reason_given() -> None:
    illegal = 0
    for number in range(26, 40):
        case = Recorder(number)(computes())
        schedule = default_schedule(case.outputs, "cuda")
        found = te.explain(schedule, "cuda", sizes=sizes_of(case, schedule))
        pairs_are_of_two_kernels(schedule, found)
        illegal += check(schedule, found, "cuda")
    assert illegal >= 4


@settings(max_examples=15, phases=[Phase.generate], **UNHURRIED)
@given(st.data())
def test_schedules_that_were_drawn_are_explained(data: st.DataObject) -> None:
    case = data.draw(computes().strategy())
    schedule = data.draw(drawn_schedules.schedules(case.outputs, 6, case.sizes).strategy())
    try:
        te.lower(schedule, "cpu")
    except LowerError:
        return
    check(schedule, te.explain(schedule, "cpu", sizes=sizes_of(case, schedule)), "cpu")


CASES = {
    "stencil": lambda: rule_cases.heavy_stencil(1 << 20),
    "several": lambda: rule_cases.several(512, 512),
    "total": lambda: rule_cases.normalise_by_total(1 << 16),
    "two products": lambda: rule_cases.products(256, 256, 256, 256),
    "norm of a product": lambda: rule_cases.normalised_product(256, 256, 256),
}


@pytest.mark.parametrize("name", CASES)
def test_reasons_of_the_rules_schedules_for_a_gpu(name: str) -> None:
    made: Any = CASES[name]()
    outputs = [made] if isinstance(made, te.Tensor) else list(made)
    schedule = default_schedule(outputs, "cuda")
    found = te.explain(schedule, "cuda")
    assert (len(found.kernels) > 1) is (name != "stencil") and (found.pairs or name == "stencil")
    check(schedule, found, "cuda")


def two_stages(shape: tuple[int, ...], **halo: int) -> tuple[te.Tensor, te.Tensor]:
    """B = exp(A); C reads it, at `reach` shifted places."""
    reach = halo.get("reach", 1)
    a = te.placeholder((shape[0] + reach - 1, *shape[1:]), name="A")
    b = te.compute(a.shape, lambda *i: te.exp(a[i]), name="B")

    def body(*i: Any) -> Any:
        parts = [b[(i[0] + n, *i[1:])] for n in range(reach)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    return b, te.compute(shape, body, name="C")


def blocked(s: Schedule, *stages: te.Tensor) -> Schedule:
    for stage in stages:
        outer, inner = s[stage].split(s[stage].fuse(*s[stage].op.axis), 1024)
        s[stage].bind(outer, "blockIdx.x")
        s[stage].vectorize(inner)
    return s


def only_pair(s: Schedule, target: str = "cuda") -> Pair:
    found = te.explain(s, target, device="" if target == "cpu" else "NVIDIA H100")
    assert len(found.pairs) == 1
    return found.pairs[0]


def test_a_chain_that_was_left_apart_is_worth_fusing() -> None:
    b, c = two_stages((4096, 4096))
    pair = only_pair(blocked(te.create_schedule(c), b, c))
    assert (pair.first, pair.second, pair.verdict) == ("B", "C", Verdict.BETTER)
    assert pair.best is not None and pair.best.code == ('s["B"].compute_inline()',)
    assert "saves 134 MB" in pair.reason and "1 kernel of 2" in pair.reason
    assert str(pair).startswith("not fused: C reads B from memory: worth it: predicted")


def test_work_that_would_be_repeated_too_often_is_not_worth_it() -> None:
    b, c = two_stages((1 << 16,), reach=64)
    big = te.compute((1 << 16, 64), lambda i, j: c[i] + j * 1.0, name="big")
    s = te.create_schedule(big)
    s[c].compute_root()
    found = te.explain(blocked(s, b, c, big), "cuda", device="NVIDIA H100")
    pair = found.pair("B", "C")
    assert pair.verdict in (Verdict.WORSE, Verdict.EQUAL)
    assert "flop more" in pair.reason or "registers" in pair.reason


def test_an_output_cannot_move_and_the_reason_is_the_schedules_own() -> None:
    b, c = two_stages((64, 64))
    s = te.create_schedule([b, c])
    pair = only_pair(s, "cpu")
    with pytest.raises(ScheduleError, match="is an output of the schedule") as caught:
        s[b].compute_inline()
    assert pair.verdict is Verdict.ILLEGAL
    assert pair.reason == refusal_text(caught.value)


def test_two_kernels_that_read_the_same_are_siblings() -> None:
    x = te.placeholder((2048, 2048), name="x")
    p = te.compute(x.shape, lambda i, j: te.exp(x[i, j]), name="p")
    q = te.compute(x.shape, lambda i, j: te.sin(x[i, j]), name="q")
    s = blocked(te.create_schedule([p, q]), p, q)
    pair = only_pair(s)
    assert pair.relation is Relation.SIBLINGS and pair.shared == ("x",)
    assert pair.verdict is Verdict.BETTER and pair.best is not None
    together = forced(s, pair.best)
    fused = te.explain(together, "cuda")
    assert len(fused.kernels) == 1 and fused.pairs == ()
    assert {place.way for place in fused.kernels[0].stages} == {Way.ROOT, Way.WITH}
    assert fused.nbytes == pytest.approx(3 * 4 * 2048 * 2048, rel=0.01)


def test_what_is_fused_has_no_pairs() -> None:
    b, c = two_stages((64, 64))
    s = te.create_schedule(c)
    s[b].compute_inline()
    assert te.explain(s, "cpu").pairs == ()


def test_an_epilogue_is_brought_to_its_product() -> None:
    a, b = (te.placeholder((2048, 2048), "float16", name=name) for name in "ab")
    k = te.reduce_axis((0, 2048), name="k")
    c = te.compute(
        (2048, 2048),
        lambda i, j: te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), axis=k),
        name="C",
    )
    d = te.compute((2048, 2048), lambda i, j: te.relu(c[i, j]).astype("float16"), name="D")
    s = blocked(te.create_schedule(d), d)
    io, jo, ii, ji = s[c].tile(*s[c].op.axis, 128, 128)
    block = s[c].fuse(io, jo)
    ko, ki = s[c].split(k, 64)
    s[c].reorder(block, ko, ii, ji, ki)
    s[c].bind(block, "blockIdx.x")
    for axis in (ii, ji, ki):
        s[c].vectorize(axis)
    s[c].launch(num_warps=8)
    pair = only_pair(s)
    assert pair.verdict is Verdict.BETTER and pair.best is not None
    assert "reverse_compute_at" in pair.best.code[0]
    assert pair.best.without  # what was decided about D's own kernel is taken back
    together = te.explain(forced(s, pair.best), "cuda", device="NVIDIA H100")
    assert [k.name for k in together.kernels] == ["D"]
