"""The backend of `torch.compile`: which nodes are taken, in which regions, and what was not."""
