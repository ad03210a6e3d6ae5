"""Everything at once for a while: sizes, dtypes, algorithms, graph replays, late ranks, failures that must be survived.

`plan` draws what happens, the same on every rank; `player` does it on one rank and checks every result; `run` starts
the ranks, again after one was killed, and adds up. `pcie-allreduce soak` is the command.
"""
