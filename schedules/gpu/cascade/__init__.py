"""Contractions on GPUs that depend on other reductions.

- `cascaded_contraction`: flash attention: contractions around an online reduction
- `nested_contractions`: attention backward: an operand that is computed of other GEMMs
"""
