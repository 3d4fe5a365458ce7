"""The thing in a script that a command works on: by its name, or the last one that was made."""

from pathlib import Path

import pytest

from tedsl.cli.script import Named, last_named, load_module, named, split_name
from tedsl.errors import TedslError
from tedsl.runtime.kernel import Kernel
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import Tensor

SCRIPT = """
import sys
import tedsl as te

print("said by the script")
x = te.placeholder((100,), "float32", name="x")
y = te.compute((100,), lambda i: te.exp(x[i]), name="y")
z = te.compute((100,), lambda i: y[i] + 1.0, name="z")
w = te.compute((100,), lambda i: y[i] + 2.0, name="w")
{more}
number = 3
given = sys.argv[1:]

def pair():
    return [z, w]

def scaled(tensor):
    return tensor
"""
SCHEDULE = "s = te.create_schedule(z)\ns[y].compute_inline()"
KERNELS = SCHEDULE + "\nkernels = {'inlined': te.build(s, 'cpu')}"


def script(folder: Path, more: str = "") -> Path:
    path = folder / "model.py"
    path.write_text(SCRIPT.replace("{more}", more))
    return path


def names(found: Named) -> list[str]:
    assert isinstance(found.value, tuple)
    return [tensor.name for tensor in found.value]


def test_a_name_stands_for_tensors_a_function_a_schedule_or_a_kernel(tmp_path: Path) -> None:
    module = load_module(script(tmp_path, SCHEDULE))
    assert names(named(module, "y")) == ["y"]
    assert names(named(module, "pair")) == ["z", "w"]
    assert isinstance(named(module, "s").value, Schedule)


@pytest.mark.cpu
def test_a_dotted_name_is_a_key_or_an_attribute(tmp_path: Path) -> None:
    module = load_module(script(tmp_path, KERNELS))
    found = named(module, "kernels.inlined")
    assert isinstance(found.value, Kernel) and found.kernel() is found.value
    assert "y" in str(found.schedule()) and named(module, "kernels.inlined.schedule")


def test_without_a_name_the_last_tensor_that_no_other_reads_is_taken(tmp_path: Path) -> None:
    assert names(last_named(load_module(script(tmp_path)))) == ["w"]


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("more", "kind"),
    [(SCHEDULE, Schedule), (SCHEDULE + "\nkernel = te.build(s, 'cpu')", Kernel)],
)
def test_a_kernel_comes_before_a_schedule_and_that_before_a_tensor(
    tmp_path: Path, more: str, kind: type
) -> None:
    assert isinstance(last_named(load_module(script(tmp_path, more))).value, kind)


def test_tensors_are_scheduled_by_the_rules_of_the_target(tmp_path: Path) -> None:
    found = named(load_module(script(tmp_path)), "z")
    assert "program" in str(found.schedule("cuda")) or "block" in str(found.schedule("cuda"))
    assert str(found.schedule("cpu")) != str(found.schedule("cuda"))


def test_the_script_has_arguments_of_its_own_and_prints_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load_module(script(tmp_path), ["--quick"])
    assert module.given == ["--quick"]
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err == "said by the script\n"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("model.py", ("model.py", "")),
        ("a/model.py:loss", ("a/model.py", "loss")),
        ("c:/model.py", ("c:/model.py", "")),
        ("model.py:kernels.fused", ("model.py", "kernels.fused")),
    ],
)
def test_script_and_name(text: str, parts: tuple[str, str]) -> None:
    path, name = split_name(text)
    assert (path.as_posix(), name) == parts


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("absent", "there is no 'absent'"),
        ("pair.absent", "there is no 'pair.absent'"),
        ("number", "number in .* is int, nothing to work on"),
        ("scaled", "is a function that needs tensor"),
    ],
)
def test_refused_names(tmp_path: Path, name: str, complaint: str) -> None:
    with pytest.raises(TedslError, match=complaint):
        named(load_module(script(tmp_path)), name)


def test_refused_scripts(tmp_path: Path) -> None:
    with pytest.raises(TedslError, match="there is no file"):
        load_module(tmp_path / "nowhere.py")
    ending = tmp_path / "ending.py"
    ending.write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(TedslError, match="ended by itself with 3"):
        load_module(ending)
    empty = tmp_path / "empty.py"
    empty.write_text("number = 3\n")
    with pytest.raises(TedslError, match="no kernel, schedule or computed tensor"):
        last_named(load_module(empty))


def test_a_placeholder_alone_is_not_computed(tmp_path: Path) -> None:
    path = tmp_path / "inputs.py"
    path.write_text("import tedsl as te\nx = te.placeholder((3,), name='x')\n")
    module = load_module(path)
    assert isinstance(module.x, Tensor)
    with pytest.raises(TedslError, match=r"write inputs\.py:NAME"):
        last_named(module)
