"""What every test shares: the `golden` fixture, hypothesis profiles, skips with their reason."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import every_kernel
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import engine

from tedsl import target

TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden"
# Objects between two collections of garbage, and collections between two of what is older.
COLLECTED = (50_000, 20, 20)

# A failure is to be told before the test's time is up: hypothesis shrinks for 300 seconds, and
# traces every line meanwhile to explain what it found.
PHASES = [phase for phase in Phase if phase is not Phase.explain]
engine.MAX_SHRINKING_SECONDS = 100

settings.register_profile(
    "ci",
    max_examples=40,
    phases=PHASES,
    deadline=None,
    derandomize=True,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("dev", settings.get_profile("ci"), max_examples=20)
settings.register_profile("deep", settings.get_profile("ci"), max_examples=1700, derandomize=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden texts instead of comparing"
    )
    parser.addoption(
        "--no-ptxas", action="store_true", help="do not compile the Triton kernels of each test"
    )
    parser.addoption(
        "--every-architecture",
        action="store_true",
        help="compile each of them for every architecture, and not for those that its text decides",
    )
    parser.addoption(
        "--keep-failures", type=Path, help="write each failure to this folder as soon as it is met"
    )


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all is collected
    profile: object = config.getoption("--hypothesis-profile", default=None)
    settings.load_profile(str(profile or os.environ.get("HYPOTHESIS_PROFILE") or "ci"))
    own_gpu()
    if config.getoption("numprocesses", default=None):
        # BLAS and OpenMP keep threads that wait busily, which would take the processors from other
        # tests: a third of the processor time of a tutorial.  Workers inherit this.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    if folder := config.getoption("--keep-failures"):
        config.pluginmanager.register(KeepFailures(folder))
    if config.getoption("--no-ptxas") or importlib.util.find_spec("triton") is None:
        return
    config.add_cleanup(every_kernel.watch(bool(config.getoption("--every-architecture"))))


def pytest_collection_finish() -> None:
    """Thirteen thousand tests and what their files import stay to the end: garbage is looked for
    among what comes later, and less often than with Python's defaults."""
    gc.freeze()
    gc.set_threshold(*COLLECTED)
    gc.enable()
    atexit.register(gc.unfreeze)  # Triton's bindings tell of what is still there at the end


def own_gpu() -> None:
    """Give each of several test processes a GPU of its own: some tests look at its free memory."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    count = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if worker and count > 1:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", str(int(worker) % count))


class KeepFailures:
    """Writes down what failed at once: a run of hours may never come to its summary."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            name = re.sub(r"[^\w.-]+", "_", report.nodeid)
            (self.folder / f"{name}.txt").write_text(report.longreprtext + "\n", encoding="utf-8")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many different Triton kernels the tests made."""
    if found := every_kernel.counts():
        left_out = found.pop(every_kernel.LEFT_OUT, 0)
        text = ", ".join(f"{count} for {arch}" for arch, count in sorted(found.items()))
        terminalreporter.write_line(
            f"Triton kernels compiled: {text}; {left_out} left out as too large for registers"
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, each with the reason; deep runs take their time.

    Searches wait for their workers most of the time, so their files are spread among the others.
    """
    items[:] = spread(items)
    if settings().max_examples > 1000:
        for item in items:
            item.add_marker(pytest.mark.timeout(0))
    missing = {
        "cpu": None if importlib.util.find_spec("llvmlite") else "llvmlite is not installed",
        "ptxas": None if importlib.util.find_spec("triton") else "triton is not installed",
        "gpu": None if Path("/dev/nvidiactl").exists() else "no NVIDIA GPU on this machine",
    }
    for item in items:
        for marker, reason in missing.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests with the files of `tests/autotune` at even distances, each file in one piece, and
    those of tutorials, which take longest, at the start: what comes last is short."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting = [own for path, own in files.items() if path.parent.name == "autotune"]
    rest = [own for path, own in files.items() if path.parent.name != "autotune"]
    working = sorted(rest, key=lambda own: own[0].path.parent.name != "tutorials")
    count, total = sum(map(len, working)), len(waiting)
    found: list[pytest.Item] = []
    passed = 0
    for own in working:
        while waiting and passed * total >= count * (total - len(waiting)):
            found += waiting.pop(0)
        found += own
        passed += len(own)
    return [*found, *(item for own in waiting for item in own)]


@pytest.fixture(autouse=True)
def no_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that need no GPU see none: what is made for `cuda` is the same on every machine."""
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(target, "gpu_here", lambda: None)


@pytest.fixture(autouse=True)
def compiles_for_every_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile the Triton kernels that the test generated, for every architecture that may differ.

    Not those of a test marked `uncompiled`, with the reason.
    """
    yield
    if request.node.get_closest_marker("uncompiled"):
        every_kernel.forget()
    else:
        every_kernel.compile_noted()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """Compare a whole text with `golden/<test file>/<test name>.txt`.

    A test that checks several texts names them: `golden(text, "after_split")`.
    `pytest --update-golden` writes the files; read the difference before committing it.
    """
    folder = GOLDEN / request.path.stem
    update = bool(request.config.getoption("--update-golden"))
    test = str(request.node.name).replace("/", "_")
    seen: set[str] = set()

    def check(text: str, name: str = "") -> None:
        path = folder / (f"{test}.{name}.txt" if name else f"{test}.txt")
        assert path.name not in seen, f"two goldens of one test are called {path.name}"
        seen.add(path.name)
        text = text.rstrip("\n") + "\n"
        where = path.relative_to(TESTS.parent)
        if update:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"no golden {where}: look at the text, then pytest --update-golden\n{text}")
        expected = path.read_text(encoding="utf-8")
        assert text == expected, f"differs from {where}; pytest --update-golden accepts it"

    yield check
    assert seen, "the test asks for `golden` and never compares"
