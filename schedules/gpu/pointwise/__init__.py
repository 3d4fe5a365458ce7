"""Pointwise kernels on GPUs, beside the rule itself (`gpu/select.py`).

- `periodic_vectors`: row vectors beside unaligned rows, loaded once for several rows
- `turned_tiles`: what is read along one axis and stored along another
"""
