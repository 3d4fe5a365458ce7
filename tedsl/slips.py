"""A name that does not exist, and what was meant: one mechanism for attributes, keywords and
options of everything public.

A refusal is an error of tedsl and, as Python's own habits want it (`hasattr`, `getattr` with a
default), the AttributeError or TypeError that Python would raise.  Names that are near are looked
for when the text is asked for.  `NoValues` answers what Python and NumPy ask of numbers and
sequences.  Imports `errors`, and finds `te`'s names by name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import ModuleType
from typing import Any, TypeVar, cast

from tedsl.errors import ExprError, TedslError
from tedsl.once import same

Class = TypeVar("Class", bound=type[Any])
Item = TypeVar("Item")
LISTED = 24
"""Names that are listed in full where none is near."""


_TURNED = "write te.compute((n, m), lambda i, j: x[j, i], name=)"
_RESHAPED = "write te.compute(shape, lambda ...: x[...]) with // and % of the axes as indices"
TENSOR = {
    "T": _TURNED,
    "permute": _TURNED,
    "transpose": _TURNED,
    "reshape": _RESHAPED,
    "view": _RESHAPED,
    "sum": "write te.sum(x[i, k], axis=k) over k = te.reduce_axis((0, n)), inside te.compute",
    "max": "write te.max(x[i, k], axis=k) over k = te.reduce_axis((0, n)), inside te.compute",
    "mean": "write te.nn.mean(x, axis)",
}
"""What stands for methods that tensors have in NumPy and PyTorch, and for `te.transpose`."""


_NUMBERS = frozenset("bcdeEfFgGnoxX%")


def no_array(self: object, *args: object, **options: object) -> Any:
    """Refused: there are no values yet."""
    hint = "te.evaluate(outputs, {input: array}) computes some, and so does a kernel"
    raise _refused(self, "has no values while it is being defined", hint)


def is_same(self: object, other: object) -> bool:
    """`self is other`, which TVM calls `same_as`."""
    return self is other


class Incomplete:
    """What is no number yet: arithmetic asks for `as_scalar`, which says what is missing."""

    __slots__ = ()

    def as_scalar(self) -> Any:
        """The number, or why there is none."""
        raise NotImplementedError

    def __add__(self, other: object) -> Any:
        return self.as_scalar()

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __add__
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __add__
    __lt__ = __le__ = __gt__ = __ge__ = __add__


@same
def also(own: type[TedslError], python: type[Exception]) -> type[TedslError]:
    """The class of errors that are both, under the name of the first."""
    parts = {"__module__": own.__module__, "__doc__": own.__doc__, "__reduce__": _reduce}
    return cast("type[TedslError]", type(own.__name__, (own, python), parts))


def _reduce(error: Any) -> tuple[Any, ...]:
    own, python = type(error).__bases__
    return _again, (own, python, error.reason, error.subject, error.facts, error.hint)


def _again(own: Any, python: Any, reason: str, subject: str, facts: Any, hint: str) -> TedslError:
    return also(own, python)(reason, subject=subject, facts=facts, hint=hint)


def near(name: str, known: Iterable[str]) -> list[str]:
    """The names that are written nearly so, best first; the last part of a dotted one counts."""
    spelt: dict[str, list[str]] = {}
    for each in known:
        spelt.setdefault(each.rpartition(".")[2].lower(), []).append(each)
    difflib: Any = importlib.import_module("difflib")
    found: list[str] = difflib.get_close_matches(name.lower(), list(spelt), 3, 0.65)
    if not found:  # what stands in the name, or the name in it
        found = [each for each in spelt if len(each) > 3 and (each in name or name in each)][:3]
    return [each for key in found for each in spelt[key]][:4]


def advice(name: str, known: Iterable[str], form: str = "{}", otherwise: str = "") -> str:
    """`did you mean split?`, or the names that there are, where they are few; else `otherwise`."""
    names = sorted(set(known))
    close = near(name, names)
    if close:
        return f"did you mean {' or '.join(form.format(each) for each in close)}?"
    if len(names) <= LISTED:
        return f"write one of: {', '.join(names)}" if names else "leave it away"
    return otherwise


def no_attribute(
    owner: str,
    name: str,
    known: Callable[[], Iterable[str]],
    told: Mapping[str, str] | None = None,
    error: type[TedslError] = ExprError,
    otherwise: str = "dir(...) of it lists what there is",
) -> TedslError:
    """The error for an attribute that is not there.

    Args:
        owner: what was asked, as the text names it.
        name: of the attribute.
        known: gives the attributes that there are.
        told: what to write instead of names that are known elsewhere, by name.
        error: the class of the error, which is an AttributeError as well.
        otherwise: what to do where no name is near.
    """
    made = also(error, AttributeError)
    reason = f"{owner} has no attribute {name!r}"
    if told and name in told:
        return made(reason, hint=told[name])
    return made(reason, facts=[("do", lambda: advice(name, known(), otherwise=otherwise))])


def no_keyword(
    subject: str,
    reason: str,
    given: Iterable[str],
    known: Iterable[str],
    error: type[TedslError] = ExprError,
) -> TedslError:
    """The error for arguments that a function does not take.

    Args:
        subject: the function.
        reason: what is wrong, in words.
        given: the names of the keywords that were given.
        known: those that there are.
        error: the class of the error, which is a TypeError as well.
    """
    names = list(known)
    wrong = [name for name in given if name not in names]
    do = advice(wrong[0], names) if wrong else "give each argument once, by its place or its name"
    facts = [("allowed", f"({', '.join(names)})")]
    return also(error, TypeError)(reason, subject=subject, facts=facts, hint=do)


def in_module(module: str, names: Iterable[str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module with these public names."""
    known = tuple(names)

    def missing(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise no_attribute(module, name, lambda: known)

    return missing


def uncalled(package: str, names: Iterable[str]) -> None:
    """Let the modules of a package that has these functions say so where one is called."""
    known = tuple(names)

    def call(self: Any, *args: object, **options: object) -> Any:
        holder = vars(sys.modules[package])
        own = (each for each in known if getattr(holder[each], "__module__", "") == self.__name__)
        reason = f"{self.__name__} is a module, and no function"
        raise also(ExprError, TypeError)(reason, hint=f"write one of: {', '.join(own)}")

    kind = type("Uncalled", (ModuleType,), {"__call__": call})
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{package}."):
            module.__class__ = kind


def public(holder: object) -> list[str]:
    """The attributes of an object that are no secret."""
    return [each for each in dir(holder) if not each.startswith("_")]


def _defined(holder: Any, name: str) -> bool:
    """True when the class of an object has the attribute: a property that failed itself."""
    return hasattr(holder.__class__, name)


def _refuse_sequences(kind: Any, owner: str, error: type[TedslError]) -> None:
    """Brackets and `len` of a class that has neither say so."""
    made = also(error, TypeError)

    def item(self: Any, key: object) -> Any:
        raise made(f"{owner} has no [{key!r}]", facts=[("do", lambda: _written(self))])

    def length(self: Any) -> int:
        raise made(f"{owner} has no len()", facts=[("do", lambda: _written(self))])

    if not hasattr(kind, "__getitem__"):
        kind.__getitem__ = item
    if not hasattr(kind, "__len__"):
        kind.__len__ = length
        if not hasattr(kind, "__bool__"):
            kind.__bool__ = _true


def _true(holder: object) -> bool:
    return True


def _written(holder: object) -> str:
    return f"ask it for one of: {', '.join(public(holder)[:LISTED])}"


def suggests(
    error: type[TedslError] = ExprError,
    told: Mapping[str, str] | None = None,
    owner: str = "",
    alias: Mapping[str, str] | None = None,
) -> Callable[[Class], Class]:
    """A class whose instances, asked for an attribute that they do not have, say which was meant.

    Args:
        error: the class of the error.
        told: what to write instead of names that are known elsewhere.
        owner: what an instance is called in the text; by default as its class is.
        alias: names from elsewhere of attributes that there are, or of attributes of these.
    """
    spelt = alias or {}

    def decorate(kind: Class) -> Class:
        def missing(self: Any, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            if name in spelt:
                return attrgetter(spelt[name])(self)
            if _defined(self, name):
                return object.__getattribute__(self, name)
            raise no_attribute(owner or kind.__name__, name, lambda: public(self), told, error)

        kind.__getattr__ = missing
        _refuse_sequences(kind, owner or kind.__name__, error)
        return kind

    return decorate


class Numbered(tuple[Item, ...]):
    """What an object has of a kind, by number; another number is refused."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        try:
            return cast("Any", super().__getitem__(key))
        except (IndexError, TypeError) as found:
            raise also(ExprError, type(found))(
                f"there is no [{key!r}] among {len(self)}",
                facts=[("these", ", ".join(map(str, self)) or "none")],
                hint="count them from 0, or from the end by -1",
            ) from None


def _not_called(self: object, *args: object, **options: object) -> Any:
    raise _refused(self, "is no function", "x[i, j] and x(i, j) are elements; s[x] is a stage")


class NoFunction:
    """Base of what is no function, and says so where it is called."""

    __slots__ = ()

    __call__: Any = _not_called


class NoValues(NoFunction):
    """Base of expressions and tensors."""

    __slots__ = ()
    same_as = is_same

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return importlib.import_module("tedsl.ufuncs").applied(ufunc, method, inputs, options)

    def __round__(self, digits: int | None = None) -> Any:
        if digits is None:
            return _of_te("round", self)
        raise _refused(self, "is rounded to whole numbers only", "write te.round(x * 100) / 100")

    def __trunc__(self) -> Any:
        return _of_te("trunc", self)

    def __floor__(self) -> Any:
        return _of_te("floor", self)

    def __ceil__(self) -> Any:
        return _of_te("ceil", self)

    def __divmod__(self: Any, other: object) -> Any:
        return self // other, self % other

    def __rdivmod__(self: Any, other: object) -> Any:
        return other // self, other % self

    def __format__(self: Any, spec: str) -> str:
        if spec[-1:] in _NUMBERS and spec:
            return format(_index(self), spec)
        return format(str(self), spec)

    def __getitem__(self, index: Any) -> Any:
        raise _refused(self, "is one element, and is read no further", "give fewer indices")

    def __matmul__(self, other: Any) -> Any:
        raise _refused(self, "is one element, and @ is of whole tensors", "write x @ y of them")

    def __int__(self) -> int:
        try:
            return int(_index(self))
        except TedslError as found:  # a TypeError, which "%d" % x would hide
            raise also(ExprError, ValueError)(found.reason, hint=found.hint) from None

    def __len__(self) -> int:
        raise _refused(self, "has no len()", "extents are x.shape, and x.ndim is how many")

    def __iter__(self) -> Iterator[Any]:
        raise _refused(
            self,
            "is not a sequence",
            "loops are axes: te.compute(shape, lambda i, j: ...), te.sum over a te.reduce_axis",
        )

    def __contains__(self, value: object) -> bool:
        return value in iter(self)

    def __setitem__(self, index: object, value: object) -> None:
        raise _refused(
            self, "is a definition, in which nothing is stored", "write another te.compute"
        )

    def __array_function__(
        self, function: Any, types: object, args: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        raise importlib.import_module("tedsl.ufuncs").refused(self, function.__name__)


def _refused(holder: object, reason: str, hint: str) -> TedslError:
    return also(ExprError, TypeError)(f"{holder!r} {reason}", hint=hint)


def _index(value: Any) -> int:
    if hasattr(value, "__index__"):
        return int(value.__index__())
    raise _refused(value, "is no number", "print it as text: {x}, {x:>20}")


def _of_te(name: str, value: object) -> Any:
    return importlib.import_module("tedsl.ufuncs").called(name, value)
