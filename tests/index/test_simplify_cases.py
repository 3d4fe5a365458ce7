"""Input, facts and expected text of `simplify`, one line each."""

from __future__ import annotations

import pytest
from index_text import Scope, show

from tedsl.index.facts import Facts
from tedsl.index.simplify import simplify

SPLIT = {"io": "0:(n + 31)//32", "ii": "0:32"}
FUSED = {"i": "0:n", "j": "0:m"}

CASES = [
    # sums
    ("i + i", {}, "i * 2"),
    ("i - i", {}, "0"),
    ("1 + i + 2", {}, "i + 3"),
    ("j + i*4", {}, "i * 4 + j"),
    ("(i + 2)*4 - 3", {}, "i * 4 + 5"),
    ("-(i - j)", {}, "j - i"),
    ("5 - i", {}, "5 - i"),
    ("ii + io*32", SPLIT, "io * 32 + ii"),
    ("j + m*i", FUSED, "i * m + j"),
    ("(i + 1)*n - i*n", {}, "n"),
    ("(n - 1)*m + (m - 1)", {}, "m * n - 1"),
    ("i << 3", {}, "i * 8"),
    # splits and fusions
    ("(io*32 + ii)//32", SPLIT, "io"),
    ("(io*32 + ii)%32", SPLIT, "ii"),
    ("(i*m + j)//m", FUSED, "i"),
    ("(i*m + j)%m", FUSED, "j"),
    ("i//4*4 + i%4", {}, "i"),
    ("i//m*m + i%m", {}, "i"),
    ("i//(n*m)*(n*m) + i//m%n*m + i%m", {"i": "0:s"}, "i"),
    ("i - i//4*4", {}, "i % 4"),
    ("i//4%8*4 + i%4", {}, "i % 32"),
    ("(i%8)//4*4 + i%4", {}, "i % 8"),
    # a constant that is no part of the remainder is one of the quotient
    ("(i + 5)//4%8*4 + (i + 5)%4", {"i": "0:100"}, "(i + 5) % 32"),
    ("(i + 920)//36%352*36 + (i + 920)%36", {"i": "0:100000"}, "(i + 920) % 12672"),
    (
        "(i - j*8 + 72)//36%5*36 + (i - j*8 + 72)%36",
        {"i": "0:500", "j": "0:10"},
        "(i - j * 8 + 72) % 180",
    ),
    ("(i//4 + 3)%8*4 + (i + 1)%4", {}, "(i // 4 + 3) % 8 * 4 + (i + 1) % 4"),
    # the remainder is written without the inner one, and does not show the dividend
    ("(i%49 + n)//7*7 + (i%49 + n)%7", {}, "n + i % 49"),
    ("(i%49 + n*8)//56*56 + (i%49 + n*8)%56", {}, "n * 8 + i % 49"),
    ("(i%49)//28*28 + (i%49)//7%4*7 + i%49%7", {}, "i % 49"),
    ("(i%49 + n)//28*28 + (i%49 + n)//7%4*7 + (i%49 + n)%7", {}, "n + i % 49"),
    ("i//3//5", {}, "i // 15"),
    ("i//n//m", FUSED, "0"),
    ("i%32%8", {}, "i % 8"),
    ("(i*8 + j)%4", {}, "j % 4"),
    ("(i*64 + j)//16", {"j": "0:64"}, "i * 4 + j // 16"),
    ("(i*64 + j)%16", {"j": "0:64"}, "j % 16"),
    ("(i*4 + j)//8", {"j": "0:4"}, "i // 2"),
    ("(i*4 + j)%8", {"j": "0:4"}, "i % 2 * 4 + j"),
    ("(i*(n*m) + j*m + k)//m", {"j": "0:n", "k": "0:m"}, "i * n + j"),
    ("(i*(n*m) + j*m + k)//m%n", {"j": "0:n", "k": "0:m"}, "j"),
    ("i//7*7 + i%7", {"i": "0:33"}, "i"),
    ("(i + 32)//32", {"i": "0:32"}, "1"),
    ("(i + 7)%8", {"i": "1:8"}, "i - 1"),
    ("i//8", {"i": "0:8"}, "0"),
    ("i%8", {"i": "0:8"}, "i"),
    ("i//n", {"i": "0:n"}, "0"),
    ("(i - 1)//n", {"i": "0:1"}, "-1"),
    # ceil divisions stay readable
    ("(n + 31)//32", {}, "(n + 31) // 32"),
    ("(n + c - 1)//c", {}, "(n - 1) // c + 1"),
    ("(n + 63)//32", {}, "(n + 31) // 32 + 1"),
    # C division
    ("truncdiv(i, 4)", {"i": "0:n"}, "i // 4"),
    ("truncmod(i, 4)", {"i": "0:n"}, "i % 4"),
    ("truncdiv(i, 4)", {}, "truncdiv(i, 4)"),
    ("truncdiv(-7, 2)", {}, "-3"),
    ("i >> 2", {}, "i // 4"),
    ("i & 7", {}, "i % 8"),
    # minima and maxima
    ("min(i, 200)", {"i": "0:128"}, "i"),
    ("max(i, 0)", {"i": "0:n"}, "i"),
    ("min(i, n - 1)", {"i": "0:n"}, "i"),
    ("min(i + 1, i)", {}, "i"),
    ("min(min(i, 5), 3)", {}, "min(i, 3)"),
    ("max(min(i, n - 1), 0)", {"i": "0:n"}, "i"),
    ("min(n - io*32, 32)", SPLIT, "min(n - io * 32, 32)"),
    ("abs(i)", {"i": "0:n"}, "i"),
    # axes of one value
    ("i + j", {"i": "0:1"}, "j"),
    ("i + j", {"i": "k*4:1"}, "k * 4 + j"),
    # conditions
    ("i < 8", {"i": "0:8"}, "True"),
    ("i >= 8", {"i": "0:8"}, "False"),
    ("i < n", {"i": "0:n"}, "True"),
    ("io*32 + ii < n", SPLIT, "io * 32 + ii < n"),
    ("io*32 + ii < n", {"io": "0:n//32", "ii": "0:32"}, "True"),
    ("i*32 + j < i*32 + n", {}, "j < n"),
    ("i*4 < 12", {}, "i < 3"),
    ("i*4 <= 13", {}, "i <= 3"),
    ("i*2 == 7", {}, "False"),
    ("i + 1 < 5", {}, "i < 4"),
    ("(i < 5) & (i < 10)", {}, "i < 5"),
    ("(i < 5) & (i >= 5)", {}, "False"),
    ("(i < 5) | (i >= 5)", {}, "True"),
    ("(i < 5) | (i < 10)", {}, "i < 10"),
    ("(i < n) & (j < m)", FUSED, "True"),
    ("(i < n) & (j < 5)", FUSED, "j < 5"),
    ("~(i < 5)", {}, "i >= 5"),
    ("i if i < 5 else j", {"i": "0:4"}, "i"),
    ("min(i, 4) if i < 5 else j", {}, "i if i < 5 else j"),
    ("select(i < n, i, 0)", {"i": "0:n"}, "i"),
    # casts
    ("int64(int64(i))", {}, "int64(i)"),
    ("int64(3)", {}, "3"),
    ("int32(int64(i))", {}, "i"),
    ("int64(i*4 + j) + int64(1)", {}, "int64(i * 4 + j) + 1"),
    ("int64(i + 1) - int64(i)", {}, "1"),
    # two widths: a cast hides no sum from the division around it, and no division from its sum
    ("(int64(i*7) + int64(j)) // int64(7)", {"j": "0:7"}, "int64(i)"),
    ("(int64(i*7) + int64(j)) % int64(7)", {"j": "0:7"}, "int64(j)"),
    ("(int64(i*6 + j) + int64(k)) % int64(6)", {"j": "0:1", "k": "0:6"}, "int64(k)"),
    ("int64(i//7*7) + int64(i%7)", {}, "int64(i)"),
    ("int64(int32(int64(i)//int64(7))*7) + int64(i)%int64(7)", {}, "int64(i)"),
    ("int32(int64(i*8 + j)//int64(4))*4 + int32(int64(j)%int64(4))", {"j": "0:8"}, "i * 8 + j"),
    ("(int64(i*3) + int64(j)) % int64(7)", {"j": "0:7"}, "(int64(j) + int64(i * 3)) % 7"),
]


