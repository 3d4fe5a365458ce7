"""Elements by themselves, of sizes at which accesses to memory do not end with the tensor."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import rule_cases as c
from rule_cases import RuleCase
from rule_checks import interpreted

import tedsl as te
from tedsl.schedules import schedule_for
from tedsl.schedules.gpu import select as gpu
from tedsl.schedules.gpu.pointwise import periodic_vectors
from tedsl.tensor.tensor import Tensor

B, H = "bfloat16", "float16"


def chain(rows: int, columns: int) -> Tensor:
    x = c.p(rows, columns, dtype=B)
    return te.compute((rows, columns), lambda i, j: te.relu(x[i, j] * 2.0) + 1.0, name="y")


def row_vectors(rows: int, columns: int) -> Tensor:
    x, w = c.p(rows, columns, dtype=B), c.p(columns, dtype=B, name="w")
    return te.compute((rows, columns), lambda i, j: x[i, j] * w[j], name="y")


def gathered(rows: int, columns: int) -> Tensor:
    table, ids = c.p(7, columns, dtype=B, name="table"), c.p(rows, dtype="int32", name="ids")
    x = c.p(rows, columns, dtype=B)
    return te.compute((rows, columns), lambda i, j: table[ids[i], j] + x[i, j], name="y")


CASES: dict[str, Callable[[int, int], Tensor]] = {
    "chain": chain,
    "row vectors": row_vectors,
    "gathered": gathered,
}


@pytest.mark.parametrize("name", ["chain", "row vectors"])
def test_odd_sizes_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "SMALL", 0)
    schedule = interpreted(RuleCase(name, lambda: CASES[name](37, 97)), "cuda")
    assert ".cut(" in schedule.as_python()


@pytest.mark.parametrize("shape", [(8192, 8192), (1 << 20, 33)])
def test_whole_accesses_need_no_part_of_their_own(shape: tuple[int, int]) -> None:
    assert ".cut(" not in schedule_for(chain(*shape), "cuda:sm_90").as_python()


@pytest.mark.ptxas
@pytest.mark.parametrize(("name", "words"), [("chain", 4), ("row vectors", 2), ("gathered", 4)])
def test_odd_sizes_are_fetched_in_whole_accesses(name: str, words: int) -> None:
    ptx = te.build(CASES[name](8191, 8193), "cuda:sm_90").asm
    assert f"ld.global.v{words}.b32" in ptx and f"st.global.v{words}.b32" in ptx


@pytest.mark.parametrize(("columns", "warps"), [(8192, 4), (8193, 8)])
def test_elements_fetched_one_by_one_have_more_threads(columns: int, warps: int) -> None:
    schedule = schedule_for(row_vectors(8191, columns), "cuda:sm_90")
    assert f"num_warps={warps})" in schedule.as_python()


def biased(rows: int, columns: int) -> Tensor:
    """Three axes, and vectors of two types."""
    x, w = c.p(2, rows, columns, dtype=B), c.p(columns, dtype=B, name="w")
    b = c.p(columns, name="b")
    return te.compute(
        (2, rows, columns),
        lambda h, i, j: x[h, i, j] * w[j] + b[j].astype(B),
        name="y",
    )


@pytest.mark.parametrize("periods", [2, 4, 8])
@pytest.mark.parametrize(("make", "shape"), [(row_vectors, (67, 33)), (biased, (41, 36))])
def test_periods_agree(
    make: Callable[[int, int], Tensor],
    shape: tuple[int, int],
    periods: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last program has some rows of a period, the last but one all of them."""
    monkeypatch.setattr(periodic_vectors, "LONG", 1)
    case = RuleCase("periods", lambda: make(*shape))
    schedule = interpreted(case, "cuda", {"y.periods": periods, "y.block": 256})
    assert f"factor={periods})" in schedule.as_python()
    assert ".cut(" in schedule.as_python()


@pytest.mark.ptxas
def test_what_is_the_same_for_each_row_is_fetched_once_for_several() -> None:
    output = row_vectors(8191, 8193)
    loads: dict[int, int] = {}
    for periods in (1, 4):
        decisions = {"y.periods": periods, "y.warps": 4}
        asm = te.build(schedule_for(output, "cuda:sm_90", decisions), "cuda:sm_90").asm
        assert "ld.global.v4.b32" in asm and "st.global.v4.b32" in asm
        loads[periods] = asm.partition("st.global.v4")[0].count("ld.global.b16")
    assert loads[4] <= 2 * loads[1], "for four times the elements"


