"""Hints about memory and threads, none of which changes a result: storage_align, evict,
double_buffer, prefetch, set_store_predicate.
"""
