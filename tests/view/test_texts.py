"""Texts told by the one before them, and names found in them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from viewed import fused_product

import tedsl as te
from tedsl.view.code import llvm_lines, ptx_lines, triton_lines
from tedsl.view.data import Line, Mark
from tedsl.view.texts import Buffers, Stages, changes, nest_lines, python_line

SOURCE = '''"""Kernels of D."""

@triton.jit
def kernel(A, add_1, C_desc):
    pid = tl.program_id(0)
    for k in tl.range(0, 4):
        # A.shared: by plain loads
        A_shared = tl.load(A + pid)

        # add: sum over k
        add_2 = A_shared + 1
    other = 0
    # not a stage
    tl.store(add_1, add_2)'''
STAGES = {"A": 0, "A.shared": 1, "add": 2, "add_1": 3}

texts = st.lists(st.integers(0, 5), max_size=12)


@given(texts, texts)
def test_changes_lead_from_one_text_to_the_other(old: list[int], new: list[int]) -> None:
    at, made = 0, list[int]()
    for change in changes(old, new):
        if isinstance(change, tuple):
            assert change
            made += change
            continue
        assert change
        made += old[at : at + change] if change > 0 else []
        at += abs(change)
    assert made == new
    assert at == len(old)


def test_what_stays_is_told_as_a_number() -> None:
    assert list(changes([1, 2, 3, 4], [1, 2, 9, 4])) == [2, -1, (9,), 1]
    assert list(changes([1, 2], [1, 2])) == [2]
    assert list(changes([], [])) == []


def words(line: Line) -> list[tuple[str, int]]:
    return [(line.text[m.start : m.start + m.length], m.stage) for m in line.marks if m.length]


def whole(line: Line) -> list[int]:
    return [mark.stage for mark in line.marks if not mark.length]


def test_triton_lines_belong_to_the_stage_of_the_comment_above() -> None:
    lines = triton_lines(SOURCE, STAGES)
    by_text = {line.text.strip(): line for line in lines}
    assert words(by_text["# A.shared: by plain loads"]) == [("A.shared", 1)]
    assert whole(by_text["A_shared = tl.load(A + pid)"]) == [1]
    assert words(by_text["A_shared = tl.load(A + pid)"]) == [("A_shared", 1), ("A", 0)]
    assert whole(by_text["add_2 = A_shared + 1"]) == [2]
    assert whole(by_text["other = 0"]) == [], "the block of the comment has ended"
    assert whole(by_text["tl.store(add_1, add_2)"]) == []
    assert words(by_text["tl.store(add_1, add_2)"]) == [("add_1", 3), ("add_2", 2)]


def test_ptx_belongs_to_the_stage_of_its_source_line() -> None:
    name = f"k{'0' * 32}.py"
    ptx = f"""\
.visible .entry kernel(
\tmov.u32 %r1, 0;
\t.loc\t1 8 20  // {name}:8:20
\tld.global.b32 %r1, [%rd1];
\t.loc\t2 314 12, function_name $L__info_string0, inlined_at 1 11 9 // standard.py:314:12
\tadd.f32 %r1, %r1, %r2;
\t.loc\t2 287 12, function_name $L__info_string0, inlined_at 2 314 12 // standard.py:287:12
\tadd.f32 %r3, %r1, %r2;
$L__tmp0:
}}
\tret;"""
    lines = {
        line.text.strip(): whole(line) for line in ptx_lines(ptx, triton_lines(SOURCE, STAGES))
    }
    assert lines["mov.u32 %r1, 0;"] == []
    assert lines["ld.global.b32 %r1, [%rd1];"] == [1]
    assert lines["add.f32 %r1, %r1, %r2;"] == [2]
    assert lines["add.f32 %r3, %r1, %r2;"] == [2], "still inside what line 11 called"
    assert lines["$L__tmp0:"] == []
    assert lines["ret;"] == [], "behind the end of the kernel"


LLVM = """\
define internal void @D.0(ptr %p1) {
entry:
  br label %loop1
loop1:
  %i4 = phi i64 [ 0, %entry ], [ %n5, %latch2 ]
  ; C_acc_wide
  br label %loop6
loop6:
  %i9 = phi i64 [ 0, %loop1 ], [ %n10, %latch7 ]
  br label %latch7
latch7:
  br i1 %v11, label %loop6, label %done8
done8:
  store float 0.0, ptr %p1
  ; x_1
  br label %latch2
latch2:
  %n5 = add i64 %i4, 1
}"""


def test_llvm_belongs_to_the_comment_above_it_up_to_the_end_of_the_loop_around() -> None:
    s = fused_product()
    module = te.lower(s, "cpu")
    stages = Stages()
    lines = list(llvm_lines(LLVM, module, Buffers(s.plan, stages)))
    assert "\n".join(line.text for line in lines) == LLVM
    c = stages.numbers["C"]
    owned = [line.text for line in lines if whole(line)]
    assert {stage for line in lines for stage in whole(line)} == {c}
    assert owned[0] == "  br label %loop6"
    assert owned[-1] == "  store float 0.0, ptr %p1"
    assert len(owned) == 8
    assert words(lines[0]) == [("D.0", stages.numbers["D"])]
    assert words(lines[5]) == [("C_acc_wide", c)]


def test_python_lines_are_marked_where_a_stage_is_named() -> None:
    line = python_line('s["C"].compute_at(s["a\\"b"], C)', {"C": 0, 'a"b': 1})
    assert line.marks == (Mark(2, 3, 0), Mark(20, 6, 1))


def test_lists_of_stages_are_marked() -> None:
    (line,) = nest_lines("extern Y: float32[8] calls double(X, Xs)", {"X": 0, "Y": 1})
    assert words(line) == [("Y", 1), ("X", 0)]
    (line,) = nest_lines("  scan: rows of init, then C.v1", {"scan": 0, "init": 1, "v1": 2})
    assert words(line) == [("scan", 0), ("init", 1)]
