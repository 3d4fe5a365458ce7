"""Code for the CPU whose every access to a buffer is checked against where the buffer lies.

The text that the backend emits is taken as it is, before LLVM optimises it, and a call of a check
is put before every load and store, lane by lane where it is a vector.  What a pointer belongs to
follows from how it was computed: memory on the stack, or a parameter of known size.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from tedsl.backends.cpu.emit import allocation, frame, parallel_tasks
from tedsl.backends.cpu.emit import module as codegen
from tedsl.backends.cpu.emit.llvm_text import BITS, Value
from tedsl.backends.cpu.run import jit
from tedsl.ir.nodes import Buffer, Func, Module, Scope, Seq
from tedsl.target import Target

_ALLOCA = re.compile(r"  (%mem\w+) = alloca \[(\d+) x (\w+)\]")
_PARAMETER = re.compile(r"dereferenceable\((\d+)\) (%\w+)")
_ADDRESS = re.compile(r"  (%\w+) = getelementptr (?:inbounds )?\w+, ptr (%\w+), ")
_SELECT = re.compile(r"  (%\w+) = select i1 .*, ptr (%\w+), ptr @tedsl\.zero$")
_LOAD = re.compile(r"  %\w+ = load ([^,]+), ptr (%\w+), align")
_STORE = re.compile(r"  store (<\d+ x \w+>|\w+) .*, ptr (%\w+), align")
_MASKED = re.compile(r"call .*@llvm\.masked\.(load|store|gather|scatter)\.[\w.]+\((.*)\)$")
_VECTOR = re.compile(r"<(\d+) x (\w+)>")

_CHECK = """
define internal void @tedsl.check(i1 %on, ptr %at, i64 %n, ptr %base, i64 %size, i64 %line) noinline optnone nounwind {
entry:
  %a = ptrtoint ptr %at to i64
  %b = ptrtoint ptr %base to i64
  %z = ptrtoint ptr @tedsl.zero to i64
  %end = add i64 %a, %n
  %limit = add i64 %b, %size
  %below = icmp ult i64 %a, %b
  %above = icmp ugt i64 %end, %limit
  %out = or i1 %below, %above
  %some = icmp ne i64 %a, %z
  %bad0 = and i1 %out, %some
  %bad = and i1 %bad0, %on
  br i1 %bad, label %note, label %done
note:
  store i64 %line, ptr inttoptr (i64 {counter} to ptr)
  br label %done
done:
  ret void
}
"""  # noqa: E501


@dataclass
class Guard:
    """What was found: lines of text, by number, and the one that last went wrong."""

    lines: list[str] = field(default_factory=lambda: [""])
    found: ctypes.c_int64 = field(default_factory=ctypes.c_int64)
    checks: int = 0

    def emit(self, module: Module) -> str:
        """The text of `module`, with checks."""
        return self.checked(codegen.emit_module(module))

    def run(self, text: str) -> None:
        """Run the entry of a module without arguments, with checks."""
        with patch.object(jit, "emit_module", lambda _: self.checked(text)):
            func = Func("kernel", (), (), Seq(()))
            module = Module("m", (), (), (), (), (func,))
            jit.compile_module(module, Target.parse("cpu")).entry([])

    def checked(self, text: str) -> str:
        """The text of a module with a check before each access."""
        made: list[str] = []
        roots: dict[str, tuple[str, int]] = {}
        for line in text.split("\n"):
            if line.startswith("define"):
                roots = {name: (name, int(n)) for n, name in _PARAMETER.findall(line)}
            self._note(line, roots)
            made += self._checks(line, roots, len(made))
            made.append(line)
        check = _CHECK.replace("{counter}", str(ctypes.addressof(self.found)))
        if "@tedsl.zero =" not in text:
            check = "@tedsl.zero = private constant [8 x i8] zeroinitializer\n" + check
        return "\n".join(made) + check

    def _note(self, line: str, roots: dict[str, tuple[str, int]]) -> None:
        """What memory a new pointer belongs to."""
        if made := _ALLOCA.match(line):
            name, count, elem = made.groups()
            roots[name] = (name, int(count) * BITS[elem] // 8)
        for pattern in (_ADDRESS, _SELECT):
            moved = pattern.match(line)
            if moved and moved[2] in roots:
                roots[moved[1]] = roots[moved[2]]

    def _checks(self, line: str, roots: dict[str, tuple[str, int]], at: int) -> list[str]:
        """The calls that come before an access."""
        if plain := _LOAD.match(line) or _STORE.match(line):
            kind, name = plain.groups()
            return self._check(line, roots, name, [("true", f"ptr {name}", _nbytes(kind))])
        masked = _MASKED.search(line)
        if masked is None:
            return []
        kind, args = masked[1], _arguments(masked[2])
        pointer, value, mask = {
            "load": (0, 3, 2), "gather": (0, 3, 2), "store": (1, 0, 3), "scatter": (1, 0, 3)
        }[kind]  # fmt: skip
        vector = _VECTOR.match(args[value])
        name = args[pointer].rsplit(" ", 1)[1]
        if vector is None or name not in roots:
            return []
        count, size = int(vector[1]), BITS[vector[2]] // 8
        made: list[str] = []
        lanes: list[tuple[str, str, int]] = []
        for lane in range(count):
            on, there = f"%on.{at}.{lane}", f"%at.{at}.{lane}"
            made.append(f"  {on} = extractelement {args[mask]}, i64 {lane}")
            if kind in ("gather", "scatter"):
                made.append(f"  {there} = extractelement {args[pointer]}, i64 {lane}")
            else:
                made.append(f"  {there} = getelementptr i8, ptr {name}, i64 {lane * size}")
            lanes.append((on, f"ptr {there}", size))
        return made + self._check(line, roots, name, lanes)

    def _check(
        self,
        line: str,
        roots: dict[str, tuple[str, int]],
        name: str,
        lanes: Sequence[tuple[str, str, int]],
    ) -> list[str]:
        if name not in roots:
            return []
        base, size = roots[name]
        self.checks += 1
        self.lines.append(f"{line.strip()}  [{size} bytes at {base}]")
        number = len(self.lines) - 1
        where = f"ptr {base}, i64 {size}, i64 {number}"
        return [
            f"  call void @tedsl.check(i1 {on}, {there}, i64 {n}, {where})"
            for on, there, n in lanes
        ]


def _nbytes(kind: str) -> int:
    vector = _VECTOR.match(kind)
    return int(vector[1]) * BITS[vector[2]] // 8 if vector else BITS[kind] // 8


def _arguments(text: str) -> list[str]:
    """Operands, split at the commas that are in no brackets."""
    found, depth, start = list[str](), 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            found.append(text[start:place].strip())
            start = place + 1
    return [*found, text[start:].strip()]


def _sized(buffer: Buffer, ptr: Value) -> str:
    """The parameter, with its size where that is known."""
    text = frame.parameter(buffer, ptr)
    shape = frame.constant_shape(buffer.shape)
    if shape is None or buffer.scope is not Scope.GLOBAL:
        return text
    size = buffer.dtype.nbytes
    for extent in shape:
        size *= extent
    return text.replace(ptr.text, f"dereferenceable({size}) {ptr.text}") if size else text


@contextmanager
def guarded_code() -> Generator[Guard]:
    """Kernels built for the CPU inside this, without the cache, check what they access.

    Raises:
        AssertionError: at the end, if one that ran inside this reached beside a buffer.
    """
    guard = Guard()
    with (
        patch.object(jit, "emit_module", guard.emit),
        patch.object(codegen, "parameter", _sized),
        patch.object(parallel_tasks, "parameter", _sized),
        patch.object(allocation, "STACK_BYTES", 1 << 22),
    ):
        yield guard
    assert not guard.found.value, f"beside the buffer: {guard.lines[guard.found.value]}"
