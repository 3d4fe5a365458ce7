"""Whatever things are called, a Triton program is the same program."""

from __future__ import annotations

import ast
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

import tedsl as te
from tedsl.backends.triton.emit.module import emit
from tedsl.backends.triton.emit.names import sanitise, shown
from tedsl.errors import TedslError

BREAKS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\0"
WORDS = ("pass", "#", '"""', "'", "\\", "A = A - i", "    ", "é", "数", "1a", "if", "tl", "{", "}")


def names() -> st.SearchStrategy[str]:
    """Names that end a line, a comment or a text, that are keywords, and any others."""
    part = st.one_of(st.sampled_from([*BREAKS, *WORDS]), st.text(max_size=5))
    whole = st.lists(part, min_size=1, max_size=4).map("".join)
    return whole.map(lambda name: name.replace(".", "")[:24])  # what follows a dot has a meaning


def one_pass(name: Callable[[str], str]) -> te.Schedule:
    """A kernel with a tuple reducer, a tile value, a size, and comments on all of them."""
    n = te.size_var(name("n"))
    x = te.placeholder((n, 64), "float32", name=name("x"))
    largest = te.comm_reducer(
        lambda a, b: (te.max(a[0], b[0]), a[1] + b[1]),
        lambda *kinds: (te.min_value(kinds[0]), te.const(0, kinds[1])),
        name=name("largest"),
    )
    k = te.reduce_axis((0, 64), name=name("k"))
    m, _ = te.compute((n,), lambda i: largest((x[i, k], x[i, k]), axis=k), name=name("m"))
    y = te.compute((n, 64), lambda i, j: x[i, j] - m[i], name=name("y"))
    s = te.create_schedule(y)
    s[m].compute_at(s[y], s[y].op.axis[0])
    s[y].bind(s[y].op.axis[0], "blockIdx.x")
    s[y].bind(s[y].op.axis[1], "threadIdx.x")
    return s


def program(name: Callable[[str], str]) -> str:
    """What Python reads of the text: all but comments."""
    source = emit(te.lower(one_pass(name), target="cuda:sm_90"), "cuda:sm_90").source
    assert source.isascii()
    return ast.dump(ast.parse(source), indent=1)


@settings(max_examples=settings().max_examples // 2)
@given(names())
@example("x\n        A = A - i\n        #")
@example('"""\nimport os')
@example("a\u2028b")
def test_a_name_is_no_code(drawn: str) -> None:
    plain = program(lambda role: sanitise(f"{role}_{drawn}"))
    try:
        found = program(lambda role: f"{role}_{drawn}")
    except TedslError as error:  # where the language refuses the name itself
        assert "name" in str(error)
        return
    assert found == plain


@pytest.mark.parametrize("line_break", list(BREAKS))
def test_a_line_break_in_a_name(line_break: str) -> None:
    """It ended the comment that names the stage, and the rest was run."""
    name = f"x{line_break}        A = A - i{line_break}        #"
    a = te.placeholder((4,), "float32", name="A")
    with pytest.raises(te.ExprError, match=r"the name .* of a compute .* cannot be printed"):
        te.compute((4,), lambda i: a[i] + 1.0, name=name)
    assert len(shown(name).splitlines()) == 1
