"""Scheduling a scan: what its steps may and may not do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scans
from lowering import after_passes, agrees
from refusals import refused

import tedsl as te
from tedsl.lower.pipeline import lower
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.trace.replay import replay
from tedsl.target import Target

COLUMNS = te.size_var("m")


def columns(extent: te.Expr | int = 13) -> Schedule:
    return te.create_schedule(scans.running_sum(9, extent))


def hoisted(s: Schedule, factor: int, name: str = "total") -> Schedule:
    """All steps for some of the columns at a time."""
    t, i = s[name].op.axis
    outer, inner = s[name].split(i, factor=factor)
    s[name].reorder(outer, t, inner)
    s[name].bind(outer, "blockIdx.x")
    return s


def bound(s: Schedule, stage: str, factor: int) -> Schedule:
    """The last axis of a stage over programs of a few lanes."""
    outer, inner = s[stage].split(s[stage].op.axis[-1], factor=factor)
    s[stage].reorder(outer, *s[stage].op.axis[1:-1])
    s[stage].bind(outer, "blockIdx.x")
    s[stage].vectorize(inner)
    return s


@pytest.mark.parametrize("name", list(scans.EXAMPLES))
def test_as_defined(name: str) -> None:
    assert agrees(te.create_schedule(scans.EXAMPLES[name]()))


def test_printed(golden: Callable[..., None]) -> None:
    s = te.create_schedule(scans.recurrent())
    golden(str(s), "recurrent")
    golden(str(hoisted(te.create_schedule(scans.oscillator()), 16, "swing")), "swing")


def test_one_kernel(golden: Callable[..., None]) -> None:
    s = hoisted(columns(), 4)
    for target in ("cpu", "triton-interpret"):
        passes = after_passes(s, target)
        golden(list(passes.values())[-1], target)
    assert agrees(s)


def test_a_launch_for_each_step(golden: Callable[..., None]) -> None:
    s = bound(te.create_schedule(scans.recurrent()), "U", 4)
    s["half"].compute_inline()
    s["mix"].compute_at(s["U"], s["U"].op.axis[1])
    golden(list(after_passes(s, "triton-interpret").values())[-1], "attached")
    assert agrees(s, targets=("cpu",))
    assert agrees(s)


def test_kernels_of_one_step_pass_on_their_results() -> None:
    s = bound(bound(te.create_schedule(scans.gated()), "mixed", 4), "nh", 2)
    s["gates"].compute_inline()
    s["nc"].vectorize(s["nc"].op.axis[1])
    assert agrees(s)


@pytest.mark.parametrize("size", [0, 1, 2, 7])
def test_env_threads_around_the_steps(size: int) -> None:
    """The threads that TVM's scripts ask for: one launch, whatever the order of the calls."""
    m = te.size_var("m")
    s = columns(m)
    s["total"].env_threads([te.thread_axis("blockIdx.x"), te.thread_axis("threadIdx.x")])
    bound(s, "U", 4)
    assert not lower(s.plan, Target.parse("cuda")).repeats
    assert agrees(s, {m: size})
    s = swing()
    s["swing"].env_threads("blockIdx.x")
    for name in ("force", "nv", "nx"):
        assert len(lower(s.plan, Target.parse("cuda")).repeats) == 1
        bound(s, name, 16)
    assert not lower(s.plan, Target.parse("cuda")).repeats
    assert agrees(s)


def test_env_threads_take_the_place_of_a_loop_that_is_parallel() -> None:
    s = columns()
    s["total"].env_threads(["blockIdx.x"])
    bound(s, "U", 2)
    s["total"].parallel(s["total"].op.axis[1])
    lower(s.plan, Target.parse("cuda"), check=True)
    assert agrees(s)


def test_env_threads_where_programs_need_each_other() -> None:
    s = bound(te.create_schedule(scans.smoothed()), "U", 4)
    s["smooth"].env_threads(["blockIdx.x"])
    assert len(lower(s.plan, Target.parse("cuda")).repeats) == 1
    assert agrees(s)


@pytest.mark.parametrize("size", [0, 1, 2, 7])
def test_symbolic_sizes(size: int) -> None:
    n, m = te.size_var("n"), te.size_var("m")
    for make in (scans.running_sum, scans.oscillator):
        outs = make(n, m)
        plain = te.create_schedule(outs)
        around = hoisted(te.create_schedule(outs), 4, outs[0].op.name)
        for s in (plain, around):
            given = 1 if make is scans.running_sum and size == 0 else 5
            assert agrees(s, {n: size, m: given} if size else {n: 1, m: 0})


