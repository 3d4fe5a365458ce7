"""Arithmetic on LLVM values with Python operators: one text for scalars and vectors.

`Num` wraps a value and the function it is emitted into.  Floats and integers use the same
operators; constants are converted to the other operand's type.  Contraction of `a * b + c` is asked
for explicitly with `fma`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tedsl.backends.cpu.emit.llvm_text import I1, Function, Type, Value, const
from tedsl.processor import machine


@dataclass(frozen=True, slots=True, eq=False)
class Num:
    """A value being computed in `fn`; `flags` are fast-math flags put on its float operations."""

    fn: Function
    value: Value
    flags: str = ""

    @property
    def type(self) -> Type:
        """The LLVM type."""
        return self.value.type

    def new(self, value: Value) -> Num:
        """Another value in the same function."""
        return Num(self.fn, value, self.flags)

    def const(self, number: bool | int | float) -> Num:
        """A constant of this type."""
        return self.new(const(number, self.type))

    def like(self, other: Num | int | float) -> Num:
        """`other` as an operand beside this one."""
        return other if isinstance(other, Num) else self.const(other)

    def op2(self, float_op: str, int_op: str, other: Num | int | float) -> Num:
        """A binary instruction."""
        right = self.like(other)
        name = f"{float_op} {self.flags}".rstrip() if self.type.is_float else int_op
        text = f"{name} {self.type} {self.value.text}, {right.value.text}"
        return self.new(self.fn.op(text, self.type))

    def __add__(self, other: Num | int | float) -> Num:
        return self.op2("fadd", "add", other)

    def __sub__(self, other: Num | int | float) -> Num:
        return self.op2("fsub", "sub", other)

    def __mul__(self, other: Num | int | float) -> Num:
        return self.op2("fmul", "mul", other)

    def __truediv__(self, other: Num | int | float) -> Num:
        return self.op2("fdiv", "sdiv", other)

    def __radd__(self, other: int | float) -> Num:
        return self.const(other) + self

    def __rsub__(self, other: int | float) -> Num:
        return self.const(other) - self

    def __rmul__(self, other: int | float) -> Num:
        return self.const(other) * self

    def __rtruediv__(self, other: int | float) -> Num:
        return self.const(other) / self

    def __and__(self, other: Num | int) -> Num:
        return self.op2("", "and", other)

    def __or__(self, other: Num | int) -> Num:
        return self.op2("", "or", other)

    def __xor__(self, other: Num | int) -> Num:
        return self.op2("", "xor", other)

    def __lshift__(self, other: Num | int) -> Num:
        return self.op2("", "shl", other)

    def __rshift__(self, other: Num | int) -> Num:
        """Logical shift; `ashr` keeps the sign."""
        return self.op2("", "lshr", other)

    def ashr(self, other: Num | int) -> Num:
        """Arithmetic shift."""
        return self.op2("", "ashr", other)

    def __neg__(self) -> Num:
        if self.type.is_float:
            return self.new(self.fn.op(f"fneg {self.type} {self.value.text}", self.type))
        return self.const(0) - self

    def __invert__(self) -> Num:
        return self ^ -1

    def compare(self, op: str, other: Num | int | float) -> Num:
        """`fcmp op` or `icmp op`."""
        name = "fcmp" if self.type.is_float else "icmp"
        text = f"{name} {op} {self.type} {self.value.text}, {self.like(other).value.text}"
        return self.new(self.fn.op(text, self.type.of("i1")))

    def __lt__(self, other: Num | int | float) -> Num:
        return self.compare("olt" if self.type.is_float else "slt", other)

    def __gt__(self, other: Num | int | float) -> Num:
        return self.compare("ogt" if self.type.is_float else "sgt", other)

    def __le__(self, other: Num | int | float) -> Num:
        return self.compare("ole" if self.type.is_float else "sle", other)

    def __ge__(self, other: Num | int | float) -> Num:
        return self.compare("oge" if self.type.is_float else "sge", other)

    def eq(self, other: Num | int | float) -> Num:
        """Equality (ordered)."""
        return self.compare("oeq" if self.type.is_float else "eq", other)

    def ne(self, other: Num | int | float) -> Num:
        """Inequality; true for NaN."""
        return self.compare("une" if self.type.is_float else "ne", other)

    def where(self, yes: Num, no: Num | int | float) -> Num:
        """`yes` where this condition holds, else `no`; a scalar condition chooses for all lanes."""
        other = yes.like(no)
        text = f"select {self.value}, {yes.value}, {other.value}"
        return yes.new(self.fn.op(text, yes.type))

    def call(self, name: str, *args: Num | int | float) -> Num:
        """An intrinsic over this type."""
        values = [self.value, *(self.like(a).value for a in args)]
        return self.new(self.fn.intrinsic(name, self.type, values))

    def fma(self, factor: Num | int | float, term: Num | int | float) -> Num:
        """`self * factor + term` with one rounding; through double where the machine has none."""
        if machine().has_fma or self.type.elem == "double":
            name = "fma" if machine().has_fma else "fmuladd"
            return self.call(name, factor, term)
        wide = [x.cast("fpext", "double") for x in (self, self.like(factor), self.like(term))]
        return (wide[0] * wide[1] + wide[2]).cast("fptrunc", self.type.elem)

    def cast(self, op: str, elem: str) -> Num:
        """A conversion instruction to another element type."""
        to = self.type.of(elem)
        return self.new(self.fn.op(f"{op} {self.value} to {to}", to))

    def bits(self) -> Num:
        """The representation as integers."""
        return self.cast("bitcast", f"i{self.type.bits}")

    def floats(self) -> Num:
        """Integers reinterpreted as floats of the same width."""
        return self.cast("bitcast", {16: "half", 32: "float", 64: "double"}[self.type.bits])

    def abs(self) -> Num:
        """Magnitude of a float."""
        return self.call("fabs")

    def sqrt(self) -> Num:
        """Square root."""
        return self.call("sqrt")

    def round(self) -> Num:
        """Nearest integer, halves to even."""
        return self.call("roundeven")

    def copysign(self, sign: Num) -> Num:
        """This magnitude with the sign of `sign`."""
        return self.call("copysign", sign)

    def isnan(self) -> Num:
        """Whether a float is NaN."""
        return self.compare("uno", self)

    def any(self) -> Num:
        """Whether any lane of a condition holds."""
        if not self.type.lanes:
            return self
        return self.new(self.fn.intrinsic("vector.reduce.or", I1, [self.value], [self.type]))

    def poly(self, *coefficients: float) -> Num:
        """Horner's rule; the highest power's coefficient first."""
        result = self.const(coefficients[0])
        for c in coefficients[1:]:
            result = result.fma(self, c)
        return result


def splat(fn: Function, value: Value, lanes: int) -> Value:
    """A scalar in every lane; a vector as it is."""
    if value.type.lanes or not lanes:
        return value
    to = Type(value.type.elem, lanes)
    if value.const is not None:
        return const(value.const, to)
    one = fn.op(f"insertelement {to} poison, {value}, i64 0", to)
    zero = f"<{lanes} x i32> zeroinitializer"
    return fn.op(f"shufflevector {to} {one.text}, {to} poison, {zero}", to)