@pytest.mark.parametrize(
    ("output", "offered"),
    [
        (row_vectors(8191, 8193), True),
        (row_vectors(8191, 8192), False),  # a row is a period
        (row_vectors(5, 8193), False),  # there is one period
        (chain(8191, 8193), False),  # nothing is the same for every row
    ],
)
def test_periods_are_offered_where_they_change_something(output: Tensor, offered: bool) -> None:
    names = [knob.name for knob in schedule_for(output, "cuda:sm_90").knobs]
    assert ("y.periods" in names) is offered


@pytest.mark.ptxas
def test_tiles_of_what_is_read_across_may_be_large() -> None:
    """Held in registers, of rows that start anywhere."""
    x, y = c.p(8191, 8193, dtype=B), c.p(8193, 8191, dtype=B, name="y")
    output = te.compute((8191, 8193), lambda i, j: x[i, j] + y[j, i], name="z")
    decisions = {"z.rows": 128, "z.columns": 128, "z.warps": 16}
    kernel = te.build(schedule_for(output, "cuda:sm_90", decisions), "cuda:sm_90")
    (info,) = kernel.resources.values()
    assert info.num_warps == 16 and info.stack == 0


def affine(dtype: str, vectors: int, columns: int = 8193) -> Tensor:
    """Rows with `vectors` that are the same for each of them added."""
    x = c.p(8191, columns, dtype=dtype)
    rest = [c.p(columns, dtype=dtype, name=f"v{n}") for n in range(vectors)]
    return te.compute((8191, columns), lambda i, j: sum((v[j] for v in rest), x[i, j]), name="y")


def defaults(output: Tensor | list[Tensor]) -> dict[str, object]:
    return {k.name: k.chosen for k in schedule_for(output, "cuda:sm_90").knobs}


@pytest.mark.parametrize(
    ("dtype", "vectors", "periods"), [(B, 1, 1), (B, 2, 2), (B, 6, 4), ("float32", 2, 1)]
)
def test_a_program_takes_the_periods_that_its_fetches_need(
    dtype: str, vectors: int, periods: int
) -> None:
    """More vectors take more fetches; those of longer elements come to the same bytes in fewer."""
    assert defaults(affine(dtype, vectors))["y.periods"] == periods
    assert defaults(affine(dtype, vectors))["y.warps"] == (8 if periods == 1 else 4)


def test_a_program_takes_the_periods_that_its_functions_of_columns_need() -> None:
    """What is computed of the place in a row alone is computed once for several of them."""
    x, v, w = c.p(8191, 1484, dtype=H), c.p(1484, name="v"), c.p(1484, dtype=H, name="w")
    scaled = te.compute(
        (8191, 1484),
        lambda i, j: x[i, j] * (te.rsqrt(v[j] / 7.0 + 1e-5) / (1.0 + te.exp(w[j]))).astype(H),
        name="y",
    )
    plain = te.compute((8191, 1484), lambda i, j: x[i, j] * w[j], name="y")
    assert defaults(scaled)["y.periods"] == 2
    assert defaults(plain)["y.periods"] == 1


def test_elements_gathered_from_rows_of_their_own_are_read_in_tall_tiles() -> None:
    x, at = c.p(209, 4640, dtype=B), c.p(2432, 4640, dtype="int64", name="at")
    wide = c.p(2432, dtype="int64", name="wide")
    each = te.compute((2432, 4640), lambda i, j: x[at[i, j], j], name="y")
    whole = te.compute((2432, 4640), lambda i, j: x[wide[i], j], name="y")
    assert (defaults(each)["y.rows"], defaults(each)["y.columns"]) == (32, 64)
    assert int(str(defaults(whole)["y.columns"])) >= 256


@pytest.mark.parametrize(("functions", "warps"), [(False, 4), (True, 8)])
def test_functions_in_tiles_that_transpose_have_more_warps(functions: bool, warps: int) -> None:
    x, y = c.p(2048, 2048), c.p(2048, 2048, name="y")
    own = te.tanh if functions else lambda value: value
    z = te.compute((2048, 2048), lambda i, j: own(x[i, j]) + y[j, i], name="z")
    assert defaults(z)["z.warps"] == warps