@pytest.mark.parametrize("known", [2, 3, 4])
def test_a_kernel_for_a_known_number_of_steps(known: int) -> None:
    """With one step, what the step computes is the whole of its stage, in registers as ever."""
    n = te.size_var("n")
    state, x = (te.placeholder((n, 3), "float64", name=name) for name in "SX")
    start = te.placeholder((2, 3), "float64", name="start")
    step = te.compute((n, 3), lambda t, i: state[t - 1, i] * 0.5 + x[t, i], name="step")
    total = te.scan(start, step, state, name="total")
    head = te.placeholder((n, 3), "float64", name="head")
    s = te.create_schedule(te.gradient(scans.listed(total)[0], [start, x], head))
    s["d_total_d_total.steps"].specialize(n == known)
    for size in (1, 2, 3, 4, 7):
        assert agrees(s, {n: size})


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_a_kernel_for_calls_of_few_rows(bound: int) -> None:
    """Also of none: the loop over the steps has no iteration, and its body is still checked."""
    n = te.size_var("n")
    state, x = (te.placeholder((n, 3), name=name) for name in "SX")
    start = te.placeholder((1, 3), name="start")
    part = te.compute((n, 3), lambda t, i: state[t - 1, i] * 0.5 + x[t, i], name="part")
    step = te.compute((n, 3), lambda t, i: part[t, i] * 0.25, name="step")
    s = te.create_schedule(te.scan(start, step, state, name="total"))
    s["total"].specialize(n < bound)
    for size in (1, 2, 3, 7):
        assert agrees(s, {n: size})


def test_rows_of_init_beyond_the_result_are_not_stored() -> None:
    n = te.size_var("n")
    for size in (0, 1, 2, 3):
        assert agrees(te.create_schedule(scans.fibonacci(n)), {n: size})


def test_inlined_and_attached_within_the_steps() -> None:
    s = te.create_schedule(scans.oscillator())
    s["force"].compute_inline()
    outer, inner = s["nv"].split(s["nv"].op.axis[1], factor=8)
    s["nv"].vectorize(inner)
    s["nv"].parallel(outer)
    assert agrees(s)
    s = te.create_schedule(scans.oscillator())
    s["force"].compute_at(s["nv"], s["nv"].op.axis[1])
    s["nv"].unroll(s["nv"].op.axis[1])
    assert agrees(s)


def test_an_update_at_the_inner_loops_of_its_scan() -> None:
    s = columns()
    t, i = s["total"].op.axis
    s["U"].compute_at(s["total"], i)
    s["total"].unroll(t)
    s["total"].parallel(i)
    assert agrees(s, targets=("cpu",))


def test_staged_copies() -> None:
    s = columns()
    state = next(stage for stage in s.stages if stage.name == "S")
    s.cache_write(s["U"], "local")
    copy = s.cache_read(state, "local", ["U.local"])
    s[copy].compute_at(s["U.local"], s["U.local"].op.axis[0])
    assert agrees(s)
    s = hoisted(columns(), 8)
    x = s.cache_read(s["X"], "local", ["U"])
    s[x].compute_at(s["total"], s["total"].op.axis[0])
    assert agrees(s)


def test_a_copy_of_a_state_of_another_shape() -> None:
    """Inside the steps and behind them, of the state that has more dimensions than the first."""
    a, b = te.placeholder((5,), name="a"), te.placeholder((5, 3), name="b")
    x = te.placeholder((5, 3), name="x")
    starts = [te.placeholder((1,), name="first"), te.placeholder((1, 3), name="others")]
    sums = te.compute((5,), lambda t: a[t - 1] + b[t - 1, 2], name="sums")
    rows = te.compute((5, 3), lambda t, i: b[t - 1, i] - a[t - 1] + x[t, i], name="rows")
    total, last = scans.listed(te.scan(starts, [sums, rows], [a, b], name="both"))
    y = te.compute((5, 3), lambda t, i: last[t, i] * total[t], name="y")
    s = te.create_schedule(y)
    assert s[s.cache_read(last, "local", [y])].op.shape == last.shape
    s.cache_read(b, "local", [rows])
    s.cache_read(total, "local", [y])
    assert agrees(s)


