"""The owner of a reservation, so that money of a dead process is returned and that of a living one never is.

The law (``tests/spend/test_owner.py``): a process counts as dead only if it ran on this host, in this boot and in
these pid and time namespaces, and none has its pid and its start time now. A process of which this cannot be known
counts as alive: another host's, another container's, one from before the machine was restarted, and every one where
nothing tells one boot from another. What tells it does not move with the clock.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import psutil

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
