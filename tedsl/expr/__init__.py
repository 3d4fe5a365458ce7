"""What one element is made of: scalar expressions.  Tensors are above `index`, in `tensor`.

- `nodes`: the nodes; `visit`: traversals
- `build`: constructors that promote, check and fold; `index_arith`: those of index arithmetic
- `promote`: which dtype operands meet in; `wider`: computed in a wider one
- `fold`: constants and neutral operands; `numerics`: what each operator means, in NumPy
- `limits`: constants of a dtype; `naming`: what things may be called; `printer`: text
"""
