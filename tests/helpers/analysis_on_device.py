"""On a machine with a GPU: which results are wrong because Triton's analysis of addresses is.

    python tests/helpers/analysis_on_device.py --out FOLDER

Writes FOLDER/analysis.txt and prints it: one line a case, right or wrong, with the first wrong
elements.  The cases are the kernels of `analysis_kernels` (Triton alone), batch norms whose last
loop runs backwards, tensors read backwards by rows, and chains of small integers.  Each runs in a
process of its own, which is ended after a minute: a misaligned access ends the process's use of
the device.  Needs PyTorch with CUDA, Triton and tedsl; takes two minutes.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import tedsl as te

HERE = Path(__file__).parent
LIMIT = 60.0
TOTAL = 165.0
TOGETHER = 6


def _report(name: str, got: Any, want: Any, atol: float = 0.0) -> None:
    wrong = ~np.isclose(got, want, rtol=0.0, atol=atol, equal_nan=True)
    first = [tuple(int(n) for n in place) for place in np.argwhere(wrong)[:4]]
    shown = [f"{place}: {got[place]} for {want[place]}" for place in first]
    line = f"WRONG {wrong.sum()} of {wrong.size}: {'; '.join(shown)}" if first else "right"
    print(f"{name}: {line}", flush=True)


def alone(number: int) -> None:
    """One kernel of `analysis_kernels`."""
    torch: Any = importlib.import_module("torch")
    kernels: Any = importlib.import_module("analysis_kernels")
    case = kernels.CASES[number]
    x = torch.arange(kernels.SIZE, dtype=torch.float32, device="cuda") + 1.0
    want = case.want(x.cpu().numpy())
    y = torch.full(want.shape, -1.0, device="cuda")
    getattr(kernels, case.kernel)[(1,)](x, y, case.n)
    torch.cuda.synchronize()
    _report(f"triton alone, {case.kernel}({case.n})", y.cpu().numpy(), want)


def batch_norm(n: int, c: int, h: int) -> None:
    """A batch norm by default rules."""
    torch: Any = importlib.import_module("torch")
    x = te.placeholder((n, c, h, h), "float32", name="x")
    w, b = te.placeholder((c,), "float32", name="w"), te.placeholder((c,), "float32", name="b")

    def axes() -> tuple[Any, ...]:
        return tuple(te.reduce_axis((0, extent)) for extent in (n, h, h))

    q, i, j = axes()
    m = te.compute((c,), lambda f: te.sum(x[q, f, i, j], axis=[q, i, j]) / (n * h * h), name="m")
    p, k, s = axes()
    v = te.compute(
        (c,),
        lambda f: (
            te.sum((x[p, f, k, s] - m[f]) * (x[p, f, k, s] - m[f]), axis=[p, k, s]) / (n * h * h)
        ),
        name="v",
    )
    y = te.compute(
        (n, c, h, h),
        lambda a, f, r, t: te.max(
            (x[a, f, r, t] - m[f]) * te.rsqrt(v[f] + 1e-5) * w[f] + b[f], 0.0
        ),
        name="y",
    )
    kernel = te.build(y, target="cuda", cache=False)
    X = torch.rand(n, c, h, h, device="cuda") * 2 - 1
    W, B = torch.rand(c, device="cuda") * 2 - 1, torch.rand(c, device="cuda") * 2 - 1
    want = torch.relu(torch.nn.functional.batch_norm(X, None, None, W, B, training=True))
    got = kernel(X, W, B)
    _report(f"batch norm {(n, c, h, h)}", got.cpu().numpy(), want.cpu().numpy(), 1e-3)


def _built(name: str, out: Any, **arrays: Any) -> None:
    torch: Any = importlib.import_module("torch")
    want = te.build(out, target="cpu", cache=False)(*arrays.values())
    given = [torch.from_numpy(a).cuda() for a in arrays.values()]
    got = te.build(out, target="cuda", cache=False)(*given)
    _report(name, got.cpu().numpy(), np.asarray(want))


def backwards(rows: int, columns: int, last: int) -> None:
    """Rows read backwards, from `last` on."""
    x = te.placeholder((last + 1, columns), "float32", name="x")
    y = te.compute((rows, columns), lambda i, j: x[last - i, j] * 2.0, name="y")
    a = np.arange((last + 1) * columns, dtype="float32").reshape(last + 1, columns)
    _built(f"backwards {(rows, columns, last)}", y, x=a)


def shifted() -> None:
    """A sliding window whose rows are no plain sum."""
    x = te.placeholder((4096,), "float32", name="x")
    y = te.compute((64, 64), lambda i, j: x[i + i % 2 * 8 + j] + 1.0, name="y")
    z = te.compute((256,), lambda i: x[(i - 128) % 24] + 1.0, name="z")
    a = np.arange(4096, dtype="float32")
    _built("shifted rows", y, x=a)
    _built("remainder", z, x=a)


def small_integers() -> None:
    """The extreme of 8-bit integers, and a chain of sums of uint8 in registers."""
    zero = te.compute((33, 17), lambda i, j: te.const(0, "int8"), name="z")
    k = te.reduce_axis((0, 17), name="k")
    m = te.compute((33,), lambda i: te.max(zero[i, k], axis=k), name="m")
    s = te.create_schedule(te.compute((33, 17), lambda i, j: zero[i, j] - m[i], name="y"))
    s[zero].compute_inline()
    got = te.build(s, target="cuda", cache=False)()
    _report("extreme of int8", got.cpu().numpy(), np.zeros((33, 17), "int8"))


def chain(n: int) -> None:
    """A chain of sums of uint8 in registers, of which quotients are taken."""
    torch: Any = importlib.import_module("torch")

    def u(value: int) -> Any:
        return te.const(value, "uint8")

    size = te.size_var("n1")
    A = te.placeholder((size, 17), "uint8", name="A")
    k3, k5 = te.reduce_axis((0, size), name="k3"), te.reduce_axis((0, 17), name="k5")
    T4 = te.compute((17,), lambda i: te.sum(A[k3, i], axis=k3, dtype="uint8"), name="T4")
    T6 = te.compute((), lambda: te.sum(T4[k5], axis=k5, dtype="uint8"), name="T6")
    T7 = te.compute((), lambda: T6[()], name="T7")
    T8 = te.compute(
        (),
        lambda: te.min(
            te.max(u(1), T7[()]) * (T7[()] // u(5)),
            te.max(T7[()] // u(5), te.cast(te.cast(T7[()], "int8"), "uint8")),
        ),
        name="T8",
    )
    s = te.create_schedule(T8)
    s["T6"].specialize(s.size("n1") < 4)
    a = np.random.default_rng(7).integers(0, 256, (n, 17)).astype("uint8")
    total = np.uint8(a.sum() & 255)
    fifth = np.uint8(total // 5)
    want = min(np.uint8(max(1, int(total)) * int(fifth) & 255), max(fifth, total))
    got = te.build(s, target="cuda", cache=False)(torch.from_numpy(a).cuda())
    _report(f"chain of uint8, {n} rows", got.cpu().numpy().reshape(()), np.asarray(want))


CASES: dict[str, Callable[[], None]] = {
    **{f"alone{n}": (lambda n=n: alone(n)) for n in range(13)},
    **{
        f"norm{n}": (lambda shape=shape: batch_norm(*shape))
        for n, shape in enumerate(
            ((8, 4, 56), (16, 256, 56), (8, 96, 112), (128, 64, 24), (16, 3, 56))
        )
    },
    "backwards0": lambda: backwards(64, 33, 64),
    "backwards1": lambda: backwards(65, 48, 64),
    "shifted": shifted,
    "small_integers": small_integers,
    "chain1": lambda: chain(1),
    "chain3": lambda: chain(3),
    "chain9": lambda: chain(9),
}


def _one(case: str, out: Path, end: float) -> list[str]:
    """The lines of one case, run in a process of its own."""
    limit = min(LIMIT, end - time.monotonic())
    if limit < 5.0:
        return [f"{case}: not run, out of time"]
    command = [sys.executable, __file__, "--out", str(out), "--case", case]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return [f"{case}: WRONG, ended after {limit:.0f} s"]
    lines = done.stdout.splitlines()
    if done.returncode:
        why = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        lines.append(f"{case}: WRONG, ended with {done.returncode}: {' '.join(why)[:300]}")
    return lines


def main() -> None:
    """Run all cases, or the one named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--case", choices=tuple(CASES))
    args = parser.parse_args()
    if args.case:
        sys.path.insert(0, str(HERE))
        CASES[args.case]()
        return
    args.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + TOTAL
    with ThreadPoolExecutor(TOGETHER) as pool:
        parts = list(pool.map(lambda case: _one(case, args.out, end), CASES))
    lines = [line for part in parts for line in part]
    text = "\n".join(lines) + "\n"
    (args.out / "analysis.txt").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
