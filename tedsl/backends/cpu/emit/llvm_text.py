"""A small builder of LLVM IR text: types, values, functions, modules.

Text instead of `llvmlite.ir` objects, because it is several times faster to make and fully typed.
A value is the text by which later instructions name it.  Nothing here knows tedsl's expressions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Type:
    """An LLVM type: `elem` is its scalar name, `lanes` 0 for a scalar, else the vector length."""

    elem: str
    lanes: int = 0

    def __str__(self) -> str:
        return f"<{self.lanes} x {self.elem}>" if self.lanes else self.elem

    @property
    def bits(self) -> int:
        """Width of one element."""
        return BITS[self.elem]

    @property
    def is_float(self) -> bool:
        """Whether elements are floating-point."""
        return self.elem in ("half", "float", "double")

    @property
    def scalar(self) -> Type:
        """The element type alone."""
        return Type(self.elem)

    def of(self, elem: str) -> Type:
        """The same shape over other elements."""
        return Type(elem, self.lanes)

    @property
    def as_int(self) -> Type:
        """The same shape over integers of equal width."""
        return Type(f"i{self.bits}", self.lanes)

    @property
    def suffix(self) -> str:
        """The mangled name intrinsics carry."""
        name = {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}.get(
            self.elem, self.elem
        )
        return f"v{self.lanes}{name}" if self.lanes else name


BITS = {
    "i1": 1,
    "i8": 8,
    "i16": 16,
    "i32": 32,
    "i64": 64,
    "half": 16,
    "float": 32,
    "double": 64,
    "ptr": 64,
}
I1, I8, I32, I64, PTR = Type("i1"), Type("i8"), Type("i32"), Type("i64"), Type("ptr")


@dataclass(frozen=True, slots=True)
class Value:
    """An operand: its text and type.  `const` is the Python number of a scalar or splat literal."""

    text: str
    type: Type
    const: bool | int | float | None = None

    def __str__(self) -> str:
        return f"{self.type} {self.text}"


def symbol(text: str) -> str:
    """A name as (the beginning of) a symbol that LLVM takes without quotes.

    A character that no symbol has becomes its number in hexadecimal; names that LLVM or this
    package keep for themselves, and those that begin with a digit, get a mark in front.
    """
    known = (c if (c.isascii() and c.isalnum()) or c in "._" else f"_{ord(c):x}_" for c in text)
    plain = "".join(known)
    return f"_{plain}" if plain[0].isdigit() or plain.startswith(("llvm", "tedsl")) else plain


@lru_cache(maxsize=4096)
def _float_text(bits: int, elem: str) -> str:
    return f"{'0xH' if elem == 'half' else '0x'}{bits:0{4 if elem == 'half' else 16}X}"


def _literal(value: bool | int | float, elem: str) -> str:
    """The text of a scalar literal; floats are rounded to `elem` and written exactly."""
    if elem in ("float", "double", "half"):
        number = float(value)
        if elem == "float":
            try:
                number = struct.unpack("<f", struct.pack("<f", number))[0]
            except OverflowError:
                number = float("inf") if number > 0 else float("-inf")
        if elem == "half":
            return _float_text(struct.unpack("<H", struct.pack("<e", number))[0], elem)
        return _float_text(struct.unpack("<Q", struct.pack("<d", number))[0], elem)
    if elem == "i1":
        return "true" if value else "false"
    bits = BITS[elem]
    number = int(value) & ((1 << bits) - 1)
    return str(number - (1 << bits) if number >> (bits - 1) else number)


def const(value: bool | int | float, type: Type) -> Value:
    """A literal, splat over the lanes of a vector type."""
    text = _literal(value, type.elem)
    if not type.lanes:
        return Value(text, type, value)
    return Value(f"splat ({type.elem} {text})", type, value)


def const_vector(values: Sequence[bool | int | float], elem: str) -> Value:
    """A vector literal, lane by lane."""
    inner = ", ".join(f"{elem} {_literal(v, elem)}" for v in values)
    return Value(f"<{inner}>", Type(elem, len(values)))


ALONE = '!"llvm.loop.vectorize.enable", i1 false'


class Function:
    """One function under construction: entry-block allocations apart from the running text.

    LLVM's vectorizer computes what is one value for all iterations of a loop in the first of them
    (seen in 22.1), and a quotient that stands behind a condition only where the condition holds
    there.  So a loop with such a quotient is not vectorized by LLVM; ours are vectors by then.
    """

    def __init__(self, module: Module, header: str, params: Sequence[Value] = ()) -> None:
        self.module = module
        self.header = header
        self.params = tuple(params)
        self.allocas: list[str] = []
        self.lines: list[str] = []
        self.block = "entry"
        self._next = 0
        self._started = 0  # blocks
        self._divided = -1  # the last of them that holds a quotient by what is no constant

    def name(self, stem: str = "v") -> str:
        """A fresh local name."""
        self._next += 1
        return f"%{stem}{self._next}"

    def op(self, text: str, type: Type) -> Value:
        """Append an instruction with a result."""
        self._next += 1
        name = f"%v{self._next}"
        self.lines.append(f"  {name} = {text}")
        return Value(name, type)

    def do(self, text: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {text}")

    def comment(self, text: str) -> None:
        """Append a comment: what the instructions after it are for."""
        self.lines.append(f"  ; {' '.join(text.split())}")

    def label(self, stem: str = "b") -> str:
        """A fresh block name, not yet placed."""
        self._next += 1
        return f"{stem}{self._next}"

    def start(self, label: str) -> None:
        """Begin the block `label`."""
        self.lines.append(f"{label}:")
        self.block = label
        self._started += 1

    def divided(self) -> None:
        """Say that the block that was begun last holds a quotient by what is no constant."""
        self._divided = self._started

    def jump(self, label: str) -> None:
        """End the block with a jump."""
        self.do(f"br label %{label}")

    def branch(self, cond: Value, then: str, other: str) -> None:
        """End the block with a two-way branch on a scalar i1."""
        self.do(f"br i1 {cond.text}, label %{then}, label %{other}")

    def alloca(self, elem: str, count: int, align: int) -> Value:
        """Stack memory of `count` elements, made once on entry."""
        name = self.name("mem")
        self.allocas.append(f"  {name} = alloca [{count} x {elem}], align {align}")
        return Value(name, PTR)

    def slot(self, type: Type) -> Value:
        """A stack variable of one value, promoted to registers by LLVM."""
        name = self.name("slot")
        self.allocas.append(f"  {name} = alloca {type}")
        return Value(name, PTR)

    def call(self, name: str, result: Type | None, args: Sequence[Value]) -> Value:
        """Call a function declared or defined elsewhere in the module."""
        body = f"{result or 'void'} @{name}({', '.join(map(str, args))})"
        if result is None:
            self.do(f"call {body}")
            return Value("void", I1)
        return self.op(f"call {body}", result)

    def intrinsic(
        self, stem: str, result: Type, args: Sequence[Value], over: Sequence[Type] | None = None
    ) -> Value:
        """Call `llvm.<stem>` mangled over `over` (by default the result's type)."""
        mangled = ".".join(t.suffix for t in (over if over is not None else (result,)))
        name = f"llvm.{stem}.{mangled}" if mangled else f"llvm.{stem}"
        self.module.declare(name, result, [a.type for a in args])
        return self.op(f"call {result} @{name}({', '.join(map(str, args))})", result)

    @contextmanager
    def loop(
        self, count: Value, step: int = 1, start: Value | None = None, hint: str = ""
    ) -> Generator[Value]:
        """`for i = start; i < count; i += step`; yields i.  `hint` is loop metadata text."""
        first = start or const(0, I64)
        head, latch, done = self.label("loop"), self.label("latch"), self.label("done")
        known = isinstance(count.const, int) and isinstance(first.const, int)
        if not known or int(count.const or 0) <= int(first.const or 0):
            enter = self.op(f"icmp slt i64 {first.text}, {count.text}", I1)
            ready = self.label("enter")
            self.branch(enter, ready, done)
            self.start(ready)
        before = self.block
        self.jump(head)
        self.start(head)
        always = self._started
        index, following = self.name("i"), self.name("n")
        self.do(f"{index} = phi i64 [ {first.text}, %{before} ], [ {following}, %{latch} ]")
        yield Value(index, I64)
        self.jump(latch)
        self.start(latch)
        self.do(f"{following} = add nuw nsw i64 {index}, {step}")
        again = self.op(f"icmp slt i64 {following}, {count.text}", I1)
        hints = [h for h in (hint, ALONE if self._divided > always else "") if h]
        tail = f", !llvm.loop {self.module.loop_hint(hints)}" if hints else ""
        self.do(f"br i1 {again.text}, label %{head}, label %{done}{tail}")
        self.start(done)

    @contextmanager
    def when(self, cond: Value) -> Generator[None]:
        """Run the body only where a scalar condition holds."""
        then, done = self.label("then"), self.label("skip")
        self.branch(cond, then, done)
        self.start(then)
        yield
        self.jump(done)
        self.start(done)

    def text(self) -> str:
        """The finished definition."""
        return "\n".join([f"{self.header} {{", "entry:", *self.allocas, *self.lines, "}"])


class Module:
    """Functions, declarations and constants that make one LLVM module."""

    def __init__(self, triple: str, attributes: str) -> None:
        self.triple = triple
        self.attributes = attributes
        self.declared: dict[str, str] = {}
        self.globals: dict[str, str] = {}
        self.functions: list[Function] = []
        self.defined: set[str] = set()
        self.metadata: list[str] = []
        self.texts: dict[str, str] = {}  # functions that users gave as text, by name
        self._streaming = ""

    def declare(
        self, name: str, result: Type | None, args: Sequence[Type], attrs: str = ""
    ) -> None:
        """Declare an external function or intrinsic once."""
        if name not in self.declared and name not in self.defined:
            inner = ", ".join(map(str, args))
            self.declared[name] = f"declare {result or 'void'} @{name}({inner}) {attrs}".rstrip()

    def define(self, name: str, make: Callable[[], Function]) -> str:
        """Define an internal helper once; `make` builds its body on first use."""
        if name not in self.defined:
            self.defined.add(name)
            self.functions.append(make())
        return name

    def constant(self, name: str, text: str) -> Value:
        """A private read-only global."""
        self.globals.setdefault(name, f"@{name} = private unnamed_addr constant {text}")
        return Value(f"@{name}", PTR)

    def streaming(self) -> str:
        """The metadata that makes a store bypass the caches."""
        if not self._streaming:
            self._streaming = f"!{len(self.metadata)}"
            self.metadata.append(f"{self._streaming} = !{{i32 1}}")
        return self._streaming

    def loop_hint(self, hints: Sequence[str]) -> str:
        """Metadata of one loop, e.g. `llvm.loop.unroll.disable`."""
        base = len(self.metadata)
        listed = "".join(f", !{base + 1 + n}" for n in range(len(hints)))
        self.metadata.append(f"!{base} = distinct !{{!{base}{listed}}}")
        self.metadata += [f"!{base + 1 + n} = !{{{hint}}}" for n, hint in enumerate(hints)]
        return f"!{base}"

    def text(self) -> str:
        """The module as LLVM assembly."""
        parts = [f'target triple = "{self.triple}"', *self.globals.values()]
        parts += [f.text() for f in self.functions]
        parts += self.declared.values()
        parts += self.texts.values()
        parts += [f"attributes #0 = {{ {self.attributes} }}", *self.metadata]
        return "\n\n".join(parts) + "\n"
