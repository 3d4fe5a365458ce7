"""Smaller expressions of the same value.

Integer expressions of the index types go through a linear normal form (`Sum`); divisions, minima,
choices and comparisons are decided from `Facts` where possible.  Floating-point expressions are
only walked through.  Arithmetic over values read from memory may wrap, so of the rules for
integers it gets only those that hold modulo 2**bits.
"""

from __future__ import annotations

from tedsl.dtypes import DType
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Cast,
    Compare,
    Const,
    Expr,
    IfThenElse,
    Reduce,
    Select,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.expr.visit import map_children, walk
from tedsl.index.division import (
    Sum,
    collect,
    divide,
    divisor_of,
    expression,
    factors_of,
    is_natural,
    modulo,
    to_poly,
)
from tedsl.index.facts import Facts
from tedsl.index.fold import fold_binary, fold_cast, fold_unary
from tedsl.index.inequality import at_most
from tedsl.index.intern import INDEX_DTYPES
from tedsl.index.interval import Interval, interval
from tedsl.index.linear import ADD, MUL, ONE, SUB, product
from tedsl.index.logic import simplify_compare, simplify_logic, simplify_not
from tedsl.index.rejoin import rejoin
from tedsl.index.width import as_index, changes_width, fits_32_bits, one_width

_MAX_ROUNDS = 6
_MAX_VISITS = 200
_SUMS = frozenset({BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL})
_DIVISIONS = frozenset({BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.TRUNCDIV, BinaryOp.TRUNCMOD})
_LOGIC = frozenset({BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR})


def simplify(expr: Expr, facts: Facts = Facts.EMPTY) -> Expr:
    """An expression with the same value at every point of `facts`; `expr` itself when there is
    nothing to do.
    """
    facts = facts.own()
    for _ in range(_MAX_ROUNDS):
        smaller = visit(expr, facts)
        if smaller is expr:
            break
        expr = smaller
    return expr


def visit(expr: Expr, facts: Facts) -> Expr:
    """One round: children first, then this node.  Remembered in `facts`."""
    done = facts.simplified.get(expr)
    if done is not None:
        return done
    first = facts.interner.rep(expr)  # an equal expression may have been here before
    result = None if first is expr else facts.simplified.get(first)
    if result is None:
        result = _visit(first, facts)
        if facts.interner.rep(result) is first:
            result = first
        facts.simplified[first] = result
    if result is first:
        result = expr
    facts.simplified[expr] = result
    return result


def _visit(expr: Expr, facts: Facts) -> Expr:
    if type(expr) is Const:
        return expr
    if type(expr) is Axis or type(expr) is Var:
        return _variable(expr, facts)
    if expr.dtype in INDEX_DTYPES:
        return _integer(expr, facts)
    if expr.dtype is DType.bool:
        return _bool(expr, facts)
    return _other(expr, facts)


def _variable(expr: Axis | Var, facts: Facts) -> Expr:
    """A variable of one value is that value."""
    if not expr.dtype.is_integer:
        return expr
    found = interval(expr, facts)
    if found.lo is not None and found.lo == found.hi:
        return facts.interner.const(found.lo, expr.dtype)
    known = facts.range_of(expr)
    if known is not None and type(known.extent) is Const and known.extent.value == 1:
        return facts.interner.cast(known.min, expr.dtype)
    return expr


# Integers of the index types


def _integer(expr: Expr, facts: Facts) -> Expr:
    form = form_of(expr, facts)
    if facts.interner.is_data(expr):
        form = _wrap(form)
    return expression(form, facts)


def _wrap(form: Sum) -> Sum:
    """The same sum modulo 2**bits, with coefficients that fit the dtype."""
    info = form.dtype.info
    low, span = int(info.lowest), 1 << info.bits
    if all(low <= c <= int(info.highest) for c in (form.constant, *form.terms.values())):
        return form
    terms = {atom: (c - low) % span + low for atom, c in form.terms.items()}
    terms = {atom: c for atom, c in terms.items() if c}
    return Sum(terms, (form.constant - low) % span + low, form.dtype)


