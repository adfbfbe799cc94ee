"""The first rendering of an unknown chat template, in a process of its own that is ended where it takes too much.

The meter bounds what we know that a template can do (``template_meter.py``). This is the wall behind it: no template is
rendered in this process before it has rendered short conversations in another one, whose time and memory the system
bounds, or where it cannot (Windows, macOS), whoever watches it. The verdict is kept by the template's digest, so that
it costs one process ever; the bundled models' templates are known. The laws: ``tests/engine/test_template_trial.py``.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryFile

import psutil
from platformdirs import user_cache_path

from hybrid.engine.port import Interrupted, IsCancelled, never
from hybrid.engine.template import MOST_SOURCE, TOO_LONG, ChatTemplate, MemoryOverload, TemplateFault, TemplateOverload
from hybrid.errors import UsageError
from hybrid.store.files import own_folder
from hybrid.store.json_store import JsonStore

MOST_KEPT = 1024
# Characters: a verdict is a short sentence.
MOST_VERDICT = 400
# Templates of the bundled models (their digests), and of no other: they pay nothing.
BUNDLED = frozenset(("3d97c795467137e530a96f18ff00d75f",))
# More than three conversations under the meter take; a loaded machine makes no difference to processor time.
MOST_CPU_S, MOST_BYTES = 15, 400 << 20
# Of a child that does nothing at all. What it means is not known, so that it is no verdict.
_PATIENCE_S = 120.0
_POLL_S = 0.02
_ROLES = (("user",), ("system", "user", "assistant", "user"), ("user", "assistant", "tool", "user"))


def check_template(source: str, name: str, cancelled: IsCancelled = never) -> None:
    """Raise UsageError for a template that takes too much. ``name``: the model file's, for the sentence.

    Raises Interrupted soon after ``cancelled()`` says so; the next caller tries the template again.
    """
    digest = digest_of(source)
    if digest in BUNDLED:
        return
    if digest not in _verdicts:
        _verdicts[digest] = _verdict(digest, source, cancelled)
    if said := _verdicts[digest]:
        msg = f"the chat template of {name} is not used: {said}; --raw sends the text as it stands"
        raise UsageError(msg)


def digest_of(source: str) -> str:
    """Return by what a template is known."""
    return blake2b(source.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class _Unknown(Exception):
    """There was no verdict: the process could not be started, or was ended by somebody else."""


# By digests. Where there is no file, each question would ask again.
_verdicts = dict[str, str]()


def _verdict(digest: str, source: str, cancelled: IsCancelled) -> str:
    """Return what is wrong with a template; nothing, if it may be rendered in this process."""
    if len(source) > MOST_SOURCE:
        return TOO_LONG
    folder = own_folder(user_cache_path)
    store = None if folder is None else JsonStore(folder / "cache.json", "templates", _is_verdict, MOST_KEPT)
    if store is not None and (kept := store.read_entries().get(digest)) is not None:
        return str(kept)
    try:
        said = _tried(source, cancelled)
    except _Unknown:  # the meter holds
        return ""
    if store is not None:
        store.keep(digest, said)
    return said


def _is_verdict(kept: object) -> bool:
    return isinstance(kept, str) and len(kept) <= MOST_VERDICT and (not kept or kept.isprintable())


def _tried(source: str, cancelled: IsCancelled) -> str:
    """Render in a child and return what it took too much of. Raises _Unknown, Interrupted."""
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-P", "-m", __name__]
    try:
        with TemporaryFile() as given:  # a child that reads nothing would block a pipe
            given.write(json.dumps(source).encode())
            given.seek(0)
            with subprocess.Popen(
                command,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths},
            ) as child:
                try:
                    return _watched(child, cancelled)
                finally:
                    child.kill()
    except OSError as error:
        raise _Unknown from error


def _watched(child: subprocess.Popen[bytes], cancelled: IsCancelled) -> str:
    assert child.stdout
    ends = time.monotonic() + _PATIENCE_S
    while True:
        with suppress(subprocess.TimeoutExpired):
            child.wait(_POLL_S)
            break
        if cancelled():
            raise Interrupted
        with suppress(psutil.Error):
            process = psutil.Process(child.pid)
            if process.memory_info().rss > MOST_BYTES:
                return f"it takes more than {MOST_BYTES >> 20} MiB for a short conversation"
            times = process.cpu_times()
            if times.user + times.system > MOST_CPU_S:
                return _SLOW
        if time.monotonic() > ends:
            raise _Unknown
    if child.returncode == _OVER_CPU:
        return _SLOW
    if child.returncode in _CRASHES:
        return "it ends the process that renders it"
    try:
        return str(json.loads(child.stdout.read()))
    except ValueError:
        raise _Unknown from None


_SLOW = f"it is not done with a short conversation after {MOST_CPU_S} s of processor time"
_OVER_CPU = -24  # ended by SIGXCPU
# By SIGABRT, SIGBUS, SIGSEGV; on Windows by a wild pointer, and by a stack that is full.
_CRASHES = frozenset((-6, -7, -11, 0xC0000005, 0xC00000FD))


def main() -> None:
    """Render the template on standard input, and write what is wrong with it: nothing, if nothing is.

    Writes no verdict at all where it is the machine that has no memory.
    """
    has_memory = _has_memory()
    _limit()
    source = json.loads(sys.stdin.buffer.read())
    said = ""
    try:
        template = ChatTemplate(source, "<s>", "</s>")
        for roles in _ROLES:
            turns = [{"role": role, "content": f"{role} {i}"} for i, role in enumerate(roles)]
            with suppress(_Refusal):
                _render(template, turns)
    except TemplateOverload as error:
        if isinstance(error, MemoryOverload) and not has_memory:
            return
        said = str(error)
    print(json.dumps(said))  # noqa: T201  (the answer)


class _Refusal(Exception):
    """A template refuses a conversation, or fails: it is done."""


def _render(template: ChatTemplate, turns: list[dict[str, str]]) -> None:
    try:
        template.write(turns, {"tools": None, "documents": None}, prompt=True)
    except TemplateOverload:
        raise
    except TemplateFault as error:
        raise _Refusal from error


def _has_memory() -> bool:
    """Whether this process could have what a template may take: ``ulimit -v``, or others, may leave it less."""
    try:
        mmap.mmap(-1, MOST_BYTES).close()
    except (OSError, MemoryError):
        return False
    return True


def _limit() -> None:
    """Have the system bound this process, where it can: a process that is watched may be faster than who watches."""
    try:
        import resource  # noqa: PLC0415  (Windows has none)
    except ImportError:
        return
    addresses = psutil.Process().memory_info().vms + MOST_BYTES
    for kind, most in ((resource.RLIMIT_CPU, MOST_CPU_S), (resource.RLIMIT_AS, addresses), (resource.RLIMIT_CORE, 0)):
        with suppress(OSError, ValueError):
            _, hard = resource.getrlimit(kind)
            resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    main()
