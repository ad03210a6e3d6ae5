"""`pcie-allreduce tune`: which algorithm and launch shape are best on this very machine, size by size.

decision  from measured candidates to the steps of a table; pure
ranks     what one rank process does: lists the candidates of a size and has them measured by the benchmark's own cases
run       all of it in order: settle, measure, decide, keep, write, show
"""
