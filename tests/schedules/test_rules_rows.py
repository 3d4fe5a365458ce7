"""Rows that are folded and read again: what shares a kernel, a read, or a lane."""

from __future__ import annotations

import re

import pytest
import rule_cases as c
from rule_cases import RuleCase
from rule_checks import compiled, interpreted

import tedsl as te
from tedsl.backends.triton.emit.module import emit
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.plan import Online
from tedsl.target import Target

CUDA = Target.parse("cuda:sm_90")


def printed(s: Schedule) -> str:
    return emit(lower(s.plan, CUDA), CUDA).source


def kernels(s: Schedule) -> list[str]:
    return [func.name for func in lower(s.plan, CUDA).funcs]


def loops(source: str) -> list[str]:
    """The bodies of the loops without loops inside."""
    found: list[str] = []
    lines = source.splitlines()
    for number, line in enumerate(lines):
        if re.match(r"\s*for ", line):
            depth = len(line) - len(line.lstrip())
            body: list[str] = []
            for each in lines[number + 1 :]:
                if each.strip() and len(each) - len(each.lstrip()) <= depth:
                    break
                body.append(each)
            found.append("\n".join(body))
    return [body for body in found if "tl.range" not in body]


# Rows and columns of one read ----------------------------------------------------------------


@pytest.mark.parametrize(("m", "n"), [(300, 33), (1400, 8), (7, 65), (1, 1), (2000, 3)])
def test_columns_go_along_with_rows(m: int, n: int) -> None:
    case = RuleCase("slopes", lambda: c.slopes_of_rows(m, n))
    s = interpreted(case, "cuda", {"slope.columns_along": True})
    assert kernels(s) == ["slope", "scaled"]
    alone = interpreted(case, "cuda", {"slope.columns_along": False})
    assert "sums_rf" not in printed(alone).partition("def slope_kernel(")[2].partition(":")[0]


def slopes_of_sequences(b: int, m: int, n: int) -> list[te.Tensor]:
    """As `slopes_of_rows`, of rows that two axes number."""
    d, x = c.p(b, m, n, name="d"), c.p(b, m, n)
    k, i0, i1 = (te.reduce_axis((0, size)) for size in (n, b, m))
    total = te.compute((b, m), lambda h, i: te.sum(d[h, i, k] * x[h, i, k], axis=k), name="total")
    slope = te.compute(
        (b, m, n), lambda h, i, j: d[h, i, j] - x[h, i, j] * total[h, i], name="slope"
    )
    sums = te.compute((n,), lambda j: te.sum(d[i0, i1, j] * x[i0, i1, j], [i0, i1]), name="sums")
    return [slope, te.compute((n,), lambda j: sums[j] * 2.0, name="scaled")]


@pytest.mark.parametrize(("b", "m", "n"), [(3, 130, 33), (40, 7, 65), (300, 1, 8)])
def test_columns_go_along_with_rows_of_several_axes(b: int, m: int, n: int) -> None:
    case = RuleCase("slopes", lambda: slopes_of_sequences(b, m, n))
    s = interpreted(case, "cuda", {"slope.columns_along": True})
    assert kernels(s) == ["slope", "scaled"]


def test_gradients_of_normalised_sequences_read_them_once() -> None:
    """Layer norm of three axes: 7 kernels, where one of two axes had 4."""
    assert kernels(schedule_for(slopes_of_sequences(32, 390, 902), CUDA)) == ["slope", "scaled"]


def test_few_rows_leave_columns_alone() -> None:
    """Parts of the columns for each program would be as much as what is read."""
    for rows, along in ((100, False), (1000, True)):
        knobs = schedule_for(c.slopes_of_rows(rows, 512), CUDA).knobs
        assert {k.name: k.chosen for k in knobs}["slope.columns_along"] is along


