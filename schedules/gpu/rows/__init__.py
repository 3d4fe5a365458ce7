"""Row reductions on GPUs and what reads them: softmax, norms, cross entropy.

- `rows`: the rule: a row in registers, or a loop over its pieces
- `thread_partials`: running statistics for each lane, combined after the loop
- `split_rows`: a long row by several programs, combined in a second kernel
- `aligned_pieces`: pieces of unaligned rows that start at 16 bytes
- `reverse_second_pass`: the second pass runs backwards, over what is still in cache
- `horizontal_rows`: row reductions of the same rows in one loop
- `row_consumers`: what is computed of rows and their results, in the loops over them
- `rows_and_columns`: row and column reductions of one matrix in one kernel
"""
