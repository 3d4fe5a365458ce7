"""What a schedule has fused, what that saves, and why the rest is not fused: `te.explain`; and how
far from the machine's ceilings it is: `te.roofline`.

The room above the search, whose static model does the counting.  `data` is what is found, `text`
and `html` show it; `kernels`, `places`, `alone` and `pairs` find it; `ceilings` measures the
machine and `chart` draws.
"""
