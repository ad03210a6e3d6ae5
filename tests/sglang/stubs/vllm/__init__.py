"""SGLang looks for vLLM's CUDA kernels where it has none of its own; on a CPU it imports their names and calls none."""
