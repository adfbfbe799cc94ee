"""The owner of a reservation, so that money of a dead process is returned and that of a living one never is.

The law (``tests/spend/test_owner.py``): a process counts as dead only if it ran on this host, in this boot and in
these pid and time namespaces, and none has its pid and its start time now. A process of which this cannot be known
counts as alive: another host's, another container's, one from before the machine was restarted.
"""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from pathlib import Path

import psutil

UNKNOWN = "?"


def owner() -> str:
    """Name this process: host, boot, namespaces, pid and start time. An unknown start time never counts as dead."""
    return f"{_host_id()} {os.getpid()} {_start_time(os.getpid()) or UNKNOWN}"


def is_dead(name: str) -> bool:
    """Whether the process that ``owner`` has named is known to have ended."""
    place, pid, started = ["", "", *name.rsplit(" ", 2)][-3:]
    if place != _host_id() or not pid.isdecimal() or started == UNKNOWN:
        return False
    if not _exists(int(pid)):
        return True
    now = _start_time(int(pid))
    return now is not None and now != started


@lru_cache(maxsize=1)
def _host_id() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        pids, times = (str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("pid", "time"))
    except OSError:  # no Linux, or an old one
        boot, pids, times = f"{psutil.boot_time():.0f}", "-", "-"
    return f"{platform.node().replace(' ', '_')} {boot} {pids} {times}"


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
    """
    try:
        if not Path("/proc/self/stat").exists():
            return repr(psutil.Process(pid).create_time())
        if str(Path("/proc/self").readlink()) != str(os.getpid()):
            return None  # this /proc shows another pid namespace
        # The second field is the program's name in brackets, and may hold anything.
        said = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return said.rpartition(")")[2].split()[19]
    except (OSError, IndexError, psutil.Error):
        return None
