"""Masked stores of one known lane become stores of a scalar, in a module that LLVM has optimised.

LLVM 22 makes a masked store of which one lane is stored, always the same, a scalar store.  On x86,
where the vector was narrowed before (`trunc <8 x i32> %v to <8 x i8>`), it stores the lane as it
was before it was narrowed: four bytes in the place of one (`reduceMaskedStoreToScalarStore`).  Such
stores are our own last chunks of a row, and what LLVM's loop vectoriser leaves over of a short loop
(the ninth of 9 elements), so that they are looked for in what the optimiser has made.
"""

from __future__ import annotations

import re
from math import gcd
from typing import Any

from tedsl.backends.cpu.emit.llvm_text import BITS
from tedsl.processor import binding

_STORE = re.compile(
    r"^ *(?:tail )?call void @llvm\.masked\.store\.[\w.]+\("
    r"(?P<type><\d+ x (?P<elem>\w+)>) (?P<value>.+), "
    r"ptr (?:\w+ )*?(?:align (?P<align>\d+) )?(?P<ptr>%[-\w.$]+|%\"[^\"]*\"|@[-\w.$]+)"
    r"(?:, i32 (?P<operand>\d+))?, <\d+ x i1> <(?P<mask>i1 [^<>]*)>\)"
    r"(?: #\d+)?(?P<metadata>(?:, !.*)?)$",
    re.MULTILINE,
)


def store_single_lanes(module: Any) -> Any:
    """The module, or one in which masked stores of one known lane are stores of a scalar."""
    if not any(f.name.startswith("llvm.masked.store.") for f in module.functions):
        return module
    before = str(module)
    after = with_single_lanes_stored(before)
    if after == before:
        return module
    llvm = binding()
    found = llvm.parse_assembly(after)
    found.verify()
    return found


def with_single_lanes_stored(text: str) -> str:
    """The same for the text of a module."""
    number = 0

    def stored(call: re.Match[str]) -> str:
        nonlocal number
        live = [n for n, lane in enumerate(call["mask"].split(", ")) if lane == "i1 true"]
        if len(live) != 1 or call["elem"] not in BITS:
            return call[0]
        number += 1
        lane, elem, at = live[0], call["elem"], call["ptr"]
        lines = [f"%tedsl.lane{number} = extractelement {call['type']} {call['value']}, i64 {lane}"]
        if lane:
            at = f"%tedsl.at{number}"
            lines.append(f"{at} = getelementptr {elem}, ptr {call['ptr']}, i64 {lane}")
        align = gcd(int(call["align"] or call["operand"] or 1), lane * BITS[elem] // 8)
        store = f"store {elem} %tedsl.lane{number}, ptr {at}, align {align}"
        lines.append(store + call["metadata"])
        return "\n".join(f"  {line}" for line in lines)

    return _STORE.sub(stored, text)
