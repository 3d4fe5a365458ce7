"""Predicted bytes against the hardware's counters, predicted times against the clock.

    python tests/benchmarks/bytes_on_device.py --out FOLDER [--only NAME ...] [--seconds 540]

Ten computations of different classes with inputs well beyond the second-level cache, scheduled by
the default rules.  Each runs twice in a child process: once under Nsight Compute (`ncu`), which
counts the bytes from and to DRAM of every kernel of one call with cold caches, and once alone,
timed with cold caches.  Writes FOLDER/bytes.json and prints a line for each.  Where ncu is not
installed, or may not read the counters, the times are taken and the reason is written.
"""

from __future__ import annotations

import argparse
import csv
import glob
import importlib
import io
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

from limited import run_limited

import tedsl as te
from tedsl.explaining.running import calls_of
from tedsl.runtime.timing import measure_cuda

READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
WITHIN, TIME_WITHIN = 0.08, 0.25
CHILD = 150.0
"""Seconds that one child may take."""
PLACES = (
    "/usr/local/cuda*/bin/ncu",
    "/opt/nvidia/nsight-compute/*/ncu",
    "/usr/local/NVIDIA-Nsight-Compute*/ncu",
)
B = "bfloat16"


def chain() -> te.Tensor:
    """Pointwise operations on two arrays."""
    x, y = (te.placeholder((16384, 16384), name=name) for name in "xy")
    return te.compute(x.shape, lambda i, j: te.sigmoid(x[i, j] * 2.0 + y[i, j]), name="out")


def odd_cast() -> te.Tensor:
    """A cast of rows that no tile divides."""
    x = te.placeholder((16383, 20011), name="x")
    return te.compute(x.shape, lambda i, j: (x[i, j] + 1.0).astype(B), name="out")


def transposed() -> te.Tensor:
    """An array and the transpose of another."""
    x, y = (te.placeholder((12288, 12288), name=name) for name in "xy")
    return te.compute(x.shape, lambda i, j: x[i, j] + y[j, i], name="out")


def softmax() -> te.Tensor:
    """Rows that a program holds."""
    return te.nn.softmax(te.placeholder((65536, 8192), B, name="x"))


def layer_norm() -> te.Tensor:
    """Rows that two reductions read."""
    x = te.placeholder((131072, 4096), B, name="x")
    scale, shift = (te.placeholder((4096,), B, name=name) for name in ("scale", "shift"))
    return te.nn.layer_norm(x, scale, shift)


def column_sums() -> te.Tensor:
    """A reduction across rows."""
    x = te.placeholder((131072, 4096), name="x")
    k = te.reduce_axis((0, 131072), name="k")
    return te.compute((4096,), lambda j: te.sum(x[k, j], axis=k), name="out")


def masked_sums() -> te.Tensor:
    """The lower triangle alone."""
    x = te.placeholder((24576, 24576), name="x")
    k = te.reduce_axis((0, 24576), name="k")
    return te.compute((24576,), lambda i: te.sum(x[i, k], axis=k, where=k <= i), name="out")


def gather() -> te.Tensor:
    """Rows by index, each drawn at random."""
    table = te.placeholder((524288, 1024), B, name="table")
    ids = te.placeholder((400000,), "int32", name="ids")
    return te.compute((400000, 1024), lambda i, j: table[ids[i], j], name="out")


def window() -> te.Tensor:
    """A sum over windows that overlap."""
    x, w = te.placeholder((16386, 12290), name="x"), te.placeholder((3, 3), name="w")
    a, b = te.reduce_axis((0, 3), name="a"), te.reduce_axis((0, 3), name="b")
    shape = (16384, 12288)
    return te.compute(
        shape, lambda i, j: te.sum(x[i + a, j + b] * w[a, b], axis=[a, b]), name="out"
    )


def product() -> te.Tensor:
    """A matrix product with an epilogue."""
    a = te.placeholder((16384, 4096), B, name="a")
    b = te.placeholder((4096, 16384), B, name="b")
    bias = te.placeholder((16384,), B, name="bias")
    c = te.nn.matmul(a, b)
    return te.compute((16384, 16384), lambda i, j: te.relu(c[i, j] + bias[j]).astype(B), name="out")


CASES: dict[str, Callable[[], te.Tensor]] = {
    case.__name__: case
    for case in (
        chain, odd_cast, transposed, softmax, layer_norm, column_sums, masked_sums, gather,
        window, product,
    )
}  # fmt: skip


