"""The microbenchmark: ours beside torch.distributed, timed and checked in one run.

settings     what is asked, what this machine has, and what follows from the two
backends/    every all-reduce that is timed, behind one Protocol
inputs       what is summed, and between which two values each element of a sum must lie
correctness  the verdict over all ranks
procedure    how a number comes about: fixed counts, replays, slowest rank, medians
execution    the timed unit, call by call or as one CUDA graph
worker       what one rank process does;  ranks: starts, bounds and reaps rank processes
environment  the machine and the software that a result is stamped with
rows         the JSON document;  report: the table that people read
run          all of it in order
"""