def test_a_reduction_in_the_steps_is_split() -> None:
    s = te.create_schedule(scans.recurrent())
    outer, _ = s["mix"].split(s["mix"].op.reduce_axis[0], factor=3)
    s.rfactor(s["mix"], outer)
    assert agrees(s)


def test_a_stage_without_state_within_the_steps() -> None:
    s = te.create_schedule(scans.recurrent())
    s.decompose_reduction(s["mix"], s["mix"].op.axis[0])
    assert s["mix.init"].plan.placement == s["mix"].plan.placement
    assert agrees(s)


def test_the_trace_is_replayed() -> None:
    outs = scans.oscillator()
    s = hoisted(te.create_schedule(outs), 16, "swing")
    s["force"].compute_inline()
    again = replay(outs, s.trace)
    assert again.as_python() == s.as_python() and str(again) == str(s)
    namespace: dict[str, object] = {"te": te, "swing_v0": outs[0], "swing_v1": outs[1]}
    exec(s.as_python("swing_v0", "swing_v1"), namespace)
    assert str(namespace["s"]) == str(s)


def doubled(state: te.Tensor, name: str) -> te.Tensor:
    return te.compute((4, 3), lambda t, i: state[t - 1, i] * 2, name=name)


def test_one_init_for_two_scans_and_for_the_user() -> None:
    shape = (4, 3)
    zero = te.compute((1, 3), lambda t, i: 2.0, name="zero")
    outs: list[te.Tensor] = []
    for name in ("a", "b"):
        state = te.placeholder(shape, name=f"S{name}")
        outs += scans.listed(te.scan(zero, doubled(state, f"U{name}"), state, name=name))
    assert agrees(te.create_schedule(outs))
    assert agrees(te.create_schedule([zero, *outs]))


def swing() -> Schedule:
    return te.create_schedule(scans.oscillator())


def rnn() -> Schedule:
    return te.create_schedule(scans.recurrent())


def paired() -> Schedule:
    """One stage computes both states of a step."""
    states = [te.placeholder((4,), name=name) for name in "SP"]
    start = [te.placeholder((1,), name=name) for name in "AB"]
    step = te.compute((4,), lambda t: (states[0][t - 1] + 1, states[1][t - 1] * 2), name="U")
    return te.create_schedule(scans.listed(te.scan(start, list(step), states, name="both")))


REFUSED: list[tuple[Callable[[], Schedule], Callable[[Schedule], object], str]] = [
    (
        columns,
        lambda s: s["total"].parallel(s["total"].op.axis[0]),
        r"parallel\(total.t\): t counts the steps of the scan total, which run one after the "
        r"other[\s\S]*step t = 2 reads S\[1, i\], which step t = 1 computes[\s\S]*within a step: i",
    ),
    (columns, lambda s: s["U"].parallel(s["U"].op.axis[0]), r"t counts the steps of the scan"),
    (columns, lambda s: s["U"].vectorize(s["U"].op.axis[0]), r"cannot be lanes of a tile"),
    (
        columns,
        lambda s: s["total"].bind(s["total"].op.axis[0], "blockIdx.x"),
        r"one after the other",
    ),
    (columns, lambda s: s["total"].pipeline(s["total"].op.axis[0]), r"have not stored"),
    (columns, lambda s: s["total"].split(s["total"].op.axis[0], 2), r"stays one loop"),
    (columns, lambda s: s["total"].fuse(*s["total"].op.axis), r"stays one loop"),
    (columns, lambda s: s["U"].fuse(*s["U"].op.axis), r"t has one value in each step of a scan"),
    (columns, lambda s: s["U"].split(s["U"].op.axis[0], 2), r"t has one value in each step"),
    (
        rnn,
        lambda s: s["h"].reorder(*reversed(s["h"].op.axis)),
        r"i would be around the steps t, and each step needs elements at other i of h"
        r"[\s\S]*mix reads S\[t - 1, b, k\][\s\S]*leave t outside i",
    ),
    (columns, lambda s: s["total"].env_threads("warp"), r"unknown thread 'warp'"),
    (columns, lambda s: s["U"].compute_root(), r"U depends on the state of the scan total"),
    (
        lambda: hoisted(columns(), 4),
        lambda s: s["U"].compute_at(s["total"], s["total"].plan.leaf_axes[0]),
        r"i.outer is outside its steps[\s\S]*attach it at total.t or at a loop inside it",
    ),
    (columns, lambda s: s["U"].compute_inline(), r"U is stored in the rows of total"),
    (columns, lambda s: s["first"].compute_inline(), r"first is stored in the first rows of total"),
    (
        columns,
        lambda s: s["first"].compute_at(s["total"], s["total"].op.axis[0]),
        r"first is stored in the first rows of total",
    ),
    (rnn, lambda s: s["h"].compute_inline(), r"h is a scan: its rows follow from each other"),
    (rnn, lambda s: s["h"].compute_at(s["after"], s["after"].op.axis[0]), r"h is a scan"),
    (columns, lambda s: s.cache_write(s["total"], "local"), r"h is a scan|total is a scan"),
    (
        paired,
        lambda s: s.cache_read(s["U"].op.output(1), "local", [s["both"]]),
        r"the scan both has all results of U in its rows",
    ),
    (rnn, lambda s: s["after"].reverse_compute_at(s["h"], s["h"].op.axis[0]), r"h is a scan"),
    (rnn, lambda s: s["after"].reverse_compute_inline(), r"h is a scan"),
    (columns, lambda s: s["S"].split(s["U"].op.axis[1], 2), r"S is the state of a scan"),
    (
        swing,
        lambda s: s["force"].compute_at(s["v0"], s["v0"].op.axis[0]),
        r"nothing inside the loop v0.t reads force",
    ),
]