def main() -> int:
    """Run all, or one as a child."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--seconds", type=float, default=540.0, help="of the whole run")
    parser.add_argument("--child", choices=("count", "time"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.only[0], options.child, options.out)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    profiler = find_ncu()
    report: dict[str, Any] = {"ncu": profiler or "not found", "rows": []}
    end = time.monotonic() + options.seconds
    for name in options.only:
        if time.monotonic() > end - 10:
            break
        row = one(name, profiler, options.out, end)
        report["rows"].append(row)
        sys.stdout.write(line(row) + "\n")
        sys.stdout.flush()
        (options.out / "bytes.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0


def find_ncu() -> str | None:
    """The profiler, where it is."""
    found = shutil.which("ncu")
    known = [path for place in PLACES for path in sorted(glob.glob(place))]
    return found or (known[-1] if known else None)


def one(name: str, profiler: str | None, folder: Path, end: float) -> dict[str, Any]:
    """Time a case, then count its bytes."""
    here = [sys.executable, __file__, "--only", name]
    timed = folder / f"{name}.json"

    def limit() -> float:
        return max(5.0, min(CHILD, end - time.monotonic()))

    done = run_limited([*here, "--child", "time", "--out", str(timed)], limit(), folder / "log")
    if not timed.exists():
        return {"name": name, "failed": done.text[-800:], "code": done.code}
    row: dict[str, Any] = json.loads(timed.read_text())
    timed.unlink()
    if profiler is None:
        return row
    command = [
        profiler, "--csv", "--print-units", "base", "--clock-control", "none",
        "--profile-from-start", "off", "--metrics", f"{READ},{WRITTEN}",
        *here, "--child", "count", "--out", str(timed),
    ]  # fmt: skip
    done = run_limited(command, limit(), folder / "log")
    kernels = parse(done.text)
    if not kernels:
        row["not_counted"] = done.text[-800:]
        return row
    return {**row, **compared(row, kernels)}


def parse(text: str) -> list[dict[str, Any]]:
    """What ncu printed: the bytes of each launch, in order."""
    rows = text.splitlines()
    head = next((n for n, row in enumerate(rows) if row.startswith('"ID"')), None)
    if head is None:
        return []
    found: dict[str, dict[str, Any]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(rows[head:]))):
        metric = row.get("Metric Name")
        if metric in (READ, WRITTEN):
            kernel = found.setdefault(row["ID"], {"kernel": row["Kernel Name"]})
            kernel[metric] = float(row["Metric Value"].replace(",", ""))
    return [each for each in found.values() if READ in each and WRITTEN in each]


def compared(row: dict[str, Any], kernels: list[dict[str, Any]]) -> dict[str, Any]:
    """Counted against predicted bytes, in all and by kernel."""
    read, written = (sum(k[metric] for k in kernels) for metric in (READ, WRITTEN))
    predicted = row["read"] + row["written"]
    error = predicted / (read + written) - 1
    return {
        "counted_read": read,
        "counted_written": written,
        "error": error,
        "within": abs(error) <= WITHIN,
        "counted": kernels,
    }


def line(row: dict[str, Any]) -> str:
    """A row in words."""
    if "failed" in row:
        return f"{row['name']:<14} failed: {row['failed'][-200:]}"
    moved = f"{(row['read'] + row['written']) / 1e6:8.1f} MB predicted"
    if "error" in row:
        counted = (row["counted_read"] + row["counted_written"]) / 1e6
        moved += f", {counted:8.1f} counted ({row['error']:+.1%})"
    took = f"{row['predicted'] * 1e6:8.1f} us predicted, {row['measured'] * 1e6:8.1f} measured"
    return f"{row['name']:<14} {row['bound']:<8} {moved}; {took} ({row['time_error']:+.1%})"


def child(name: str, what: str, out: Path) -> None:
    """Run one case: between the profiler's marks, or under the clock."""
    torch: Any = importlib.import_module("torch")
    kernel = te.build(CASES[name](), target="cuda")
    call = calls_of(kernel, {})
    call()
    torch.cuda.synchronize()
    if what == "count":
        torch.cuda.profiler.start()
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        return
    found = te.explain(kernel)
    stats = measure_cuda(call, repeats=30)
    longest = max(found.kernels, key=lambda each: each.seconds)
    out.write_text(
        json.dumps(
            {
                "name": name,
                "device": torch.cuda.get_device_name(),
                "read": found.reads,
                "written": found.writes,
                "kernels": [
                    {"name": k.name, "read": sum(k.reads.values()), "reads": dict(k.reads),
                     "written": sum(k.writes.values()), "seconds": k.seconds, "times": k.times}
                    for k in found.kernels
                ],
                "bound": longest.bound.value,
                "predicted": found.seconds,
                "measured": stats.median,
                "spread": stats.spread,
                "time_error": found.seconds / stats.median - 1,
                "time_within": abs(found.seconds / stats.median - 1) <= TIME_WITHIN,
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
