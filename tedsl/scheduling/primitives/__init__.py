"""What a user calls on a stage or a schedule; a folder for each family of primitives.

`api` has the public methods (arguments, documentation, the step of the trace), `legality` what is
asked before anything changes, `rewrite` pure functions `Plan -> Plan`.  Here is what all share:

- `call`: one use of a primitive, and how a refusal of it reads
- `stage_handle`, `schedule_handle`: what the methods of all families are built on
- `arguments`: are the arguments of a primitive what they should be
- `stage_facts`: what legality asks of one stage

Families:

- `loops`: split, tile, fuse, reorder; `partition`: cut, partition, blockize
- `marks`: how a loop runs (bind, vectorize, unroll, parallel, pipeline, ...); `tensorize`
- `placement`: compute_at, compute_inline, compute_root; `reverse_placement`: from a producer to its
  reader; `storage`: store_at, set_scope, launch
- `kernel_fusion`: compute_with, compute_last, compute_across
- `graph_rewrites`: cache_read, cache_write, recompute, rfactor, divide; `layouts`
- `online`: dependent reductions in one pass; `scans`
- `hints`, `sizes`: what is said of memory and of runtime sizes
"""