def form_of(expr: Expr, facts: Facts) -> Sum:
    """The simplified sum of an integer expression of an index type."""
    expr = facts.interner.rep(expr)
    known = facts.linears.get(expr)
    if isinstance(known, Sum):
        return known
    form = Sum({}, 0, expr.dtype)
    stack: list[tuple[Expr, int]] = [(expr, 1)]
    visits = 0
    while stack:
        node, scale = stack.pop()
        visits += 1
        if visits > _MAX_VISITS and node is not expr:
            form.add(form_of(node, facts), scale)
            continue
        if type(node) is Const:
            form.constant += int(node.value) * scale
        elif type(node) is Binary and node.op is ADD:
            stack += [(node.b, scale), (node.a, scale)]
        elif type(node) is Binary and node.op is SUB:
            stack += [(node.b, -scale), (node.a, scale)]
        elif type(node) is Unary and node.op is UnaryOp.NEG:
            stack.append((node.a, -scale))
        elif type(node) is Binary and node.op is MUL and type(node.b) is Const:
            stack.append((node.a, scale * int(node.b.value)))
        else:
            form.add(_operation(node, facts), scale)
    if len(form.terms) > 1 or (form.terms and 1 not in form.terms.values()):
        form = rejoin(form, facts)
    if len(form.terms) > 1 and any(_holds_sum(atom) for atom in form.terms):
        form = _multiply_out(form, facts)
    form = _of_one_width(form, facts)
    facts.linears[expr] = form
    return form


def _of_one_width(form: Sum, facts: Facts) -> Sum:
    """The sum without casts between the index types inside, when that takes fewer divisions."""
    if not any(changes_width(each) for atom in form.terms for each in factors_of(atom)):
        return form
    if any(facts.interner.is_data(atom) for atom in form.terms):
        return form
    wide = form_of(one_width(expression(form, facts)), facts)
    if _divisions(wide) >= _divisions(form):
        return form
    terms = {facts.interner.cast(atom, form.dtype): c for atom, c in wide.terms.items()}
    return Sum(terms, wide.constant, form.dtype)


def _divisions(form: Sum) -> int:
    return sum(type(node) is Binary and node.op in _DIVISIONS for node in walk(*form.terms))


def _holds_sum(atom: Expr) -> bool:
    """Whether an atom is a product with a sum, or the cast of one."""
    if type(atom) is Cast:
        return type(atom.a) is Binary and atom.a.op in _SUMS
    if type(atom) is not Binary or atom.op is not BinaryOp.MUL:
        return False
    return any(
        (type(factor) is Binary and factor.op in _SUMS) or _holds_sum(factor)
        for factor in factors_of(atom)
    )


def _multiply_out(form: Sum, facts: Facts) -> Sum:
    """The sum with products and casts of sums taken apart, when terms cancel."""
    if any(facts.interner.is_data(atom) for atom in form.terms):
        return form
    poly = to_poly(form, facts)
    if len(poly) - (ONE in poly) >= len(form.terms):
        return form
    terms = {
        product(facts.interner, monomial, form.dtype): scale
        for monomial, scale in poly.items()
        if monomial
    }
    return Sum(terms, poly.get(ONE, 0), form.dtype)


def _operation(expr: Expr, facts: Facts) -> Sum:
    """The sum of a node that is not itself an addition."""
    if isinstance(expr, (Axis, Var)):
        return collect(_variable(expr, facts), facts)
    match expr:
        case Binary(op=BinaryOp.MUL):
            return _multiply(form_of(expr.a, facts), form_of(expr.b, facts), facts)
        case Binary(op=BinaryOp.SHL, b=Const(value=int(count))) if 0 <= count < expr.dtype.bits:
            return form_of(expr.a, facts).scaled(1 << count)
        case Binary(op=op) if op in _DIVISIONS:
            return _division(expr, facts)
        case Binary():
            return collect(_binary(expr, facts), facts)
        case _:
            return collect(_node(expr, facts), facts)


