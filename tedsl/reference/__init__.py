"""The NumPy oracle: what a definition means, without any schedule.

- `reference`: a graph of definitions, evaluated
- `evaluate`: expressions over blocks of their axes
- `matmul_fast_path`: sums of products through `numpy.matmul`
"""
