"""What the instructions do that generated source writes out, on NumPy arrays.

Part of `server`, which imports it by path; imports nothing of tedsl.  Registers hold bits,
as unsigned integers, or truth values, and an instruction reads them as the type that its name ends
in.  A branch leads forward: elements that take it keep their registers up to its label.
"""

from __future__ import annotations

import importlib
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

ML: Any = importlib.import_module("ml_dtypes")
Array = Any

TYPES: dict[str, Any] = {
    "f32": np.float32, "u32": np.uint32, "s32": np.int32, "b32": np.uint32,
    "u64": np.uint64, "s64": np.int64, "b64": np.uint64,
}  # fmt: skip
COMPARE: dict[str, Callable[..., Array]] = {
    "gt": np.greater, "lt": np.less, "ne": np.not_equal, "eq": np.equal,
}  # fmt: skip
REGISTER = re.compile(r"[A-Za-z_$][\w$]*$")


def _prmt(a: Array, b: Array, selector: Array) -> Array:
    """Four bytes, each picked by four bits out of the eight of b and a; none asks for signs."""
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    found = np.zeros_like(both)
    for place in range(4):
        nibble = (selector >> np.uint32(4 * place)).astype(np.uint64) & np.uint64(15)
        if np.any(nibble > 7):
            raise ValueError("prmt is asked for the sign of a byte")
        byte = both >> nibble * np.uint64(8) & np.uint64(255)
        found |= byte << np.uint64(8 * place)
    return found.astype(np.uint32)


def _lop3(a: Array, b: Array, c: Array, table: Array) -> Array:
    """Bit by bit: the bit of a table that three bits say."""
    found = np.zeros_like(a)
    for row in range(8):
        if int(np.ravel(table)[0]) >> row & 1:
            parts = (v if row >> n & 1 else ~v for v, n in ((a, 2), (b, 1), (c, 0)))
            first, second, third = parts
            found = found | first & second & third
    return found


def _shifted(low: Array, high: Array, amount: Array) -> Array:
    """The upper half of two words after a shift to the left, by 31 bits at most."""
    both = low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)
    return (both << (amount.astype(np.uint64) & np.uint64(31)) >> np.uint64(32)).astype(np.uint32)


def _fused(a: Array, b: Array, c: Array) -> Array:
    """Rounded once, but for what float64 does not hold of the sum."""
    wide = (v.astype(np.float64) for v in (a, b, c))
    first, second, third = wide
    return (first * second + third).astype(np.float32)


def _packed(dtype: Any) -> Callable[[Array, Array], Array]:
    def pack(high: Array, low: Array) -> Array:
        halves = (v.astype(dtype).view(np.uint16).astype(np.uint32) for v in (high, low))
        upper, lower = halves
        return upper << np.uint32(16) | lower

    return pack


def _wide(a: Array, b: Array, c: Array | int = 0) -> Array:
    product: Array = a.astype(np.uint64) * b.astype(np.uint64)
    return product + np.asarray(c, np.uint64)


def _mad(a: Array, b: Array, c: Array) -> Array:
    return a * b + c


def _selected(a: Array, b: Array, chosen: Array) -> Array:
    found = np.array(b)
    found[chosen] = a[chosen]
    return found


def _converted(dtype: Any) -> Callable[[Array], Array]:
    def convert(a: Array) -> Array:
        return a.astype(dtype)

    return convert


# By name: the types of operands and the function.
Instruction = tuple[str, Callable[..., Array]]
INSTRUCTIONS: dict[str, Instruction] = {
    "abs.f32": ("f32", np.abs),
    "neg.f32": ("f32", np.negative),
    "max.f32": ("f32 f32", np.fmax),
    "add.rn.f32": ("f32 f32", np.add),
    "sub.rn.f32": ("f32 f32", np.subtract),
    "mul.rn.f32": ("f32 f32", np.multiply),
    "fma.rn.f32": ("f32 f32 f32", _fused),
    "tanh.approx.f32": ("f32", np.tanh),
    "mov.b32": ("b32", np.copy),
    "mov.b64": ("b64", np.copy),
    "neg.s32": ("s32", np.negative),
    "and.b32": ("b32 b32", np.bitwise_and),
    "or.b32": ("b32 b32", np.bitwise_or),
    "sub.u32": ("u32 u32", np.subtract),
    "shl.b32": ("b32 u32", np.left_shift),
    "shr.u32": ("u32 u32", np.right_shift),
    "mul.lo.u32": ("u32 u32", np.multiply),
    "mad.lo.u32": ("u32 u32 u32", _mad),
    "mul.wide.u32": ("u32 u32", _wide),
    "mad.wide.u32": ("u32 u32 u64", _wide),
    "add.u64": ("u64 u64", np.add),
    "shl.b64": ("b64 u64", np.left_shift),
    "shr.u64": ("u64 u64", np.right_shift),
    "shf.l.wrap.b32": ("b32 b32 u32", _shifted),
    "prmt.b32": ("b32 b32 b32", _prmt),
    "lop3.b32": ("b32 b32 b32 u32", _lop3),
    "cvt.rn.f32.s64": ("s64", _converted(np.float32)),
    "cvt.u32.u64": ("u64", _converted(np.uint32)),
    "cvt.rn.bf16x2.f32": ("f32 f32", _packed(ML.bfloat16)),
    "cvt.rn.f16x2.f32": ("f32 f32", _packed(np.float16)),
    "selp.b32": ("b32 b32 pred", _selected),
    "selp.f32": ("f32 f32 pred", _selected),
}


