"""Fourth room: how to compute it.

- `plan`: what is decided of each stage and kernel, as immutable data, and facts derived of it
- `kernels`: which stages share a kernel, in which phases and loops; and that as text
- `regions`: what each stage computes where it stands, and how its loops run
- `algebra`: what may be combined in any order, and how partial results are rescaled, with proofs
- `primitives`: what a user calls, a folder for each family: the method, the legality, the rewrite
- `invariants`: what holds of every schedule, whatever the calls were
- `handles`: what a user holds: a schedule, its stages, and arguments of primitives
- `trace`: the calls of a schedule, written down and made again
- `memo`: what was found before, for a plan or a formula
"""
