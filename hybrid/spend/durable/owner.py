"""Who made a reservation, so that money of the dead comes back and money of the living never does.

The law (``tests/spend/test_owner.py``): a process counts as dead only if it ran on this host, in this boot and in this
pid namespace, and none has its pid and its start time now. Whatever cannot be told counts as alive: another host's,
another container's, one from before the machine was started anew.
"""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from pathlib import Path

import psutil


def owner() -> str:
    """Name this process: host, boot, pid namespace, pid and start time."""
    return _named(os.getpid())


def is_dead(name: str) -> bool:
    """Whether the process that ``owner`` has named is known to have ended."""
    place, pid, started = ["", "", *name.rsplit(" ", 2)][-3:]
    if place != _place() or not pid.isdecimal():
        return False
    if not psutil.pid_exists(int(pid)):
        return True
    now = _started(int(pid))
    return now is not None and now != started


@lru_cache(maxsize=1)
def _named(pid: int) -> str:
    """Name a process by its pid; a fork has another one."""
    return f"{_place()} {pid} {_started(pid)}"


@lru_cache(maxsize=1)
def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # no Linux
        boot, namespace = f"{psutil.boot_time():.0f}", "-"
    return f"{platform.node().replace(' ', '_')} {boot} {namespace}"


def _started(pid: int) -> str | None:
    """Return when a process was started, in a form that no change of the clock alters; None: that is not told.

    On Linux in clock ticks since the boot, as the kernel has it (proc_pid_stat(5), field 22): psutil adds the boot's
    date, which moves with the clock, and a process that seems to have started at another time seems to be another one.
    """
    try:
        if Path("/proc/self/stat").exists():
            # The second field is the program's name in brackets, and may hold anything.
            said = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            return said.rpartition(")")[2].split()[19]
        return repr(psutil.Process(pid).create_time())
    except (OSError, IndexError, psutil.Error):
        return None
