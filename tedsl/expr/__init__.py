"""What to compute: scalar expressions, tensors, definitions, their printer and reference."""
