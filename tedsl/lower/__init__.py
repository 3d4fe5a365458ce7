"""Fifth room: from a schedule to loop IR.

- `pipeline`: the lowering, read from top to bottom
- `plan`: from plan to plan: what a target needs before loops are built
- `nests`: from plan to loop IR
- `passes`: from loop IR to loop IR
- `tile_operations`: the passes that find matrix products and running folds
"""
