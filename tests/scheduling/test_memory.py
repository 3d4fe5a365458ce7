"""Bounds with a memory of the plans before are those that are inferred anew."""

from __future__ import annotations

import tedsl as te
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.memo import Memory
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.plan.inline import inline_stages
from tedsl.scheduling.plan.unshare_axes import separate_axes
from tedsl.scheduling.regions import infer as bounds
from tedsl.scheduling.regions.infer import infer, infer_again


def softmax(rows: te.Expr | int = 6) -> Schedule:
    """Two reductions that share an axis, one of them read through an inlined stage."""
    x = te.placeholder((rows, 100), name="x")
    k = te.reduce_axis((0, 100), name="k")
    top = te.compute((rows,), lambda i: te.max(x[i, k], axis=k), name="top")
    e = te.compute((rows, 100), lambda i, j: te.exp(x[i, j] - top[i]), name="e")
    total = te.compute((rows,), lambda i: te.sum(e[i, k], axis=k), name="total")
    out = te.compute((rows, 100), lambda i, j: e[i, j] / total[i], name="out")
    s = te.create_schedule(out)
    s["e"].compute_inline()
    return s


def facts_of(plan: Plan, memory: Memory | None) -> dict[str, object]:
    """All that is printed of the bounds of a plan."""
    shown = separate_axes(inline_stages(plan))
    found = infer(shown) if memory is None else infer(shown, None, memory)
    return {
        name: (
            [(axis.name, str(extent)) for axis, extent in each.extents.items()],
            [(axis.name, str(value)) for axis, value in each.index.items()],
            [(axis.name, str(value)) for axis, value in each.local.items()],
            [(str(r.min), str(r.extent)) for r in (*each.region, *each.stored)],
            [str(guard) for guard in each.guards],
            [(str(r.min), str(r.extent)) for r in each.slices.values()],
        )
        for name, each in found.stages.items()
    }


def steps(s: Schedule) -> list[Plan]:
    """The plans of a schedule whose reductions go along with one loop of a tile of rows."""
    out, total = s["out"], s["total"]
    outer, inner = out.split(out.op.axis[0], factor=4)
    out.vectorize(inner)
    total.compute_at(out, outer)
    turn, piece = total.split(total.op.reduce_axis[0], factor=32)
    total.online(turn)
    total.vectorize(piece)
    _, lane = out.split(out.op.axis[1], factor=16)
    out.vectorize(lane)
    return list(s.plans)


def test_a_memory_changes_no_bounds() -> None:
    for rows in (6, te.var("n")):
        memory = Memory(64)
        plans = steps(softmax(rows))
        for plan in (*plans, *reversed(plans)):
            assert facts_of(plan, memory) == facts_of(plan, None)


def test_what_a_step_did_not_change_is_the_same_object() -> None:
    s = softmax()
    before, (out, *_) = infer_again(inline_stages(s.plan)), [s["out"]]
    out.split(out.op.axis[1], factor=16)
    after = infer_again(inline_stages(s.plan))
    assert after["top"] is before["top"]
    assert after["out"] is not before["out"]
    assert len(after["out"].extents) == len(before["out"].extents) + 2
    assert infer(inline_stages(s.plan))["top"] is not before["top"]


def test_a_memory_is_bounded() -> None:
    memory = Memory(3)
    for number in range(20):
        assert memory.get(("square", number), lambda n=number: n * n) == number * number
        assert memory.get(("square", number), lambda: -1) == number * number
        assert len(memory._known) <= 3  # pyright: ignore[reportPrivateUsage]
    assert memory.get(("none",), lambda: None) is None
    assert memory.get(("none",), lambda: 1) is None
    nothing = Memory(0)
    assert [nothing.get(("a",), lambda n=n: n) for n in (1, 2)] == [1, 2]
    assert bounds.NONE.get(("a",), lambda: 5) == 5
    assert bounds.NONE.get(("a",), lambda: 6) == 6
