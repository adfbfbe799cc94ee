"""A SQLite file that one process at a time may touch: opening, transactions, checkpoints, and what goes wrong.

The law: nothing touches the database without the file lock, neither reading, writing, checkpointing, opening nor
closing (``tests/spend/test_durable_file.py``). Before 3.51.3 SQLite could corrupt a write-ahead log when one connection
wrote while another checkpointed; most systems still have such a version. What the tables mean is not known here, but
for their migration and for who owns a reservation and whether that process is dead.
"""

from __future__ import annotations

import errno
import os
import platform
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import psutil
from filelock import Timeout

from hybrid.errors import LedgerError, to_one_line
from hybrid.spend.durable.schema import (
    APPLICATION_ID,
    VERSION,
    DamagedLedger,
    check_checksums,
    check_sqlite,
    create,
    from_version_1,
)
from hybrid.store.files import OWNERS, file_lock, make_folder

# The owner of a reservation, so that money of a dead process is returned and that of a living one never is.
#
# The law (``tests/spend/test_owner.py``): a process counts as dead only if it ran on this host, in this boot and in
# these pid and time namespaces, and none has its pid and its start time now. A process of which this cannot be known
# counts as alive: another host's, another container's, one from before the machine was restarted, and every one where
# nothing tells one boot from another. What tells it does not move with the clock.

UNKNOWN = "?"
# Windows: the number of the installation, and its boots as it counts them for its prefetcher.
MACHINE_KEY = r"SOFTWARE\Microsoft\Cryptography"
BOOTS_KEY = r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters"
# macOS: made anew at each boot.
BOOT_COMMAND = ("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")


def owner() -> str:
    """Name this process: host, boot, namespaces, pid and start time. An unknown start time never counts as dead."""
    return f"{_host_id()} {os.getpid()} {_start_time(os.getpid()) or UNKNOWN}"


def is_dead(name: str) -> bool:
    """Whether the process that ``owner`` has named is known to have ended."""
    place, pid, started = ["", "", *name.rsplit(" ", 2)][-3:]
    if not pid.isdecimal() or started == UNKNOWN:
        return False
    if place != _host_id() or UNKNOWN in place.split(" "):
        return place == _earlier_host_id() and not _exists(int(pid))
    if not _exists(int(pid)):
        return True
    now = _start_time(int(pid))
    return now is not None and now != started


@lru_cache(maxsize=1)
def _host_id() -> str:
    return f"{_host()} {_boot_id() or UNKNOWN} {_namespace('pid')} {_namespace('time')}"


def _earlier_host_id() -> str | None:
    """Name this host as 0.1.0 did without Linux's namespaces: by the moment of the boot; None on other systems.

    What it noted of a start moves with the clock, too.
    """
    if sys.platform == "win32" or "-" not in {_namespace("pid"), _namespace("time")}:
        return None
    return f"{_host()} {psutil.boot_time():.0f} - -"


def _host() -> str:
    return platform.node().replace(" ", "_")


def _namespace(kind: str) -> str:
    with suppress(OSError):  # no Linux, or an old one
        return str(Path(f"/proc/self/ns/{kind}").readlink())
    return "-"


def _boot_id() -> str | None:
    """Return what tells this boot of this machine from any other; None where nothing does."""
    with suppress(OSError, subprocess.SubprocessError):
        if sys.platform == "win32":
            return f"{_registered(MACHINE_KEY, 'MachineGuid')}-{_registered(BOOTS_KEY, 'BootId')}"
        if sys.platform == "darwin":
            told = subprocess.run(BOOT_COMMAND, capture_output=True, encoding="ascii", timeout=10, check=True).stdout
        else:
            told = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return told.strip() or None
    return None


def _registered(key: str, name: str) -> str:
    """Return a value of Windows' registry. Raises OSError where there is none."""
    import winreg  # type: ignore[unused-ignore]  # noqa: PLC0415  (no other system has it)

    with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as opened:  # type: ignore[attr-defined,unused-ignore]
        return str(winreg.QueryValueEx(opened, name)[0])  # type: ignore[attr-defined,unused-ignore]


