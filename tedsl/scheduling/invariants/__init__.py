"""What holds of every schedule, whatever the calls were.

- `table`: all questions about a plan, and when each has to be asked
- `affected`: whose place may have become illegal by a call
- `size_limits`: loops and arrays few and small enough to be counted; `inlined_growth`: definitions
- `lane_counts`: lanes are counted when the kernel is built
- `attached_sizes`: the size of a stage where it is attached
- `computed_indices`: what says where a region lies is computed before it

What belongs to one family of primitives is in its folder (`primitives/<family>/legality.py`).
"""
