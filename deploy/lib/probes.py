"""Calls that show whether the filters of a unit do what its directives say."""

import ctypes
import errno
import os
import platform
import resource
import signal
import socket

from . import seccomp

# An x32 call of x86-64: another architecture for seccomp.
_X32 = 0x40000000
_NEW_UTS, _INVALID = 1 << 26, 1
# Each call has another result without its filter, for any user: EBADF, EINVAL, success.
_PROBES = [
    ("SystemCallFilter", "chown", (b"/", -1, -1), "SIGSYS"),
    ("SystemCallFilter", "sched_getaffinity", (0, 1024, ctypes.create_string_buffer(1024)), "allowed"),
    ("RestrictAddressFamilies", "socket", (socket.AF_PACKET, socket.SOCK_DGRAM, 0), "EAFNOSUPPORT"),
    ("RestrictAddressFamilies", "socket", (socket.AF_INET6, 99, 0), "EINVAL"),
    ("MemoryDenyWriteExecute", "mmap", (0, 4096, 7, 0x22, -1, 0), "EPERM"),
    ("MemoryDenyWriteExecute", "mprotect", (0, 0, 4), "EPERM"),
    ("RestrictRealtime", "sched_setscheduler", (0, 1, 0), "EPERM"),
    ("RestrictSUIDSGID", "fchmod", (-1, 0o4755), "EPERM"),
    ("RestrictSUIDSGID", "fchmod", (-1, 0o755), "EBADF"),
    ("RestrictNamespaces", "unshare", (_NEW_UTS | _INVALID,), "EPERM"),
    ("RestrictNamespaces", "clone3", (0, 0), "ENOSYS"),
    ("LockPersonality", "personality", (0x0040000,), "EPERM"),
]


def _result(filters, number, arguments):
    """The name of the error or of the signal with which a call ends in a new process with the filters."""
    process = os.fork()
    if process == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        syscall = ctypes.CDLL(None, use_errno=True).syscall
        typed = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
        for loaded in filters:
            loaded.load()
        failed = syscall(ctypes.c_long(number), *typed) == -1
        os._exit(ctypes.get_errno() if failed else 0)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code < 0:
        return signal.Signals(-code).name
    return errno.errorcode[code] if code else "allowed"


def wrong(filters):
    """The directives whose filters do something else than they should, with the call and both results."""
    probes = [(directive, call, seccomp.number(call), *rest) for directive, call, *rest in _PROBES]
    if platform.machine() == "x86_64":
        probes.append(("SystemCallArchitectures", "x32 getpid", _X32 | seccomp.number("getpid"), (), "SIGSYS"))
    for directive, call, number, arguments, expected in probes:
        result = _result(filters.values(), number, arguments)
        if result != expected:
            yield f"{directive}=: {call} gives {result}, not {expected}"
