"""`legal_places` lists what `compute_at` accepts, all of it and nothing else."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from drawn_chains import chain_schedules, chains
from drawn_schedules import schedules
from hypothesis import given, note, seed, settings
from scan_strategies import recurrences
from strategies import computes

import tedsl as te
from tedsl.errors import ScheduleError
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import ComputeOp

EXAMPLES = settings().max_examples // 4 + 1


def check(s: Schedule) -> None:
    """Each loop of each stage is accepted exactly where it is listed."""
    note(f"{s.as_python()}\n{s}")
    for stage in s.stages:
        if not isinstance(stage.op, ComputeOp):
            continue
        listed = {(place.name, axis) for place, axis in stage.legal_places()}
        for other in s.stages:
            for axis in other.leaf_iter_vars:
                known = (other.name, axis) in listed
                assert accepted(s, stage.name, other.name, axis) == known, (
                    f"{stage.name} at {other.name}.{axis.name} is {'' if known else 'not '}listed"
                )


def accepted(s: Schedule, name: str, target: str, axis: te.Axis) -> bool:
    copy = s.copy()
    try:
        copy[name].compute_at(copy[target], axis)
    except ScheduleError as error:
        assert error.hint
        return False
    return True


@pytest.mark.parametrize("shard", range(2))
def test_of_drawn_schedules(shard: int) -> None:
    @seed(shard)
    @settings(max_examples=EXAMPLES)
    @given(st.data())
    def drawn(data: st.DataObject) -> None:
        case = data.draw(computes(externs=True).strategy(), label="case")
        check(data.draw(schedules(case.outputs, 6, case.sizes).strategy(), label="schedule"))

    drawn()


def test_of_chains() -> None:
    @seed(0)
    @settings(max_examples=EXAMPLES)
    @given(st.data())
    def drawn(data: st.DataObject) -> None:
        case = data.draw(chains().strategy(), label="case")
        check(data.draw(chain_schedules(case, 2).strategy(), label="schedule"))

    drawn()


def test_of_scans() -> None:
    @seed(0)
    @settings(max_examples=EXAMPLES)
    @given(st.data())
    def drawn(data: st.DataObject) -> None:
        case = data.draw(recurrences().strategy(), label="case")
        check(data.draw(schedules(case.outputs, 4, case.sizes).strategy(), label="schedule"))

    drawn()


def test_what_goes_along_with_a_reduction_has_no_places() -> None:
    a = te.placeholder((13,), "float32", name="A")
    k, q = (te.reduce_axis((0, 13), name=name) for name in "kq")
    m = te.compute((), lambda: te.max(a[k], axis=k), name="m")
    total = te.compute((), lambda: te.sum(te.exp(a[q] - m[()]), axis=q), name="l")
    s = te.create_schedule(total)
    s[total].online(q)
    assert s[m].legal_places() == ()
    with pytest.raises(ScheduleError, match=r"m goes along with the reduction of l"):
        s[m].compute_at(s[total], q)
