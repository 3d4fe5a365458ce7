"""Products that multiply one operand, and products of what an earlier kernel computes: what the
rules move, how often, and what the programs ask of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from rule_cases import RuleCase, gated, product
from rule_checks import compiled as on_the_cpu
from rule_checks import interpreted

import tedsl as te
from tedsl.backends.triton.compile.offline import CompiledInfo, compile_offline
from tedsl.backends.triton.emit.module import emit
from tedsl.cost.estimate import estimate
from tedsl.devices import H200
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.target import Target
from tedsl.tensor.tensor import ComputeOp, Tensor

HOPPER = Target.parse("cuda:sm_90")
SHARED = 227 << 10
Decisions = Mapping[str, object]
Made = Callable[..., list[Tensor]]


def combined(names: tuple[str, str, str, str], depths: tuple[int, int]) -> list[Tensor]:
    """The sum of two products of operands with these names and depths."""
    made: dict[str, Tensor] = {}
    parts: list[Tensor] = []
    for number, depth in enumerate(depths):
        left, right = names[2 * number : 2 * number + 2]
        a = made.setdefault(left, te.placeholder((48, depth), "float16", name=left))
        b = made.setdefault(right, te.placeholder((depth, 64), "float16", name=right))
        parts.append(product(a, b, f"p{number}"))
    p, q = parts
    return [te.compute((48, 64), lambda i, j: p[i, j] + q[i, j], name="out")]


def normed(m: int, n: int, k: int, dtype: str = "bfloat16") -> list[Tensor]:
    """rms_norm(x) @ b."""
    x, w = te.placeholder((m, k), dtype, name="x"), te.placeholder((k,), dtype, name="w")
    b = te.placeholder((k, n), dtype, name="b")
    return [te.nn.matmul(te.nn.rms_norm(x, w, eps=1e-5), b)]


def compiled(s: Schedule) -> tuple[str, list[CompiledInfo], int]:
    """The source, what each kernel asks for, and the shared memory that the model expects."""
    module = lower(s.plan, HOPPER)
    program = emit(module, HOPPER)
    expected = estimate(module, H200).shared
    return program.source, compile_offline(program, "sm_90"), expected


def kernels(s: Schedule) -> int:
    stages = [stage for stage in s.plan.stages if isinstance(stage.op, ComputeOp)]
    return sum(stage.placement.at_root for stage in stages)


@pytest.mark.parametrize("sizes", [(64, 64, 128), (40, 72, 100), (33, 17, 70)])
@pytest.mark.parametrize(
    "decisions",
    [
        {},
        {"out.one_loop": False},
        {"out.bm": 16, "out.bn": 16, "out.bk": 32},
        {"out.descriptors": False},
    ],
)
def test_products_of_one_operand(sizes: tuple[int, int, int], decisions: Decisions) -> None:
    offered = {k.name for k in schedule_for(gated(*sizes), "cuda").knobs}
    known = {name: value for name, value in decisions.items() if name in offered}
    s = interpreted(RuleCase("gated", lambda: gated(*sizes)), "cuda", known)
    assert bool(s["up"].plan.placement.leader) is (decisions.get("out.one_loop") is not False)


@pytest.mark.cpu
@pytest.mark.parametrize("sizes", [(40, 72, 100), (33, 17, 70)])
def test_products_of_one_operand_on_the_cpu(sizes: tuple[int, int, int]) -> None:
    """The axes of each product are its own."""
    case = RuleCase("gated", lambda: gated(*sizes))
    interpreted(case, "cpu")
    on_the_cpu(case, "cpu")


def test_products_of_any_size() -> None:
    m, n, k = te.size_var("m"), te.size_var("n"), te.size_var("k")
    case = RuleCase("gated", lambda: gated(m, n, k, "float16"), {"m": 20, "n": 40, "k": 70})
    assert interpreted(case, "cuda")["up"].plan.placement.leader


@pytest.mark.parametrize(
    ("names", "depths", "together"),
    [
        (("a", "b", "a", "c"), (96, 96), True),
        (("a", "c", "b", "c"), (96, 96), True),
        (("a", "b", "c", "d"), (96, 96), False),
        (("a", "b", "c", "d"), (96, 64), False),
    ],
)
def test_only_what_shares_an_operand_shares_a_loop(
    names: tuple[str, str, str, str], depths: tuple[int, int], together: bool
) -> None:
    s = interpreted(RuleCase("sum", lambda: combined(names, depths)), "cuda")
    assert bool(s["p1"].plan.placement.leader) is together
    assert ("out.one_loop" in {k.name for k in s.knobs}) is together


def test_an_operand_that_is_turned_is_another() -> None:
    """a @ b + a.T @ c reads other elements of a at each step."""

    def made() -> list[Tensor]:
        a = te.placeholder((64, 64), "float16", name="a")
        b, c = (te.placeholder((64, 64), "float16", name=x) for x in "bc")
        k = te.reduce_axis((0, 64), name="k")
        turned = te.compute(
            (64, 64),
            lambda i, j: te.sum(a[k, i].astype("float32") * c[k, j].astype("float32"), axis=k),
            name="turned",
        )
        p = product(a, b, "plain")
        return [te.compute((64, 64), lambda i, j: p[i, j] + turned[i, j], name="out")]

    s = interpreted(RuleCase("turned", made), "cuda")
    assert not s["turned"].plan.placement.leader and not s["plain"].plan.placement.leader


@pytest.mark.ptxas
@pytest.mark.parametrize("sizes", [(4096, 14336, 4096), (1000, 5000, 2000)])
def test_one_loop_moves_the_operand_once(sizes: tuple[int, int, int]) -> None:
    s = schedule_for(gated(*sizes), HOPPER)
    source, (info,), expected = compiled(s)
    assert source.count("a_desc.load") == 1
    assert source.count("for k_outer") == 1
    # Two groups of products are on their way while the next tiles are.
    assert "wgmma.wait_group.sync.aligned 2" in info.ptx
    assert "cp.async.c" not in info.ptx
    assert info.stack in (None, 0)
    assert info.shared == expected <= SHARED


def matmul(m: int, n: int, k: int) -> list[Tensor]:
    a = te.placeholder((m, k), "bfloat16", name="a")
    return [te.nn.matmul(a, te.placeholder((k, n), "bfloat16", name="b"))]


def biased(m: int, n: int, k: int) -> list[Tensor]:
    """A product of each batch, a bias for each column, a residual."""
    a = te.placeholder((2, m, k), "float16", name="a")
    b = te.placeholder((2, k, n), "float16", name="b")
    bias, more = te.placeholder((n,), "float16", name="bias"), te.placeholder((2, m, n), "float16")
    p = te.nn.matmul(a, b)
    return [te.compute((2, m, n), lambda z, i, j: p[z, i, j] + bias[j] + more[z, i, j], name="out")]


@pytest.mark.parametrize("sizes", [(128, 64, 64), (100, 72, 70)])
@pytest.mark.parametrize("made", [gated, biased, matmul])
@pytest.mark.parametrize("turned", [False, True])
def test_columns_times_rows(made: Made, sizes: tuple[int, int, int], turned: bool) -> None:
    name = "matmul" if made is matmul else "out"
    case = RuleCase("turned", lambda: made(*sizes))
    tall = {f"{name}.bm": 128, f"{name}.bn": 64, f"{name}.turned": turned}
    interpreted(case, "cuda", tall)
    low = {f"{name}.bm": 32, f"{name}.bn": 64, f"{name}.turned": turned}
    interpreted(case, "cuda", low)


@pytest.mark.ptxas
def test_the_shorter_side_of_a_tile_is_taken_in_pieces_of_64() -> None:
    """As many products by half as many instructions, which read a quarter less."""
    tile = {"out.bm": 128, "out.bn": 64}
    counts: list[int] = []
    for turned, kind in ((True, "m64n128k16"), (False, "m64n64k16")):
        s = schedule_for(gated(1000, 5000, 2000), HOPPER, {**tile, "out.turned": turned})
        _, (info,), _ = compiled(s)
        assert f"wgmma.mma_async.sync.aligned.{kind}" in info.ptx
        assert info.stack in (None, 0)
        counts.append(info.ptx.count("wgmma.mma_async"))
    assert counts[1] == 2 * counts[0]
    default = schedule_for(gated(1000, 5000, 2000), HOPPER, tile).knobs
    assert next(k.chosen for k in default if k.name == "out.turned") is True


@pytest.mark.ptxas
def test_few_rows_may_be_columns_of_the_matrix_units() -> None:
    kinds: dict[bool, bool] = {}
    for turned in (False, True):
        decisions = {"matmul.parts": 1, "matmul.bn": 64, "matmul.turned": turned}
        _, (info,), _ = compiled(schedule_for(matmul(16, 8192, 8192), HOPPER, decisions))
        kinds[turned] = "wgmma.mma_async.sync.aligned.m64n16k16" in info.ptx
        assert info.stack in (None, 0)
    assert kinds == {False: False, True: True}


def test_bytes_are_not_turned() -> None:
    """The matrix units take 8-bit operands in one order only."""

    def made() -> list[Tensor]:
        a, b = (te.placeholder((128, 128), "int8", name=x) for x in "ab")
        k = te.reduce_axis((0, 128), name="k")
        return [
            te.compute(
                (128, 128),
                lambda i, j: te.sum(a[i, k].astype("int32") * b[k, j].astype("int32"), axis=k),
                name="out",
            )
        ]

    knobs = schedule_for(made(), HOPPER, {"out.bm": 128, "out.bn": 64}).knobs
    assert "out.turned" not in {k.name for k in knobs}


@pytest.mark.ptxas
def test_three_products_have_smaller_tiles() -> None:
    def made() -> list[Tensor]:
        a = te.placeholder((4096, 4096), "bfloat16", name="a")
        b = [te.placeholder((4096, 4096), "bfloat16", name=f"b{n}") for n in range(3)]
        p, q, r = (product(a, each, f"p{n}") for n, each in enumerate(b))
        return [te.compute((4096, 4096), lambda i, j: p[i, j] * q[i, j] + r[i, j], name="out")]

    source, (info,), _ = compiled(schedule_for(made(), HOPPER))
    assert source.count("tl.dot(") == 3 and source.count("for k_outer") == 1
    assert info.stack in (None, 0)
    assert info.num_warps == 8


@pytest.mark.parametrize("sizes", [(40, 48, 96), (33, 17, 70), (70, 40, 333)])
@pytest.mark.parametrize("decisions", [{}, {"matmul.chain": True}])
def test_a_norm_before_a_product(sizes: tuple[int, int, int], decisions: Decisions) -> None:
    s = interpreted(RuleCase("norm", lambda: normed(*sizes)), "cuda", decisions)
    assert kernels(s) == (1 if decisions else 2)


def test_a_norm_before_a_product_in_programs_that_stay() -> None:
    """More tiles than programs, the last turn of which is not full."""
    decisions = {
        "matmul.chain": True,
        "matmul.bm": 16,
        "matmul.bn": 16,
        "matmul.bk": 32,
        "matmul.resident": 1,
        "matmul.descriptor_store": True,
    }
    s = interpreted(RuleCase("norm", lambda: normed(200, 208, 48)), "cuda", decisions)
    assert kernels(s) == 1


@pytest.mark.ptxas
@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (2047, 5000, 4096), (2047, 4999, 4095)])
def test_what_an_earlier_kernel_computes_is_moved_by_the_copy_engine(
    sizes: tuple[int, int, int],
) -> None:
    """Rows that start off multiples of 16 bytes are stored longer."""
    source, infos, expected = compiled(schedule_for(normed(*sizes), HOPPER))
    assert "rms_norm_desc.load" in source
    assert all("cp.async.c" not in info.ptx for info in infos)
    assert all(info.stack in (None, 0) for info in infos)
    assert max(info.shared for info in infos) == expected


@pytest.mark.ptxas
@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (2047, 5000, 4096)])
def test_a_fold_before_a_product_reads_the_tile_of_the_product(
    sizes: tuple[int, int, int],
) -> None:
    s = schedule_for(normed(*sizes), HOPPER, {"matmul.chain": True})
    source, (info,), expected = compiled(s)
    assert source.count("x_desc.load") == 1 and "tl.load(x " not in source
    assert "wgmma.mma_async" in info.ptx
    assert info.stack in (None, 0)
    # What the model leaves out are barriers and the piece of the weights.
    assert expected <= info.shared <= min(expected + 1024, SHARED)


@pytest.mark.ptxas
@pytest.mark.parametrize("name", ["gated", "normed"])
def test_ragged_operands_do_not_spill(name: str) -> None:
    """Operands too small for a copy, whose elements the threads fetch one by one."""
    made = gated if name == "gated" else normed
    _, infos, _ = compiled(schedule_for(made(1001, 777, 333), HOPPER))
    assert all(info.stack in (None, 0) for info in infos)


# What the rules choose -------------------------------------------------------------------------


def chosen(made: list[Tensor], decisions: Decisions, *names: str) -> list[object]:
    """What is decided for some knobs where others have these values."""
    found = {knob.name: knob.chosen for knob in schedule_for(made, HOPPER, decisions).knobs}
    return [found[name] for name in names]


def test_the_loop_over_tiles_is_one_with_the_steps_of_one_product_only() -> None:
    """Two sums, and what a fold carries besides, are held at the end of a tile: it is a loop of its
    own."""
    sizes = (4096, 8192, 4096)
    assert chosen(gated(*sizes), {}, "out.resident", "out.flatten") == [1, False]
    assert chosen(matmul(*sizes), {}, "matmul.resident", "matmul.flatten") == [1, True]
    chain = {"matmul.chain": True, "matmul.resident": 1}
    assert chosen(normed(*sizes), chain, "matmul.flatten") == [False]


def test_a_pair_of_products_of_ragged_rows_has_large_tiles() -> None:
    """Rows of 4000 and 10000 bytes; those of a few elements more are whole lines."""
    names = [f"out.{name}" for name in ("bm", "bn", "stages", "warps")]
    assert chosen(gated(1000, 5000, 2000), {}, *names) == [128, 128, 4, 8]
    assert chosen(gated(1000, 5056, 2048), {}, *names) == [128, 64, 3, 4]
