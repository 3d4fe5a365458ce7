"""Searches without hardware.

- `recorded_space`: every point of a space with what it gave, in a file
- `simulate`: searches over such files, and figures over many
"""
