"""Bytes that the cost model counts against those that the interpreter accesses, for drawn pairs.

python tests/helpers/exact_against_interpreter.py 0 500
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from counted_accesses import Tally, accesses
from drawn_pairs import pair

from tedsl.cost.exact_bytes import exact_bytes
from tedsl.cost.sampled_indices import Values
from tedsl.errors import LowerError
from tedsl.explaining.kernels import kernel_launches
from tedsl.expr.nodes import Expr
from tedsl.ir.nodes import Allocate, Func
from tedsl.ir.visit import walk_stmts
from tedsl.lower.pipeline import lower
from tedsl.target import Target


@dataclass
class Comparison:
    """How many kernels' buffers were compared; what is different, in words."""

    equal: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])


def compare(kind: str, seed: int, target: str, into: Comparison) -> bool:
    """Count one drawn pair both ways; False where nothing was drawn that can be carried out."""
    drawn = pair(kind, target, seed)
    if drawn.schedule is None:
        return False
    try:
        module = lower(drawn.schedule.plan, Target.parse(target))
    except LowerError:
        return False
    values = {tensor.name: array for tensor, array in drawn.case.inputs.items()}
    sizes = {var.name: value for var, value in drawn.case.sizes.items()}
    found = accesses(
        module,
        {buffer: values[buffer.name] for buffer in module.inputs},
        {var: sizes[var.name] for var in module.sizes},
    )
    known = {var: sizes[var.name] for var in module.sizes}
    for func, _, every, _ in kernel_launches(module, known):
        if func.host_call is None:
            check(func, every, found.get(func.name, {}), f"{kind} {seed} {target}", into)
    return True


def check(
    func: Func,
    every: Mapping[Expr, Values],
    tallies: Mapping[str, Tally],
    where: str,
    into: Comparison,
) -> None:
    """Compare what is said of one kernel with what it did."""
    said = exact_bytes(func, every)
    for buffer, counted in said.items():
        tally = tallies.get(buffer.name, Tally())
        each = buffer.dtype.nbytes
        did = (tally.loads, tally.stores, len(tally.read), len(tally.written))
        says = (counted.loads, counted.stores, counted.read, counted.written)
        for name, a, b in zip(("loads", "stores", "read", "written"), says, did, strict=True):
            if a is None or (not counted.exact and name in ("loads", "stores")):
                into.equal[f"{name}: data decide"] += 1
            elif a == b * each:
                into.equal[name] += 1
            else:
                into.wrong.append(f"{where} {func.name} {buffer.name}: {name} {a}, is {b * each}")
    unsaid = {name for name, tally in tallies.items() if tally.loads or tally.stores}
    held = {s.buffer.name for s in walk_stmts(func.body) if isinstance(s, Allocate)}
    for name in unsaid - {buffer.name for buffer in said} - held:
        into.wrong.append(f"{where} {func.name} {name}: nothing said")


def main() -> None:
    """Compare the pairs of these seeds, half drawn primitives and half rules, on both targets."""
    begin, end = int(sys.argv[1]), int(sys.argv[2])
    into = Comparison()
    schedules = 0
    for seed in range(begin, end):
        kind = ("schedules", "rules")[seed % 2]
        schedules += any([compare(kind, seed, t, into) for t in ("cpu", "cuda:sm_90")])
    print(schedules, "schedules", dict(into.equal), *into.wrong, sep="\n")


if __name__ == "__main__":
    main()
