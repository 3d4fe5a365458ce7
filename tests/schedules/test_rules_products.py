"""How the rules place matrix products: rows off 16 bytes, last steps, parts, folds of a product."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rule_cases import RuleCase, matmul
from rule_checks import compiled, interpreted

import tedsl as te
from tedsl.backends.triton.compile.offline import compile_offline
from tedsl.backends.triton.emit.module import emit
from tedsl.backends.triton.emit.program import ParamKind, TritonProgram, described
from tedsl.devices import H200
from tedsl.dtypes import DType
from tedsl.expr.numerics import numpy_dtype
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.schedules.gpu.gemm.cost_model import Product, best_tile, clocks, depth, in_parts, tiles
from tedsl.target import Target
from tedsl.tensor.tensor import Tensor

B = "bfloat16"
HOPPER = Target.parse("cuda:sm_90")
KNOBS = {"matmul.align_a": True, "matmul.align_b": True, "matmul.bm": 64, "matmul.bn": 64}


def program(outputs: Tensor | list[Tensor], target: str = "cuda:sm_90") -> TritonProgram:
    """The Triton program of the rules."""
    where = Target.parse(target)
    return emit(lower(schedule_for(outputs, where).plan, where, check=True), where)


def product(m: int, n: int, k: int, name: str = "product") -> Tensor:
    """A product of 16-bit operands, in float32."""
    a, b = te.placeholder((m, k), B, name="a"), te.placeholder((k, n), B, name="b")
    r = te.reduce_axis((0, k), name="r")

    def body(i: te.Axis, j: te.Axis) -> te.Expr:
        return te.sum(a[i, r].astype("float32") * b[r, j].astype("float32"), axis=r)

    return te.compute((m, n), body, name=name)


# Rows off multiples of 16 bytes ---------------------------------------------------------------


def test_unaligned_operands_of_a_long_product_are_copied_to_aligned_rows() -> None:
    found = program(matmul(4095, 4095, 4095, B))
    assert [spec.title for spec in found.kernels] == [
        "a_global_kernel",
        "b_global_kernel",
        "matmul_kernel",
    ]
    blocks = [p for p in found.kernels[-1].params if p.kind is ParamKind.DESCRIPTOR]
    assert [p.buffer.name for p in blocks if p.buffer] == ["a.global", "b.global"]
    assert not any(described(p.buffer) for p in blocks)  # rows end in a zero, which is read
    assert all("4096" in str(p.buffer.shape) for p in blocks if p.buffer)


def test_only_the_operand_that_is_unaligned_is_copied() -> None:
    names = [spec.name for spec in program(matmul(4096, 4095, 4096, B)).kernels]
    assert names == ["b_global_kernel", "matmul_kernel"]


@pytest.mark.parametrize("shape", [(16, 4095, 4095), (127, 129, 131)])
def test_a_product_that_takes_no_longer_than_the_copy_reads_rows_in_place(
    shape: tuple[int, int, int],
) -> None:
    assert not any("global" in spec.name for spec in program(matmul(*shape, B)).kernels)


def test_what_an_earlier_kernel_computes_is_stored_with_aligned_rows() -> None:
    first = te.cast(product(512, 1023, 512, "first"), B)
    w = te.placeholder((1023, 512), B, name="w")
    found = program(te.nn.matmul(first, w))
    assert not any("copy" in spec.name or "global" in spec.name for spec in found.kernels)
    (between,) = [b for b in found.module.workspaces if "1024" in str(b.shape)]
    assert f"{between.name.replace('.', '_')}_desc.load" in found.source


@pytest.mark.parametrize("shape", [(130, 131, 133), (64, 65, 127), (33, 200, 129)])
def test_aligned_copies_give_the_same_numbers(shape: tuple[int, int, int]) -> None:
    outputs = matmul(*shape, B)
    known = {knob.name for knob in schedule_for(outputs, "cuda").knobs}
    decisions = {name: value for name, value in KNOBS.items() if name in known}
    assert "matmul.align_b" in decisions or "matmul.align_a" in decisions
    case = RuleCase("aligned", lambda: matmul(*shape, B))
    interpreted(case, "cuda", decisions)
    compiled(case, "triton-interpret", decisions)


# The last step --------------------------------------------------------------------------------


def test_the_last_step_of_a_loop_is_like_the_others_where_the_copy_engine_fills_with_zeros() -> (
    None
):
    source = program(matmul(256, 512, 1000, B)).source
    assert source.count("tl.dot(") == 1
    assert "tl.where(" not in source.partition("def matmul_kernel")[2]


def test_devices_without_a_copy_engine_keep_a_masked_last_step() -> None:
    assert program(matmul(512, 512, 1000, B), "cuda:sm_80").source.count("tl.dot(") == 2


def masked_product(limit: int) -> tuple[Tensor, te.Schedule]:
    """A product over `limit` of 64 terms whose operands are staged whole."""
    a, b = te.placeholder((64, 64), B, name="a"), te.placeholder((64, 64), B, name="b")
    k = te.reduce_axis((0, 64), name="k")

    def body(i: te.Axis, j: te.Axis) -> te.Expr:
        term = a[i, k].astype("float32") * b[k, j].astype("float32")
        return te.sum(term, axis=k, where=k < limit)

    c = te.compute((64, 64), body, name="c")
    s = te.create_schedule(c)
    inner = s[s.cache_write(c, "local")]
    i, j = s[c].op.axis
    block, i = s[c].split(i, factor=64)
    s[c].reorder(block, i, j)
    s[c].bind(block, "blockIdx.x")
    inner.compute_at(s[c], block)
    step, lanes = inner.split(inner.op.reduce_axis[0], factor=32)
    inner.vectorize(lanes)
    for tensor in (a, b):
        s[s.cache_read(tensor, "shared", [inner])].compute_at(inner, step)
    s[c].vectorize(s[c].leaf_iter_vars[1])
    s[c].vectorize(s[c].leaf_iter_vars[2])
    return c, s


def test_terms_left_out_are_zero_though_their_operands_are_staged() -> None:
    """A copy is 0 only where its own load was masked."""
    _, s = masked_product(40)
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, 64, 64)).astype(np.float32)
    a[:, 40:], b[40:] = np.nan, np.nan
    kernel = te.build(s, "triton-interpret", cache=False)
    given = [x.astype(numpy_dtype(DType.bfloat16)) for x in (a, b)]
    want = given[0][:, :40].astype(np.float64) @ given[1][:40].astype(np.float64)
    np.testing.assert_allclose(np.asarray(kernel(*given), np.float64), want, rtol=1e-3, atol=1e-3)


# Parts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(512, 512, 8192), (256, 256, 65536), (2048, 64, 8192)])
def test_parts_of_a_fold_are_moved_by_the_copy_engine(shape: tuple[int, int, int]) -> None:
    found = program(matmul(*shape, B))
    assert len(found.kernels) == 2
    assert found.source.count("_desc.load(") == 2


@pytest.mark.parametrize("depth", [1024, 1100, 2047])
def test_parts_of_whole_steps_cover_every_depth(depth: int) -> None:
    case = RuleCase("parts", lambda: matmul(32, 48, depth, B))
    schedule = interpreted(case, "cuda", {"matmul.parts": 2})
    assert "matmul.red.rf" in [stage.name for stage in schedule.stages]


# The model ------------------------------------------------------------------------------------


def test_long_folds_into_few_results_are_cut_and_large_results_are_not() -> None:
    deep, wide = Product(H200, 1, 512, 512, 32768), Product(H200, 1, 4096, 4096, 4096)
    assert min((1, 2, 4, 8, 16), key=lambda n: in_parts(deep, n)) > 1
    assert min((1, 2, 4, 8, 16), key=lambda n: in_parts(wide, n)) == 1


@pytest.mark.parametrize("m", [16, 100, 1024, 5000])
@pytest.mark.parametrize("n", [16, 333, 4096])
def test_the_best_tile_fits_and_none_is_quicker(m: int, n: int) -> None:
    asked = Product(H200, 3, m, n, 777, most=128 * 128)
    bm, bn = best_tile(asked)
    assert bm * bn <= asked.limit
    assert clocks(asked, bm, bn) == min(clocks(asked, *tile) for tile in tiles(asked))


def test_8_bits_take_half_the_steps_and_wait_for_each_where_a_program_is_alone() -> None:
    half, eight = Product(H200, 1, 4096, 4096, 4096), Product(H200, 1, 4096, 4096, 8192, nbytes=1)
    assert (half.step, eight.step) == (64, 128)
    assert clocks(half, 128, 256) == clocks(eight, 128, 256)
    by_steps = Product(H200, 1, 4096, 4096, 8192, nbytes=1, by_steps=True)
    assert clocks(by_steps, 256, 128) > clocks(eight, 256, 128)
    assert by_steps.shares(128, 128)
    assert clocks(by_steps, 128, 128) == clocks(eight, 128, 128)


@pytest.mark.ptxas
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (1000, 8192, 8192), (2047, 8191, 1024)])
def test_two_programs_that_add_up_steps_of_8_bits_fit_one_processor(
    shape: tuple[int, int, int],
) -> None:
    """While one adds up a step, the other multiplies."""
    m, n, k = shape
    kind = "float8_e4m3fn"
    a, b = te.placeholder((m, k), kind, name="a"), te.placeholder((n, k), kind, name="b")
    scales = te.placeholder((m,), name="sa"), te.placeholder((n,), name="sb")
    (info,) = compile_offline(program(te.nn.scaled_matmul(a, b, *scales)), "sm_90")
    assert info.stack == 0 and info.num_warps == 4
    assert info.registers is not None and 2 * 32 * info.num_warps * info.registers <= 1 << 16
    assert 2 * (info.shared + 1024) <= 228 << 10


@pytest.mark.parametrize(("rows", "warps"), [(1000, 8), (4096, 4)])
def test_a_program_that_waits_by_itself_has_eight_warps(rows: int, warps: int) -> None:
    """64 tiles of 128 by 128 leave each a processor to itself; where two share one, they take
    turns."""
    named = ((rows, "a"), (1024, "b"))
    a, b = (te.placeholder((n, 2048), "float8_e4m3fn", name=name) for n, name in named)
    made = te.nn.scaled_matmul(a, b, name="out")
    stage = schedule_for(made, HOPPER, {"out.bm": 128, "out.bn": 128})["out"]
    assert stage.plan.placement.kernel.launch.num_warps == warps
    assert Product(H200, 1, rows, 1024, 2048, nbytes=1).alone(128, 128) == (warps == 8)


def test_equal_tiles_fetch_as_little_as_they_can() -> None:
    """A product that waits for its operands has a square tile."""
    part = Product(H200, 2, 4096, 64, 2048, stored=4, most=128 * 128)
    assert clocks(part, 64, 64) == clocks(part, 128, 32)
    assert best_tile(part) == (64, 64)


def test_short_steps_are_deeper() -> None:
    """A step of 64 by 32 is over before the next has its turn; one of 128 by 128 is not."""
    few = Product(H200, 1, 4096, 64, 4096)
    assert [depth(few, bm, bn) for bm, bn in ((64, 32), (128, 128))] == [128, 64]
    assert [depth(replace(few, k=k), 128, 128) for k in (64, 100, 128, 129)] == [64, 128, 128, 64]
    assert depth(replace(few, nbytes=1), 64, 32) == 128  # of 8 bits they are


def test_the_last_wave_counts_in_full() -> None:
    one, more = Product(H200, 1, 128 * 132, 256, 4096), Product(H200, 1, 128 * 133, 256, 4096)
    assert clocks(more, 128, 256) > 1.8 * clocks(one, 128, 256)


def chosen(outputs: Tensor | list[Tensor], *names: str) -> tuple[object, ...]:
    """What the rules choose by default for some knobs; None for one that is not asked for."""
    found = {knob.name: knob.chosen for knob in schedule_for(outputs, HOPPER).knobs}
    return tuple(found.get(name) for name in names)


TILE = ("matmul.bm", "matmul.bn", "matmul.bk")


def test_a_turn_weighs_twice_where_nobody_else_multiplies() -> None:
    """With 128 tiles each has a processor to itself; with 256 two share one; and what memory holds
    up is not held up by the turns."""
    alone, shared = Product(H200, 1, 1024, 1024, 1024), Product(H200, 1, 2048, 1024, 1024)
    assert alone.alone(128, 64) and not shared.alone(128, 64)
    assert (depth(alone, 128, 64), depth(shared, 128, 64)) == (128, 64)
    assert depth(Product(H200, 1, 64, 14336, 4096), 64, 128) == 64
    assert chosen(matmul(1024, 1024, 1024, B), "matmul.bk") == (128,)


def test_a_row_of_a_tile_shorter_than_a_line_takes_as_long_as_one() -> None:
    along = Product(H200, 1, 4096, 64, 4096)
    across = replace(along, across=(False, True))
    assert clocks(across, 64, 32) == clocks(across, 64, 64)
    assert clocks(along, 64, 32) < clocks(across, 64, 32)
    assert clocks(along, 64, 64) == clocks(across, 64, 64)
    assert chosen(matmul(4096, 64, 4096, B), "matmul.parts", *TILE) == (1, 64, 64, 128)


@pytest.mark.parametrize("shape", [(16, 8192, 8192), (16, 4096, 4096), (32, 4096, 4096)])
def test_few_rows_are_one_kernel_of_deep_steps(shape: tuple[int, int, int]) -> None:
    """Tiles of 64 columns are enough for memory; deep steps keep enough bytes on their way."""
    product = matmul(*shape, B)
    assert chosen(product, "matmul.parts", *TILE[1:]) == (1, 64, 128)
    assert len(program(product).kernels) == 1


@pytest.mark.parametrize(("columns", "tile"), [(5000, (256, 128)), (4992, (128, 128))])
def test_rows_off_the_lines_of_memory_have_tiles_that_fetch_less(
    columns: int, tile: tuple[int, int]
) -> None:
    """5000 columns are 78 lines of 128 bytes and a part of one: two small tiles would fetch them
    more often, and so would wide tiles."""
    assert chosen(matmul(2047, columns, 4096, B), *TILE) == (*tile, 64)


@pytest.mark.parametrize(
    ("ragged", "tile"), [((False, True), (256, 128)), ((True, False), (128, 256))]
)
def test_the_short_side_of_a_tile_is_that_of_the_ragged_operand(
    ragged: tuple[bool, bool], tile: tuple[int, int]
) -> None:
    lying = Product(H200, 1, 2048, 5000, 4096, ragged=ragged)
    assert best_tile(lying) == tile
    assert clocks(lying, *tile) < clocks(lying, *reversed(tile))
    assert clocks(replace(lying, ragged=(True, True)), *tile) > clocks(lying, *tile)


def test_programs_whose_loads_go_through_registers_share_an_sm() -> None:
    aligned = Product(H200, 1, 12, 12288, 2207)
    lone = replace(aligned, loose=(False, True))
    (_, usual), (bm, bn) = best_tile(aligned), best_tile(lone)
    assert lone.count(bm, bn) > H200.sms
    assert bn < usual
    assert bn * depth(lone, bm, bn) <= 80 * 128  # elements of a step in four warps
    assert chosen(matmul(12, 12288, 2207, B), "matmul.bn") == (128,)


def test_products_whose_loads_go_through_registers_are_split() -> None:
    """More programs have more loads in flight, of parts that are read as they are stored; a whole
    product of so few columns would have its operand copied to aligned rows first."""
    assert chosen(matmul(12, 12289, 2207, B), "matmul.parts") == (4,)
    assert chosen(matmul(12, 12288, 2207, B), "matmul.parts") == (None,)
    assert chosen(matmul(12288, 2, 3615, B), "matmul.parts") == (4,)
    whole = Product(H200, 1, 12288, 2, 3615, loose_parts=(True, False))
    copied = replace(whole, copied=12288 * 3615 * 2)
    assert in_parts(whole, 1) < in_parts(whole, 4) < in_parts(copied, 1)


@pytest.mark.parametrize(("kind", "deep"), [("float32", 32), ("bfloat16", 64), ("int8", 128)])
def test_a_step_is_a_line_of_memory_deep(kind: str, deep: int) -> None:
    a, b = (te.placeholder((2048, 2048), kind, name=name) for name in "ab")
    r = te.reduce_axis((0, 2048), name="r")
    wide = {"bfloat16": "float32", "int8": "int32"}.get(kind, kind)
    out = te.compute(
        (2048, 2048),
        lambda i, j: te.sum(a[i, r].astype(wide) * b[j, r].astype(wide), axis=r),
        name="out",
    )
    assert chosen(out, "out.bk") == (deep,)


@pytest.mark.parametrize("k", [1024, 1100])
def test_deeper_steps_give_the_same_numbers(k: int) -> None:
    case = RuleCase("deep", lambda: matmul(70, 40, k, B))
    schedule = interpreted(case, "cuda", {"matmul.parts": 1})
    (deep,) = (knob.chosen for knob in schedule.knobs if knob.name == "matmul.bk")
    assert deep == 128
    compiled(case, "triton-interpret", {"matmul.parts": 1})


# Shallow folds ----------------------------------------------------------------------------------


@pytest.mark.ptxas
@pytest.mark.parametrize("folded", [64, 100, 128])
def test_shallow_products_fetch_the_next_tiles_while_one_is_stored(folded: int) -> None:
    """The loop is over tiles, each of which is one step."""
    found = program(matmul(8192, 8192, folded, B))
    source = found.source.rpartition("@triton.jit")[2]
    assert source.count("tl.range(") == 1 and "num_stages=3" in source
    info = compile_offline(found, "sm_90")[-1]
    assert info.stack == 0 and info.shared <= 227 << 10
    assert "wgmma.wait_group" in info.ptx and info.num_warps == 4
    assert 2 * (info.shared + 1024) <= 228 << 10  # two share a processor


@pytest.mark.ptxas
def test_a_shallow_product_and_a_residual_fit_the_shared_memory() -> None:
    """A tile of the residual would be fetched ahead with the operands: programs do not stay."""
    shape = (8192, 8192)
    p, x = product(*shape, 128), te.placeholder(shape, B, name="x")
    out = te.compute(shape, lambda i, j: (p[i, j] + x[i, j].astype("float32")).astype(B), name="o")
    found = program(out)
    (info,) = compile_offline(found, "sm_90")
    assert "num_stages=" not in found.source
    assert info.stack == 0 and info.shared <= 227 << 10


@pytest.mark.parametrize("shape", [(200, 216, 40), (201, 220, 33)])
def test_tiles_fetched_ahead_give_the_same_numbers(shape: tuple[int, int, int]) -> None:
    case = RuleCase("shallow", lambda: matmul(*shape, B))
    decisions = {"matmul.bm": 16, "matmul.bn": 16, "matmul.resident": 1, "matmul.ahead": 2}
    interpreted(case, "cuda", decisions)
    compiled(case, "triton-interpret", decisions)


# Folds of a product ---------------------------------------------------------------------------


def squares(m: int, n: int, k: int) -> list[Tensor]:
    """A product rounded, and the sum of the squares of each of its rows."""
    p = product(m, n, k)
    r = te.reduce_axis((0, n), name="r")
    total = te.compute((m,), lambda i: te.sum(p[i, r] * p[i, r], axis=r), name="squares")
    return [te.compute((m, n), lambda i, j: p[i, j].astype(B), name="out"), total]


def log_sum_exp(m: int, n: int, k: int) -> list[Tensor]:
    """log(sum(exp(row))) of each row of a product."""
    p = product(m, n, k)
    r, q = te.reduce_axis((0, n), name="r"), te.reduce_axis((0, n), name="q")
    top = te.compute((m,), lambda i: te.max(p[i, r], axis=r), name="top")
    total = te.compute((m,), lambda i: te.sum(te.exp(p[i, q] - top[i]), axis=q), name="total")
    return [te.compute((m,), lambda i: top[i] + te.log(total[i]), name="lse")]


def columns(m: int, n: int, k: int) -> list[Tensor]:
    """Sum and largest square of each column of a product after an activation."""
    p = product(m, n, k)
    active = te.compute((m, n), lambda i, j: te.maximum(p[i, j] + 0.5, 0.0), name="active")
    r, q = te.reduce_axis((0, m), name="r"), te.reduce_axis((0, m), name="q")
    total = te.compute((n,), lambda j: te.sum(active[r, j], axis=r), name="total")
    most = te.compute((n,), lambda j: te.max(active[q, j] * active[q, j], axis=q), name="most")
    return [total, most]


def apart(m: int, n: int, k: int) -> list[Tensor]:
    """As `log_sum_exp`, with the differences in a stage of their own."""
    p = product(m, n, k)
    r, q = te.reduce_axis((0, n), name="r"), te.reduce_axis((0, n), name="q")
    top = te.compute((m,), lambda i: te.max(p[i, r], axis=r), name="top")
    e = te.compute((m, n), lambda i, j: te.exp(p[i, j] - top[i]), name="e")
    total = te.compute((m,), lambda i: te.sum(e[i, q], axis=q), name="total")
    return [te.compute((m,), lambda i: top[i] + te.log(total[i]), name="lse")]


FOLDED = {"squares": squares, "log_sum_exp": log_sum_exp, "apart": apart, "columns": columns}


@pytest.mark.parametrize("name", FOLDED)
def test_what_is_folded_of_a_product_is_never_in_memory(name: str) -> None:
    found = program(FOLDED[name](2048, 4096, 512))
    sizes = [np.prod([int(str(n)) for n in b.shape]) for b in found.module.workspaces]
    assert sizes
    assert max(sizes) < 2048 * 4096 / 8
    assert found.kernels[0].name.startswith(("out", "total"))
    assert found.source.partition("@triton.jit")[2].count("tl.dot(") == 1


@pytest.mark.parametrize("shape", [(96, 128, 64), (130, 200, 72), (65, 100, 33)])
@pytest.mark.parametrize("name", FOLDED)
def test_folds_of_tiles_give_the_numbers_of_folds_of_rows(
    name: str, shape: tuple[int, int, int]
) -> None:
    case = RuleCase(name, lambda: FOLDED[name](*shape))
    tiled = interpreted(case, "cuda", {"product.bm": 32, "product.bn": 64})
    assert any(stage.name.endswith(".rf") for stage in tiled.stages)
    interpreted(case, "cuda", {"product.statistics": False})


@pytest.mark.parametrize("name", FOLDED)
def test_folds_of_tiles_in_the_interpreter_of_triton(name: str) -> None:
    decisions = {"product.bm": 32, "product.bn": 64}
    compiled(RuleCase(name, lambda: FOLDED[name](65, 100, 33)), "triton-interpret", decisions)


def test_a_product_that_is_read_after_its_folds_is_stored() -> None:
    """The probabilities need the sums of whole rows, which no tile has."""
    p = product(512, 1024, 256)
    r = te.reduce_axis((0, 1024), name="r")
    total = te.compute((512,), lambda i: te.sum(te.exp(p[i, r]), axis=r), name="total")
    out = te.compute((512, 1024), lambda i, j: te.exp(p[i, j]) / total[i], name="out")
    assert not any(".rf" in stage.name for stage in schedule_for(out, HOPPER).stages)


@pytest.mark.ptxas
@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@pytest.mark.parametrize("name", FOLDED)
def test_folds_cost_a_tile_no_spills(name: str, arch: str) -> None:
    """On sm_100, whose results are moved to registers as a whole, but for a few."""
    most = 64 if arch == "sm_100" else 0
    found = program(FOLDED[name](2048, 4096, 512), f"cuda:{arch}")
    for info in compile_offline(found, arch):
        assert (info.stack or 0) <= most
        assert info.shared <= 227 << 10


@pytest.mark.ptxas
@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_a_residual_leaves_room_for_the_operands(arch: str) -> None:
    """A tile of what is added goes through shared memory, beside the operands fetched ahead."""
    shape = (8192, 4096)
    p, x = product(*shape, 2048), te.placeholder(shape, B, name="x")
    out = te.compute(
        shape, lambda i, j: (te.max(p[i, j], 0.0) + x[i, j].astype("float32")).astype(B), name="out"
    )
    for info in compile_offline(program(out, f"cuda:{arch}"), arch):
        assert not info.stack
        assert info.shared <= 227 << 10


# A norm of a product ---------------------------------------------------------------------------


def normed(m: int, n: int, k: int) -> Tensor:
    """A residual added to a product, and the norm of the rows of that."""
    x, scale, shift = (
        te.placeholder(shape, B, name=name)
        for shape, name in (((m, n), "x"), ((n,), "scale"), ((n,), "shift"))
    )
    first = product(m, n, k)
    total = te.compute(
        (m, n), lambda i, j: (first[i, j] + x[i, j].astype("float32")).astype(B), name="total"
    )
    return te.nn.layer_norm(total, scale, shift, name="norm")


def test_the_product_stores_what_the_norm_of_its_rows_reads() -> None:
    found = program(normed(1024, 512, 256))
    assert [spec.name for spec in found.kernels] == ["total_kernel", "norm_kernel"]
    (between,) = found.module.workspaces
    assert (between.name, between.dtype.value) == ("total", B)


def test_the_norm_of_a_product_gives_the_same_numbers() -> None:
    case = RuleCase("normed", lambda: normed(48, 64, 32))
    interpreted(case, "cuda", {})
    compiled(case, "triton-interpret", {})


def test_a_deep_product_of_few_tiles_is_split_though_its_rows_are_folded() -> None:
    """Four programs of 132 multiprocessors folded 884,736 elements each, for sums of their rows."""

    def kernels(depth: int, side: int, wide: int = 44) -> list[str]:
        c = product(side, wide, depth)
        k = te.reduce_axis((0, wide), name="k")
        t = te.compute((side,), lambda i: te.sum(c[i, k], axis=k), name="t")
        return [f.name for f in lower(schedule_for([t], HOPPER).plan, HOPPER, check=True).funcs]

    assert kernels(884_736, 88) == ["product.local.rf", "product", "t"]
    # 43 programs of 132 multiprocessors, with rows that are loaded element by element and without
    for columns in (2704, 2707):
        assert kernels(6128, 4, columns) == ["product.local.rf", "product", "t"]
    assert kernels(512, 8192) == ["t.rf", "t"]


@pytest.mark.parametrize("batch", [(16,), (4, 4), (2, 2, 4)])
def test_descriptors_load_an_operand_of_all_batches(batch: tuple[int, ...]) -> None:
    """One matrix for all of a batch of any rank is read at 0 of its batch axes, which are of one
    element: a box like others.  Loaded by threads, the last step of such a product took more shared
    memory than there is, and pieces of half the size were taken instead."""
    one = (1,) * len(batch)
    a = te.placeholder((*batch, 946, 1429), B, name="a")
    b = te.placeholder((*one, 946, 1024), B, name="b")
    k = te.reduce_axis((0, 946), name="k")

    def of(*at: te.Axis) -> te.Expr:
        *lead, i, j = at
        return te.sum(a[(*lead, k, i)] * b[(*(0 for _ in lead), k, j)], axis=k)

    c = te.compute((*batch, 1429, 1024), of, name="c")
    s = schedule_for(te.compute(c.shape, lambda *i: c[i].astype(B), name="y"), HOPPER)
    assert {knob.chosen for knob in s.knobs if knob.name.endswith("descriptors")} == {True}
    source = emit(lower(s.plan, HOPPER), HOPPER).source
    assert "b_desc.load(" in source and "a_global_desc.load(" in source
