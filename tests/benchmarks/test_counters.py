"""What Nsight Compute prints is read, whatever version it is, and what limits a kernel is said."""

from __future__ import annotations

import counters
import pytest

STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC","gpu__time_duration.sum",'
    '"dram__throughput.avg.pct_of_peak_sustained_elapsed","dram__bytes_read.sum",'
    '"dram__bytes_write.sum","launch__registers_per_thread","launch__shared_mem_per_block_dynamic",'
    '"launch__shared_mem_per_block_static","launch__grid_size","launch__waves_per_multiprocessor",'
    '"launch__occupancy_limit_registers","launch__occupancy_limit_shared_mem",'
    '"sm__cycles_active.avg","sm__cycles_elapsed.max","lts__t_sector_hit_rate.pct",'
    f'"{STALL.format("long_scoreboard")}","{STALL.format("selected")}","{STALL.format("barrier")}"'
)
UNITS = (
    '"","","","","","","","","","","","ns","%","byte","byte","register/thread","byte/block",'
    '"byte/block","","","block","block","cycle","cycle","%","inst","inst","inst"'
)
FIRST = (
    '"0","77","python3.12","127.0.0.1","softmax_kernel","1","7","(256, 1, 1)","(1,024, 1, 1)",'
    '"0","9.0","211,840","61.25","536,900,000","268,400,000","31","0","16","1,024","0.97","8","32",'
    '"300,000","400,000","n/a","6.00","1.00","3.00"'
)
SECOND = (
    '"1","77","python3.12","127.0.0.1","last","1","7","(32, 1, 1)","(1, 1, 1)","0","9.0","2,000"'
)
WIDE = f"""==PROF== Connected to process 77 (/usr/bin/python3.12)
==WARNING== Profiling kernels with a time limit
a line of the program, "quoted"
{HEAD}
{UNITS}
{FIRST}
{SECOND}
==PROF== Disconnected from process 77
"""
LONG = """"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","out_kernel","Command line profiler metrics","gpu__time_duration.sum","us","12.5"
"0","out_kernel","Command line profiler metrics","dram__bytes_read.sum","Mbyte","3.5"
"0","out_kernel","Command line profiler metrics","a__new.sum","","(!) n/a"
"""


def test_a_page_with_a_column_for_each_metric_is_read() -> None:
    found = counters.parse(WIDE)
    assert [launch.name for launch in found.launches] == ["softmax_kernel", "last"]
    first, last = map(counters.figures, found.launches)
    assert first["ms"] == pytest.approx(0.21184) and first["dram"] == 61.25
    assert first["read"] + first["written"] == 805_300_000
    assert first["registers"] == 31 and first["shared"] == 16 and first["grid"] == 1024
    assert first["idle"] == 25.0 and first["held_by"] == "registers"
    assert first["stalls"] == {"long_scoreboard": 60.0, "barrier": 30.0, "selected": 10.0}
    assert counters.top_stalls(first) == [
        ("data from memory or from the second-level cache", 60.0),
        ("the other warps of the program, at a barrier", 30.0),
    ]
    # The second line ends early: what it has counts, and nothing else is there.
    assert last == {"kernel": "last", "ms": pytest.approx(0.002)}
    assert "l2_hits" not in first
    assert found.notes == [
        "==WARNING== Profiling kernels with a time limit",
        "lts__t_sector_hit_rate.pct: n/a",
    ]


def test_a_page_with_a_line_for_each_metric_is_read_in_its_units() -> None:
    found = counters.parse(LONG)
    (launch,) = found.launches
    assert launch.metrics == {
        "gpu__time_duration.sum": pytest.approx(12.5e-6),
        "dram__bytes_read.sum": 3.5e6,
    }
    assert found.notes == ["a__new.sum: (!) n/a"]


def test_nothing_but_complaints_is_nothing_but_notes() -> None:
    text = "==ERROR== Failed to find metric sm__pipe_tensor_cycles_active.avg\n==PROF== done\n"
    found = counters.parse(text)
    assert not found.launches and len(found.notes) == 1
    asked, _ = counters.metrics()
    refused = counters.refused(found.notes, asked)
    escaped = r"==ERROR== Failed to find metric regex:^sm__throughput\.(sum|min|max|avg)$"
    assert counters.refused([escaped], asked) == [
        "sm__throughput.avg.pct_of_peak_sustained_elapsed"
    ]
    assert refused and {counters.base(name) for name in refused} == {
        "sm__pipe_tensor_cycles_active"
    }
    assert not counters.refused(["==WARNING== dram__bytes_read.sum is slow"], asked)
    assert counters.parse("").launches == []


