"""The on-disk cache of generated code.

- `fingerprint`: a digest of everything that generated code depends on
- `disk`: raw bytes under a digest, in a folder only the user writes
- `lowered`: lowered modules, found again by the digest of the plan
"""
