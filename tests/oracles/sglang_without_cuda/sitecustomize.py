"""Lets SGLang start where there is no CUDA: answers the import of packages that have no build for a CPU.

Python reads a file of this name at every start, so that SGLang's own child processes find it too: the server is started
with this folder in PYTHONPATH. What is asked of such a package is a class that does nothing; with ``--device cpu
--attention-backend torch_native --sampling-backend pytorch`` none is ever called for a number.

Nothing of this is on the wire. The HTTP server, tokenizer manager, scheduler, radix cache, sampler and the making of
log-probabilities are SGLang's own; attention and matrix products are torch's. Kernels, and what is special to GPUs, are
not tested here.
"""

import importlib.abc
import importlib.machinery
import sys
import types

# What SGLang 0.5.23 imports at its start. A package that is installed after all comes first.
STOOD_IN_FOR = frozenset({
    "cuda", "cutlass", "deep_ep", "flash_attn", "flashinfer", "kernels", "quack", "sgl_kernel", "timm",
    "torch_memory_saver", "torchao", "torchvision",
})  # fmt: skip


class _Names(type):
    """Gives a class any attribute: another such class."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Names(name, (_Nothing,), {})
        setattr(cls, name, made)
        return made


class _Nothing(metaclass=_Names):
    """Does nothing, whatever it is made from. Called with a function, as a decorator is, it gives that back."""

    def __init__(self, *_, **__):
        pass

    def __call__(self, *given, **named):
        return given[0] if len(given) == 1 and not named and callable(given[0]) else None

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()


class _Package(types.ModuleType):
    __path__ = ()
    __version__ = "99.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Names(name, (_Nothing,), {})
        setattr(self, name, made)
        return made


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in STOOD_IN_FOR:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Package(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(_StandIns())
