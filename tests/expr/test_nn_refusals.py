"""te.nn takes what its signatures name, and refuses the rest with words that help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nn_calls import call, calls, changed, parameters, tensor

import tedsl as te
from tedsl.errors import InternalError, TedslError
from tedsl.tensor.printer import print_graph

CALLS = calls()
nn: Any = te.nn
SHAPE: Any = 2.5


def test_every_operator_is_called():
    assert set(CALLS) == set(te.nn.__all__)
    for name, arguments in CALLS.items():
        call(name, arguments)


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_an_error_of_the_project_with_a_hint(name: str):
    """Whatever one argument is, the call works or says what to do; nothing breaks inside."""
    refused = 0
    for text, arguments in changed(name, CALLS[name]):
        try:
            call(name, arguments)
        except InternalError:
            raise
        except TedslError as error:
            assert error.hint, f"{text}: {error}"
            refused += 1
    assert refused >= 10 * len(parameters(name))


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (lambda x: nn.layer_norm(x, 1), r"layer_norm: weight is 1 \(int\)\n  allowed a tensor"),
        (lambda x: nn.layer_norm(x, (8,)), "do      pass what te.placeholder or te.compute"),
        (lambda _: nn.softmax(3.5), r"softmax: x is 3.5 \(float\)"),
        (lambda x: nn.softmax(x, axis="rows"), r"axis is 'rows' \(str\)\n  allowed an int"),
        (lambda x: nn.softmax(x, True), r"axis is True \(bool\)"),
        (lambda x: nn.softmax(x, 2), "x has 2 dimensions, there is no axis 2"),
        (lambda x: nn.softmax(x, -3), r"no axis -3\n  allowed -2 .. 1"),
        (lambda x: nn.mean(x, (0, None)), "allowed an int, or several of: an int, or None"),
        (lambda x: nn.mean(x, (0, -2)), "one of them twice"),
        (lambda x: nn.softmax(x, dim=1), r"unexpected keyword.*'dim'\n  allowed \(x, axis, name\)"),
        (lambda x: nn.linear(x), r"missing a required argument: 'weight'"),
        (lambda x: nn.foreach_sgd(x, [x]), "allowed several of: a tensor"),
        (lambda x: nn.foreach_sgd([1], [x]), r"params is \[1\] \(list\)"),
        (lambda x: nn.relu(te.compute((4,), lambda i: x[i, 0] > 0)), "is bool, not a number"),
        (lambda x: nn.rms_norm(x, eps=float("nan")), "eps is nan"),
        (lambda x: nn.layer_norm(x, eps=-1.0), "eps is -1.0"),
        (lambda _: te.placeholder(SHAPE), r"2.5 \(float\) is no size"),
    ],
)
def test_refusals_name_what_was_given_and_what_is_allowed(
    refused: Callable[[te.Tensor], object], words: str
):
    with pytest.raises(te.ExprError, match=words):
        refused(tensor(4, 8))


@pytest.mark.parametrize("name", [n for n in CALLS if "axis" in parameters(n) and n != "rope"])
def test_axes_count_from_the_end_too(name: str):
    x = tensor(2, 4, 6)
    for axis in range(3):
        front, back = (call(name, {"x": x, "axis": place}) for place in (axis, axis - 3))
        assert print_graph(front) == print_graph(back)


def test_numbers_of_numpy_are_numbers():
    x = tensor(4, 8)
    assert [str(n) for n in nn.mean(x, np.int64(1)).shape] == ["4"]
    assert nn.leaky_relu(x, np.float64(0.25)).dtype == "float32"
    pooled = nn.max_pool1d(tensor(2, 8, 3), np.int32(2), stride=[np.int64(2)])
    assert [str(n) for n in pooled.shape] == ["2", "4", "3"]