def test_what_another_kernel_may_join_takes_one_period() -> None:
    x, v = c.p(8191, 8193, dtype=B), [c.p(8193, dtype=B, name=name) for name in "vw"]
    both = [
        te.compute((8191, 8193), lambda i, j: x[i, j] + v[0][j] + v[1][j], name="y"),
        te.compute((8191, 8193), lambda i, j: x[i, j] * v[0][j] - v[1][j], name="z"),
    ]
    found = defaults(both)
    assert (found["y.periods"], found["z.beside"]) == (1, "loops")


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "side", "warps"),
    [
        (8192, 8192, B, 128, 16),
        (8192, 8192, "float32", 64, 4),  # as many bytes
        (8192, 8192, "int8", 128, 16),
        (8191, 8193, B, 64, 8),  # rows start anywhere
        (1024, 1024, B, 64, 4),  # fewer programs than keep a device busy
    ],
)
def test_tiles_of_what_is_read_across(
    rows: int, columns: int, dtype: str, side: int, warps: int
) -> None:
    x, y = c.p(rows, columns, dtype=dtype), c.p(columns, rows, dtype=dtype, name="y")
    z = te.compute((rows, columns), lambda i, j: x[i, j] + y[j, i], name="z")
    found = defaults(z)
    assert (found["z.rows"], found["z.columns"], found["z.warps"]) == (side, side, warps)


@pytest.mark.parametrize(("taps", "rows"), [(2, 1), (3, 8), (5, 8)])
def test_rows_that_read_their_neighbours_share_a_tile(taps: int, rows: int) -> None:
    """On an H200 a blur of five by five taps takes 0.40 ms by tiles of 8x512 and 0.48 by tiles of
    one row (tutorial 2)."""
    x = te.placeholder((4096 + taps, 4096), name="x")
    total = te.compute(
        (4096, 4096), lambda i, j: sum(x[i + n, j] for n in range(1, taps)) + x[i, j], name="y"
    )
    assert defaults(total)["y.rows"] == rows


def turned(heads: int, high: int, wide: int, deep: int, beside: int = 0) -> Tensor:
    """The last axis moved before two others; of `beside` more columns in memory than are read."""
    x = c.p(heads, high, wide + beside, deep, dtype=B)
    w = c.p(high, wide, dtype=B, name="w")
    return te.compute(
        (heads, deep, high, wide), lambda h, k, i, j: x[h, i, j, k] * w[i, j], name="y"
    )


def test_neighbours_everywhere_are_one_axis_of_a_transpose() -> None:
    assert defaults(turned(256, 136, 6, 320))["y.columns"] == 128
    assert "y.columns" not in defaults(turned(256, 136, 6, 320, beside=1)), "a column for each lane"


@pytest.mark.parametrize("shape", [(2, 5, 3, 20), (1, 33, 1, 70), (3, 2, 7, 17)])
@pytest.mark.parametrize("beside", [0, 2])
def test_transposes_of_several_axes_agree(shape: tuple[int, int, int, int], beside: int) -> None:
    interpreted(RuleCase("turned", lambda: turned(*shape, beside)), "cuda")


def test_the_larger_of_two_transposed_reads_decides() -> None:
    x, w = c.p(64, 256, 40, dtype=B), c.p(256, 64, dtype=B, name="w")
    y = te.compute((64, 40, 256), lambda h, i, j: x[h, j, i] * w[j, h], name="y")
    assert "i.outer" in str(schedule_for(y, "cuda:sm_90"))


def channels(first: bool, images: int, points: int, count: int) -> Tensor:
    """The channels of images made the first axis of each, or the last one."""
    shape = (images, points, count) if first else (images, count, points)
    x, out = c.p(*shape, dtype=B), (shape[0], shape[2], shape[1])
    return te.compute(out, lambda n, i, j: x[n, j, i] + 1.0, name="y")


@pytest.mark.parametrize("first", [True, False])
def test_a_transpose_with_a_short_side_has_a_long_one(first: bool) -> None:
    """Programs of few elements take longer to start than to move them."""
    found = defaults(channels(first, 32, 512 * 512, 3))
    assert found["y.columns" if first else "y.rows"] == 256


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("shape", [(2, 700, 3), (1, 300, 1), (3, 5, 2), (2, 37, 40)])
def test_transposes_of_channels_agree(first: bool, shape: tuple[int, int, int]) -> None:
    interpreted(RuleCase("channels", lambda: channels(first, *shape)), "cuda")


def permuted(channels: int, images: int, points: int) -> Tensor:
    """The first axis moved to the end and the last one to the front."""
    x = c.p(images, 3, points, channels, dtype=B)
    return te.compute(
        (channels, 3, points, images), lambda k, h, i, n: x[n, h, i, k] + 1.0, name="y"
    )


