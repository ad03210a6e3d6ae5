"""A speculative verify pass as it runs: what a faster all-reduce is worth where it counts.

shape        sizes of the stand-in model, on GPUs and on CPU ranks
layers       its weights and matmuls
joints       what stands between two of them: nothing, an all-reduce and a norm, or both in one
passes       a whole pass, call by call or as one CUDA graph
worker       what one rank process does
speculation  from passes to tokens per second, and reported figures worked through
run          all of it in order;  report: the table and the document
"""
