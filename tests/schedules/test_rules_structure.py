"""What decides which stages share a kernel: equal reads, axes of one element, columns too few for
a device, what was inlined before, and short reductions beside other kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import rule_cases as c
from rule_cases import RuleCase
from rule_checks import compiled, interpreted

import tedsl as te
from tedsl.schedules import default_schedule, schedule_for
from tedsl.tensor.tensor import Tensor

B = "bfloat16"
Made = Tensor | Sequence[Tensor]


def root_of_squares(rows: int, columns: int) -> Tensor:
    """A norm that keeps its axis."""
    x, k = c.p(rows, columns), te.reduce_axis((0, columns), name="k")
    total = te.compute((rows,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), name="total")
    return te.compute((rows, 1), lambda i, _: te.sqrt(total[i]), name="norm")


def halves(rows: int, columns: int) -> Tensor:
    """Pairs of neighbours, with an axis of one element between."""
    x, k = c.p(rows, 2 * columns + 1), te.reduce_axis((0, 2), name="k")
    pair = te.compute(
        (rows, 1, columns), lambda i, _, j: te.sum(x[i, 2 * j + k], axis=k), name="pair"
    )
    return te.compute((rows, columns), lambda i, j: pair[i, 0, j] * 0.5, name="half")


def normed(*shape: int) -> Tensor:
    """Columns over their norm."""
    x, k = c.p(*shape), te.reduce_axis((0, shape[1]), name="k")
    total = te.compute(
        (shape[0], shape[2]), lambda i, j: te.sum(x[i, k, j] * x[i, k, j], axis=k), name="total"
    )
    return te.compute(
        shape, lambda i, h, j: x[i, h, j] / te.sqrt(total[i, j] + 1e-6), name="normed"
    )


def softplus(*shape: int) -> Tensor:
    """What reads a quotient several times, at one place."""
    y = normed(*shape)

    def soft(*i: te.Axis) -> te.Expr:
        return te.select(y[i] > 20.0, y[i], te.log(1.0 + te.exp(y[i])))

    return te.compute(shape, soft, name="soft")


def blurred_along(x: Tensor, rows: int, columns: int) -> Tensor:
    def edge(i: te.Axis, j: te.Axis) -> te.Expr:
        a, b = (x[i + n, j].astype("float32") for n in (0, 1))
        return te.sqrt(te.abs((a - b).astype(B).astype("float32"))).astype(B)

    return te.compute((rows, columns), edge, name="edge")


def blurred(rows: int, columns: int) -> Tensor:
    """Bright spots, blurred along rows and columns, each step rounded."""
    x = c.p(rows, columns, dtype=B)

    def bright(i: te.Axis, j: te.Axis) -> te.Expr:
        y = (x[i, j].astype("float32") * 1.5).astype(B).astype("float32") - 0.25
        y = te.max(te.min(y.astype(B).astype("float32"), 1.0), 0.0).astype(B).astype("float32")
        return (y * y).astype(B)

    def mean(*parts: te.Expr) -> te.Expr:
        a, b, d = (part.astype("float32") for part in parts)
        twice = (b * 2.0).astype(B).astype("float32")
        both = (a + twice).astype(B).astype("float32")
        return ((both + d).astype(B).astype("float32") * 0.25).astype(B)

    b = te.compute((rows, columns), bright, name="bright")
    v = te.compute(
        (rows - 2, columns), lambda i, j: mean(b[i, j], b[i + 1, j], b[i + 2, j]), name="high"
    )
    return te.compute(
        (rows - 2, columns - 2), lambda i, j: mean(v[i, j], v[i, j + 1], v[i, j + 2]), name="wide"
    )


def averaged(x: Tensor, rows: int, columns: int, name: str) -> Tensor:
    a, b = te.reduce_axis((0, 3), name="a"), te.reduce_axis((0, 3), name="b")
    total = te.compute(
        (rows, columns), lambda i, j: te.sum(x[i + a, j + b], axis=[a, b]), name=f"{name}_total"
    )
    return te.compute((rows, columns), lambda i, j: total[i, j] / 9.0, name=name)


def twice_averaged(rows: int, columns: int) -> Tensor:
    """Means of windows of means of windows."""
    first = averaged(c.p(rows + 4, columns + 4), rows + 2, columns + 2, "first")
    return averaged(first, rows, columns, "second")


def edges_averaged(rows: int, columns: int) -> Tensor:
    """Windows of what takes some arithmetic for each element."""
    x = c.p(rows + 3, columns + 2, dtype=B)
    y = blurred_along(x, rows + 2, columns + 2)
    return averaged(y, rows, columns, "smooth")


def looked_up(rows: int, columns: int) -> list[Tensor]:
    """Rows of a table, and whether all of their numbers are inside."""
    table, ids = c.p(7, columns, dtype=B, name="table"), c.p(rows, dtype="int32", name="ids")
    k = te.reduce_axis((0, rows), name="k")
    found = te.compute((rows, columns), lambda i, j: table[ids[i], j], name="found")
    inside = te.compute((), lambda: te.all((ids[k] >= 0) & (ids[k] < 7), axis=k), name="inside")
    return [found, inside]


def taken_along(rows: int, columns: int) -> list[Tensor]:
    """Elements by an index for each, and whether all of those are inside."""
    table, ids = c.p(7, columns, dtype=B, name="table"), c.p(rows, columns, dtype="int32")
    k, h = te.reduce_axis((0, rows), name="k"), te.reduce_axis((0, columns), name="h")
    found = te.compute((rows, columns), lambda i, j: table[ids[i, j], j] * 2.0, name="found")
    inside = te.compute(
        (), lambda: te.all((ids[k, h] >= 0) & (ids[k, h] < 7), axis=[k, h]), name="inside"
    )
    return [found, inside]


def two_of_rows(*shape: int) -> list[Tensor]:
    """The largest of each row, which keeps its axis, and how far the others are on average."""
    *rows, columns = shape
    x, k, h = c.p(*shape), te.reduce_axis((0, columns), "k"), te.reduce_axis((0, columns), "h")
    top = te.compute(rows, lambda *i: te.max(te.abs(x[(*i, k)]), axis=k), name="top")
    kept = te.compute((*rows, 1), lambda *i: top[i[:-1]], name="kept")
    below = te.compute(rows, lambda *i: te.sum(top[i] - te.abs(x[(*i, h)]), axis=h), name="below")
    return [kept, te.compute(rows, lambda *i: below[i] / float(columns), name="far")]


def kernels(outputs: Made) -> list[str]:
    shown = str(schedule_for(outputs, "cuda:sm_90")).splitlines()
    return [line.split()[1].rstrip(":") for line in shown if line.startswith("kernel ")]


def steps(outputs: Made) -> str:
    return schedule_for(outputs, "cuda:sm_90").as_python()


def test_a_norm_that_keeps_its_axis_is_split_as_one_that_does_not() -> None:
    assert "rfactor" in steps(root_of_squares(45, 198_656))


def test_an_axis_of_one_element_is_read_at_its_only_index() -> None:
    assert kernels(halves(4000, 3000)) == ["half"]


def test_what_reads_one_element_several_times_computes_it_there() -> None:
    assert kernels(softplus(64, 256, 640)) == ["soft"]


def test_columns_too_few_for_a_device_are_kernels_of_their_own() -> None:
    assert kernels(normed(184, 9923, 14))[-1] == "normed"
    assert "rfactor" in steps(normed(184, 9923, 14))
    assert kernels(normed(184, 512, 64)) == ["normed"]


def test_what_is_computed_again_is_judged_with_what_it_computes_again() -> None:
    assert kernels(blurred(1504, 3872)) == ["high", "wide"]


def test_what_windows_read_several_times_is_computed_once_where_that_is_faster() -> None:
    assert kernels(edges_averaged(6308, 928)) == ["edge", "smooth"]


def test_windows_read_means_not_sums() -> None:
    assert kernels(twice_averaged(1600, 4400)) == ["first", "second"]


def test_short_reductions_run_in_the_launch_of_another_kernel() -> None:
    assert kernels(looked_up(352, 24576)) == ["found"]


def test_full_reductions_of_what_another_kernel_reads_are_folded_in_its_loops() -> None:
    shown = str(schedule_for(taken_along(250, 50887), "cuda:sm_90"))
    assert "with inside.rf" in shown
    assert kernels(taken_along(250, 50887)) == ["found", "inside"]


def test_reductions_of_the_same_rows_are_one_kernel() -> None:
    assert kernels(two_of_rows(90_112, 568)) == ["far"]
    assert kernels(two_of_rows(2153, 83, 32)) == ["far"]
    assert kernels(two_of_rows(16, 200_000))[-1] != "kept"  # few rows are split


CASES: dict[str, Callable[[], Made]] = {
    "norm that keeps its axis": lambda: root_of_squares(5, 70),
    "few long rows": lambda: root_of_squares(2, 40_000),
    "axis of one element": lambda: halves(5, 33),
    "softplus": lambda: softplus(3, 33, 17),
    "blurred": lambda: blurred(9, 37),
    "averaged twice": lambda: twice_averaged(9, 33),
    "edges averaged": lambda: edges_averaged(9, 33),
    "looked up": lambda: looked_up(9, 33),
    "two of rows": lambda: two_of_rows(300, 33),
    "two of rows of two axes": lambda: two_of_rows(13, 23, 9),
    "taken along": lambda: taken_along(91, 99),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str) -> None:
    interpreted(RuleCase(name, CASES[name]), "cuda")


@pytest.mark.parametrize("name", ["axis of one element", "looked up", "taken along", "two of rows"])
def test_numbers_of_kernels(name: str) -> None:
    compiled(RuleCase(name, CASES[name]), "triton-interpret")


def test_what_two_chains_of_long_rows_meet_in() -> None:
    """A divergence: sums of both rows' logarithms, which read the statistics of either."""
    a, b = (te.placeholder((139, 38546), "float32", name=name) for name in "ab")
    p, q = te.nn.log_softmax(a, axis=1), te.nn.log_softmax(b, axis=1)
    k = te.reduce_axis((0, 38546), name="k")

    left = te.compute((139,), lambda i: te.sum(te.exp(p[i, k]) * (p[i, k] - q[i, k]), axis=k))
    right = te.compute((139,), lambda i: te.sum(te.exp(q[i, k]) * (q[i, k] - p[i, k]), axis=k))
    out = te.compute((139,), lambda i: 0.5 * (left[i] + right[i]), name="out")
    s = default_schedule(out, "cuda:sm_90")
    assert s.fallbacks == ()
    assert sum(line.startswith("kernel ") for line in str(s).splitlines()) == 1


