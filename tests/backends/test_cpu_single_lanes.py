"""Masked stores of one known lane write that lane and nothing beside it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import pytest
from cpu_machines import MACHINES, compiling_for
from red_zones import red_zones

import tedsl as te
from tedsl.backends.cpu.run import jit
from tedsl.backends.cpu.run.single_lanes import with_single_lanes_stored
from tedsl.processor import binding, machine
from tedsl.reference.reference import evaluate

pytestmark = pytest.mark.cpu

PROGRAM = """target triple = "{triple}"

define void @f(ptr %from, ptr %to) #0 {{
  %wide = load <{lanes} x {wide}>, ptr %from, align 1
  %value = trunc <{lanes} x {wide}> %wide to <{lanes} x {narrow}>
  call void @llvm.masked.store.v{lanes}{narrow}.p0(<{lanes} x {narrow}> %value, ptr %to, i32 1, \
<{lanes} x i1> <{mask}>)
  ret void
}}

declare void @llvm.masked.store.v{lanes}{narrow}.p0(<{lanes} x {narrow}>, ptr, i32, <{lanes} x i1>)

attributes #0 = {{ {attributes} }}
"""
NARROWED = [
    (wide, narrow)
    for wide in ("i16", "i32", "i64")
    for narrow in ("i8", "i16", "i32")
    if int(wide[1:]) > int(narrow[1:])
]


def written(wide: str, narrow: str, mask: Sequence[bool], mended: bool) -> tuple[set[int], bytes]:
    """Which bytes the program writes, and all bytes afterwards."""
    lanes, size = len(mask), int(narrow[1:]) // 8
    text = PROGRAM.format(
        triple=machine().triple,
        attributes=machine().attributes,
        lanes=lanes,
        wide=wide,
        narrow=narrow,
        mask=", ".join("i1 true" if lane else "i1 false" for lane in mask),
    )
    module = binding().parse_assembly(text)
    if mended:
        module = binding().parse_assembly(with_single_lanes_stored(str(module)))
    engine = jit._load(bytes(jit._target_machine().emit_object(module)))
    source = np.arange(1, lanes + 1, dtype=f"i{int(wide[1:]) // 8}")
    found: set[int] = set()
    for filler in (0x00, 0xEE):
        target = np.full(lanes * size + 64, filler, np.uint8)
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
        call(engine.get_function_address("f"))(source.ctypes.data, target.ctypes.data)
        found |= set(np.flatnonzero(target != filler).tolist())
    return found, target.tobytes()


@pytest.mark.parametrize("wide,narrow", NARROWED)
@pytest.mark.parametrize("lanes", [2, 4, 8, 16, 32])
def test_one_lane_of_a_narrowed_vector(lanes: int, wide: str, narrow: str) -> None:
    size = int(narrow[1:]) // 8
    for live in (0, lanes // 2, lanes - 1):
        found, data = written(wide, narrow, [n == live for n in range(lanes)], mended=True)
        place = range(live * size, (live + 1) * size)
        assert found == set(place)
        assert int.from_bytes(data[place.start : place.stop], "little") == live + 1


def test_llvm_still_needs_it() -> None:
    """The smallest program that LLVM gets wrong; where it is right the file can go."""
    if not (machine().is_x86 and machine().has_masks):
        pytest.skip("other processors have no such stores")
    mask = [True, False, False, False, False, False, False, False]
    found, _ = written("i32", "i8", mask, mended=False)
    if found == {0}:
        pytest.skip("LLVM has been mended")
    assert found == {0, 1, 2, 3}


@pytest.mark.parametrize("mask", [[True, True, False, False], [False] * 4, [True] * 4])
def test_other_masks_stay(mask: list[bool]) -> None:
    lanes = ", ".join("i1 true" if lane else "i1 false" for lane in mask)
    call = (
        f"  call void @llvm.masked.store.v4i8.p0(<4 x i8> %v, ptr align 1 %p, <4 x i1> <{lanes}>)"
    )
    assert with_single_lanes_stored(call) == call


def test_text_of_a_store() -> None:
    """Constant values, attributes, metadata; the alignment is that of the lane."""
    call = (
        "  tail call void @llvm.masked.store.v4i32.p0(<4 x i32> splat (i32 7), "
        'ptr nonnull align 16 %"a b", <4 x i1> <i1 false, i1 poison, i1 true, i1 false>) #3, '
        "!alias.scope !5, !noalias !8"
    )
    assert with_single_lanes_stored(call) == (
        "  %tedsl.lane1 = extractelement <4 x i32> splat (i32 7), i64 2\n"
        '  %tedsl.at1 = getelementptr i32, ptr %"a b", i64 2\n'
        "  store i32 %tedsl.lane1, ptr %tedsl.at1, align 8, !alias.scope !5, !noalias !8"
    )


LENGTHS = (1, 2, 3, 5, 7, 9, 15, 17, 33)
CASTS = [
    ("float64", "float8_e5m2"),
    ("float32", "float8_e4m3fn"),
    ("float64", "bfloat16"),
    ("float32", "float16"),
    ("int64", "int32"),
    ("int64", "uint8"),
    ("int32", "int16"),
    ("int16", "int8"),
    ("float64", "int8"),
    ("float64", "float32"),
    ("int64", "bool"),
]


def converted(x: te.Tensor, to: str) -> te.Tensor:
    """All elements as `to`."""
    return te.compute(x.shape, lambda i, j: x[i, j].astype(to), name=x.name.replace("x", "y"))


@pytest.mark.parametrize("machine", ["here", *MACHINES])
@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize("source,to", CASTS)
def test_rows_of_odd_lengths(source: str, to: str, vectorized: bool, machine: str) -> None:
    """Whoever makes the vectors of a row, we or LLVM, nothing beside it is written."""
    data = {n: np.arange(2 * n).reshape(2, n).astype(source) for n in LENGTHS}
    inputs = {te.placeholder((2, n), source, name=f"x{n}"): data[n] for n in LENGTHS}
    outputs = [converted(x, to) for x in inputs]
    s = te.create_schedule(outputs)
    for y in outputs if vectorized else ():
        s[y].vectorize(s[y].split(y.op.axis[1], 8)[1])
    if machine == "here":
        kernel = te.build(s, "cpu", cache=False)
        with red_zones():
            got = kernel(*inputs.values())
    else:
        with compiling_for(machine), red_zones():
            got = te.build(s, "cpu", cache=False)(*inputs.values())
    for found, want in zip(got, evaluate(outputs, inputs), strict=True):
        np.testing.assert_array_equal(found, want)