def _exists(pid: int) -> bool:
    """Whether there is such a process. Not psutil's on POSIX: it believes a /proc that shows another pid namespace."""
    if os.name != "posix":
        return psutil.pid_exists(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _start_time(pid: int) -> str | None:
    """Return when a process was started, in a form that no change of the clock alters; None: that is not told.

    On Linux in clock ticks since the boot, as the kernel has it (proc_pid_stat(5), field 22): psutil adds the boot's
    date, which moves with the clock, and a process that seems to have started at another time seems to be another one.
    Elsewhere as the system noted it then. On macOS psutil corrects that by what the clock was moved since.
    """
    try:
        if not Path("/proc/self/stat").exists():
            return repr(_noted_start(pid))
        if str(Path("/proc/self").readlink()) != str(os.getpid()):
            return None  # this /proc shows another pid namespace
        # The second field is the program's name in brackets, and may hold anything.
        said = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return said.rpartition(")")[2].split()[19]
    except (OSError, IndexError, AttributeError, psutil.Error):
        return None


def _noted_start(pid: int) -> float:
    """Return the moment of a process's start in seconds as the system noted it. Raises AttributeError, psutil.Error."""
    process = psutil.Process(pid)
    if sys.platform == "darwin":
        with suppress(TypeError):  # psutil before 7.1 corrects nothing
            return float(process._proc.create_time(monotonic=True))  # type: ignore[attr-defined]
    return process.create_time()


# A transaction takes milliseconds; a process that locks the file for longer is stuck or is none of ours.
PATIENCE_S = 5.0
POLL_S = 0.002
# What Linux has mounted where (proc_pid_mountinfo(5)); other systems mount no single files.
MOUNTS = Path("/proc/self/mountinfo")
# SQLite's own default, a thousand pages; here checkpoints are made by hand, under the lock.
CHECKPOINT_BYTES = 4 * 1024 * 1024


def _lock_mode(path: Path) -> int:
    """Return the mode of a file's lock: its owner's alone, but of a file that others may use theirs too."""
    try:
        return OWNERS | (path.stat().st_mode & 0o066)
    except OSError:
        return OWNERS


class SqliteFile:
    """One process's connection to the file. Opened at the first transaction; may be used from several threads."""

    def __init__(self, path: Path, patience_s: float = PATIENCE_S) -> None:
        """Name the file; nothing is touched yet. A link is followed: SQLite names its log after the file itself."""
        path = path.resolve()
        self.path = path
        self._patience_s = patience_s
        self._threads = threading.Lock()
        self._processes = file_lock(path, _lock_mode(path))
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self.generation = 0  # another one with each file that took the place of the last

    def __repr__(self) -> str:
        """Name the file."""
        return f"SqliteFile({self.path})"

    def exists(self) -> bool:
        """Whether there is anything yet. Raises LedgerError where that cannot be seen."""
        try:
            return self.path.exists() and self.path.stat().st_size > 0
        except OSError as error:
            raise self._trouble(error) from error

    @contextmanager
    def transaction(self, *, flushed: bool) -> Iterator[sqlite3.Connection]:
        """Read and write in one step that happens whole or not at all; ``flushed``: it survives a power failure.

        An unflushed transaction survives the end of the process, and is flushed by the next one. Raises LedgerError.
        """
        with self._named_errors(), self._locked():
            connection = self._open()
            connection.execute(f"PRAGMA synchronous = {'FULL' if flushed else 'NORMAL'}")
            with _atomically(connection):
                yield connection
            self._checkpoint_if_due(connection)

    def close(self) -> None:
        """Close the connection; the last one to go writes the log back, so that needs the lock too."""
        if self._connection is not None:
            with suppress(LedgerError), self._named_errors(), self._locked():
                self._drop()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._threads.acquire(timeout=self._patience_s):
            raise Timeout(str(self.path))
        try:
            if self._connection is None:
                make_folder(self.path.parent)
            self._lock()
            try:
                yield
            finally:
                self._processes.release()
        finally:
            self._threads.release()

    def _lock(self) -> None:
        try:
            self._processes.acquire(self._patience_s, POLL_S)
        except RuntimeError as error:  # filelock: this file system has no locks, or this process is a fork
            raise OSError(errno.ENOLCK, to_one_line(error) or "it cannot be locked") from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._file != self._identity():
            # The file was removed or replaced: the open connection is to no ledger any more.
            self._drop()
            self.generation += 1
        if self._connection is None:
            self._make()
            self._file = self._identity()
            connection = sqlite3.connect(
                self.path, timeout=self._patience_s, isolation_level=None, check_same_thread=False
            )
            try:
                _prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _make(self) -> None:
        """Make the file if there is none, for its owner alone.

        One that exists is not opened: closing it again would drop every lock that this process has on it (POSIX), the
        locks of another connection among them, and another process would take that connection for closed.
        """
        if not self.path.exists():
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, OWNERS))
        elif not self.path.is_file():
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        elif not os.access(self.path, os.R_OK | os.W_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        elif self.path.stat().st_nlink > 1 or _is_mounted(self.path):
            raise NotALedger("has a second name (a hard link or a mount), under which it would be a second ledger")

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _checkpoint_if_due(self, connection: sqlite3.Connection) -> None:
        """Write a long log back. A failure does no harm: commits stay in the log."""
        with suppress(OSError, sqlite3.Error):
            if Path(f"{self.path}-wal").stat().st_size >= CHECKPOINT_BYTES:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error, UnicodeError, MemoryError, OverflowError) as error:
            raise self._trouble(error) from error

    def _trouble(self, error: Exception) -> LedgerError:
        """Return the error in a sentence with its remedy."""
        name = getattr(error, "sqlite_errorname", "")
        other = "or name another file with HYBRID_LEDGER or --ledger"
        if isinstance(error, Timeout) or name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            said = f"is held by another process for more than {self._patience_s:g} s: end that process, {other}"
        elif isinstance(error, _DAMAGE) or name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CONSTRAINT")):
            said = f"is damaged ({to_one_line(error)}): restore a backup, {other}; what was spent is then forgotten"
        elif name == "SQLITE_FULL" or getattr(error, "errno", None) in _NO_ROOM:
            said = f"cannot be written, the disk is full: make room, {other}"
        elif isinstance(error, NotALedger):
            said = f"{error}: {other.removeprefix('or ')}"
        else:
            said = f"cannot be used ({getattr(error, 'strerror', None) or error}): mend that, {other}"
        return LedgerError(f"the ledger {self.path} {said}")


