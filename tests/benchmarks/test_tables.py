"""Tables and the chart are made from a recorded result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import run
import summary
import tables
from suite import workloads
from workload import BEST_COMPILED, BEYOND, COMPILED, COPY, EAGER, FLEX, OURS, TUNED, Workload

LOADS = {load.name: load for load in workloads()}
MACHINE = {"gpu": "NVIDIA H200", "commit": "abc1234", "python": "3.12"} | {
    name: "1.0" for name in ("torch", "numpy", "triton", "llvmlite")
}


def row(load: Workload, **times: float) -> dict[str, Any]:
    named = {name: times[key] for name, key in KEYS.items() if key in times}
    taken = {name: {"ms": ms, "spread": 0.01} for name, ms in named.items()}
    bars = summary.bars(load, taken)
    found = {"name": load.name, "line": load.line, "class": "", "how": "default rules"}
    return {**found, "times": taken, "bars": bars}


KEYS = {OURS: "ours", EAGER: "eager", COMPILED: "compiled", TUNED: "tuned", COPY: "copy"}


def report() -> dict[str, Any]:
    chain, odd = LOADS["chain of 5, f32 8192x8192"], LOADS["chain of 5, f32 8191x8193"]
    rows = [
        row(chain, ours=0.2, eager=0.8, compiled=0.22, tuned=0.21, copy=0.2),
        row(odd, ours=0.2, eager=0.8, compiled=0.19, tuned=0.25, copy=0.196),
        {
            "name": "matmul, bf16 4096x4096x4096",
            "line": "gemm",
            "class": "gemm",
            "failed": "x|y\nz",
        },
        {"name": "fp8", "line": "fp8", "class": "gemm", "lacks": "4-bit floats"},
    ]
    return {"machine": MACHINE, "rows": rows, "summary": summary.lines(rows), "left_out": ["late"]}


def test_lines_are_judged() -> None:
    found = {line["line"]: line for line in summary.lines(report()["rows"])}
    by_peer = {bar["peer"]: bar for bar in found["pointwise"]["bars"]}
    copied = by_peer[COPY]
    assert copied["geomean"] == pytest.approx(0.98**0.5, abs=1e-4)
    assert copied["worst_row"] == "chain of 5, f32 8191x8193" and copied["verdict"] == "met"
    best = by_peer["best torch.compile"]
    assert best["geomean"] == pytest.approx((1.05 * 0.95) ** 0.5, abs=1e-4)
    assert best["verdict"] == "missed"
    assert found["gemm"]["bars"][0]["verdict"] == "not measured"
    assert found["fp8"]["lacking"] == 1


def test_a_failed_row_is_a_bar_missed() -> None:
    rows = [*report()["rows"][:1], {"name": "chain", "line": "pointwise", "failed": "hung"}]
    (line,) = summary.lines(rows)
    assert {bar["verdict"] for bar in line["bars"]} == {"missed"}


def test_files_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page, front = tmp_path / "speed.md", tmp_path / "top.md"
    page.write_text("before\n<!-- benchmark cuda -->\nold\n<!-- end cuda -->\nafter\n")
    front.write_text("before\n<!-- benchmark figures -->\nold\n<!-- end figures -->\nafter\n")
    (tmp_path / "cuda.json").write_text(json.dumps(report()))
    tables.write(tmp_path, page, front)
    assert "| best torch.compile | 1.00x | 0.95x |" in front.read_text()
    text = page.read_text()
    assert text.startswith("before\n<!-- benchmark cuda -->\nNVIDIA H200; torch 1.0")
    assert text.endswith("<!-- end cuda -->\nafter\n") and "old" not in text
    assert "| chain of 5, f32 8192x8192 | 0.2000 | 4.00x | 1.10x | 1.05x | 1.00x |" in text
    whole = (tmp_path / "README.md").read_text()
    assert "x/y" in whole and "4-bit floats" in whole
    assert "No time was left for: late." in whole
    assert (tmp_path / "cuda.svg").read_text().startswith("<?xml")
    assert (tmp_path / "cuda.png").read_bytes().startswith(b"\x89PNG")
    first = page.read_text(), (tmp_path / "cuda.svg").read_text()
    tables.write(tmp_path, page, front)
    assert first == (page.read_text(), (tmp_path / "cuda.svg").read_text())


def test_the_static_table() -> None:
    kernel = {"registers": 64, "spills": None, "shared": 2048, "descriptors": True}
    found = tables.static_table(
        {
            "rows": [
                {
                    "name": "a",
                    "kernels": [kernel, kernel],
                    "dots": 1,
                    "workspace": 1 << 21,
                    "floor_ms": 0.1,
                    "predicted_ms": 0.2,
                    "allowed_ms": None,
                    "remarks": ["2 kernels", "no wgmma"],
                },
                {"name": "b", "failed": "LowerError: no"},
            ]
        }
    )
    assert (
        "| a | 2 | 64/64 | 0 | 2 | 1 | yes | 2 | 0.1000 | 0.2000 |  | 2 kernels; no wgmma |"
        in found
    )
    assert "| b |" in found and "LowerError: no" in found


def test_rows_that_were_disturbed_are_not_judged() -> None:
    rows = report()["rows"]
    judged = {line["line"]: line for line in summary.lines(rows)}
    key = next(k for k, line in judged.items() if any("geomean" in b for b in line["bars"]))
    for row in rows:
        if row["line"] == key and "times" in row:
            row["times"]["tedsl"]["spread"] = 0.3
    (line,) = [line for line in summary.lines(rows) if line["line"] == key]
    assert line["disturbed"] > 0
    assert all(bar["verdict"] == "not measured" for bar in line["bars"])


def test_float32_beyond_the_asked_is_shown_and_the_limits_name_its_ratios() -> None:
    recorded = json.loads((tables.HERE / "results" / "cuda.json").read_text(encoding="utf-8"))
    rows = [r for r in summary.as_judged_now(recorded)["rows"] if r["line"] == BEYOND]
    assert {load.name for load in LOADS.values() if load.line == BEYOND} == {
        r["name"] for r in rows
    }
    page = tables.PAGE.read_text(encoding="utf-8")
    limits = (tables.PAGE.parent / "others.md").read_text(encoding="utf-8")
    limits = limits.partition("\n## Limits\n")[2].partition("\n## ")[0]
    for found in rows:
        assert not found["bars"] and f"| {found['name']} |" in page
        ratios = [summary.ratio(found["times"], peer) for peer in (EAGER, BEST_COMPILED, FLEX)]
        least = min(ratio for ratio in ratios if ratio is not None)
        assert least > 1 or f"{least:.2f}x" in limits


@pytest.mark.parametrize(("peer", "other"), [("copy", "tedsl"), ("cuDNN", "SDPA flash")])
def test_a_peer_that_was_not_itself_is_not_judged(peer: str, other: str) -> None:
    times = {name: {"ms": 1.0, "spread": 0.001} for name in ("tedsl", peer, other)}
    assert summary.is_steady(times, peer)
    times[peer]["ms"] = 14.0
    assert not summary.is_steady(times, peer)


def test_rows_measured_again_stand_beside_those_of_before(tmp_path: Path) -> None:
    chain, odd = LOADS["chain of 5, f32 8192x8192"], LOADS["chain of 5, f32 8191x8193"]
    path, times = tmp_path / "cuda.json", {OURS: {"ms": 0.2}, COPY: {"ms": 0.2}}
    first = run.Report(path, "measure", [chain, odd], MACHINE, {"rows": []})
    for load in (chain, odd):
        first.add({"name": load.name, "times": times, "how": "default rules"})
    now = {**MACHINE, "commit": "def5678"}
    again = run.Report(path, "measure", [odd], now, run.known(path, now))
    slower = {OURS: {"ms": 0.4}, COPY: {"ms": 0.2}}
    again.add({"name": odd.name, "times": slower, "how": "default rules"})
    found = json.loads(path.read_text(encoding="utf-8"))
    assert [(r["name"], r["times"][OURS]["ms"], r["commit"]) for r in found["rows"]] == [
        (chain.name, 0.2, "abc1234"),
        (odd.name, 0.4, "def5678"),
    ]
    assert found["summary"][0]["rows"] == 2
    assert "commit abc1234; pointwise at def5678" in tables.where(found)


def test_rows_of_other_tools_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "cuda.json"
    with pytest.raises(SystemExit, match="measure all rows first"):
        run.known(path, MACHINE)
    path.write_text(json.dumps({"machine": MACHINE, "rows": []}), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"torch 1.0 there, 2.0 here"):
        run.known(path, {**MACHINE, "torch": "2.0"})
