"""Tensors of a PyTorch graph as functions from an index to an element."""
