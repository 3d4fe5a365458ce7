"""Schedule primitives as pure functions `Plan -> Plan`, one file per family; `checks` decide before
anything changes.
"""