def _multiply(a: Sum, b: Sum, facts: Facts) -> Sum:
    if not b.terms:
        return a.scaled(b.constant)
    if not a.terms:
        return b.scaled(a.constant)
    left, right = divisor_of(a, facts), divisor_of(b, facts)
    atom = product(facts.interner, (*left.factors, *right.factors), a.dtype)
    return Sum({atom: left.scale * right.scale}, 0, a.dtype)


def _may_wrap(form: Sum, facts: Facts) -> bool:
    """Whether the sum computes with values read from memory; a bare read is exact."""
    if not any(facts.interner.is_data(atom) for atom in form.terms):
        return False
    return len(form.terms) > 1 or form.constant != 0 or 1 not in form.terms.values()


def _division(expr: Binary, facts: Facts) -> Sum:
    a, b = form_of(expr.a, facts), form_of(expr.b, facts)
    op = expr.op
    remainder = op is BinaryOp.FLOORMOD or op is BinaryOp.TRUNCMOD
    if (not b.terms and b.constant == 0) or _may_wrap(a, facts) or _may_wrap(b, facts):
        return _plain_division(expr, a, b, facts)
    if op is BinaryOp.TRUNCDIV or op is BinaryOp.TRUNCMOD:
        top = expression(a, facts)
        if not (a.terms or b.terms):
            quotient = abs(a.constant) // abs(b.constant)
            quotient = quotient if (a.constant < 0) == (b.constant < 0) else -quotient
            value = a.constant - quotient * b.constant if remainder else quotient
            return Sum({}, value, a.dtype)
        if not (is_natural(top, facts) and is_natural(expression(b, facts), facts)):
            return _plain_division(expr, a, b, facts)
    divided = modulo if remainder else divide
    found = divided(a, divisor_of(b, facts), facts)
    if not any(changes_width(each) for atom in a.terms for each in factors_of(atom)):
        return found
    wide = one_width(expression(a, facts))
    if wide.dtype is not a.dtype:
        return found
    other = divided(form_of(wide, facts), divisor_of(b, facts), facts)
    return other if _divisions(other) < _divisions(found) else found


def _plain_division(expr: Binary, a: Sum, b: Sum, facts: Facts) -> Sum:
    """A division whose operands are simplified and no more; by a constant, from their intervals."""
    top, bottom = expression(a, facts), expression(b, facts)
    node = facts.interner.binary(expr.op, top, bottom)
    if not b.terms and b.constant == 1:
        return a if expr.op in (BinaryOp.FLOORDIV, BinaryOp.TRUNCDIV) else Sum({}, 0, a.dtype)
    if not b.terms and not b.constant:
        return Sum({node: 1}, 0, a.dtype)
    found = interval(node, facts)
    if found.lo is not None and found.lo == found.hi:
        return Sum({}, found.lo, a.dtype)
    if expr.op in (BinaryOp.FLOORMOD, BinaryOp.TRUNCMOD) and not b.terms:
        whole = interval(top, facts)
        if (
            whole.lo is not None
            and whole.lo >= 0
            and Interval(0, b.constant - 1).contains(b.constant if whole.hi is None else whole.hi)
        ):
            return a
    return Sum({node: 1}, 0, a.dtype)


def _binary(expr: Binary, facts: Facts) -> Expr:
    """Minimum, maximum, shifts and bit operations."""
    a, b = visit(expr.a, facts), visit(expr.b, facts)
    folded = fold_binary(expr.op, a, b)
    if folded is not None:
        return folded
    if expr.op is BinaryOp.MIN or expr.op is BinaryOp.MAX:
        return _extreme(expr.op, a, b, facts)
    node = facts.interner.binary(expr.op, a, b)
    found = interval(node, facts)
    if found.lo is not None and found.lo == found.hi:
        return facts.interner.const(found.lo, expr.dtype)
    if facts.interner.is_data(node) or not isinstance(b, Const):
        return node
    value = int(b.value)
    if expr.op is BinaryOp.SHR and 0 <= value < expr.dtype.bits - 1:
        power = Sum({}, 1 << value, expr.dtype)
        return expression(divide(form_of(a, facts), divisor_of(power, facts), facts), facts)
    if expr.op is BinaryOp.AND and value > 0 and value & (value + 1) == 0:
        power = Sum({}, value + 1, expr.dtype)
        return expression(modulo(form_of(a, facts), divisor_of(power, facts), facts), facts)
    return node


