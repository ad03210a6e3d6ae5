"""NCCL at its best on this machine: which settings, how quick, and how much device memory; ours beside it.

knobs   what can be set, and the way through it: pure
worker  what one rank process does
run     all of it in order, and the table
"""