class _Run:
    """One run of a text on all elements at once.

    Args:
        registers: the operands that are read, by name, as bits.
    """

    def __init__(self, registers: dict[str, Array]) -> None:
        self.registers = registers
        self._count = len(next(iter(registers.values())))
        self._waiting: dict[str, Array] = {}
        self._active = np.ones(self._count, bool)

    def all(self, text: str) -> None:
        """Run each statement in turn."""
        for line in re.split(r"[;{}]", text):
            label, _, rest = line.strip().rpartition(":")
            if label:
                self._active = self._active | self._waiting.pop(label)
            if rest.strip() and not rest.strip().startswith(".reg"):
                self._one(rest.strip())

    def _one(self, statement: str) -> None:
        name, _, operands = statement.partition(" ")
        given = [operand.strip() for operand in operands.split(",")]
        if name.startswith("@"):
            self._branch(name, operands)
            return
        if name.startswith("setp."):
            _, relation, kind = name.split(".")
            kinds, function = f"{kind} {kind}", COMPARE[relation]
        elif name in INSTRUCTIONS:
            kinds, function = INSTRUCTIONS[name]
        else:
            raise LookupError(f"the interpreter does not know the instruction {name}")
        values = [self._value(v, k) for v, k in zip(given[1:], kinds.split(), strict=True)]
        result = np.asarray(function(*values))
        if result.dtype != bool:
            result = result.view(f"u{result.dtype.itemsize}")
        before = self.registers.get(given[0], np.zeros_like(result))
        self.registers[given[0]] = np.where(self._active, result, before)

    def _branch(self, condition: str, rest: str) -> None:
        taken = self.registers[condition.lstrip("@!")] ^ condition.startswith("@!")
        taken = taken & self._active
        self._waiting[rest.split()[1]] = taken
        self._active = self._active & ~taken

    def _value(self, operand: str, kind: str) -> Array:
        """A register or a constant, as the type that an instruction takes."""
        if operand in self.registers:
            value = self.registers[operand]
            return value if kind == "pred" else value.view(TYPES[kind])
        if REGISTER.match(operand) and not operand.startswith("0f"):
            raise NameError(f"the register {operand} is read before it is written")
        bits = int(operand[2:], 16) if operand.startswith("0f") else int(operand, 0)
        if operand.startswith("0f"):
            return np.full(self._count, struct.unpack("<f", struct.pack("<I", bits))[0], "f4")
        return np.full(self._count, bits, TYPES[kind])


def _words(data: Array, pack: int) -> list[Array]:
    """The 32-bit registers of `pack` neighbours: one each, or one for two of 16 bits."""
    wide = data.view(f"u{data.dtype.itemsize}").reshape(-1, pack)
    if wide.dtype.itemsize == 2:
        wide = np.ascontiguousarray(wide).view(np.uint32)
    return [np.ascontiguousarray(wide[:, n]) for n in range(wide.shape[1])]


def elementwise(text: str, args: list[Array], results: list[Any], pack: int) -> list[Array]:
    """What `tl.inline_asm_elementwise` does.

    Args:
        text: the instructions; $0, $1, ... are the registers of results, then those of arguments.
        args: arrays of one shape, of 16, 32 or 64 bits an element.
        results: of each result the dtype.
        pack: elements that the text is for.
    """
    shape, size = args[0].shape, args[0].size
    padded = [np.resize(np.ravel(a), -(-size // pack) * pack) for a in args]
    each = [max(1, pack * min(4, np.dtype(kind).itemsize) // 4) for kind in results]
    inputs = [word for data in padded for word in _words(data, pack)]
    run = _Run({f"${sum(each) + n}": word for n, word in enumerate(inputs)})
    run.all(text)
    found: list[Array] = []
    for kind, count in zip(results, each, strict=True):
        first = sum(each[: len(found)])
        words = np.stack([run.registers[f"${first + n}"] for n in range(count)], axis=1)
        flat = np.ascontiguousarray(words).view(f"u{np.dtype(kind).itemsize}").ravel()
        found.append(flat[:size].view(kind).reshape(shape))
    return found
