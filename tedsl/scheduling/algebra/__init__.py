"""What may be combined in any order, and how partial results are rescaled: derived, and proved.

Nothing here knows of plans or loops.  The only folder of `scheduling` that uses sympy.

- `counterexamples`: values on which the order of a reduction matters
- `associativity`: may the partial results of a reducer be combined in any order
- `rescaling`: how the partial result of a reduction follows when running statistics change
- `problem`: what a rescaling is derived from, without the names
- `real_rewrite`, `terms`: a scalar expression as a sum of products; `signs`: proved signs
- `derivative_space`, `rescaling_forms`: from the terms to a rescaling
- `from_sympy`: real expressions as scalar expressions
- `wrapping`, `integer_rescaling`: what holds although integers wrap
- `overflow_check`, `numeric_check`: no overflow that the definition does not have; numbers
- `derive`: all of it; `proof_text`: the proof as text
- `tuple_rescaling`: sums that are folded together
"""