def test_what_a_version_knows_is_asked_for_and_the_rest_is_noted() -> None:
    every, missing = counters.metrics()
    assert not missing and len(set(every)) == len(every)
    assert STALL.format("gmma") in every
    listing = """Device NVIDIA H200 (GH100)
Metric Name            Metric Type    Metric Unit    Metric Description
---------------------- -------------- -------------- ------------------
gpu__time_duration     Counter        nsecond        time
"dram__throughput","Throughput","%","all of DRAM"
smsp__average_warps_issue_stalled_new_reason_per_issue_active  Ratio  inst  what is new
smsp__average_warps_issue_stalled_new_reason_not_issued_per_issue_active  Ratio  inst  no
"""
    names = counters.listed(listing)
    asked, missing = counters.metrics(names)
    assert "gpu__time_duration.sum" in asked and "lts__t_sector_hit_rate.pct" in missing
    assert "launch__registers_per_thread" in asked  # no counter, and not in the list
    assert [name for name in asked if "stalled" in name] == [STALL.format("new_reason")]
    assert set(asked).isdisjoint(missing)


def test_a_profiler_that_does_not_answer_leaves_all_to_be_asked() -> None:
    assert counters.known("/no/such/ncu", 1.0) == []
    assert counters.known("true", 5.0) == []


BUSY = {"kernel": "a", "ms": 1.0, "dram": 91.0, "l2": 40.0, "tensor": 5.0}


def test_a_busy_unit_limits() -> None:
    assert counters.limit_of([BUSY]) == "memory 91% busy"
    both = {**BUSY, "tensor": 95.0}
    assert counters.limit_of([both]) == "the matrix units 95% busy; memory 91% busy"


def test_more_bytes_and_spills_are_said() -> None:
    kernel = {**BUSY, "read": 900, "written": 300, "local_bytes": 5e6}
    text = counters.limit_of([kernel], moved=1000)
    assert "memory moves 1.20 times the bytes" in text and "spilled registers move 5 MB" in text
    assert "times the bytes" not in counters.limit_of([kernel], moved=1100)


def test_a_call_that_is_longer_than_its_kernels_is_told() -> None:
    text = "25% of the time is not in kernels, but around them"
    assert counters.limit_of([BUSY, BUSY], wall_ms=2.667).endswith(text)
    assert "around them" not in counters.limit_of([BUSY], wall_ms=1.1)


def test_idle_processors_limit() -> None:
    kernel = {"kernel": "a", "ms": 1.0, "idle": 30.0, "grid": 160.0, "waves": 1.21}
    text = "processors have no program 30% of the time (160 programs, 1.21 waves)"
    assert counters.limit_of([kernel]) == text
    assert "no program" not in counters.limit_of([{**kernel, "idle": 10.0}])


def test_where_nothing_is_busy_it_is_latency() -> None:
    kernel = {
        "kernel": "a", "ms": 1.0, "dram": 50.0, "tensor": 60.0, "l2": 30.0, "occupancy": 25.0,
        "held_by": "registers", "stalls": {"wait": 10.0, "gmma": 55.0, "selected": 35.0},
    }  # fmt: skip
    text = counters.limit_of([kernel])
    assert text.startswith("latency: no unit is 80% busy (memory 50%, the matrix units 60%")
    assert "25% of the warps that a processor has room for, which registers set" in text
    assert "warps wait most for the matrix units to take the next group of products (55%" in text


def test_of_several_kernels_the_longest_is_told() -> None:
    text = counters.limit_of([BUSY, {"kernel": "b", "ms": 3.0, "l2": 85.0}])
    assert text == "2 kernels, of which b takes 75%: the second-level cache 85% busy"
    assert "was not counted" in counters.limit_of([{"kernel": "a", "ms": 1.0}])
    assert counters.limit_of([]) == counters.limit_of([{"kernel": "a"}]) == "not counted"
