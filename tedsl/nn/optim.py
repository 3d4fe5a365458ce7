"""Steps of optimisers: new parameters and states from gradients, in one definition for each tensor.

A step is computed in float32 at least, and what it returns is rounded once, each to the dtype that
it has.  Learning rate and number of the step may be tensors without dimensions, or `te.var`, so
that one kernel serves all steps.  The forms `foreach_*` take lists and return lists: what one
kernel or one launch computes together is the schedule's choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Expr
from tedsl.nn.arguments import require_between, require_float, require_scalar, require_shape, wide
from tedsl.nn.operator import operator
from tedsl.tensor import math as functions
from tedsl.tensor.compute import compute
from tedsl.tensor.tensor import Tensor, read

Number = float | Expr | Tensor
"""A number, an expression, or a tensor without dimensions."""


@operator
def sgd(
    param: Tensor,
    grad: Tensor,
    momentum_buffer: Tensor | None = None,
    *,
    lr: Number = 1e-3,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    name: str = "sgd",
) -> tuple[Tensor, Tensor | None]:
    """A step of stochastic gradient descent, with momentum (Sutskever and others, ICML 2013).

        g = grad + weight_decay * param
        b = momentum * momentum_buffer + (1 - dampening) * g, or g in the first step
        param - lr * (g + momentum * b if nesterov, else b)

    Args:
        param: floats of any shape.
        grad: floats of the same shape.
        momentum_buffer: the second result of the step before; None in the first step.
        lr: the learning rate.
        momentum: at least 0; without it there is no buffer.
        dampening: how much less of the gradient goes into the buffer.
        weight_decay: the factor of the penalty on the squares of the parameters.
        nesterov: look ahead; takes a momentum and no dampening.
        name: what the operation prints as.

    Returns:
        The new parameter, and the new buffer or, without momentum, None.

    Raises:
        ExprError: shapes that differ, no floats, nesterov without momentum or with dampening, or a
            buffer without momentum.
    """
    _check_momentum(momentum_buffer, momentum, dampening, nesterov, name)
    _require_not_negative(weight_decay, "weight_decay", name)
    given = [param, grad] if momentum_buffer is None else [param, grad, momentum_buffer]
    _check(given, name)

    def element(*i: Axis) -> tuple[Expr, ...]:
        p, g, *state = (wide(read(each, i)) for each in given)
        if weight_decay:
            g = g + p * weight_decay
        b = state[0] * momentum + g * (1.0 - dampening) if state else g
        step = g + b * momentum if nesterov else b if momentum else g
        new = p - _number(lr, name) * step
        kept = build.cast(b, param.dtype if momentum_buffer is None else momentum_buffer.dtype)
        return (build.cast(new, param.dtype), kept) if momentum else (build.cast(new, param.dtype),)

    made = compute(param.shape, element, name=name)
    return made[0], made[1] if momentum else None


def _check_momentum(
    buffer: Tensor | None, momentum: float, dampening: float, nesterov: bool, subject: str
) -> None:
    _require_not_negative(momentum, "momentum", subject)
    if nesterov and (momentum <= 0 or dampening != 0):
        raise ExprError(
            f"nesterov with momentum {momentum} and dampening {dampening}",
            subject=subject,
            hint="give a momentum above 0 and no dampening",
        )
    if buffer is not None and momentum == 0:
        raise ExprError(
            f"the buffer {buffer.name} is given, and momentum is 0",
            subject=subject,
            hint="give a momentum, or leave the buffer out",
        )


@operator
def adam(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Number,
    *,
    lr: Number = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    name: str = "adam",
) -> tuple[Tensor, Tensor, Tensor]:
    """A step of Adam (Kingma and Ba, arXiv:1412.6980), with its penalty in the gradient.

        g = grad + weight_decay * param
        m = beta1 * exp_avg + (1 - beta1) * g
        v = beta2 * exp_avg_sq + (1 - beta2) * g^2
        param - lr / (1 - beta1^step) * m / (sqrt(v / (1 - beta2^step)) + eps)

    Args:
        param: floats of any shape.
        grad: floats of the same shape.
        exp_avg: the second result of the step before; zeros before the first.
        exp_avg_sq: the third result of the step before; zeros before the first.
        step: the number of this step; the first is 1.
        lr: the learning rate.
        betas: what the means keep of the past, from 0 to below 1.
        eps: keeps the division finite.
        weight_decay: the factor of the penalty on the squares of the parameters.
        name: what the operation prints as.

    Returns:
        The new parameter, and the new means of the gradients and of their squares.  Where `step` is
        no plain number, what both means are divided by is the stage `<name>.correction`.

    Raises:
        ExprError: shapes that differ, no floats, betas outside 0 .. 1.
    """
    rule = _Adam(lr, betas, eps, weight_decay, False, name)
    return rule.of((param, grad, exp_avg, exp_avg_sq), rule.corrections(step, (param,)))


@operator
def adamw(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Number,
    *,
    lr: Number = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    name: str = "adamw",
) -> tuple[Tensor, Tensor, Tensor]:
    """A step of AdamW (Loshchilov and Hutter, arXiv:1711.05101): `adam` on `grad` alone, from a
    parameter that has first been multiplied by 1 - lr * weight_decay.

    Arguments, results and errors are those of `adam`.
    """
    rule = _Adam(lr, betas, eps, weight_decay, True, name)
    return rule.of((param, grad, exp_avg, exp_avg_sq), rule.corrections(step, (param,)))


Lists = tuple[list[Tensor], list[Tensor], list[Tensor]]


@operator
def foreach_sgd(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    momentum_buffers: Sequence[Tensor] | None = None,
    *,
    lr: Number = 1e-3,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    name: str = "sgd",
) -> tuple[list[Tensor], list[Tensor]]:
    """`sgd` of each tensor of lists; the second result is empty without momentum.

    Raises:
        ExprError: lists of different lengths, and what `sgd` refuses.
    """
    lists = [params, grads] if momentum_buffers is None else [params, grads, momentum_buffers]
    made = [
        sgd(
            *each,
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
            name=f"{name}.{n}",
        )
        for n, each in enumerate(_transposed(lists, name))
    ]
    return [param for param, _ in made], [kept for _, kept in made if kept is not None]


@operator
def foreach_adam(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    step: Number,
    *,
    lr: Number = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    name: str = "adam",
) -> Lists:
    """`adam` of each tensor of lists, all at the same step.

    Raises:
        ExprError: lists of different lengths, and what `adam` refuses.
    """
    rule = _Adam(lr, betas, eps, weight_decay, False, name)
    return rule.of_lists([params, grads, exp_avgs, exp_avg_sqs], step)


@operator
def foreach_adamw(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    step: Number,
    *,
    lr: Number = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    name: str = "adamw",
) -> Lists:
    """`adamw` of each tensor of lists, all at the same step.

    Raises:
        ExprError: lists of different lengths, and what `adamw` refuses.
    """
    rule = _Adam(lr, betas, eps, weight_decay, True, name)
    return rule.of_lists([params, grads, exp_avgs, exp_avg_sqs], step)


class _Adam:
    """Adam's numbers, and its step from them."""

    def __init__(
        self,
        lr: Number,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        decoupled: bool,
        name: str,
    ) -> None:
        for beta in betas:
            require_between(beta, 0.0, 1.0, "a beta", name)
        _require_not_negative(eps, "eps", name)
        _require_not_negative(weight_decay, "weight_decay", name)
        self.lr, self.betas, self.eps = lr, betas, eps
        self.decay, self.decoupled, self.name = weight_decay, decoupled, name

    def corrections(self, step: Number, params: Sequence[Tensor]) -> tuple[Number, Number]:
        """1 - beta1^step and the root of 1 - beta2^step, one number each for all elements of all
        `params`."""
        if isinstance(step, (int, float)):
            if step < 1:
                raise ExprError(f"step is {step}", subject=self.name, hint="count steps from 1")
            first, second = (1.0 - beta**step for beta in self.betas)
            return first, math.sqrt(second)
        double = any(each.dtype is DType.float64 for each in params)
        kind = DType.float64 if double else DType.float32

        def one(beta: float) -> Expr:
            if beta in (0.0, 1.0):
                return build.const(1.0 - beta, kind)
            count = build.cast(_number(step, self.name), kind)
            # 1 - exp(step * log(beta)): the difference would lose digits where beta is near 1
            return -functions.expm1(count * math.log(beta))

        def both() -> tuple[Expr, Expr]:
            return one(self.betas[0]), functions.sqrt(one(self.betas[1]))

        made = compute((), both, name=f"{self.name}.correction")
        return made[0], made[1]

    def of(
        self,
        given: Sequence[Tensor],
        corrections: tuple[Number, Number],
        name: str = "",
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The step of one parameter with its gradient and means."""
        _check(given, name or self.name)
        param, _, mean, square = given

        def element(*i: Axis) -> tuple[Expr, ...]:
            p, g, m, v = (wide(read(each, i)) for each in given)
            lr = _number(self.lr, self.name)
            first, root = (_number(each, self.name) for each in corrections)
            if self.decay and self.decoupled:
                p = p * (1.0 - lr * self.decay)
            elif self.decay:
                g = g + p * self.decay
            m = m * self.betas[0] + g * (1.0 - self.betas[0])
            v = v * self.betas[1] + g * g * (1.0 - self.betas[1])
            away = functions.sqrt(v) / root + self.eps
            new = p - lr / first * (m / away)
            return (
                build.cast(new, param.dtype),
                build.cast(m, mean.dtype),
                build.cast(v, square.dtype),
            )

        made = compute(param.shape, element, name=name or self.name)
        return made[0], made[1], made[2]

    def of_lists(self, lists: Sequence[Sequence[Tensor]], step: Number) -> Lists:
        rows = _transposed(lists, self.name)
        corrections = self.corrections(step, lists[0])
        made = [self.of(row, corrections, f"{self.name}.{n}") for n, row in enumerate(rows)]
        return [m[0] for m in made], [m[1] for m in made], [m[2] for m in made]


def _transposed(lists: Sequence[Sequence[Tensor]], subject: str) -> list[tuple[Tensor, ...]]:
    lengths = [len(each) for each in lists]
    if len(set(lengths)) > 1:
        raise ExprError(
            f"the lists have {', '.join(map(str, lengths))} tensors",
            subject=subject,
            hint="give one tensor in each list for each parameter",
        )
    return list(zip(*lists, strict=True))


def _check(given: Sequence[Tensor], subject: str) -> None:
    for each in given:
        require_float(each, subject)
        require_shape(each, given[0].shape, subject)


def _require_not_negative(given: float, what: str, subject: str) -> None:
    if not given >= 0:
        raise ExprError(f"{what} is {given}", subject=subject, hint="give 0 or more")


def _number(value: Number, subject: str) -> Expr | float:
    """A number as it is, which takes the dtype of what it meets, or else an expression."""
    if isinstance(value, Tensor):
        require_scalar(value, subject)
        return wide(read(value, ()))
    return value
