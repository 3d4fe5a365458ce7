"""LLVM IR and PTX that come out wrong, and the same said so that they do not.

LLVM computes unlike integers as lanes of one vector, by each of two operations, and chooses lanes
of both: those not chosen may break what an operation promises (`shl nuw nsw <2 x i32> %v, <i32 31,
i32 5>` where the second lane is meant).  The LLVM of Triton 3.6 packs two lanes in one register and
widens the first by its promise (`mul.wide.u32`, `or.b64`), so that it runs over into the second:
masks of rows had bits of columns.  Where lanes are chosen, vectors promise nothing.

LLVM takes constants out of addresses (`SeparateConstOffsetFromGEP`), through a cut to fewer bits,
too, and asks each sum below only whether it wraps: one that does not in 64 bits may in the 32 that
are kept.  Of `zext(trunc(i + 4294967288))`, which is i - 8 as remainders are computed, 2^32 is left
in the address (Triton 3.6 to 3.9).  Sums that are cut promise nothing, unless they fit by promise.

For sm_90, ptxas 12.8 to 13.0 gets packed additions of 16-bit integers wrong wherever it optimises:
of `add.s16x2 d, a, C` with a constant C it may compute a half again where that is needed, to save a
register, and then adds 0 in place of the half of C (`VIADD.16x2 R22, R4, 0x0`).  LLVM packs index
arithmetic so where it knows that the numbers fit 16 bits.  Additions of each half by itself are
right, and cost one instruction more.

ptxas 12.8 to 13.0 computes a - b of 64 bits wrong for sm_80 to sm_100 where the lower half of a is
the upper half of a product that nothing else reads (`mul.hi.u32`, of which divisions by constants
are made): it adds the negated lower half of b in the multiplication (`IMAD.HI.U32 R, P0, x, C, R2`)
and takes what that carries for what does not borrow, which fails for 0.  The upper half is then too
small by 1 wherever the lower half of b is 0: `i // 7 - 0` is negative.  Said as a + ~b + 1 it is
right, and as short.

The same makes one instruction of two minima or maxima of 32-bit integers for sm_90 and sm_100, and
loses the sign of a negated number among the three (`max(max(-a, -b), -c)` as `VIMNMX3 -a, b, -c`).
The two may be turns of a loop that it unrolls, where PTX has only one.  A number negated as ~b + 1
is added on the way, and keeps it.  Seen with 12.8 to 13.3, and by others
too (issue 190973 of PyTorch, pull request 11032 of Triton, which says absolute values otherwise).

ptxas 12.8 and 12.9 store a pair of 8-bit floats twice with a half that nothing has written: of
`mov.b32 %r1, {%rs1, %rs1}`, where %rs1 comes from `cvt.rn.satfinite.e4m3x2.f32`, they make one
conversion that merges with the register as it was (`F2FP...PACK_AB_MERGE_C R6, RZ, R2, R7`).  Two
conversions of what they find to be equal become one, so that constants and masked lanes suffice:
zeros were NaN.  A result on which an operation of its own follows is not merged, which costs one
permutation for two conversions.  13.1 is right.

Triton's pipelined loops leave products in flight from one turn to the next (`wgmma.wait_group 3`).
Where tensor cores of sm_90 take the left operand from registers (a prologue or a mask changes it,
a tile is reshaped), the next turn writes these registers while products still read them, however
the tiles are loaded: numbers are wrong by chance, often where TMA loads in a few instructions,
rarely where threads compute addresses first.  Triton 3.6 writes PTX so; 3.7 and 3.8 copy the
operand first, and ptxas before 13.3 gives the copy the same registers; with 3.9 both are right.
Loops in which products read registers wait for them at the end.  Products that Triton waits for
anyway (with one stage, of float32, in attention) and those of other devices need none of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tedsl.backends.triton.compile.ptx_loops import loops
from tedsl.backends.triton.compile.source_files import text_file

_PROMISE = re.compile(r"(= \w+ )(?:nuw |nsw |nneg )+(?=<\d+ x i\d+> )")
_CHOICE = re.compile(r"= shufflevector <\d+ x i\d+> %[\w.]+, <\d+ x i\d+> %")
_SUM = re.compile(
    r"(?P<to>%[\w.]+) = (?:(?:add|sub) (?P<promises>[nuws ]*)|or disjoint )i\d+ "
    r"(?P<terms>[^,!\n]+, [^,!\n]+)"
)
_CUT = re.compile(r"= trunc (?P<promises>(?:nuw |nsw )*)i\d+ (?P<term>%[\w.]+) to i\d+")
_FITS = {"nuw", "nsw"}
_CONSTANT = re.compile(r"^\s*mov\.b32\s+(%r\d+),\s*-?\w+;", re.MULTILINE)
_PACKED = re.compile(r"^(\s*)add\.s16x2\s+(%r\d+),\s*(%r\d+),\s*(%r\d+|-?\w+);", re.MULTILINE)
_HALVES = """{{
	.reg .b16 %tedsl<6>;
	mov.b32 {{%tedsl0, %tedsl1}}, {a};
	mov.b32 {{%tedsl2, %tedsl3}}, {b};
	add.s16 %tedsl4, %tedsl0, %tedsl2;
	add.s16 %tedsl5, %tedsl1, %tedsl3;
	mov.b32 {sum}, {{%tedsl4, %tedsl5}};
	}}"""
_UPPER = re.compile(r"^\s*mul\.hi\.u32\s+(%r\d+),", re.MULTILINE)
_COPY = re.compile(
    r"^\s*(?:cvt\.u64\.u32|mov\.[bu](?:32|64))\s+(%rd?\d+),\s*\{?(%rd?\d+)\b", re.MULTILINE
)
_DIFFERENCE = re.compile(r"^(\s*)sub\.[su]64\s+(%rd\d+),\s*(%rd\d+),\s*([^;\s]+);", re.MULTILINE)
_COMPLEMENT = """{{
	.reg .b64 %tedsl<2>;
	not.b64 %tedsl0, {b};
	add.s64 %tedsl1, {a}, %tedsl0;
	add.s64 {to}, %tedsl1, 1;
	}}"""
_EXTREME = re.compile(r"^\s*(?:max|min)\.[su]32\s+%r\d+,\s*(%r\d+),\s*(%r\d+);", re.MULTILINE)
_NEGATED = re.compile(
    r"^(\s*)(?:neg\.s32\s+(%r\d+),\s*(%r\d+)|sub\.s32\s+(%r\d+),\s*0,\s*(%r\d+)"
    r"|mul\.lo\.s32\s+(%r\d+),\s*(%r\d+),\s*-1);",
    re.MULTILINE,
)
_PLUS_ONE = """{{
	.reg .b32 %tedsl;
	not.b32 %tedsl, {a};
	add.s32 {to}, %tedsl, 1;
	}}"""
_PAIR = re.compile(
    r"^(\s*)(cvt\.rn\.satfinite\.(?:\w+\.)?e\dm\dx2\.f\w+\s+)(%rs\d+)(,[^;]+);", re.MULTILINE
)
_KEPT_APART = """{{
	.reg .b16 %tedsl;
	{convert}%tedsl{of};
	and.b16 {to}, %tedsl, -1;
	}}"""
_MERGES_RIGHT = (9, 1)
"""The version of PTX that the first ptxas takes which merges pairs of 8-bit floats right."""
_FROM_REGISTERS = re.compile(r"wgmma\.mma_async[^{;]*\{[^}]*\},\s*\{(%\w+)")
_COPIED = re.compile(r"mov\.b32 (%\w+), %\w+;")
_VERSION = re.compile(r"^\.version (\d+)\.(\d+)", re.MULTILINE)
_KEEPS_COPIES = (9, 3)
"""The version of PTX that the first ptxas takes which keeps copies of what products read."""
_ALL_DONE = "wgmma.wait_group.sync.aligned 0;"


def unpromised(llir: str) -> str:
    """LLVM IR that lets integers wrap where LLVM takes a promise for more than it says: vectors of
    which lanes are chosen, sums that are cut to fewer bits."""
    return _sums_cut(_PROMISE.sub(r"\1", llir) if _CHOICE.search(llir) else llir)


def _sums_cut(llir: str) -> str:
    """Text in which a sum does not promise in all its bits what does not hold in those kept."""
    sums = {found["to"]: found for found in _SUM.finditer(llir)}
    wrapping: dict[str, re.Match[str]] = {}
    seen: set[tuple[str, bool]] = set()
    for cut in _CUT.finditer(llir):
        fits = set(cut["promises"].split()) == _FITS
        below = [cut["term"]]
        while below:
            term = below.pop()
            found = sums.get(term)
            if found is None or (term, fits) in seen:
                continue
            seen.add((term, fits))
            promises = found["promises"]
            if promises and not (fits and set(promises.split()) == _FITS):
                wrapping[term] = found
            below += found["terms"].strip().split(", ")
    parts: list[str] = []
    at = 0
    for found in sorted(wrapping.values(), key=lambda each: each.start()):
        parts.append(llir[at : found.start("promises")])
        at = found.end("promises")
    return "".join((*parts, llir[at:]))


def unpacked(ptx: str) -> str:
    """PTX whose packed additions of a constant add each half by itself."""
    if "add.s16x2" not in ptx:
        return ptx
    constants = set(_CONSTANT.findall(ptx))

    def halves(found: re.Match[str]) -> str:
        indent, total, a, b = found.groups()
        if not any(term in constants or not term.startswith("%") for term in (a, b)):
            return found[0]
        return indent + _HALVES.format(sum=total, a=a, b=b)

    return _PACKED.sub(halves, ptx)


def complemented(ptx: str) -> str:
    """PTX that subtracts from no upper half of a product: it adds the complement, and 1."""
    upper = set(_UPPER.findall(ptx))
    copies = _COPY.findall(ptx) if upper else []
    while more := {to for to, of in copies if of in upper} - upper:
        upper |= more

    def added(found: re.Match[str]) -> str:
        indent, to, a, b = found.groups()
        return indent + _COMPLEMENT.format(to=to, a=a, b=b) if a in upper else found[0]

    return _DIFFERENCE.sub(added, ptx) if upper else ptx


def signed(ptx: str) -> str:
    """PTX in which no minimum or maximum takes a negated number that ptxas would take as it is."""
    taken = {register for pair in _EXTREME.findall(ptx) for register in pair}
    copies = _COPY.findall(ptx) if taken else []
    while more := {of for to, of in copies if to in taken} - taken:
        taken |= more

    def plus_one(found: re.Match[str]) -> str:
        indent, *terms = (each for each in found.groups() if each is not None)
        to, a = terms
        return indent + _PLUS_ONE.format(to=to, a=a) if to in taken else found[0]

    return _NEGATED.sub(plus_one, ptx)


def unmerged(ptx: str) -> str:
    """PTX whose pairs of 8-bit floats are joined after they are converted."""
    if _version(ptx) >= _MERGES_RIGHT:
        return ptx

    def apart(found: re.Match[str]) -> str:
        indent, convert, to, of = found.groups()
        return indent + _KEPT_APART.format(convert=convert, to=to, of=of)

    return _PAIR.sub(apart, ptx)


def _version(ptx: str) -> tuple[int, int]:
    """The version of the language that PTX is in."""
    found = _VERSION.search(ptx)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def waiting(ptx: str) -> str:
    """PTX whose loops end when no product reads registers any more: each way back of a loop with
    products waits.  All threads of a warp go there together, as they have to for a wait."""
    products = list(_FROM_REGISTERS.finditer(ptx))
    if not products:
        return ptx
    copied = {product[1] for product in products} <= set(_COPIED.findall(ptx))
    if copied and _version(ptx) >= _KEEPS_COPIES:
        return ptx
    places = [product.start() for product in products]
    parts: list[str] = []
    at = 0
    for loop in loops(ptx):
        inside = any(begin <= place < end for begin, end in loop.spans for place in places)
        done = ptx.rfind(_ALL_DONE, *loop.last) > ptx.rfind("wgmma.mma_async", *loop.last)
        if inside and not done:
            parts += ptx[at : loop.back], f"\t{_ALL_DONE}\n"
            at = loop.back
    return "".join((*parts, ptx[at:]))


def _right(ptx: str) -> str:
    return waiting(unmerged(signed(complemented(unpacked(ptx)))))


def assembled(
    compiled: Callable[[dict[str, Any]], Any], options: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """A kernel compiled by Triton, again from text of ours where its own might come out wrong.

    Args:
        compiled: compiles the kernel with such options.
        options: Triton's, for the kernel.

    Returns:
        The kernel, and the options that it has.
    """
    own = dict(options)
    kernel = compiled(own)
    for stage, repaired in (("llir", unpromised), ("ptx", _right)):
        text = str(kernel.asm[stage])
        if (right := repaired(text)) != text:
            own["ir_override"] = str(text_file(right, f".{stage}"))
            kernel = compiled(own)
    return kernel, own
