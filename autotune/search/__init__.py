"""Which candidates to try: strategies over a space, a bandit over strategies, rules for stopping.

Pure logic over outcomes: nothing in this folder compiles, measures or reads a clock.  With the same
seed and the same outcomes the same candidates come in the same order.  `portfolio.Search` is what
the driver talks to.

- `candidate_table`: candidates as rows of one matrix; `encoding`: as numbers for models
- `observations`: what a strategy sees; `strategies`: what it proposes; `bandit`: which one does
- `gaussian_process`, `boosted_trees`: models of what was not measured; `blas_threads`: one
  thread for them
- `budget`: what a trial costs, and when to stop
- `simulate`: searches over recorded spaces
"""
