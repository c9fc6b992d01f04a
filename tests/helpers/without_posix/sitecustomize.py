"""A Linux that lacks what Windows lacks, for every Python with this folder in PYTHONPATH.

Python imports this file when it starts, before anything of the library. It takes away modules and
functions that only POSIX systems have, and lets others do what they do on Windows: text files have
another encoding and other line breaks, open files cannot be replaced, `os.kill` kills, a socket is
inherited as it is. What Windows has and Linux lacks is not here: that remains untried.
"""

import ctypes
import errno
import fcntl
import io
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

MEMORY = 24 * 10**9
MODULES = ("crypt", "fcntl", "grp", "nis", "pty", "pwd", "readline", "resource", "spwd", "syslog")
MODULES += ("termios", "tty")
ATTRIBUTES = {
    os: "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC O_TMPFILE chown fchmod fchown fork "
    "forkpty getegid geteuid getgid getloadavg getpgid getpriority getsid getuid killpg lchown "
    "mkfifo nice posix_fallocate pread pwrite sched_getaffinity sched_setaffinity setsid statvfs "
    "sysconf",
    signal: "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGQUIT SIGSTOP SIGUSR1 SIGUSR2 alarm "
    "pthread_kill setitimer sigwait",
    socket: "AF_UNIX recv_fds send_fds",
    time: "CLOCK_BOOTTIME CLOCK_MONOTONIC clock_gettime tzset",
}
MISSING_FOLDERS = ("/proc", "/sys", "/dev/shm")

open_files = io.open
open_descriptor = os.open
look_at = os.stat
kill = os.kill
fsync = os.fsync
replace = os.replace
unlink = os.unlink
utime = os.utime
link = os.link
start_process = subprocess.Popen.__init__
load_library = ctypes.CDLL.__init__
kept_descriptors = "/proc/self/fd"
list_folder = os.listdir
read_link = os.readlink


def windows_error(path):
    """Return the error of a file that is in use."""
    error = PermissionError(errno.EACCES, "It is being used by another process", str(path))
    error.winerror = 32
    return error


def is_missing(path):
    return not isinstance(path, int) and os.fspath(path).startswith(MISSING_FOLDERS)


def require_there(path):
    if is_missing(path):
        raise FileNotFoundError(errno.ENOENT, "There is no such file on Windows", str(path))


def require_closed(path):
    """Refuse a file that this process has open."""
    whole = str(Path.cwd() / path)
    for name in list_folder(kept_descriptors):
        try:
            if read_link(f"{kept_descriptors}/{name}") == whole:
                raise windows_error(path)
        except FileNotFoundError:
            continue


def windows_open(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, **options):
    require_there(file)
    if "b" not in mode:
        encoding = "cp1252" if encoding in (None, "locale") else encoding
        newline = "\r\n" if newline is None and set(mode) & set("wax+") else newline
    return open_files(file, mode, buffering, encoding, errors, newline, **options)


def windows_os_open(path, flags, mode=0o777):
    require_there(path)
    if Path(path).is_dir():
        raise windows_error(path)
    return open_descriptor(path, flags, mode)


def windows_stat(path, **options):
    require_there(path)
    return look_at(path, **options)


def windows_readlink(path):
    require_there(path)
    return read_link(path)


def windows_kill(process, number):
    """End the process without asking it; 0 would be Ctrl-C for all that share the terminal."""
    is_ours = sys._getframe(1).f_globals["__name__"].startswith("fedwmsam")
    if number == 0 and is_ours:
        sys.stderr.write("os.kill(…, 0) is Ctrl-C on Windows\n")
        os._exit(99)
    kill(process, 9 if number else 0)


def windows_fsync(descriptor):
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "Windows flushes only what can be written")
    fsync(descriptor)


def windows_replace(source, target):
    require_closed(source)
    require_closed(target)
    replace(source, target)


def windows_unlink(path, **options):
    require_closed(path)
    unlink(path, **options)


def windows_utime(path, times=None, *, ns=None, follow_symlinks=True):
    if not follow_symlinks:
        raise NotImplementedError("utime: follow_symlinks unavailable on this platform")
    utime(path, **({"times": times} if ns is None else {"ns": ns}))


def windows_link(source, target, *, follow_symlinks=True):
    if not follow_symlinks:
        raise NotImplementedError("link: follow_symlinks unavailable on this platform")
    link(source, target)


def windows_popen(self, *arguments, pass_fds=(), **options):
    assert not pass_fds, "pass_fds not supported on Windows."
    start_process(self, *arguments, **options)


def windows_library(self, name, *arguments, **options):
    if name is None:
        raise TypeError("bad argument type for built-in operation")
    load_library(self, name, *arguments, **options)


def windows_socketpair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


def fill_memory_status(status):
    assert status[0] == ctypes.sizeof(status) == 64
    status[1] = MEMORY


tempfile.tempdir = tempfile.gettempdir()
for module in MODULES:
    sys.modules[module] = None
for owner, names in ATTRIBUTES.items():
    for attribute in names.split():
        delattr(owner, attribute)
io.open = windows_open
__builtins__["open"] = windows_open
os.open = windows_os_open
os.stat = windows_stat
os.readlink = windows_readlink
os.kill = windows_kill
os.fsync = windows_fsync
os.replace = windows_replace
os.unlink = windows_unlink
os.remove = windows_unlink
os.utime = windows_utime
os.link = windows_link
socket.socketpair = windows_socketpair
subprocess.Popen.__init__ = windows_popen
subprocess.Popen.kill = lambda process: process.send_signal(9)
ctypes.CDLL.__init__ = windows_library
ctypes.windll = SimpleNamespace(kernel32=SimpleNamespace(GlobalMemoryStatusEx=fill_memory_status))
assert Path(__file__).is_file()
