"""What was tried on the rows that fall short: candidates that were measured, and notes.

    python tests/benchmarks/tried.py --add FILE --by gemm_variants.py --on "2026-11-23 09:54"

Candidates are in `results/variants_h200.json`, where `--add` keeps what a script `*_variants.py` or
`run.py --tune` has written about rows of the benchmark, and in `results/shared_rows_h200.json`.
Notes say what a list of candidates does not, each with its figure and where that is from.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import suite
from workload import COPY, OURS

RESULTS = Path(__file__).parent / "results"
MEASURED = RESULTS / "variants_h200.json"
SHARED = RESULTS / "shared_rows_h200.json"
DEFAULT = ("rules", "default", OURS)
"""Names of the default schedule among candidates."""
SHOWN = 5
TITLES: Mapping[str, str] = {
    "matmul": "matmul, bf16",
    "matmul float32": "matmul, f32",
    "swiglu": "SwiGLU, bf16",
    "norm_matmul": "rms_norm -> matmul, bf16",
    "matmul_gelu": "matmul + bias + gelu, bf16",
    "matmul_squares": "matmul -> sums of squares, bf16",
    "matmul_lse": "matmul -> log-sum-exp, bf16",
    "scaled_matmul float8_e4m3fn": "fp8 matmul with row scales, e4m3",
}
"""Rows of the benchmark by what `gemm_variants.py` calls them, sizes left out."""


@dataclass(frozen=True)
class Tried:
    """Something that was tried, its figure, and where that is from."""

    what: str
    figure: str
    source: str


HAND = "kernel written by hand in Triton, H200, PyTorch 2.11 as its peer"
NOTE = "closing note, H200 at a2e48bb"
TODAY = "kernels written by hand in Triton, H200, 2026-11-23"
LONG = "rows_variants.py, H200, 2026-11-23 15:01"
TURNS = "candidates of the rules in turn, H200 at 5abc10a"
CACHES = "cache_variants.py, H200, 2026-11-23"
SUITE = "results/cuda.json at 2a8422b, 65f3ff4, 052cba7 and a2e48bb"
FIRST, SECOND = (
    "gemm_variants.py, H200, 2026-11-23 02:31",
    "gemm_variants.py, H200, 2026-11-23 03:29",
)

NOTES: Mapping[str, tuple[Tried, ...]] = {
    "rows 131072": (
        Tried(
            "A row by several programs, each of which keeps its part in registers until all have "
            "met (`compute_across`, the knob `share`): nothing is loaded while programs wait",
            "0.219 ms, read twice 0.208 ms",
            "a rule that has been taken back, H200",
        ),
        Tried(
            "Rows read twice by one program, the second time backwards from its end, for what is "
            "still cached",
            "0.1923 ms, best torch.compile 0.2820 ms (1.47x)",
            HAND,
        ),
        Tried("Default schedules as the rules grew", "0.2113, 0.2121, 0.2108, 0.2118 ms", SUITE),
        Tried(
            "The rules with both: 16 programs of 8192 elements, four to a processor; of 4096",
            "0.180 and 0.230 ms (0.182 in the suite), torch.compile 0.284",
            LONG,
        ),
        Tried(
            "Parts that do not fill their lanes: 1000x128256, 1024x100352",
            "0.196 for 0.185 ms, 0.173 for 0.148",
            LONG,
        ),
        Tried(
            "A row by 32 programs of 4096 elements which meet; the next row's part is fetched "
            "between arriving and waiting, and parts of a row lie together; so, and with inputs "
            "evicted last",
            "0.176 and 0.174 ms, a copy 0.129; without fetching ahead 0.198",
            TODAY,
        ),
        Tried(
            "The same, fetched before arriving, where the fence waits for what is on its way",
            "0.189 ms",
            TODAY,
        ),
        Tried(
            "The same without waiting at all, which computes nothing of use",
            "0.190 ms, nothing fetched ahead",
            TODAY,
        ),
        Tried(
            "Parts passed on with a tag in each, read until all have come, in place of a count",
            "0.237 ms: the readers are in the way of the writers",
            TODAY,
        ),
        Tried(
            "Two loops of pieces of 8192 in 264 programs that stay, the first read evicted last, "
            "the second first, results first; the second loop backwards or not",
            "0.185 and 0.192 ms, without hints 0.210",
            TODAY,
        ),
        Tried(
            "Two kernels, the second from the last row on, inputs evicted last",
            "0.198 ms, neither 0.199",
            TODAY,
        ),
        Tried(
            "What meeting costs: the same loads, folds and stores without it, which computes "
            "nothing of use; with it; arriving without waiting",
            "0.143, 0.182, 0.202 ms: fences and the way to memory and back, not the waiting",
            TODAY,
        ),
        Tried(
            "Parts passed on in words of value and number of the call, with no fence: read by all "
            "warps, by one, with pauses of 100 to 1000 ns, after a count",
            "0.187, 0.196, 0.193, 0.192 ms, a count with fences 0.184",
            TODAY,
        ),
        Tried(
            "The next row folded and passed on before the last is stored: parts of 8192 numbers, "
            "for which the registers do not suffice, and of 4096",
            "0.727 and 0.219 ms",
            TODAY,
        ),
        Tried(
            "exp2 with log2(e) in the factors, which overflows for the largest 2% of bfloat16",
            "0.173 for 0.182 ms",
            TODAY,
        ),
    ),
    "rows 1048576": (
        Tried(
            "Shared by 128 and by 64 programs (by hand above, now by the rules)",
            "0.220 and 0.243 ms, two kernels 0.198",
            LONG,
        ),
        Tried("A row in one program, the second loop backwards", "0.2466 ms", HAND),
        Tried(
            "A row by 256 programs which meet, fetching between arriving and waiting, inputs "
            "evicted last",
            "0.207 ms",
            TODAY,
        ),
        Tried(
            "Two kernels, the second from the last row on, inputs evicted last (the rules now)",
            "0.2003 ms, neither 0.2027",
            TODAY,
        ),
        Tried("Default schedules as the rules grew", "0.2084, 0.2075, 0.2080, 0.2078 ms", SUITE),
    ),
    "norms": (
        Tried(
            "Whole rows and pieces of rows, 2 to 16 warps, several rows at a time, loads ahead",
            "the best schedules within 0.5% of each other",
            NOTE,
        ),
        Tried(
            "rms_norm(x + r) 16384x8192 with 4 warps",
            "0.2636 ms, best torch.compile 0.2550 ms (0.97x)",
            HAND,
        ),
        Tried(
            "rms_norm(x + r) 16384x8192, inputs changing from call to call: whole rows; inputs "
            "evicted last, in whole rows and in two loops; evicted first",
            "0.260; 0.253 and 0.252; 0.271 ms, torch.compile 0.257",
            TODAY,
        ),
        Tried(
            "layer_norm f32 16384x4096 likewise: whole rows, evicted last, two loops evicted last",
            "0.131, 0.129, 0.128 ms, a copy 0.128",
            TODAY,
        ),
        Tried(
            "Rows shared by several programs: refused when lowered until ce5c42b, which passes on "
            "parts of several results",
            "not measured since",
            "ce5c42b",
        ),
    ),
    "norms backward": (
        Tried(
            "Inputs evicted last, 16384x8192: layer_norm, rms_norm",
            "0.2100 for 0.2100 ms, 0.2008 for 0.2005 ms",
            CACHES,
        ),
        Tried(
            "What the bar allows: both results in one read of x and dy at the speed of a copy",
            "1.47x over the line, of 1.8x asked",
            NOTE,
        ),
        Tried(
            "layer_norm backward 16384x8192 as the rules grew",
            "0.2122, 0.2120, 0.2108, 0.2117 ms",
            SUITE,
        ),
        Tried(
            "layer_norm backward 8191x5000 as the rules grew",
            "0.1079, 0.1075, 0.1073, 0.1072 ms",
            SUITE,
        ),
    ),
    "cross entropy both": (
        Tried(
            "8192x128256: pieces of 8192 by 16 warps in place of 4096 by 8",
            "1.476 for 1.558 ms",
            LONG,
        ),
        Tried(
            "8192x50257, rows that start anywhere: pieces of 512 by 2 warps, 3 on their way, in "
            "place of 2048 by 8",
            "0.768 for 0.875 ms",
            LONG,
        ),
        Tried(
            "8192x128256 shared by 4 and by 16 programs, whose parts are not whole",
            "1.860 and 1.865 ms",
            LONG,
        ),
        Tried(
            "8192x128256 as the rules grew",
            "1.6253, 1.5523, 1.6371, 1.5375 ms",
            SUITE,
        ),
        Tried("8192x50257 as the rules grew", "0.8988, 0.8857, 0.8768, 0.8853 ms", SUITE),
        Tried(
            "8192x50257: pieces that start where an access may (`skew`), the second loop backwards "
            "(`reverse`), x evicted last until then, results first; forwards with x evicted last "
            "throughout; backwards, so; forwards, so, in pieces of 512 that start anywhere",
            "0.592; 0.727; 0.642; 0.770 ms",
            TURNS,
        ),
        Tried(
            "8192x128256: the second loop backwards, x evicted last until then and results first; "
            "backwards, x last throughout and results first; neither",
            "1.429; 1.480; 1.496 ms (1.479 in the suite, as before: on another H200)",
            TURNS,
        ),
        Tried(
            "8192x128256: the same with 40 registers a thread, three programs to a processor, "
            "where the compiler needs 32 and four run",
            "1.371 for 1.485 ms, the fewer rows the longer they stay cached",
            "the rules' source changed by hand, H200, 2026-11-23",
        ),
        Tried(
            "8192x128256: one program of 32 warps to a processor, pieces of 16384, which keeps all "
            "rows in the cache",
            "1.369 ms",
            TODAY,
        ),
    ),
    "gemm": (
        Tried(
            "1000x3000x2000: tiles of 128 by 256 are 96, for 132 processors; tiles of the last "
            "wave in parts",
            "0.0334 ms in parts, 0.0287 ms without",
            NOTE,
        ),
        Tried(
            "1000x3000x2000: tiles of 192 columns, as 128 and 64, and as three of 64, in one loop, "
            "which are 128 programs for 132 processors",
            "0.0261 and 0.0276 ms, of 256 columns 0.0277, torch eager 0.0228: the loop runs at 66% "
            "of the units' rate, that of 256 columns at 85%",
            TODAY,
        ),
        Tried(
            "512x512x32768: parts merged by a second kernel; by the last program of the first "
            "(`one_launch`) it is off, as measured",
            "0.0395, 0.0396, 0.0390, 0.0393 ms",
            SUITE + ", CHANGELOG.md",
        ),
        Tried(
            "1x8192x8192: 64 columns, whose parts the last program merges, in place of 128 in two "
            "launches; 1x4096x4096 likewise",
            "0.0362 for 0.0401 ms, 0.0151 for 0.0233 (0.98x and 0.96x)",
            "gemm_variants.py, H200, 2026-11-23 15:01",
        ),
        Tried("1x8192x8192 as the rules grew", "0.0506, 0.0501, 0.0502, 0.0499 ms", SUITE),
        Tried("1000x3000x2000 as the rules grew", "0.0280, 0.0283, 0.0283, 0.0284 ms", SUITE),
    ),
    "swiglu": (
        Tried(
            "1000x5000x2000: both products in one loop over k, which reads their operand once",
            "0.1302 ms in two loops, 0.0968 ms in one",
            FIRST,
        ),
        Tried("1000x5000x2000: 160 tiles are 1.2 waves", "0.84x", NOTE),
        Tried(
            "1000x5000x2000: groups of 4 rows of tiles, of 8, none",
            "86 us, 92 us, 89 us",
            "schedules/gpu/gemm/tile_scheduler.py",
        ),
        Tried(
            "4096x14336x4096: pairs of products in programs that stay are not flattened",
            "1.7230 ms flattened, 1.2838 ms not; in two loops 1.4201 ms",
            SECOND,
        ),
    ),
    "norm gemm": (
        Tried(
            "2047x5000x4096: A by descriptors though something was substituted in what computes it",
            "0.1873 ms before (65f3ff4), 0.1869 ms after",
            "results/cuda.json, " + FIRST,
        ),
        Tried(
            "2047x5000x4096: rows off the lines of memory count in the model, which then takes "
            "tiles of 256 by 128",
            "0.1880 ms in tiles of 128 by 128, 0.1646 of 128 by 256, 0.1556 of 256 by 128",
            SECOND,
        ),
        Tried(
            "4096x4096x4096 as two kernels, as the rules grew",
            "0.2003, 0.1995, 0.2014, 0.2018 ms",
            SUITE,
        ),
        Tried(
            "What 1.1x needs: norm and product in one kernel at nearly the rate of the product",
            "the one kernel takes 0.2452 ms, the two 0.2004 ms",
            "closing note of ddb1a52, " + FIRST,
        ),
    ),
    "gemm rows": (
        Tried(
            "matmul -> sums of squares 4096x4096x4096 as the rules grew",
            "0.1878, 0.1868, 0.1907, 0.1893 ms",
            SUITE,
        ),
        Tried(
            "matmul -> log-sum-exp 4096x32000x4096 as the rules grew",
            "1.4109, 1.4147, 1.5503, 1.4031 ms",
            SUITE,
        ),
    ),
    "fp8": (
        Tried(
            "Sums left to the matrix units, which keep few bits, as `use_fast_accum` does; in "
            "tiles of 128x128 and 128x256",
            "4096x4096x4096 0.103, 0.105 ms, torch._scaled_mm 0.108, with use_fast_accum 0.096; "
            "1000x8192x8192 0.101 and 0.097, 0.109, 0.096",
            TODAY,
        ),
        Tried(
            "What that costs: a sum of 4096 products of one sign, of which 512, 1024, 2048, 4096 "
            "at a time are added up by the units",
            "wrong by 0.52%, 1.3%, 3.1%, 6.6%; torch._scaled_mm 0.06%, with use_fast_accum 6.6%; "
            "rounding to bfloat16 takes up to 0.4%",
            TODAY,
        ),
        Tried(
            "512, 1024, 2048 at a time, in nested loops run as one pipeline",
            "4096x4096x4096 0.119, 0.112, 0.108 ms; 1000x8192x8192 0.111, 0.104, 0.100 ms",
            TODAY,
        ),
        Tried(
            "Two programs of 128x128 to a processor in place of one that waits for each step",
            "0.1528 ms before, 0.1320 ms after",
            FIRST,
        ),
        Tried(
            "8192x8192x8192, no row of the suite",
            "1.0084 ms, torch._scaled_mm 0.7763 ms",
            FIRST,
        ),
    ),
    "attention": (
        Tried(
            "A quarter, and half, of the exponentials by polynomials in place of the unit for them",
            "128x4096x64 1.278 and 1.401 for 1.242 ms, 64x4096x128 1.036 and 1.074 for 0.982",
            TODAY,
        ),
        Tried(
            "Pieces of 256 keys",
            "128x4096x64 1.497 for 1.120 ms, 64x4096x128 0.985 for 0.956",
            TODAY,
        ),
        Tried(
            "The same loop written by hand: powers of 2 throughout, results by the copy engine",
            "128x4096x64 1.184 to 1.219 ms, the rules 1.214; 256x2048x64 0.624 to 0.637, 0.623; "
            "64x4096x128 0.938 to 1.091, 0.951",
            TODAY,
        ),
        Tried(
            "Pieces of 128 keys for 64 rows, three or four programs to a processor, one or two "
            "pieces at a time, in place of 64 keys and three pieces",
            "64x4096x128 0.931 for 1.107 ms, causal 0.593 for 0.627, 128x4096x64 1.204 for 1.313, "
            "causal 0.675 for 0.688",
            "attention_variants.py, H200, 2026-11-23 15:35",
        ),
        Tried(
            "The same without a limit of registers, so that causal ones have two programs",
            "causal 64x4096x128 0.623 ms, causal 128x4096x64 1.021 ms",
            "attention_variants.py, H200, 2026-11-23 15:35",
        ),
        Tried(
            "The scores of the next piece multiplied while the last are worked on, in one "
            "program: the compiler keeps them in shared memory and in order",
            "64x4096x128 1.326 ms and more, 128x4096x64 1.584 ms and more",
            TODAY,
        ),
        Tried(
            "A maximum that does not pass NaN on",
            "within 2% either way",
            TODAY,
        ),
        Tried(
            "Many rows that differ in length in tiles of 128 by 128, in which little is masked",
            "3 to 12% faster for 2048 to 16384 rows",
            "4ce9324, schedules/gpu_chain.py",
        ),
        Tried(
            "The same rows of several heads side by side, longest first",
            "predicted 3 to 6% less for causal attention",
            "136f617",
        ),
        Tried(
            "Causal 64x4096x128 as the rules grew",
            "0.6988, 0.6974, 0.6291, 0.6306 ms",
            SUITE,
        ),
    ),
}
"""Notes by the key of a line."""


def measured(name: str) -> list[Tried]:
    """The candidates of a row: for each run the best of them, and the default."""
    found: list[Tried] = []
    for run in (*_runs(), _shared()):
        row = run["rows"].get(name)
        if row is not None:
            found.append(_told(row, f"{run['by']}, H200, {run['on']}"))
    return found


def tried(line: str, name: str) -> list[Tried]:
    """Everything about a row: its candidates, and the notes on its line."""
    return [*measured(name), *NOTES.get(line, ())]


def _runs() -> list[dict[str, Any]]:
    return json.loads(MEASURED.read_text(encoding="utf-8"))["runs"] if MEASURED.exists() else []


def _shared() -> dict[str, Any]:
    """The rows shared by several programs, which have a file of their own."""
    recorded = json.loads(SHARED.read_text(encoding="utf-8"))
    rows = {row["name"]: _beside(row) for row in recorded["rows"] if "times" in row}
    return {"by": "rows_variants.py", "on": "results/shared_rows_h200.json", "rows": rows}


def _told(row: Mapping[str, Any], source: str) -> Tried:
    """A run over a row in words."""
    if "search" in row:
        found = row["search"]
        default, best = found["default_us"] / 1e3, found["winner_us"] / 1e3
        what = f"a search of {found['seconds']:.0f} s, {found['measured']} schedules measured"
        return Tried(what, f"the default {default:.4f} ms, the best {best:.4f} ms", source)
    ordered = sorted(row["tried"].items(), key=lambda each: each[1][0])
    shown = [each for n, each in enumerate(ordered) if n < SHOWN or each[0] in DEFAULT]
    figure = ", ".join(f"{_plain(name)} {ms:.4f}" for name, (ms, _) in shown)
    peer = statistics.median(theirs for _, theirs in row["tried"].values())
    what = f"{len(ordered)} schedules, in ms" + (", the best of them" if len(shown) > 1 else "")
    return Tried(what, f"{figure}; {row['peer']} {peer:.4f}", source)


def _plain(name: str) -> str:
    return "**the default**" if name in DEFAULT else f"`{name}`"


def _beside(row: Mapping[str, Any]) -> dict[str, Any]:
    """Candidates that were timed in one process with their peers, which are the same for all."""
    times: Mapping[str, float] = row["times"]
    candidates = set(row.get("decisions", {}))
    peers = [name for name in times if name not in candidates]
    peer = min([name for name in peers if name != COPY] or peers, key=lambda name: times[name])
    tried = {name: [ms, times[peer]] for name, ms in times.items() if name in candidates}
    return {"peer": peer, "tried": tried}


def condensed(recorded: Any) -> dict[str, dict[str, Any]]:
    """What a script's file says of rows of the benchmark, by row."""
    rows: list[dict[str, Any]] = recorded["rows"] if isinstance(recorded, dict) else recorded
    known = {load.name for load in suite.workloads()}
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        title, _, candidate = row["name"].partition(" | ")
        name = title if title in known else _renamed(title)
        if name not in known:
            continue
        if "tuned" in row:
            tuned = row["tuned"]
            if tuned["default_us"] is not None and math.isfinite(tuned["winner_us"]):
                keys = ("measured", "default_us", "winner_us", "seconds")
                found[name] = {"search": {key: tuned[key] for key in keys}}
        elif candidate and "times" in row:
            times = {peer: taken["ms"] for peer, taken in row["times"].items()}
            peer = next(peer for peer in times if peer != OURS)
            own = found.setdefault(name, {"peer": peer, "tried": {}})
            if own["peer"] in times:
                own["tried"][candidate] = [round(times[each], 5) for each in (OURS, own["peer"])]
        elif "decisions" in row:
            found[name] = _beside(row)
    return found


def _renamed(title: str) -> str:
    kind, _, sizes = title.rpartition(" ")
    return f"{TITLES.get(kind, kind)} {sizes}"


def _added(path: Path, by: str, on: str) -> Iterator[str]:
    """Keep a file's candidates; says of which rows."""
    runs = [run for run in _runs() if (run["by"], run["on"]) != (by, on)]
    rows = condensed(json.loads(path.read_text(encoding="utf-8")))
    runs.append({"by": by, "on": on, "rows": rows})
    runs.sort(key=lambda run: run["on"])
    MEASURED.write_text(json.dumps({"runs": runs}, indent=1) + "\n", encoding="utf-8")
    yield from rows


def main() -> None:
    """Keep candidates that were measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--add", type=Path, required=True, help="what a script has written")
    parser.add_argument("--by", required=True, help="that script")
    parser.add_argument("--on", required=True, help="when it ran, or on which commit")
    options = parser.parse_args()
    for name in _added(options.add, options.by, options.on):
        print(name)


if __name__ == "__main__":
    sys.exit(main())
