"""Symbolic bounds, proofs and counterexamples on readable cases."""

from __future__ import annotations

import pytest
from index_text import Scope, show

from tedsl.dtypes import DType
from tedsl.expr.nodes import Axis, Const, Range, TensorRead, Var
from tedsl.index.affine import coefficients, divisible, known_multiple, stride_of
from tedsl.index.bounds import lower_bound, upper_bound
from tedsl.index.evaluate import EvaluationError, evaluate_int
from tedsl.index.facts import Facts
from tedsl.index.interval import Interval, interval
from tedsl.index.linear import from_linear, linear
from tedsl.index.prove import counterexample, equal, prove, prove_not
from tedsl.index.simplify import simplify
from tedsl.tensor.tensor import PlaceholderOp

SPLIT = {"io": "0:(n + 31)//32", "ii": "0:32"}
FUSED = {"i": "0:n", "j": "0:m"}

BOUNDS = [
    ("(io*32 + ii)//16", SPLIT, "ii", "io * 2", "io * 2 + 1"),
    ("io*32 + ii", SPLIT, "ii", "io * 32", "io * 32 + 31"),
    ("io*32 + ii", SPLIT, "io ii", "0", "(n + 31) // 32 * 32 - 1"),
    ("i*m + j", FUSED, "j", "i * m", "i * m + m - 1"),
    ("i*m + j", FUSED, "i j", "0", "m * n - 1"),
    ("i + j", FUSED, "i j", "0", "m + n - 2"),
    ("k - i", FUSED, "i", "k - n + 1", "k"),
    ("i*2 + j - 3", {"i": "0:7", "j": "1:3"}, "i j", "-2", "12"),
    ("min(io*32 + ii, n - 1)", SPLIT, "ii", "io * 32", "min(io * 32 + 31, n - 1)"),
    ("i%8", FUSED, "i", "0", "7"),
    ("i%m", {"i": "0:n"}, "i", "0", "m - 1"),
    ("i - i//2", {"i": "0:n"}, "i", "0", "n - (n + 1) // 2"),
    ("j", {"i": "0:n", "j": "i*4:4"}, "j", "i * 4", "i * 4 + 3"),
    ("j", {"i": "0:n", "j": "i*4:4"}, "i j", "0", "n * 4 - 1"),
    ("int64(i)*int64(m)", FUSED, "i", "0", "int64(m) * int64(n - 1)"),
    ("select(k < 3, i, j)", FUSED, "i j", "0", "max(n - 1, m - 1)"),
    ("k*i", {"i": "0:4"}, "i", None, None),
    ("k", {}, "k", None, None),
]


@pytest.mark.parametrize(("text", "ranges", "axes", "low", "high"), BOUNDS)
def test_bounds(
    text: str, ranges: dict[str, str], axes: str, low: str | None, high: str | None
) -> None:
    scope = Scope(**ranges)
    expr, over = scope(text), [scope.names.setdefault(a, Axis(a)) for a in axes.split()]
    found = lower_bound(expr, over, scope.facts), upper_bound(expr, over, scope.facts)
    assert [None if x is None else show(x) for x in found] == [low, high]


def test_conditions_narrow_bounds() -> None:
    scope = Scope("i >= 1", "i < 5", i="0:n")
    i = scope.names["i"]
    found = (f(scope("i - 1"), [i], scope.facts) for f in (lower_bound, upper_bound))
    assert [show(x) for x in found if x is not None] == ["0", "3"]


