"""torchvision for SGLang's imports, on machines without it: installing it would replace torch's CPU build by another.

SGLang imports it at top level for image models that no test runs. transformers, on the other hand, looks whether it is
there and would use it; so it is found by `import` alone, and a look (`importlib.util.find_spec`) finds the truth.
Versions before the one that is installed import sgl_kernel, CUDA kernels, in the same way.
"""

import importlib.abc
import importlib.machinery
import importlib.metadata
import os
import sys
import types

NAMES = ("torchvision", "sgl_kernel") if "SGLANG_FOLDER" in os.environ else ("torchvision",)
# Earlier versions of transformers refuse what SGLang asks of them where a look finds nothing; for those, and beside
# them, there is a note (dist-info) that says that torchvision is installed.
SEEN = any(importlib.metadata.distributions(name="torchvision"))


class Nothing(type):
    """A class whose attributes are itself, for names that are imported, subclassed or called at import time."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class Anything(metaclass=Nothing):
    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return self


class EmptyModule(types.ModuleType):
    __path__ = ()  # a package, so that its submodules are asked for

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in NAMES or (self._is_a_look() and not SEEN):
            return None
        if not SEEN:
            self._let_transformers_look()
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    @staticmethod
    def _is_a_look():
        frame = sys._getframe(2)
        while frame is not None and frame.f_globals["__name__"].startswith("importlib"):
            if frame.f_globals["__name__"] == "importlib.util":
                return True
            frame = frame.f_back
        return False

    @staticmethod
    def _let_transformers_look():
        """Once the module is imported, find_spec would find it; transformers remembers what it has seen before."""
        from transformers.utils import import_utils

        for name in ("is_torchvision_available", "is_torchvision_v2_available"):
            getattr(import_utils, name, bool)()

    def create_module(self, spec):
        return EmptyModule(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(Finder())  # last: a real one wins

if "FAIL_IN_CALL" in os.environ:
    import failing_rank  # noqa: F401