@pytest.mark.parametrize(("make", "call", "message"), REFUSED)
def test_refused(
    make: Callable[[], Schedule], call: Callable[[Schedule], object], message: str
) -> None:
    s = make()
    before, trace = s.plan, s.trace
    with pytest.raises(te.ScheduleError, match=message) as caught:
        call(s)
    assert s.plan is before and s.trace == trace
    assert caught.value.hint and caught.value.called


def test_parts_of_the_steps_stay_inside() -> None:
    shape = (4, 3)
    state, x = te.placeholder(shape, name="S"), te.placeholder((1, 3), name="X")
    half = te.compute(shape, lambda t, i: state[t - 1, i] * 0.5, name="half")
    step = te.compute(shape, lambda t, i: half[t, i] + 1, name="U")
    (total,) = scans.listed(te.scan(x, step, state, name="total"))
    reader = te.compute(shape, lambda t, i: total[t, i] + half[t, i], name="reader")
    with pytest.raises(te.ScheduleError, match=r"half belongs to the steps .* is read by reader"):
        te.create_schedule(reader)
    with pytest.raises(te.ScheduleError, match=r"U belongs to the steps .* is an output"):
        te.create_schedule([total, step])


def test_a_kernel_around_the_steps_holds_them() -> None:
    s = hoisted(columns(), 4)
    with pytest.raises(te.ScheduleError, match=r"inside the kernel of total, so its loops cannot"):
        s["U"].bind(s["U"].op.axis[1], "blockIdx.y")
    s = bound(columns(), "U", 4)
    t, i = s["total"].op.axis
    with refused(s, "U is attached at total.t"):
        s["total"].reorder(i, t)


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_a_copy_of_a_step_in_other_loops_that_threads_run(target: str) -> None:
    """The step is a row of the scan, and no copy that the kernel could do without."""
    start, x = te.placeholder((1, 3, 5), name="start"), te.placeholder((5, 3, 5), name="x")
    init = te.compute((1, 3, 5), lambda t, i, j: start[t, i, j], name="init")
    state = te.placeholder((5, 3, 5), name="state")
    step = te.compute((5, 3, 5), lambda t, i, j: state[t - 1, i, j] + x[t, i, j], name="step")
    total = te.scan(init, step, state, name="total")
    s = te.create_schedule(total)
    s["step"].split(s["step"].op.axis[1], factor=2)
    local = s[s.cache_write(s["step"], "local")]
    local.bind(local.op.axis[1], "threadIdx.x")
    te.lower(s, "cuda:sm_90")
    first, rest = (
        np.ones((1, 3, 5), np.float32),
        np.random.default_rng(0).random((5, 3, 5), "float32"),
    )
    found = te.build(s, target=target)(first, rest)
    rest[0] = first[0]
    np.testing.assert_allclose(found, np.cumsum(rest, axis=0), rtol=1e-6)
