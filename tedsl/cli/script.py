"""`SCRIPT[:NAME]`: the user's script, loaded as a module, and the thing in it that a command works
on.

A command calls `add_script` when it declares its arguments and `load_named` when it runs, and takes
from that what it needs: `named.schedule(target)` or `named.kernel(target)`, whichever of the two,
or of the tensors, stood in the script.  Imports `build` and everything that it does.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import cast

from tedsl.build import build, default_target
from tedsl.errors import TedslError
from tedsl.runtime.kernel import Kernel
from tedsl.schedules import default_schedule
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.slips import NoFunction
from tedsl.tensor.printer import operations
from tedsl.tensor.tensor import PlaceholderOp, Tensor

KINDS = "a tensor, a list of tensors, a schedule, a kernel, or a function that returns one of these"


@dataclass(frozen=True)
class Named:
    """What a command works on: a kernel, a schedule or tensors, and its name in the script."""

    name: str
    value: Kernel | Schedule | tuple[Tensor, ...]

    def schedule(self, target: str | None = None) -> Schedule:
        """Its schedule: of tensors the one that `te.build` would use for `target`.

        Args:
            target: as for `te.build`; by default that of the kernel, or where there is a GPU that.

        Raises:
            TedslError: a kernel that was built without a schedule.
        """
        match self.value:
            case Schedule():
                return self.value
            case Kernel():
                if not isinstance(self.value.schedule, Schedule):
                    raise TedslError(
                        f"the kernel {self.name} does not know its schedule",
                        hint="name the schedule that it was built from",
                    )
                return self.value.schedule
            case _:
                return default_schedule(self.value, target or default_target())

    def kernel(self, target: str | None = None) -> Kernel:
        """Its kernel: that of the script if it is one and for `target`, else built now.

        Args:
            target: as for `schedule`.
        """
        if isinstance(self.value, Kernel) and target in (None, str(self.value.target)):
            return self.value
        given = self.value if isinstance(self.value, tuple) else self.schedule(target)
        return build(given, target=target or default_target())


def add_script(command: argparse.ArgumentParser) -> None:
    """The arguments that name something in a script, and the target."""
    command.add_argument(
        "script",
        metavar="SCRIPT[:NAME]",
        help=f"a Python file, and a name in it: {KINDS}; kernels.fused is kernels['fused'] or "
        "kernels.fused. Without a name: the last kernel in it, else the last schedule, else the "
        "last tensor that no other reads",
    )
    command.add_argument(
        "arguments",
        nargs="*",
        metavar="ARGUMENT",
        help="arguments of the script itself, after --",
    )
    command.add_argument(
        "--target",
        metavar="TARGET",
        help="cpu, cuda, or an architecture such as cuda:sm_90, which needs no GPU; by default "
        "that of the kernel named, else the GPU where there is one",
    )


def load_named(options: argparse.Namespace) -> Named:
    """What the arguments of `add_script` name.

    Raises:
        TedslError: no such file or name, or nothing that a command can work on.
    """
    path, name = split_name(str(options.script))
    module = load_module(path, options.arguments)
    return named(module, name) if name else last_named(module)


def split_name(text: str) -> tuple[Path, str]:
    """The path and the name of `SCRIPT[:NAME]`; the name is empty where there is none."""
    path, colon, name = text.rpartition(":")
    if not colon or text.endswith(".py"):
        return Path(text), ""
    return Path(path), name


def load_module(path: Path, arguments: Sequence[str] = ()) -> ModuleType:
    """The script as a module; what stands beside it can be imported, as when it is run.

    It runs under another name than `__main__`, so that what it guards by that is left out, with
    `arguments` as its own, and what it prints goes to standard error.

    Raises:
        TedslError: there is no such script, or it ended the program.
    """
    if not path.is_file():
        raise TedslError(f"there is no file {path}", hint="give the path of a Python script")
    spec = importlib.util.spec_from_file_location("__tedsl_program__", path)
    if spec is None or spec.loader is None:
        raise TedslError(f"{path} is no Python script", hint="its name should end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    before, sys.argv = sys.argv, [str(path), *arguments]
    try:
        with redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
    except SystemExit as ended:
        raise TedslError(
            f"{path} ended by itself with {ended.code!r}",
            hint="guard what ends it by `if __name__ == '__main__':`; give it arguments after --",
        ) from ended
    finally:
        sys.argv = before
    return module


def lookup(module: ModuleType, name: str) -> object:
    """What a name of a script stands for; after a dot, an attribute or a key of what is before.

    Raises:
        TedslError: there is no such name.
    """
    found: object = vars(module)
    for part in name.split("."):
        if isinstance(found, Mapping):
            inside = cast("Mapping[str, object]", found).get(part)
        else:
            inside = cast("object", getattr(found, part, None))
        if inside is None:
            raise TedslError(
                f"there is no {name!r} in {module.__file__}",
                facts=[("names in it", ", ".join(_names(module)[:12]) or "none")],
                hint="name one of these",
            )
        found = inside
    return found


def named(module: ModuleType, name: str) -> Named:
    """What a command works on, by its name in a script.

    Raises:
        TedslError: there is no such name, or it is nothing to work on.
    """
    found = lookup(module, name)
    if callable(found) and not isinstance(found, (NoFunction, Kernel)):
        wanted = [p for p in inspect.signature(found).parameters.values() if p.default is p.empty]
        needs = [p.name for p in wanted if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if needs:
            raise TedslError(
                f"{name} in {module.__file__} is a function that needs {', '.join(needs)}",
                hint="name a function without arguments, or what one returned",
            )
        found = found()
    value = _worked_on(found)
    if value is None:
        raise TedslError(
            f"{name} in {module.__file__} is {type(found).__name__}, nothing to work on",
            facts=[("allowed", KINDS), ("names in it", ", ".join(_names(module)[:12]) or "none")],
            hint="name one of these",
        )
    return Named(name, value)


def last_named(module: ModuleType) -> Named:
    """What a command works on when a script was given without a name.

    Raises:
        TedslError: the script has no kernel, schedule or computed tensor at its top.
    """
    public = {n: v for n, v in vars(module).items() if not n.startswith("_")}
    tensors = {n: v for n, v in public.items() if isinstance(v, Tensor)}
    read = {op for t in tensors.values() for op in operations([t]) if op is not t.op}
    for kind in (Kernel, Schedule):
        for name in reversed(public):
            found = public[name]
            if isinstance(found, kind):
                return Named(name, found)
    for name in reversed(tensors):
        op = tensors[name].op
        if not isinstance(op, PlaceholderOp) and op not in read:
            return Named(name, (tensors[name],))
    raise TedslError(
        f"there is no kernel, schedule or computed tensor at the top of {module.__file__}",
        facts=[("names in it", ", ".join(_names(module)[:12]) or "none")],
        hint=f"write {Path(str(module.__file__)).name}:NAME, the name of {KINDS}",
    )


def _worked_on(found: object) -> Kernel | Schedule | tuple[Tensor, ...] | None:
    if isinstance(found, (Kernel, Schedule)):
        return found
    several = isinstance(found, (list, tuple))
    items = tuple(cast("Sequence[object]", found)) if several else (found,)
    tensors = tuple(each for each in items if isinstance(each, Tensor))
    return tensors if tensors and len(tensors) == len(items) else None


def _names(module: ModuleType) -> list[str]:
    """The public names that could be meant: those of the script itself first."""
    kinds = (Tensor, Schedule, Kernel)
    here = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and (isinstance(value, kinds) or inspect.isfunction(value))
    ]
    return sorted(here, key=lambda n: inspect.isfunction(vars(module)[n]))