def test_matrices_of_rows_and_columns_are_loaded_once() -> None:
    source = printed(schedule_for(c.slopes_of_rows(4096, 1024, "bfloat16"), CUDA))
    kernel = source.partition("def slope_kernel(")[2].partition("@triton.jit")[0]
    (body,) = loops(kernel)
    for name, inside in (("d", True), ("x", True), ("w", False)):
        load = rf"{name}_tile = tl.load\("
        assert len(re.findall(load, kernel)) == 1
        assert bool(re.search(load, body)) is inside


def test_matrices_read_through_other_stages_count_for_the_pipeline() -> None:
    """Rows of 65,536 bytes of two matrices, of which twice as much as fits was to be under way."""
    m, n = 630, 16384
    k, i0 = te.reduce_axis((0, n)), te.reduce_axis((0, m))

    def half(t: te.Tensor) -> te.Tensor:
        return te.compute(t.shape, lambda *i: t[i] * 0.5, name=f"half_{t.name}")

    d, x, w = half(c.p(m, n, name="d")), half(c.p(m, n)), half(c.p(n, name="w"))
    r = c.p(m, name="r")
    part = te.compute((m, n), lambda i, j: d[i, j] * w[j], name="part")
    total = te.compute((m,), lambda i: te.sum(part[i, k] * x[i, k], axis=k), name="total")
    slope = te.compute((m, n), lambda i, j: part[i, j] * r[i] - x[i, j] * total[i], name="slope")
    sums = te.compute((n,), lambda j: te.sum(d[i0, j] * (x[i0, j] * r[i0]), axis=i0), name="sums")
    scaled = te.compute((n,), lambda j: sums[j] * 0.5, name="scaled")
    ahead = next(k for k in schedule_for([slope, scaled], CUDA).knobs if k.name == "slope.ahead")
    assert max(n for n in ahead.choices if isinstance(n, int)) == 2


@pytest.mark.ptxas
@pytest.mark.parametrize("decisions", [{}, {"slope.rows": 4, "slope.ahead": 1}])
def test_rows_and_columns_in_tritons_interpreter(decisions: dict[str, object]) -> None:
    compiled(RuleCase("slopes", lambda: c.slopes_of_rows(270, 20)), "triton-interpret", decisions)


def test_columns_that_need_the_rows_result_stay_alone() -> None:
    x = c.p(64, 32)
    k, i = te.reduce_axis((0, 32)), te.reduce_axis((0, 64))
    total = te.compute((64,), lambda r: te.sum(x[r, k], axis=k), name="total")
    share = te.compute((64, 32), lambda r, j: x[r, j] / (total[r] + 40.0), name="share")
    sums = te.compute((32,), lambda j: te.sum(share[i, j] * x[i, j], axis=i), name="sums")
    s = schedule_for([share, sums], CUDA)
    assert "share.columns_along" not in {knob.name for knob in s.knobs}
    interpreted(RuleCase("shares", lambda: [share, sums]), "cuda")


# Results of rows, and rows that are read again -------------------------------------------------


@pytest.mark.parametrize(("m", "n"), [(5, 257), (3, 40000), (1, 7)])
def test_what_reads_results_of_rows_runs_in_their_kernel(m: int, n: int) -> None:
    case = RuleCase("both", lambda: c.loss_and_slope(m, n))
    parts = ["total.rf", "loss", "slope"] if n > 1000 else ["slope"]  # few long rows
    assert kernels(interpreted(case, "cuda")) == parts
    apart = interpreted(case, "cuda", {"loss.in_rows": False})
    assert len(kernels(apart)) > 1


def test_results_that_are_wanted_themselves_are_stored_there_too() -> None:
    loss, slope = c.loss_and_slope(4, 33)
    level = next(op for op in te.create_schedule([loss, slope]).stages if op.name == "level")
    s = schedule_for([loss, slope, level.op.outputs[0]], CUDA)
    assert not s.fallbacks and len(lower(s.plan, CUDA).funcs) == 1


# Lanes -----------------------------------------------------------------------------------------


