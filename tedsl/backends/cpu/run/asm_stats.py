"""What can be read off the assembly of a program: how much of it is vectors, what did not fit into
registers, how long it is.  Text in, numbers out; x86 and AArch64."""

from __future__ import annotations

import re
from dataclasses import dataclass

_INSTRUCTION = re.compile(r"^\s+([a-z][\w.]*)\s*(.*)$")
_WIDE = re.compile(r"%[xyz]mm\d+|\bv\d+\.\d+[bhsd]|\bz\d+\.[bhsd]|\bq\d+")
_ONE_LANE = re.compile(r"s[sdh]$|s[sdh]2\w+$")
_STACK = re.compile(r"-?\d*\(%rsp\)|\[sp[,\]]")
_FRAMES = (re.compile(r"subq\s+\$(\d+),\s*%rsp"), re.compile(r"\bsub\s+sp,\s*sp,\s*#(\d+)"))


@dataclass(frozen=True, slots=True)
class Listing:
    """Figures of the assembly of a program.

    Attributes:
        instructions: all of them.
        vectors: those on whole vector registers.
        fused: those that multiply and add.
        spills: accesses to the stack with a vector register.
        stack: bytes of the largest frame.
    """

    instructions: int
    vectors: int
    fused: int
    spills: int
    stack: int


def read_listing(asm: str) -> Listing:
    """The figures of an assembly text."""
    instructions = vectors = fused = spills = stack = 0
    for line in asm.splitlines():
        found = _INSTRUCTION.match(line)
        if found is None:
            continue
        name, operands = found[1], found[2]
        instructions += 1
        if _WIDE.search(operands) and not _ONE_LANE.search(name):
            vectors += 1
            fused += "fmadd" in name or "fmla" in name or "fnmadd" in name
            spills += bool(_STACK.search(operands))
        for frame in _FRAMES:
            size = frame.search(line)
            if size is not None:
                stack = max(stack, int(size[1]))
    return Listing(instructions, vectors, fused, spills, stack)
