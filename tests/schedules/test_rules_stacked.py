"""Results along a short axis that share what they are computed from: one kernel for all."""

from __future__ import annotations

import pytest
import rule_cases as c
from rule_cases import RuleCase
from rule_checks import interpreted

import tedsl as te
from tedsl.lower.pipeline import lower
from tedsl.schedules import default_schedule
from tedsl.schedules.gpu.pointwise import stacked_results
from tedsl.target import Target
from tedsl.tensor.tensor import Tensor


def states(steps: int, *shape: int, results: int | None = None) -> Tensor:
    """h[n] = a[n] h[n - 1] + b[n], written out, and the last of them beside each other."""
    a, b = (c.p(steps, *shape, dtype="bfloat16", name=name) for name in ("a", "b"))

    def after(last: Tensor, n: int) -> Tensor:
        def following(*i: te.Axis) -> te.Expr:
            scaled = a[n, *i].astype("float32") * last[i].astype("float32")
            return (scaled + b[n, *i]).astype("bfloat16")

        return te.compute(shape, following, name=f"h{n}")

    found = [te.compute(shape, lambda *i: b[0, *i] * a[0, *i], name="h0")]
    for n in range(1, steps):
        found.append(after(found[-1], n))
    chosen = found[-(results or steps) :]

    def element(n: te.Axis, *i: te.Axis) -> te.Expr:
        value = chosen[-1][i]
        for place in reversed(range(len(chosen) - 1)):
            value = te.if_then_else(n == place, chosen[place][i], value)
        return value

    return te.compute((len(chosen), *shape), element, name="states")


@pytest.mark.parametrize("steps", [4, 8, 12])
@pytest.mark.parametrize("shape", [(6598, 1280), (9_000_000,), (7, 1001, 1000)])
def test_states_are_one_kernel(steps: int, shape: tuple[int, ...]) -> None:
    s = default_schedule(states(steps, *shape), "cuda:sm_90")
    assert not s.fallbacks
    assert [func.name for func in lower(s.plan, Target.parse("cuda:sm_90")).funcs] == ["states"]


@pytest.mark.parametrize(("steps", "results"), [(3, 3), (5, 2)])
@pytest.mark.parametrize("shape", [(9, 70), (33,), (2, 3, 40)])
def test_numbers(
    steps: int, results: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacked_results, "recomputes", lambda *_: False)
    case = RuleCase("states", lambda: states(steps, *shape, results=results))
    s = interpreted(case, "cuda:sm_90")
    assert "states.stacked" in {knob.name for knob in s.knobs}


def test_what_others_read_too_is_stored() -> None:
    made = states(4, 6598, 1280)
    inner = next(t for t in made.op.input_tensors if t.op.name == "h1")
    s = default_schedule([made, inner], "cuda:sm_90")
    assert "states.stacked" not in {knob.name for knob in s.knobs}


@pytest.mark.parametrize(("steps", "results"), [(3, 3), (5, 3), (9, 9)])
@pytest.mark.parametrize("shape", [(9, 70), (33,), (2, 3, 40), (300, 312)])
def test_on_the_cpu(steps: int, results: int, shape: tuple[int, ...]) -> None:
    """Strips of all states, each computed once."""
    case = RuleCase("states", lambda: states(steps, *shape, results=results))
    s = interpreted(case, "cpu")
    (knob,) = [knob for knob in s.knobs if knob.name == "states.stacked"]
    assert knob.chosen and len(lower(s.plan, Target.parse("cpu")).funcs) == 1
    interpreted(case, "cpu", {"states.stacked": False})


def test_one_cheap_value_that_several_read_is_no_stack_on_the_cpu() -> None:
    s = default_schedule(states(2, 300, 312), "cpu")
    assert "states.stacked" not in {knob.name for knob in s.knobs}
