"""From an ATen graph to tensor expressions: the registry of operators and the walk."""