# What Python raises for bytes that are no text, a length that cannot be, a number that is none of SQLite's.
_DAMAGE = (DamagedLedger, UnicodeError, MemoryError, OverflowError)
_NO_ROOM = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


class NotALedger(sqlite3.Error):
    """A database, but not a ledger that this version reads."""


def _is_mounted(path: Path) -> bool:
    """Whether a file was mounted by itself: lock and log stand beside its name, and its other name has others."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # no Linux
        return False
    escaped = str(path).replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011").replace("\n", "\\012")
    return any(line.split(" ")[4] == escaped for line in lines)


def _prepare(connection: sqlite3.Connection) -> None:
    """Make a file a ledger, or see that it is one, its caps whole; one of an earlier version becomes one of this."""
    (journal,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if journal != "wal":
        raise NotALedger("is on a file system that keeps no write-ahead log")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("PRAGMA synchronous = FULL")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not (application or version or tables):
        with _atomically(connection):
            create(connection)
        return
    if application != APPLICATION_ID:
        raise NotALedger("is a database of something else")
    if version > VERSION:
        raise NotALedger("was written by a newer version of hybrid")
    if version == 1:
        check_sqlite(connection)
        with _atomically(connection):
            from_version_1(connection)
    check_checksums(connection)


@contextmanager
def _atomically(connection: sqlite3.Connection) -> Iterator[None]:
    """Make one transaction of a body."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
