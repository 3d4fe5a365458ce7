"""Another layout or element type of a stage and of all reads of it: transform_layout,
set_precision.
"""