def test_what_runs_beside_reads_a_chain_of_one_loop() -> None:
    """Found by drawn decisions: `loss` runs in the loop of `slope`, and reads what goes along."""
    case = RuleCase("both", lambda: c.loss_and_slope(6, 700))
    asked = {"slope.whole_row": False, "slope.lanes": False, "slope.block": 512, "slope.rows": 2}
    s = interpreted(case, "cuda", asked)
    assert isinstance(s["top"].plan.placement, Online) and kernels(s) == ["slope"]
    compiled(case, "triton-interpret", asked)


def test_lanes_exchange_nothing_in_the_loop() -> None:
    source = printed(schedule_for(c.loss_and_slope(8192, 128256, "bfloat16"), CUDA))
    fold, _ = loops(source)
    assert "tl.reduce(" in fold  # of the neighbours that a lane takes at once
    assert ", 1, max_nan)" in fold and ", 0, max_nan)" not in fold
    assert "axis=0" not in fold


def test_a_lane_takes_elements_that_lie_apart_where_rows_start_anywhere() -> None:
    """Neighbouring lanes load neighbours, one by one, and each rescales once for eight of them."""
    looped = {"slope.whole_row": False, "slope.skew": False}
    source = printed(schedule_for(c.loss_and_slope(8192, 50257, "bfloat16"), CUDA, looped))
    fold, _ = loops(source)
    assert "tl.reduce(" in fold and "axis=0" not in fold
    assert "tl.arange(0, 8)[None, :] * 64 + tl.arange(0, 64)[:, None]" in source


def test_pieces_of_rows_that_start_anywhere_start_where_an_access_may() -> None:
    """A lane takes 8 elements of 16 bits; what is masked is in loops of its own."""
    source = printed(schedule_for(c.loss_and_slope(8192, 50257, "bfloat16"), CUDA))
    assert "i_outer * 50256 + " in source and "i_outer // 8 * 8" in source
    first, whole, stored = loops(source)
    assert "mask=" in first and "mask=" not in whole and "mask=" not in stored
    assert "1, max_nan)" in whole


SKEWED = {
    "rows alone": (lambda: c.loss_and_slope(300, 50257, "bfloat16"), True),
    "a fold alone": (lambda: te.nn.logsumexp(te.placeholder((300, 50257), "bfloat16")), True),
    "aligned": (lambda: c.loss_and_slope(300, 50256, "bfloat16"), False),
    "with a vector": (lambda: scaled_rows(64, 50257), False),
}


def scaled_rows(m: int, n: int) -> te.Tensor:
    x, w = te.placeholder((m, n), "bfloat16", name="x"), te.placeholder((n,), "bfloat16", name="w")
    return te.nn.log_softmax(te.compute((m, n), lambda i, j: x[i, j] * w[j], name="scaled"))


@pytest.mark.parametrize("name", SKEWED)
def test_rows_are_skewed_where_all_that_is_read_along_them_lies_so(name: str) -> None:
    make, expected = SKEWED[name]
    text = str(schedule_for(make(), CUDA))
    assert (".skewed" in text) is expected


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("n", [3001, 3000, 40000])
def test_lanes_are_merged(rows: int, n: int) -> None:
    case = RuleCase("both", lambda: c.loss_and_slope(5, n))
    decisions = {"slope.block": 512, "slope.rows": rows}
    if n < 32768:
        decisions["slope.whole_row"] = False
    names = [stage.name for stage in interpreted(case, "cuda", decisions).stages]
    assert "total.rf" in names and "top.rf" in names


def test_rows_that_are_all_masked_have_finite_lanes() -> None:
    """Lanes beyond the end of a row fold nothing, and what they hold counts nothing."""
    case = RuleCase("both", lambda: c.loss_and_slope(2, 1030))
    interpreted(case, "cuda", {"slope.whole_row": False, "slope.block": 512})


@pytest.mark.ptxas
def test_parts_of_rows_in_lanes_in_tritons_interpreter() -> None:
    case = RuleCase("long", lambda: c.softmax(2, 70000))
    compiled(case, "triton-interpret")
    assert "softmax.part_lanes" in {knob.name for knob in interpreted(case, "cuda").knobs}


