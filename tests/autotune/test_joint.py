"""One search for many sizes, on the CPU: real candidates, real workers."""

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.autotune.records.database import Records
from tedsl.errors import TuneError
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import Tensor

pytestmark = pytest.mark.cpu
autotune: Any = te.autotune
TWELVE = [
    {"m": m, "n": n, "k": k}
    for m, n, k in [
        (1, 64, 64), (8, 64, 64), (33, 65, 70), (64, 64, 64), (128, 64, 32), (64, 256, 128),
        (128, 128, 128), (16, 256, 256), (256, 64, 32), (7, 13, 100), (256, 32, 256), (96, 96, 96),
    ]
]  # fmt: skip


def product(m: Any, n: Any, k: Any) -> Tensor:
    a = te.placeholder((m, k), "float32", name="A")
    b = te.placeholder((k, n), "float32", name="B")
    r = te.reduce_axis((0, k), name="r")
    return te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], r), name="C")


def symbolic() -> Tensor:
    return product(te.size_var("m"), te.size_var("n"), te.size_var("k"))


def check(dispatch: Any, *sizes: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    for m, n, k in sizes:
        a = rng.standard_normal((m, k)).astype(np.float32)
        b = rng.standard_normal((k, n)).astype(np.float32)
        np.testing.assert_allclose(dispatch(a, b), a @ b, rtol=1e-4, atol=1e-3)


def test_twelve_sizes_of_a_product_and_again_from_the_records(tmp_path: Path):
    path = tmp_path / "r.sqlite"
    options: dict[str, Any] = {"sizes": TWELVE, "trials": 4, "kernels": 4, "records": path}
    found = autotune(symbolic(), "cpu", **options)
    assert 1 <= len(found.kernels) <= 4
    assert [row.sizes for row in found.table] == TWELVE
    assert all(math.isfinite(row.seconds) and row.slowdown >= 1 for row in found.table)
    assert {row.kernel for row in found.table} == set(range(len(found.choices)))
    check(found, (1, 64, 64), (256, 32, 256), (5, 6, 7), (100, 100, 100))
    records = Records(path)
    counts = [len(records.candidates(run.id)) for run in records.all_runs()]
    records.close()
    assert len(counts) == 13  # one for each size and one for all
    again = autotune(symbolic(), "cpu", **options)
    assert again.source == found.source
    records = Records(path)
    assert len(records.all_runs()) == 13
    records.close()


def test_a_function_of_constant_sizes(tmp_path: Path):
    sizes = [{"m": 8, "n": 64, "k": 64}, {"m": 64, "n": 32, "k": 48}, {"m": 33, "n": 65, "k": 70}]
    options: dict[str, Any] = {"sizes": sizes, "trials": 4, "records": tmp_path / "r.sqlite"}
    found = autotune(product, "cpu", **options)
    check(found, (8, 64, 64), (64, 32, 48), (10, 20, 30))
    assert found.kernel(m=8, n=64, k=64) is found.kernel(m=8, n=64, k=64)
    assert not found.kernel(m=8, n=64, k=64).signature.scalars
    assert autotune(product, "cpu", **options).source == found.source


def vector(n: Any) -> Tensor:
    x = te.placeholder((n,), "float32", name="x")
    return te.compute((n,), lambda i: te.tanh(x[i]) * te.exp(-x[i]), name="y")


def eights(s: Schedule) -> None:
    """A schedule that may be told that lengths are multiples of eight."""
    stage = s[s.outputs[0]]
    if s.knob("eights", (False, True), default=False):
        s.assume(s.size("n") % 8 == 0)
    _, inner = stage.split(stage.op.axis[0], factor=8)
    stage.vectorize(inner)


def test_a_specialised_candidate_serves_only_where_it_may():
    sizes = [{"n": 1001}, {"n": 1024}, {"n": 4096}]
    found = autotune(
        vector(te.size_var("n")), "cpu", sizes=sizes, schedule=eights, records=False, within=0.0
    )
    special = [n for n, choice in enumerate(found.choices) if "eights=True" in choice.text]
    assert all(found.table[0].kernel != n for n in special)
    assert all("n % 8 == 0" in found.choices[n].condition for n in special)
    for n in (1001, 1024, 4096, 1000, 3, 5000):
        x = np.linspace(-1, 1, n, dtype=np.float32)
        np.testing.assert_allclose(found(x), np.tanh(x) * np.exp(-x), rtol=1e-4)


def test_two_batches_under_way_at_once(monkeypatch: pytest.MonkeyPatch):
    joint: Any = importlib.import_module("tedsl.autotune.multi.multi_size")
    plain = joint.Search

    def deep(space: Any, **options: Any) -> Any:
        return plain(space, **{**options, "depth": 2})

    monkeypatch.setattr(joint, "Search", deep)
    sizes = [{"n": n} for n in (1001, 1024, 4096, 100, 17)]
    found = autotune(
        vector(te.size_var("n")), "cpu", sizes=sizes, schedule=pieces, records=False, trials=18
    )
    assert len(found.table) == 5
    x = np.linspace(-1, 1, 55, dtype=np.float32)
    np.testing.assert_allclose(found(x), np.tanh(x) * np.exp(-x), rtol=1e-4)


def pieces(s: Schedule) -> None:
    """A schedule with eighteen candidates."""
    stage = s[s.outputs[0]]
    piece = s.knob("piece", (4, 8, 16, 32, 64, 128, 256, 512, 1024), 8)
    _, inner = stage.split(stage.op.axis[0], factor=piece)
    if s.knob("vector", (False, True), default=False):
        stage.vectorize(inner)


def test_a_size_at_which_nothing_is_legal_is_named():
    def only_eights(s: Schedule) -> None:
        s.assume(s.size("n") % 8 == 0)

    with pytest.raises(
        TuneError, match=r"none of 1 candidates ran correctly at n=1001(.|\n)*n % 8"
    ):
        autotune(
            vector(te.size_var("n")),
            "cpu",
            sizes=[{"n": 1024}, {"n": 1001}],
            schedule=only_eights,
            records=False,
        )


def test_a_lock_file_pins_every_size(tmp_path: Path):
    lock = tmp_path / "tedsl.lock"
    sizes = [{"n": 100}, {"n": 5000}]
    options: dict[str, Any] = {"sizes": sizes, "lock": lock, "schedule": eights, "records": False}
    found = autotune(vector(te.size_var("n")), "cpu", trials=2, **options)
    frozen = autotune(vector(te.size_var("n")), "cpu", frozen=True, **options)
    assert [row.seconds for row in frozen.table] == pytest.approx(
        [row.seconds for row in found.table], rel=0.01
    )
    with pytest.raises(TuneError, match="pins no schedule for this computation"):
        more = {**options, "sizes": [*sizes, {"n": 7}]}
        autotune(vector(te.size_var("n")), "cpu", frozen=True, **more)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kernels": 0}, "kernels=0, within=0.05 describe no set"),
        ({"within": -1.0}, "within=-1.0 describe no set"),
        ({"budget": "none"}, 'budget="none" measures nothing'),
        ({"sizes": []}, r"sizes=\[\] names no size"),
        ({"sizes": [{"k": 1}]}, "'n' is symbolic and has no value"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], text: str):
    with pytest.raises(TuneError, match=text):
        autotune(
            vector(te.size_var("n")),
            "cpu",
            **{"sizes": [{"n": 64}], "records": False, **options},
        )