PROVED = [
    ("i < n", FUSED, []),
    ("i*m + j < n*m", FUSED, []),
    ("i < (n + 31)//32*32", FUSED, []),
    ("i < (n + c - 1)//c*c", FUSED, ["c >= 1"]),
    ("n//4*4 <= n", {}, []),
    ("n//c*c <= n", {}, []),
    ("io*32 + ii < n", {"io": "0:n//32", "ii": "0:32"}, []),
    ("io*32 + ii < n", SPLIT, ["n % 32 == 0"]),
    ("io*32 + ii < n + 31", SPLIT, []),
    ("io*c + ii < n", {"io": "0:n//c", "ii": "0:c"}, []),
    ("io*64 + ii*4 + k < n*64", {"io": "0:n", "ii": "0:16", "k": "0:4"}, []),
    ("i + 1 < n + 1", FUSED, []),
    ("min(i + 1, n - 1) < n", FUSED, []),
    ("max(i - 1, 0) < n", FUSED, []),
    ("max(i - 1, 0) >= 0", FUSED, []),
    ("max(min(k, n - 1), 0) < n", {}, ["n >= 1"]),
    ("(i if i < m else 0) < m", {"i": "0:n"}, ["m >= 1"]),
    ("(i < n) & (i >= 0)", FUSED, []),
    ("(k < 5) | (k >= 5)", {}, []),
    ("~((k < 5) & (k > 7))", {}, []),
    ("i < 64", {"i": "0:n"}, ["n <= 64"]),
    ("i + j < 10", {}, ["i < 4", "j <= 6"]),
    ("i < k", {}, ["i < j", "j <= k"]),
    ("i*8 + j < n", {"j": "0:8"}, ["i*8 + 7 < n"]),
    ("i*i >= 0", {}, []),
    ("i % n < n", {"i": "0:m"}, ["n >= 1"]),
    ("i // n <= i", {"i": "0:m"}, []),
    ("n*m >= n", {}, ["m >= 1"]),
    ("i*2 + 1 != j*2", {}, []),
    ("(i//m)*m + i%m == i", {"i": "0:n"}, []),
    ("f//m < n", {"f": "0:n*m"}, []),
    ("f//m//c < n", {"f": "0:n*c*m"}, []),
    ("f//m%n*m + f%m < n*m", {"f": "0:s*n*m"}, []),
    ("(n - 1)*(m - 1) >= 0", {}, ["n >= 1", "m >= 1"]),
    ("(i + j)*(i + j) == i*i + 2*i*j + j*j", {}, []),
]


@pytest.mark.parametrize(("text", "ranges", "conditions"), PROVED)
def test_proved(text: str, ranges: dict[str, str], conditions: list[str]) -> None:
    scope = Scope(*conditions, **ranges)
    assert prove(scope(text), scope.facts)
    assert counterexample(scope(text), scope.facts) is None


REFUTED = [
    ("i < 8", {"i": "0:9"}, [], {"i": 8}),
    ("i + 1 < n", {"i": "0:n"}, [], {"n": 7, "i": 6}),
    ("i >= 0", {"i": "-1:n"}, [], {"n": 7, "i": -1}),
    ("io*32 + ii < n", SPLIT, [], {"n": 7, "io": 0, "ii": 31}),
    ("i % 8 != 5", {"i": "0:40"}, [], {"i": 5}),
    ("i*j != 221", {"i": "1:40", "j": "1:40"}, [], {"i": 13, "j": 17}),
    ("i < 5", {"i": "0:40"}, ["i < 9"], {"i": 8}),
    ("k < 5", {}, ["k >= 2"], {"k": 8}),
    ("n < 1000", {}, [], {"n": 1000}),
]


@pytest.mark.parametrize(("text", "ranges", "conditions", "point"), REFUTED)
def test_counterexample(
    text: str, ranges: dict[str, str], conditions: list[str], point: dict[str, int]
) -> None:
    scope = Scope(*conditions, **ranges)
    cond = scope(text)
    found = counterexample(cond, scope.facts)
    assert found is not None
    assert {axis.name: value for axis, value in found.items()} == point
    assert not evaluate_int(cond, found)
    assert not prove(cond, scope.facts)


def test_a_search_ends_where_no_point_is_inside() -> None:
    """A shape of many sizes, of which none that is tried leaves its last axis an element."""
    sizes = "abcdefgpqrst"
    scope = Scope(i=f"0:-1 - {' - '.join(sizes)}")
    assert counterexample(scope(f"i > {' + '.join(sizes)}"), scope.facts) is None