PIECES = {
    "long rows": ((1024, 128256), 1, (8192, 1, 16)),
    "long rows that start anywhere": ((1024, 50257), 1, (4096, 1, 16)),
    "folds across rows": ((70000, 8704), 0, (1024, 1, 8)),
}


@pytest.mark.parametrize("name", PIECES)
def test_what_is_read_again_is_read_in_pieces(name: str) -> None:
    shape, axis, expected = PIECES[name]
    x = te.placeholder(shape, "bfloat16", name="x")
    knobs = {k.name: k.chosen for k in schedule_for([te.nn.softmax(x, axis=axis)], CUDA).knobs}
    assert tuple(knobs[f"softmax.{n}"] for n in ("block", "stages", "warps")) == expected


COLUMNS = {
    "few in aligned rows": ((8192, 8192), "float32", (32, True)),
    "of two bytes": ((4096, 4096), "bfloat16", (64, True)),
    "in rows that start anywhere": ((8191, 8193), "bfloat16", (128, False)),
    "in hundreds of parts": ((1048576, 64), "bfloat16", (64, False)),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_few_parts_of_columns_are_merged_in_one_launch(name: str) -> None:
    shape, dtype, expected = COLUMNS[name]
    x = te.placeholder(shape, dtype, name="x")
    k = te.reduce_axis((0, shape[0]), name="k")
    y = te.compute((shape[1],), lambda j: te.sum(te.cast(x[k, j], "float32"), axis=k), name="y")
    knobs = {k.name: k.chosen for k in schedule_for([y], CUDA).knobs}
    assert (knobs["y.columns"], knobs["y.one_launch"]) == expected


# One element -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n"), [(300, 71), (256, 256), (5, 7), (1, 20000)])
def test_a_mean_takes_two_launches_at_most(m: int, n: int) -> None:
    case = RuleCase("mean", lambda: c.mean_of_all(m, n))
    assert len(kernels(interpreted(case, "cuda"))) <= 2


def test_only_the_last_part_of_a_fold_has_masks() -> None:
    source = printed(schedule_for(c.mean_of_all(8191, 8193, "bfloat16"), CUDA))
    first, _, last = source.partition("def total_rf")[2].partition("if 1023 <= ")
    assert "mask=" not in first and "mask=" in last


@pytest.mark.parametrize("number", [0, 1])
def test_one_of_several_results_is_read_by_a_row_twice(number: int) -> None:
    """What is loaded once is the result that is read, whichever it is of its stage."""
    x = te.placeholder((6, 40), name="x")
    both = te.compute((6, 40), lambda i, j: (x[i, j] + 1.0, x[i, j] * 2.0), name="both")
    k = te.reduce_axis((0, 40), name="k")
    part = both[number]
    top = te.compute((6,), lambda i: te.max(part[i, k], axis=k), name="top")
    case = RuleCase("second", lambda: te.compute((6, 40), lambda i, j: part[i, j] - top[i]))
    interpreted(case, "cuda")


@pytest.mark.parametrize(("high", "wide"), [(9, 7), (6, 5), (14, 14), (3, 24), (5, 33)])
def test_short_rows_that_are_folded_across_share_a_tile(high: int, wide: int) -> None:
    """Neighbours of two axes fill transactions: 7 elements of a row do not."""

    def softmax() -> te.Tensor:
        x, k = te.placeholder((2, 5, high, wide), "float32", name="x"), te.reduce_axis((0, 5))
        top = te.compute((2, high, wide), lambda n, i, j: te.max(x[n, k, i, j], axis=k), name="top")
        return te.compute(
            (2, 5, high, wide), lambda n, c, i, j: te.exp(x[n, c, i, j] - top[n, i, j]), name="y"
        )

    s = interpreted(RuleCase("softmax", softmax), "cuda")
    assert (".split(i, factor=" in s.as_python()) == (wide <= 32)


def normed_mean(channels: int, rows: int, wide: int) -> te.Tensor:
    """The mean of each channel of what batch statistics normalise."""
    x = te.placeholder((1, channels, rows, wide), "float16", name="x")
    scale = te.placeholder((channels,), name="scale")
    y = te.nn.relu(te.nn.batch_norm_training(x, scale, scale)[0])
    h, w = te.reduce_axis((0, rows)), te.reduce_axis((0, wide))
    total = te.compute(
        (channels,), lambda c: te.sum(te.cast(y[0, c, h, w], "float32"), axis=(h, w)), name="total"
    )
    return te.compute((channels,), lambda c: total[c] / (rows * wide), name="mean")


def test_folds_that_are_no_cascade_are_split_each() -> None:
    """The mean of what a row's statistics bend is folded after them: none of the passes is of a
    program for each of a few long rows."""
    s = schedule_for(normed_mean(32, 775, 775), CUDA)
    names = kernels(s)
    assert len(names) <= 6
    assert {"batch_norm.var.red.local.rf", "total.rf"} <= set(names)
    interpreted(RuleCase("mean", lambda: normed_mean(3, 90, 91)), "cuda")


def test_a_lane_rescales_once_for_several_elements_of_several_images() -> None:
    """Where channels lie apart in each image, too: places are quotients then."""
    x = te.placeholder((2, 24, 923, 923), "float16", name="x")
    scale = te.placeholder((24,), name="scale")
    source = printed(schedule_for(te.nn.batch_norm_training(x, scale, scale)[0], CUDA))
    fold, *_ = loops(source)
    assert "// 851929" in fold and "tl.arange(0, 8)" in source
    assert "_rf_rf += tl.sum(" in fold


@pytest.mark.parametrize(("images", "length", "held"), [(72, 136, False), (64, 128, True)])
def test_rows_of_padded_axes_are_read_in_pieces(images: int, length: int, held: bool) -> None:
    """A tile of 72 times 136 elements would be 128 times 256: most lanes would be idle."""
    x, scale = te.placeholder((images, 1057, length), name="x"), te.placeholder((1057,), name="w")
    s = schedule_for(te.nn.batch_norm_training(x, scale, scale)[0], CUDA)
    assert {knob.name: knob.chosen for knob in s.knobs}["batch_norm.whole_row"] is held


def test_parts_of_long_rows_start_at_vector_boundaries() -> None:
    """128 parts of 177516 elements would start at multiples of 8 bytes."""
    x = te.placeholder((2, 128 * 177516), "float16", name="x")
    k = te.reduce_axis((0, 128 * 177516))
    total = te.compute((2,), lambda i: te.sum(te.cast(x[i, k], "float32"), axis=k), name="total")
    assert "factor=131072" in schedule_for(total, CUDA).as_python()


def folded_across(high: int, rows: int, wide: int, moments: bool) -> list[te.Tensor]:
    """Sums over axes, the last of which lies outermost in memory; with the deviations from them."""
    x = te.placeholder((high, rows, wide), name="x")
    k, h, p, q = (te.reduce_axis((0, n), a) for n, a in zip((wide, high) * 2, "khpq", strict=True))
    total = te.compute((rows,), lambda i: te.sum(x[h, i, k], axis=[k, h]), name="total")
    if not moments:
        r, a, b = (te.reduce_axis((0, n), m) for n, m in ((rows, "r"), (wide, "a"), (high, "b")))
        whole = te.compute((), lambda: te.sum(x[b, r, a], axis=[r, a, b]), name="whole")
        return [total, whole]
    mean = te.compute((rows,), lambda i: total[i] / float(high * wide), name="mean")
    off = te.compute(
        (rows,),
        lambda i: te.sum((x[q, i, p] - mean[i]) * (x[q, i, p] - mean[i]), axis=[p, q]),
        name="off",
    )
    return [total, off]


@pytest.mark.parametrize("moments", [False, True])
def test_several_axes_are_folded_along_memory(moments: bool) -> None:
    apart = {"total.in_rows": False} if moments else {}
    large = schedule_for(folded_across(192, 480, 215, moments), CUDA, apart)
    fused = ("q.p.fused", "h.k.fused") if moments else ("b.r.a.fused", "h.k.fused")
    made = {name for step in large.trace.steps for name in step.results}
    assert made.issuperset(fused)
    small = RuleCase("across", lambda: folded_across(20, 12, 101, moments))
    choices: dict[str, object] = {"total.in_rows": True, "off.online": True, "off.block": 512}
    pieces = {"off.whole_row": False, **choices} if moments else {"total.whole_row": False}
    s = interpreted(small, "cuda:sm_90", pieces)
    assert any(fused[not moments] in step.results for step in s.trace.steps)
    assert any(step.primitive == "split_online" for step in s.trace.steps) == moments
    compiled(small, "triton-interpret", pieces)


def test_short_axes_that_padding_would_leave_idle_run_in_pieces() -> None:
    """41 x 24 x 21 elements of a result would be 64 x 32 x 32 lanes."""
    x = c.p(41, 24, 1024, 21, dtype="bfloat16")
    p, q, r = (te.reduce_axis((0, n), name=s) for n, s in zip((41, 24, 21), "pqr", strict=True))
    y = te.compute((1024,), lambda j: te.min(x[p, q, j, r], axis=[p, q, r]), name="y")
    s = schedule_for(y, "cuda:sm_90")
    assert {knob.name: knob.chosen for knob in s.knobs}["y.whole_row"] is False


def rows_of_pages(pages: int, heads: int, taken: int, size: int = 4, n: int = 16) -> te.Tensor:
    """A row of each head for each element of pages that data say: keys of a paged cache by a
    query."""
    keys = c.p(pages, size, heads, n, dtype="bfloat16", name="keys")
    query, which = (
        c.p(heads, n, dtype="bfloat16", name="query"),
        c.p(taken, dtype="int64", name="which"),
    )
    k = te.reduce_axis((0, n), name="k")
    return te.compute(
        (heads, taken, size),
        lambda h, p, i: te.sum(query[h, k] * keys[which[p] % pages, i, h, k], axis=k),
        name="y",
    )


def test_few_rows_of_the_last_axis_are_taken_with_those_beside_them_in_memory() -> None:
    """Four rows of 32 bytes were a program of one warp: 1.1 million programs for 142855 pages."""
    s = schedule_for(rows_of_pages(142863, 8, 142855), CUDA)
    assert "tl.arange(0, 8)" in printed(s)
    assert "for h.outer.p.outer.i.outer.fused in 0..35714 " in str(s)


@pytest.mark.parametrize(("heads", "taken", "size"), [(3, 13, 4), (8, 5, 3), (1, 40, 2), (5, 1, 1)])
def test_rows_of_several_axes_have_tails(heads: int, taken: int, size: int) -> None:
    case = RuleCase("pages", lambda: rows_of_pages(11, heads, taken, size))
    for high in (1, 8, 32):
        interpreted(case, "cuda", {"y.high": high} if heads * taken > 5 else {})
    compiled(case, "triton-interpret", {})


def test_rows_of_constants_read_nothing() -> None:
    def constants() -> te.Tensor:
        k = te.reduce_axis((0, 1), name="k")
        two = te.compute((6, 3, 1), lambda *_: te.const(2, "int32"), name="two")
        return te.compute((6, 3), lambda i, j: te.sum(two[i, j, k], axis=k), name="y")

    interpreted(RuleCase("constants", constants), "cuda", {})


def test_index_and_weights_are_no_lanes_of_a_column() -> None:
    """Tiles are as deep as the elements along lanes are narrow, whatever else a term reads."""
    x, which = c.p(1 << 20, 16, dtype="bfloat16"), c.p(1 << 18, 1, dtype="int64", name="which")
    k = te.reduce_axis((0, 1 << 18), name="k")
    y = te.compute((16,), lambda j: te.sum(x[which[k, 0] % (1 << 20), j], axis=k), name="y")
    s = schedule_for(y, CUDA)
    assert {knob.name: knob.chosen for knob in s.knobs}["y.rows"] == 256
