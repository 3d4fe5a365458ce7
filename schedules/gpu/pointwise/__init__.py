"""Pointwise kernels on GPUs, beside the rule itself (`gpu/select.py`).

- `periodic_vectors`: row vectors beside unaligned rows, loaded once for several rows
- `stacked_results`: results along a short axis that share what they are computed from
- `turned_tiles`: what is read along one axis and stored along another
"""