def test_a_result_of_what_is_computed_from_nothing_is_computed_again() -> None:
    zero = te.compute((8,), lambda i: te.const(0.0, "float32"), name="zero")
    double = te.compute((8,), lambda i: zero[i] + zero[i], name="double")
    last = te.compute((8,), lambda i: double[i] + 1.0, name="last")
    compiled(RuleCase("results", lambda: [last, double]), "triton-interpret")


def test_a_loss_after_many_steps_is_scheduled_in_time() -> None:
    """Each step reads the one before twice: there are 2 ** 40 ways through them."""

    def step(x: Tensor, name: str) -> Tensor:
        return te.compute((64, 32), lambda i, j: te.tanh(x[i, j]) + x[i, j], name=name)

    value: Tensor = c.p(64, 32)
    for n in range(40):
        value = step(value, f"step{n}")
    r = te.reduce_axis((0, 32), name="r")
    top = te.compute((64,), lambda i: te.max(value[i, r], axis=r), name="top")
    p, q = te.reduce_axis((0, 64), name="p"), te.reduce_axis((0, 32), name="q")
    loss = te.compute((), lambda: te.sum(te.exp(value[p, q] - top[p]), axis=[p, q]), name="loss")
    s = schedule_for(loss, "cuda:sm_90")
    assert any(stage.name == "loss.rf" for stage in s.stages)


@pytest.mark.parametrize("gap", [1, 2])
def test_results_of_what_they_both_read_are_one_loop(gap: int) -> None:
    """An operand with gaps counted twice, as if each result had to load it again."""
    rows, columns = 464, 24236
    x, z = (te.placeholder((rows, columns), "bfloat16", name=n) for n in "xz")
    y = te.placeholder((rows * columns * gap,), "bfloat16", name="y")
    least = te.compute(
        (rows, columns),
        lambda i, j: te.tanh(te.minimum(x[i, j], y[(i * columns + j) * gap])),
        name="least",
    )
    size = te.compute((rows, columns), lambda i, j: te.abs(least[i, j]), name="size")
    most = te.compute((rows, columns), lambda i, j: te.maximum(least[i, j], z[i, j]), name="most")
    s = schedule_for([size, most], "cuda:sm_90")
    assert sum(line.startswith("kernel ") for line in str(s).splitlines()) == 1