def _extreme(op: BinaryOp, a: Expr, b: Expr, facts: Facts) -> Expr:
    """min(a, b) where one is known to be smaller; nested constants are merged."""
    if a is b or facts.interner.rep(a) is facts.interner.rep(b):
        return a
    smaller = _smaller(a, b, facts)
    if smaller is not None:
        return smaller if op is BinaryOp.MIN else (b if smaller is a else a)
    if isinstance(a, Const):
        a, b = b, a
    if isinstance(a, Binary) and a.op is op:
        for kept, other in ((a.a, a.b), (a.b, a.a)):
            found = _smaller(other, b, facts)
            if found is not None:
                drop_b = (found is other) == (op is BinaryOp.MIN)
                return a if drop_b else facts.interner.binary(op, kept, b)
    if isinstance(b, Binary) and b.op is op and not isinstance(a, Const):
        for kept, other in ((b.a, b.b), (b.b, b.a)):
            found = _smaller(other, a, facts)
            if found is not None:
                drop_a = (found is other) == (op is BinaryOp.MIN)
                return b if drop_a else facts.interner.binary(op, a, kept)
    return facts.interner.binary(op, a, b)


def _smaller(a: Expr, b: Expr, facts: Facts) -> Expr | None:
    """Which of two expressions is never greater; None when it depends."""
    first, second = interval(a, facts), interval(b, facts)
    if first.hi is not None and second.lo is not None and first.hi <= second.lo:
        return a
    if second.hi is not None and first.lo is not None and second.hi <= first.lo:
        return b
    if a.dtype not in INDEX_DTYPES or _wraps(a, facts) or _wraps(b, facts):
        return None
    left, right = facts.expander.poly(a), facts.expander.poly(b)
    if at_most(left, right, facts):
        return a
    return b if at_most(right, left, facts) else None


def _wraps(expr: Expr, facts: Facts) -> bool:
    return facts.interner.is_data(expr) and isinstance(expr, (Binary, Unary))


def _bool(expr: Expr, facts: Facts) -> Expr:
    match expr:
        case Compare():
            result: Expr = simplify_compare(expr, visit, facts)
        case Binary(op=op) if op in _LOGIC:
            result = simplify_logic(expr, visit, facts)
        case Unary(op=UnaryOp.NOT):
            result = simplify_not(visit(expr.a, facts), facts)
        case _:
            result = _node(expr, facts)
    truth = facts.truths.get(facts.interner.rep(result))
    return result if truth is None else facts.interner.rep(Const(truth, DType.bool))


def _other(expr: Expr, facts: Facts) -> Expr:
    """Floats and narrow or unsigned integers: walked, constants folded, extremes decided."""
    if isinstance(expr, Binary) and expr.dtype.is_integer:
        a, b = visit(expr.a, facts), visit(expr.b, facts)
        folded = fold_binary(expr.op, a, b)
        if folded is not None:
            return folded
        if expr.op is BinaryOp.MIN or expr.op is BinaryOp.MAX:
            return _extreme(expr.op, a, b, facts)
        return expr if a is expr.a and b is expr.b else Binary(expr.op, a, b)
    return _node(expr, facts)


def _node(expr: Expr, facts: Facts) -> Expr:
    """Any node: its children simplified, under the conditions that guard them; choices taken where
    known.
    """
    match expr:
        case Select() | IfThenElse():
            return _choice(expr, facts)
        case Cast():
            return _cast(expr, facts)
        case Reduce():
            return _reduce(expr, facts)
        case Unary():
            return _unary(expr, facts)
        case _:
            return map_children(expr, lambda child: visit(child, facts))


