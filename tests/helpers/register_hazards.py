"""What threads write while a product in flight still reads it, found in compiled code of sm_90."""

from __future__ import annotations

import re

from tedsl.backends.triton.compile.ptx_loops import loops

_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:(@!?U?P\w+)\s+)?([\w.]+)\s*(.*?)\s*;")
_PLACE = re.compile(r"^(\.L_x_\d+):")
_REGISTER = re.compile(r"R(\d+)(?:\.reuse)?")
_WIDTHS = {".128": 4, ".M88.4": 4, ".64": 2, ".M88.2": 2, ".WIDE": 2, ".F64": 2, "CS2R": 2}
"""Registers that an instruction writes, by a part of its name; one by most."""
_PRODUCT = ("HGMMA", "QGMMA", "IGMMA")
_LEFT_REGISTERS = 4
"""Of each thread, for the left operand of one instruction."""

State = tuple[int, tuple[frozenset[int], ...], frozenset[int]]
"""A place, and the registers that groups of products in flight, and the one being made, read."""


def products_of_registers(assembly: str) -> int:
    """How many products take the left operand from registers."""
    return len(re.findall(r"\b[HQI]GMMA\.\S+ R\d+, R\d+", assembly))


def overwritten(assembly: str) -> list[str]:
    """The instructions of a cubin, as nvdisasm prints it, that write registers which a product
    reads that may be in flight."""
    code: list[tuple[bool, str, list[str]]] = []
    places: dict[str, int] = {}
    for line in assembly.splitlines():
        if place := _PLACE.match(line):
            places[place[1]] = len(code)
        elif found := _INSTRUCTION.match(line):
            code.append((bool(found[1]), found[2], [each.strip() for each in found[3].split(",")]))
    seen: set[State] = set()
    bad: dict[int, str] = {}
    todo: list[State] = [(0, (), frozenset())]
    while todo:
        state = todo.pop()
        if state in seen or state[0] >= len(code):
            continue
        seen.add(state)
        at, flying, made = state
        _, name, args = code[at]
        if not name.startswith(_PRODUCT) and _written(name, args) & made.union(*flying):
            bad[at] = f"{name} {', '.join(args)}"
        flying, made = _after(name, args, flying, made)
        todo += [(place, flying, made) for place in _next(at, code[at], places)]
    return [bad[at] for at in sorted(bad)]


def _next(at: int, code: tuple[bool, str, list[str]], places: dict[str, int]) -> list[int]:
    perhaps, name, args = code
    if name == "BRA":
        target = places[args[-1].removeprefix("`(").removesuffix(")")]
        return [target, at + 1] if perhaps or len(args) > 1 else [target]
    return [] if name == "EXIT" and not perhaps else [at + 1]


def _after(
    name: str, args: list[str], flying: tuple[frozenset[int], ...], made: frozenset[int]
) -> tuple[tuple[frozenset[int], ...], frozenset[int]]:
    if name.startswith(_PRODUCT):
        if left := _REGISTER.fullmatch(args[1]):
            made |= set(range(int(left[1]), int(left[1]) + _LEFT_REGISTERS))
        return ((*flying, made), frozenset()) if "gsb0" in args else (flying, made)
    if name.startswith("WARPGROUP.DEPBAR"):
        left_over = int(args[1], 16)
        return flying[max(len(flying) - left_over, 0) :], made
    return flying, made


def _written(name: str, args: list[str]) -> set[int]:
    """The registers that an instruction writes: its first argument, after predicates."""
    first = next((each for each in args if not re.fullmatch(r"!?U?P\w+", each)), "")
    if name.startswith(("ST", "LDGSTS", "RED")) or not (found := _REGISTER.fullmatch(first)):
        return set()
    if args[0] != first and not name.startswith("SHFL"):
        return set()  # it compares registers
    width = max((n for part, n in _WIDTHS.items() if part in name), default=1)
    return set(range(int(found[1]), int(found[1]) + width))


def filled_while_read(ptx: str) -> list[str]:
    """The copies by TMA, in loops, before which no barrier stands after threads read tiles."""
    bad: list[str] = []
    for loop in loops(ptx):
        reading = False
        text = "\n".join(ptx[begin:end] for begin, end in loop.spans)
        for line in 2 * text.splitlines():
            if "ldmatrix" in line or "ld.shared" in line:
                reading = True
            elif "bar.sync" in line:
                reading = False
            elif "cp.async.bulk.tensor" in line and ".global.mbarrier" in line and reading:
                bad.append(line.strip())
    return bad
