"""Windows as far as Linux can show it: what the product sees of the standard library while this folder is a path of it.

Imitated for modules of ``hybrid`` alone, so that packages which are built for this system go on working:

- names that Windows lacks are not there, modules of them only cannot be imported. Which they are is read from
  typeshed, as mypy brings it; of ``os.O_*`` and signals, for which it has no conditions, from Python's documentation;
- ``sys.platform`` is "win32", ``os.name`` "nt", and there is no ``/proc``;
- ``os.open`` opens no folder, and without ``O_BINARY`` a line break is written as two bytes and read as one;
- a file that this process has open can be neither renamed, nor replaced, nor removed; ``os.rename`` replaces nothing;
- text without an encoding is in code page 1252, its line breaks are two bytes, also on standard output;
- ``SO_REUSEADDR`` lets two servers share a port; event loops handle no signals and watch no descriptors;
- signals are Windows' own, among them SIGBREAK (Ctrl-Break, number 21).

Not imitated: Windows' paths (a pathlib of another system cannot be made), ACLs, locks of byte ranges (filelock locks as
it does here), what another process has open, the proactor's event loop, consoles, and everything of C: llama.cpp,
SQLite and psutil are those of this system. HYBRID_TEST_BUSY=N has the first N renames of a process fail, as one fails
while a virus scanner reads the file; HYBRID_TEST_WITHOUT names packages that the product does not find.
"""

from __future__ import annotations

import ast
import asyncio.unix_events
import builtins
import enum
import errno
import importlib.util
import io
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

FLAGS = {"O_RDONLY", "O_WRONLY", "O_RDWR", "O_APPEND", "O_CREAT", "O_EXCL", "O_TRUNC"}
OWN_FLAGS = {name: 1 << (40 + i) for i, name in enumerate(("O_BINARY", "O_NOINHERIT", "O_RANDOM", "O_SEQUENTIAL"))}
REAL: dict[str, Any] = {
    name: getattr(os, name)
    for name in ("open", "read", "write", "close", "fdopen", "fsync", "stat", "readlink", "listdir")
}
REAL |= {"import": builtins.__import__, "builtins.open": builtins.open, "signal": signal.signal}
REAL |= {name: getattr(os, name) for name in ("rename", "replace", "unlink", "remove")}
TEXT: set[int] = set()  # descriptors that translate line breaks
WITHOUT = os.environ.get("HYBRID_TEST_WITHOUT", "").split()
BUSY = [int(os.environ.get("HYBRID_TEST_BUSY", "0"))]


class Signals(enum.IntEnum):
    """Those that Windows' C library knows; their numbers are this system's."""

    SIGABRT, SIGFPE, SIGILL = signal.SIGABRT, signal.SIGFPE, signal.SIGILL
    SIGINT, SIGSEGV, SIGTERM, SIGBREAK = signal.SIGINT, signal.SIGSEGV, signal.SIGTERM, 21


# ---- names ---------------------------------------------------------------------------------------------------------


def names(body: list[ast.stmt], platform: str) -> set[str]:
    """Return what a stub defines on a platform."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.If):
            found |= names(node.body if holds(node.test, platform) else node.orelse, platform)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def holds(test: ast.expr, platform: str) -> bool:
    """Evaluate a stub's condition."""
    known = {"sys": type("sys", (), {"platform": platform, "version_info": sys.version_info})}
    try:
        return bool(eval(compile(ast.Expression(test), "stub", "eval"), {"__builtins__": {}}, known))
    except NameError:
        return True


def lacking(module: str) -> tuple[set[str], bool]:
    """Return the names of a module of the standard library that Windows lacks, and whether it lacks all of it."""
    found = importlib.util.find_spec("mypy")
    assert found is not None, "its typeshed says what Windows lacks"
    assert found.origin is not None
    stub = Path(found.origin).parent / "typeshed/stdlib" / module.replace(".", "/")
    path = next(each for each in (stub / "__init__.pyi", Path(f"{stub}.pyi")) if each.exists())
    text = path.read_text(encoding="utf-8")
    if "sys.platform" not in text:
        return set(), False
    body = ast.parse(text).body
    here, there = names(body, "linux"), names(body, "win32")
    brought = names([node for node in body if isinstance(node, ast.Import | ast.ImportFrom)], "")
    own, own_there = ({name for name in each - brought if not name.startswith("_")} for each in (here, there))
    return here - there, bool(own) and not own_there