def _choice(expr: Select | IfThenElse, facts: Facts) -> Expr:
    condition = visit(expr.condition, facts)
    if isinstance(condition, Const):
        return visit(expr.a if condition.value else expr.b, facts)
    inside, outside = facts, facts
    if _guards(expr, condition, facts):
        inside = facts.assume(condition)
        outside = facts.assume(simplify_not(condition, facts))
    a = expr.a if isinstance(expr.a, Const) else visit(expr.a, inside)
    b = expr.b if isinstance(expr.b, Const) else visit(expr.b, outside)
    same = facts.interner.rep(a) is facts.interner.rep(b)
    if same and not facts.interner.is_data(condition):
        return a
    if condition is expr.condition and a is expr.a and b is expr.b:
        return expr
    return expr.rebuild((condition, a, b))


def _guards(expr: Select | IfThenElse, condition: Expr, facts: Facts) -> bool:
    """Whether the branches may use the condition: never for reads that a `Select` makes in either
    case.
    """
    if isinstance(expr.a, (Const, Var)) and isinstance(expr.b, (Const, Var)):
        return False
    if isinstance(expr, IfThenElse):
        return True
    return not (facts.interner.is_data(expr.a) or facts.interner.is_data(expr.b))


def _cast(expr: Cast, facts: Facts) -> Expr:
    inner = visit(expr.a, facts)
    if inner.dtype is expr.dtype:
        return inner
    folded = fold_cast(inner, expr.dtype)
    if folded is not None:
        return folded
    if isinstance(inner, Cast) and expr.dtype in INDEX_DTYPES and inner.dtype in INDEX_DTYPES:
        source = inner.a
        if source.dtype is expr.dtype and not facts.interner.is_data(source):
            return source
    if isinstance(inner, Cast) and expr.dtype.is_float and inner.dtype is DType.int64:
        source = inner.a
        if source.dtype is DType.int32:
            return Cast(source, expr.dtype)
    if inner.dtype.is_float and expr.dtype in INDEX_DTYPES:
        index = as_index(inner, expr.dtype, facts)
        if index is not None:
            return visit(index, facts)
        if expr.dtype is DType.int64 and fits_32_bits(expr, facts):
            return Cast(Cast(inner, DType.int32), DType.int64)
    return expr if inner is expr.a else Cast(inner, expr.dtype)


def _reduce(expr: Reduce, facts: Facts) -> Expr:
    where = None if expr.where is None else visit(expr.where, facts)
    if isinstance(where, Const) and where.value:
        where = None
    inside = facts if where is None else facts.assume(where)
    sources = tuple(visit(source, inside) for source in expr.sources)
    init = None if expr.init is None else tuple(visit(x, facts) for x in expr.init)
    repair = None if expr.repair is None else tuple(visit(x, facts) for x in expr.repair)
    finish = None if expr.finish is None else visit(expr.finish, facts)
    old = (*expr.sources, expr.where, *(expr.init or ()), *(expr.repair or ()), expr.finish)
    new = (*sources, where, *(init or ()), *(repair or ()), finish)
    if all(x is y for x, y in zip(old, new, strict=True)):
        return expr
    others = (expr.index, repair, finish, expr.finite, expr.tf32)
    return Reduce(expr.reducer, sources, expr.axes, where, init, *others)


def _unary(expr: Unary, facts: Facts) -> Expr:
    inner = visit(expr.a, facts)
    folded = fold_unary(expr.op, inner)
    if folded is not None:
        return folded
    if expr.op is UnaryOp.ABS and expr.dtype in INDEX_DTYPES:
        found = interval(inner, facts)
        if found.lo is not None and found.lo >= 0:
            return inner
        if not facts.interner.is_data(inner):
            if is_natural(inner, facts):
                return inner
            if found.hi is not None and found.hi <= 0:
                return expression(form_of(inner, facts).scaled(-1), facts)
    return expr if inner is expr.a else Unary(expr.op, inner)
