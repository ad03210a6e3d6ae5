"""Rank 1 sends itself a signal in a given call: FAIL_IN_CALL=57 FAIL_BY=SIGSTOP.

A signal from outside would often meet it in one of SGLang's own collectives, of which nothing here can tell.
"""

import importlib.abc
import importlib.machinery
import os
import signal
import sys

ADAPTER = "pcie_allreduce.integrations.adapter"


class Finder(importlib.abc.MetaPathFinder):
    """Changes the adapter's class right after its module was imported, in whatever process that is."""

    def find_spec(self, name, path=None, target=None):
        if name != ADAPTER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def execute_and_change(module):
            execute(module)
            change(module.EngineAllReduce)

        spec.loader.exec_module = execute_and_change
        return spec


def change(adapter):
    serve = adapter.custom_all_reduce

    def fail_or_serve(self, inp):
        if self.communicator.rank == 1 and self.served == int(os.environ["FAIL_IN_CALL"]):
            os.kill(os.getpid(), signal.Signals[os.environ["FAIL_BY"]])
        return serve(self, inp)

    adapter.custom_all_reduce = fail_or_serve


sys.meta_path.insert(0, Finder())