class View(ModuleType):
    """A module of the standard library as Windows has it; what is set in it is set in the real one."""

    def __init__(self, real: ModuleType, lacks: set[str], instead: dict[str, Any]) -> None:
        super().__init__(real.__name__)
        vars(self).update({"_real": real, "_lacks": lacks} | instead)

    def __getattr__(self, name: str) -> Any:
        if name in self._lacks:
            msg = f"module {self.__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        return viewed(getattr(self._real, name))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)


VIEWS: dict[str, View] = {}


def viewed(found: Any) -> Any:
    """Return a module's view; anything else as it is. Raises ModuleNotFoundError for what Windows has not at all."""
    name = getattr(found, "__name__", "")
    if not isinstance(found, ModuleType) or name.partition(".")[0] not in sys.stdlib_module_names:
        return found
    if name not in VIEWS:
        try:
            lacks, is_missing = lacking(name)
        except StopIteration:  # it has no stub: it is the other name of another one (posixpath)
            return found
        if is_missing:
            msg = f"No module named {name!r}"
            raise ModuleNotFoundError(msg, name=name)
        if name == "os":
            lacks |= {each for each in dir(os) if each.startswith("O_") and each not in FLAGS}
        if name == "signal":
            lacks |= {each for each in dir(signal) if each.startswith("SIG") and each.isalpha()} - {
                *Signals.__members__
            }
        VIEWS[name] = View(found, lacks, INSTEAD.get(name, {}))
    return VIEWS[name]


def ours(globals_: Any) -> bool:
    """Whether a module is the product's, also where it is run as a program."""
    spec = (globals_ or {}).get("__spec__")
    return str(getattr(spec, "name", (globals_ or {}).get("__name__"))).partition(".")[0] == "hybrid"


def imported(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:  # noqa: A002
    if ours(globals) and name == "winreg":
        return WINREG
    if ours(globals) and name.partition(".")[0] in WITHOUT:
        raise ModuleNotFoundError(name, name=name)
    found = REAL["import"](name, globals, locals, fromlist, level)
    return viewed(found) if ours(globals) else found


# ---- files ---------------------------------------------------------------------------------------------------------


def calls_for_us() -> bool:
    """Whether the caller's caller is the product, or pathlib for whomever."""
    globals_ = sys._getframe(2).f_globals
    return globals_["__name__"] == "pathlib" or ours(globals_)


def open_(path: Any, flags: int, mode: int = 0o777, **named: Any) -> int:
    if Path(path).is_dir():
        raise PermissionError(errno.EACCES, "Permission denied", str(path))
    own = sum(OWN_FLAGS.values())
    fd = REAL["open"](path, flags & ~own, mode, **named)
    TEXT.discard(fd)
    if not flags & OWN_FLAGS["O_BINARY"]:
        TEXT.add(fd)
    return fd


def write(fd: int, raw: Any) -> int:
    if fd not in TEXT:
        return REAL["write"](fd, raw)
    REAL["write"](fd, bytes(raw).replace(b"\n", b"\r\n"))
    return len(raw)


def read(fd: int, size: int) -> bytes:
    raw = REAL["read"](fd, size)
    return raw.replace(b"\r\n", b"\n") if fd in TEXT else raw


def fsync(fd: int) -> None:
    import fcntl

    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "Bad file descriptor")
    REAL["fsync"](fd)


def open_text(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: Any = None,
    errors: Any = None,
    newline: Any = None,
    *more: Any,
    **named: Any,
) -> Any:
    if isinstance(file, int):
        TEXT.discard(file)  # Python's own files are binary
    if isinstance(file, str | os.PathLike) and hidden(file) and calls_for_us():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
    if "b" not in mode:
        encoding = "cp1252" if encoding in {None, "locale"} else encoding
        newline = "\r\n" if newline is None and not mode.startswith("r") else newline
    return REAL["builtins.open"](file, mode, buffering, encoding, errors, newline, *more, **named)


