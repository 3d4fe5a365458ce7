"""How operators print in Triton, and how accurate they have to be.

- `functions`: each operator by element type: text, cost, guarantee
- `accuracy`: how accurate each value of a kernel has to be
- `cheaper_forms`: powers in base 2, reciprocals
- `sincos16`: sine and cosine rounded to 16 bits
"""
