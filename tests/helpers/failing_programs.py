"""A whole program around a pair that fails.

`program(case, schedule, target)` needs nothing of the tests, unless functions of whole arrays are
in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from cases import Case
from guarded import Form

from tedsl.checking.written_out import Writer
from tedsl.expr.numerics import Array
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import ExternOp

FEW = 64


def program(
    case: Case,
    schedule: Schedule | None,
    target: str,
    forms: Sequence[Form] = (),
    decisions: Mapping[str, object] | None = None,
) -> str:
    """A program that computes the case under a schedule and says how far it is from the oracle."""
    writer = Writer(case.outputs)
    outputs = [writer.tensor(tensor) for tensor in case.outputs]
    lines = ["import ml_dtypes", "import numpy as np", "import tedsl as te", "", *writer.lines, ""]
    if any(isinstance(op, ExternOp) for op in writer.ops):
        lines.insert(3, "from strategies import chosen, reverse, twice  # tests/helpers")
    lines += ["rng = np.random.default_rng(1)", "arrays = {"]
    used = {op.outputs[0] for op in writer.ops}
    lines += [f"    {writer.tensor(t)}: {_array(a)}," for t, a in case.inputs.items() if t in used]
    sizes = ", ".join(f"{writer.names[v]}: {n}" for v, n in case.sizes.items() if v in writer.names)
    lines += ["}", f"sizes = {{{sizes}}}"]
    if any(form.shift for form in forms):
        lines += [
            f"for tensor, shift in zip(list(arrays), {[form.shift for form in forms]}):",
            "    array = arrays[tensor]  # unaligned",
            "    raw = np.zeros(array.size + 64, array.dtype)",
            "    raw[shift : shift + array.size] = array.reshape(-1)",
            "    arrays[tensor] = raw[shift : shift + array.size].reshape(array.shape)",
        ]
    if schedule is not None:
        if decisions:
            lines.append(f"# rules, decisions {dict(decisions)}")
        lines.append(schedule.as_python(*outputs))
    else:
        lines.append("from tedsl.schedules import schedule_for")
        given = f"[{', '.join(outputs)}], {target!r}, {dict(decisions or {})}"
        lines.append(f"s = schedule_for({given})")
    lines += [
        f"kernel = te.build(s, target={target!r}, cache=False)",
        "by_name = {tensor.name: array for tensor, array in arrays.items()}",
        "given = {v.name: n for v, n in sizes.items() if v.name in kernel.signature.keywords}",
        "got = kernel(*[by_name[b.name] for b in kernel.module.inputs], **given)",
        f"want = te.evaluate([{', '.join(outputs)}], arrays, sizes)",
        "for x, y in zip(got if isinstance(got, tuple) else (got,), want):",
        "    print(np.abs(x.astype(float) - y.astype(float)).max(initial=0.0), x, y)",
    ]
    return "\n".join(lines)


def _array(array: Array) -> str:
    """What makes an array like this: the very values where they are few integers."""
    kind = array.dtype.kind
    dtype = f'"{array.dtype}"' if kind in "iubf" else f"ml_dtypes.{array.dtype}"
    if array.size == 0:
        return f"np.zeros({array.shape}, {dtype})"
    if kind in "iub":
        if array.size <= FEW:
            return f"np.array({array.tolist()}, {dtype})"
        return f"rng.integers({array.min()}, {int(array.max()) + 1}, {array.shape}).astype({dtype})"
    wide = array.astype(np.float64) * 4
    low, high = np.nan_to_num([wide.min(), wide.max()])
    return f"(rng.integers({low:.0f}, {high:.0f} + 1, {array.shape}) / 4).astype({dtype})"