@pytest.mark.parametrize(("text", "ranges", "expected"), CASES)
def test_simplify(text: str, ranges: dict[str, str], expected: str) -> None:
    scope = Scope(**ranges)
    result = simplify(scope(text), scope.facts)
    assert show(result) == expected
    assert simplify(result, Facts(scope.facts)) is result


CONDITIONAL = [
    (["n % 16 == 0"], "(n + 15)//16*16", "n"),
    (["n % 16 == 0"], "n % 8", "0"),
    (["n % 16 == 0"], "n//16*16", "n"),
    (["n % 16 == 0"], "(n + 3)//16", "n // 16"),
    (["n % 16 == 0", "n < 16"], "(n + 3)//16*5", "0"),
    (["n*5 % 32 == 0", "n < 2"], "n*5//32", "0"),
    (["n == 128"], "(n + 31)//32", "4"),
    (["i >= 0", "i < 4"], "i//4", "0"),
    (["i < j"], "min(i, j)", "i"),
    (["i < j"], "i <= j", "True"),
    (["i < j", "j < k"], "i + 1 < k", "True"),
    (["i*32 + j < 1000", "j >= 0"], "min(i, 31)", "i"),
    (["i != j"], "i == j", "False"),
    (["(i < 5) & (i > 3)"], "i", "4"),
]


@pytest.mark.parametrize(("conditions", "text", "expected"), CONDITIONAL)
def test_simplify_under_conditions(conditions: list[str], text: str, expected: str) -> None:
    scope = Scope(*conditions)
    result = simplify(scope(text), scope.facts)
    assert show(result) == expected
    assert simplify(result, Facts(scope.facts)) is result
