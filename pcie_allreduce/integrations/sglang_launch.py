"""`python -m pcie_allreduce.integrations.sglang_launch ARGS` is `python -m sglang.launch_server ARGS` with our flags.

SGLang before 0.5.11 knows no plug-ins, and starts its ranks with spawn: each child, and each child of a child, runs the
main module again, under another name. So what must happen in every process stands at the top level of this one. A
script that uses the Engine API of such a version imports this module at its own top level, for the same reason.
"""

from __future__ import annotations

import runpy

from pcie_allreduce.integrations import sglang

sglang.register()

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")