@pytest.mark.parametrize("extent", [1, 7, 33, 50257])
@pytest.mark.parametrize("factor", [1, 2, 7, 32, 128])
def test_split_and_fuse_round_trip(extent: int, factor: int) -> None:
    outer = -(-extent // factor)
    scope = Scope(i=f"0:{extent}", io=f"0:{outer}", ii=f"0:{factor}")
    assert equal(scope(f"i//{factor}*{factor} + i%{factor}"), scope("i"), scope.facts)
    joined = f"(io*{factor} + ii)"
    assert equal(scope(f"{joined}//{factor}"), scope("io"), scope.facts)
    assert equal(scope(f"{joined}%{factor}"), scope("ii"), scope.facts)
    guarded = prove(scope(f"io*{factor} + ii < {extent}"), scope.facts)
    assert guarded == (extent % factor == 0)


def test_symbolic_round_trip() -> None:
    scope = Scope(io="0:(n + c - 1)//c", ii="0:c", f="0:n*m", i="0:n", j="0:m")
    for text, expected in [
        ("(io*c + ii)//c", "io"),
        ("(io*c + ii)%c", "ii"),
        ("f//m*m + f%m", "f"),
        ("(i*m + j)//m*m + (i*m + j)%m", "i * m + j"),
    ]:
        assert show(simplify(scope(text), scope.facts)) == expected
    assert prove(scope("f//m < n"), scope.facts)
    assert prove(scope("f%m < m"), scope.facts)
    assert not prove(scope("io*c + ii < n"), scope.facts)


def test_affine_queries() -> None:
    scope = Scope("n % 16 == 0", **SPLIT, i="0:8", j="0:4")
    i, j, ii, io = (scope.names[x] for x in ("i", "j", "ii", "io"))
    found = coefficients(scope("i*32 + j*4 + n + 1"), [i, j])
    assert found is not None
    assert found[0] == {i: 32, j: 4}
    assert show(found[1]) == "n + 1"
    assert coefficients(scope("i//4 + j"), [i]) is None
    assert stride_of(scope("io*32 + ii"), ii, scope.facts) == 1
    assert stride_of(scope("(io*32 + ii)//32"), ii, scope.facts) == 0
    assert stride_of(scope("(i*4 + j)//2"), i, scope.facts) == 2
    assert stride_of(scope("i//4"), i) is None
    assert stride_of(scope("i*i"), i) is None
    step = stride_of(scope("i*n + j"), i)
    assert step is not None and not isinstance(step, int)
    assert show(step) == "n"
    assert stride_of(scope("io"), io) == 1
    assert divisible(scope("io*32 + n"), 16, scope.facts)
    assert divisible(scope("min(io*32, n)"), 16, scope.facts)
    assert not divisible(scope("io*32 + n"), 32, scope.facts)
    assert known_multiple(scope("i*12 + 8")) == 4


def test_reads_are_never_trusted() -> None:
    table = PlaceholderOp("idx", (Const(8, DType.int32),), DType.int32).output()
    small = PlaceholderOp("small", (Const(8, DType.int32),), DType.uint8).output()
    scope = Scope(i="0:8")
    i = scope.names["i"]
    read, byte = TensorRead(table, (i,)), TensorRead(small, (i,))
    assert upper_bound(read, [i], scope.facts) is None
    assert interval(byte, scope.facts) == Interval(0, 255)
    assert interval(read, scope.facts) == Interval(-(2**31), 2**31 - 1)
    scope.names["r"] = read  # pyright: ignore[reportArgumentType]
    for text in ["r + 1 > r", "r*4//4 == r", "abs(r) >= 0"]:
        assert show(simplify(scope(text))) != "True", text
    for text, expected in [("r + r - r", "r"), ("r//4*4 + r%4", "r"), ("r*0", "0")]:
        expected = show(read) if expected == "r" else expected
        assert show(simplify(scope(text))) == expected
    bounded = scope.facts.assume(scope("(r >= 0) & (r < n)"))
    assert prove(scope("(r < n) & (r >= 0)"), bounded)
    assert counterexample(scope("i < 7"), bounded) is None  # the read may forbid i = 7
    inside = TensorRead(table, (scope("i*2//2"),))
    again = simplify(inside, scope.facts)
    assert isinstance(again, TensorRead) and again.indices == (i,)


def test_domains_stand_in_for_missing_ranges() -> None:
    n = Var("n", lower=0)
    axis = Axis("i", domain=Range(Const(0, DType.int32), n))
    scope = Scope()
    scope.names.update(i=axis, n=n)
    assert prove(scope("(i < n) & (i >= 0)"))
    assert prove(scope("i + 1 < n"), Facts.of({axis: (0, 3)}).assume(scope("n >= 4")))


def test_factors_prove_signs() -> None:
    scope = Scope("n >= m", "c >= s", "s >= 0")
    cond = scope("n*c + m*s >= n*s + m*c")  # (n - m) * (c - s) >= 0
    assert prove(cond, scope.facts)
    assert prove(scope("n*n + m*m >= 2*n*m"))
    assert not prove(cond, Facts.of({}))


def test_linear_form() -> None:
    scope = Scope()
    form = linear(scope("(i + 1)*4 - j//2*2 - 7 + j//2"))
    assert {show(atom): scale for atom, scale in form.terms.items()} == {"i": 4, "j // 2": -1}
    assert form.constant == -3
    assert show(from_linear(form)) == "i * 4 - j // 2 - 3"


def test_evaluate_refuses_what_it_does_not_know() -> None:
    scope = Scope()
    i = scope("i")
    with pytest.raises(EvaluationError, match="i has no value"):
        evaluate_int(i, {})
    with pytest.raises(EvaluationError, match="no integer value"):
        evaluate_int(scope("1//i"), {i: 0})
    with pytest.raises(EvaluationError, match="float32"):
        evaluate_int(scope("1.5"), {})
    assert evaluate_int(scope("-7//2"), {}) == -4
    assert evaluate_int(scope("truncdiv(-7, 2)"), {}) == -3
    assert prove_not(scope("i < i"))
