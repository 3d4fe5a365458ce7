"""PTX that ptxas assembles wrongly, and the same said so that it does not.

For sm_90, ptxas 12.8 to 13.0 gets packed additions of 16-bit integers wrong wherever it optimises:
of `add.s16x2 d, a, C` with a constant C it may compute a half again where that is needed, to save a
register, and then adds 0 in place of the half of C (`VIADD.16x2 R22, R4, 0x0`).  LLVM packs index
arithmetic so where it knows that the numbers fit 16 bits.  Additions of each half by itself are
right, and cost one instruction more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tedsl.backends.triton.compile.source_files import text_file

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


def assembled(
    compiled: Callable[[dict[str, Any]], Any], options: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """A kernel compiled by Triton, again from PTX of ours where ptxas might get Triton's wrong.

    Args:
        compiled: compiles the kernel with such options.
        options: Triton's, for the kernel.

    Returns:
        The kernel, and the options that it has.
    """
    own = dict(options)
    kernel = compiled(own)
    ptx = str(kernel.asm["ptx"])
    if (right := unpacked(ptx)) != ptx:
        own["ir_override"] = str(text_file(right, ".ptx"))
        kernel = compiled(own)
    return kernel, own