@pytest.mark.parametrize(
    ("shape", "lanes"),
    [
        ((24, 8, 352), {"k": 24, "h.i.fused": 8, "n": 8}),
        ((3, 512, 352), {"k": 3, "h.i.fused": 32, "n": 64}),
    ],
)
def test_a_short_side_of_a_transpose_has_neighbours_along_the_next_axis(
    shape: tuple[int, int, int], lanes: dict[str, int]
) -> None:
    """Runs of 24 and 8 elements fill no transactions (drawn row 271126:50: 42 us on an H200, where
    14 are possible)."""
    text = str(schedule_for(permuted(*shape), "cuda:sm_90"))
    found = re.findall(r"for (\S+)(?:\.inner)? in 0\.\.(\d+)  \(vectorized\)", text)
    assert {name.removesuffix(".inner"): int(size) for name, size in found} == lanes


@pytest.mark.parametrize("shape", [(3, 5, 37), (24, 8, 11), (5, 70, 9), (1, 4, 33)])
def test_permutations_of_short_axes_agree(shape: tuple[int, int, int]) -> None:
    interpreted(RuleCase("permuted", lambda: permuted(*shape)), "cuda")


def reversed_beside(images: int, points: int, channels: int) -> Tensor:
    """A tensor, and one whose axes lie in the opposite order."""
    x, w = c.p(images, points, channels, dtype=B), c.p(channels, points, images, name="w")
    return te.compute(
        (images, points, channels), lambda i, j, k: x[i, j, k] * w[k, j, i].astype(B), name="y"
    )


@pytest.mark.parametrize(
    ("channels", "lanes"), [(9, "j.k.fused.inner in 0..64"), (8, "k.inner in 0..8")]
)
def test_short_axes_of_a_transpose_have_no_idle_lanes(channels: int, lanes: str) -> None:
    """Seven of 16 (60 us on an H200, where 42 are possible)."""
    assert lanes in str(schedule_for(reversed_beside(2160, 976, channels), "cuda:sm_90"))
    interpreted(RuleCase("reversed", lambda: reversed_beside(37, 20, channels)), "cuda")


def blocks_turned(blocks: int, rows: int, columns: int) -> Tensor:
    """Rows of each block, of which blocks lie side by side, to the end."""
    x = c.p(5, blocks, 7, rows, columns, dtype=B)
    return te.compute(
        (7, columns, 5, blocks, rows), lambda i, j, n, h, k: x[n, h, i, k, j] + 1.0, name="y"
    )


@pytest.mark.ptxas
@pytest.mark.parametrize(
    ("rows", "lanes"), [(72, "h.k.fused.inner in 0..64"), (96, "k.inner in 0..64")]
)
def test_a_long_axis_of_a_transpose_has_no_idle_lanes(rows: int, lanes: str) -> None:
    """72 fill 0.56 of two sides, 96 fill 0.75 (drawn row 321128:146: 100 us on an H200, where 60
    are possible); it is one with the axis around it alone, so that the result is stored in vectors,
    also where what is read has it beside the columns."""
    kernel = te.build(blocks_turned(16, rows, 16), "cuda:sm_90")
    assert lanes in str(kernel.schedule)
    if rows == 72:
        assert "mask" not in kernel.source and "st.global.v" in kernel.asm
    interpreted(RuleCase("blocks", lambda: blocks_turned(3, rows, 5)), "cuda")


def test_a_transpose_of_nothing_has_a_schedule() -> None:
    for shape in ((0, 7, 5), (7, 0, 5), (7, 5, 0), (64, 0, 64, 3)):
        x = te.placeholder(shape, name="x")
        turned = te.compute(shape[::-1], lambda *i: x[i[::-1]] + 1.0, name="turned")  # noqa: B023
        assert te.lower(schedule_for(turned, "cuda:sm_90"), "cuda:sm_90").funcs


def test_digits_of_one_index_are_one_axis_of_a_transpose() -> None:
    """What a pixel of four is made of lies side by side in memory."""
    x = c.p(96, 512 * 2, dtype=B)
    y = te.compute((512, 2, 96), lambda i, r, k: x[k, i * 2 + r] + 1.0, name="y")
    assert "i.r.fused.inner in 0..64  (vectorized)" in str(schedule_for(y, "cuda:sm_90"))


def gathered_rows(rows: int, columns: int) -> Tensor:
    x, at = c.p(40, columns, dtype=B), c.p(rows, dtype="int32", name="at")
    return te.compute(
        (rows, columns), lambda i, j: x[te.minimum(te.maximum(at[i], 0), 39), j], name="y"
    )


def test_gathered_rows_are_in_one_tile() -> None:
    """Halves of 512 columns leave as many idle of 386, and ask for the index of a row again."""
    found = defaults(gathered_rows(60000, 386))
    assert (found["y.columns"], found["y.rows"]) == (512, 4)
    assert defaults(gathered_rows(60000, 520))["y.columns"] == 128, "640 lanes, of 1024"
