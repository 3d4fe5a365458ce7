"""Dependent reductions in one pass: online, split_online (whose method is in
`graph_rewrites/api`).

- `chain`: which reductions a value depends on
- `chain_rescaling`: the rescaling of each, and the expressions that apply it
- `lazy_rescaling`: totals relative to references that follow in jumps
- `legality`: the loop, the reductions and the stages between; `slices`: each element once
- `rewrite`: online; `split`: split_online
"""