def hidden(path: Any) -> bool:
    return isinstance(path, str | os.PathLike) and os.fspath(path).startswith("/proc")


def is_open(path: Any) -> bool:
    with suppress(OSError):
        found = REAL["stat"](path)
        for fd in REAL["listdir"]("/proc/self/fd"):
            with suppress(OSError):
                if os.path.samestat(found, os.fstat(int(fd))):
                    return True
    return False


def refused(path: Any) -> PermissionError:
    error = PermissionError(errno.EACCES, "The process cannot access the file because it is being used", str(path))
    error.winerror = 32
    return error


def moving(name: str) -> Any:
    def move(source: Any, target: Any, **named: Any) -> None:
        if calls_for_us():
            for path in (source, target):
                if is_open(path):
                    raise refused(path)
            if BUSY[0]:
                BUSY[0] -= 1
                raise refused(target)
            if name == "rename" and os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        REAL[name](source, target, **named)

    return move


def removing(name: str) -> Any:
    def remove(path: Any, **named: Any) -> None:
        if calls_for_us() and is_open(path):
            raise refused(path)
        REAL[name](path, **named)

    return remove


def seeing(name: str) -> Any:
    def see(path: Any, *args: Any, **named: Any) -> Any:
        if hidden(path) and calls_for_us():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return REAL[name](path, *args, **named)

    return see


# ---- signals, sockets, the registry --------------------------------------------------------------------------------


def handle(number: int, handler: Any) -> Any:
    if number not in {*Signals}:
        raise ValueError("invalid signal value")
    return REAL["signal"](number, handler)


class SharingSocket(socket.socket):
    def setsockopt(self, level: int, name: int, *value: Any) -> None:
        if (level, name) == (socket.SOL_SOCKET, socket.SO_REUSEADDR):
            super().setsockopt(level, socket.SO_REUSEPORT, *value)
        if name != EXCLUSIVE:
            super().setsockopt(level, name, *value)


EXCLUSIVE = -5


class Key:
    def __init__(self, root: str, path: str) -> None:
        self.path = path

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass


WINREG = ModuleType("winreg")
REGISTRY = {
    (r"SOFTWARE\Microsoft\Cryptography", "MachineGuid"): ("6f2a1d9e-0000-4000-8000-000000000001", 1),
    (r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters", "BootId"): (17, 4),
}


def value(key: Key, name: str) -> tuple[Any, int]:
    try:
        return REGISTRY[key.path, name]
    except KeyError:
        raise FileNotFoundError(errno.ENOENT, "The system cannot find the file specified") from None


vars(WINREG).update({"HKEY_LOCAL_MACHINE": "HKLM", "OpenKey": Key, "QueryValueEx": value})

INSTEAD: dict[str, dict[str, Any]] = {
    "sys": {"platform": "win32"},
    "os": {"name": "nt", "linesep": "\r\n", "open": open_, "read": read, "write": write, "fsync": fsync, **OWN_FLAGS},
    "signal": {"signal": handle, "Signals": Signals, "SIGBREAK": Signals.SIGBREAK},
    "socket": {"socket": SharingSocket, "SO_EXCLUSIVEADDRUSE": EXCLUSIVE},
    "platform": {"system": lambda: "Windows"},
}

for _name in ("rename", "replace"):
    setattr(os, _name, moving(_name))
for _name in ("unlink", "remove"):
    setattr(os, _name, removing(_name))
for _name in ("stat", "readlink"):
    setattr(os, _name, seeing(_name))
for _name in ("add_signal_handler", "remove_signal_handler", "add_reader", "add_writer"):
    setattr(asyncio.unix_events._UnixSelectorEventLoop, _name, getattr(asyncio.AbstractEventLoop, _name))
builtins.open = io.open = open_text  # type: ignore[assignment]
builtins.__import__ = imported
for _stream in (sys.stdout, sys.stderr):
    if _stream is not None:
        _stream.reconfigure(newline="\r\n")
