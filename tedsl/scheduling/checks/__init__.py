"""Legality of primitives, asked before anything changes: arguments, loops and marks, places,
rewrites of the graph.
"""
