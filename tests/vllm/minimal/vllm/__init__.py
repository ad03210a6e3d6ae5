"""As much of vLLM's shape as its plug-in and a group's all-reduce need, written from what test_contract.py checks."""

import logging
import sys

logging.getLogger("vllm").addHandler(logging.StreamHandler(sys.stdout))
logging.getLogger("vllm").setLevel(logging.INFO)
logging.getLogger("vllm").propagate = False
