"""Which candidates to try: strategies over a space, a bandit over strategies, rules for stopping.

Pure logic over outcomes: nothing in this folder compiles, measures or reads a clock.  With the same
seed and the same outcomes the same candidates come in the same order.  `portfolio.Search` is what
the driver talks to.
"""
