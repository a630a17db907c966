"""A binding of libseccomp 2.5: filters that are loaded into this process or exported as BPF programs."""

import ctypes
import ctypes.util
import errno
import os

KILL_THREAD, KILL_PROCESS, ALLOW = 0, 0x80000000, 0x7FFF0000
NOT_EQUAL, LESS, EQUAL, GREATER, MASKED_EQUAL = 1, 2, 4, 6, 7
_ATTRIBUTE_BAD_ARCHITECTURE = 2
_NO_SUCH_CALL = -1


def refuse(error):
    """The action that makes a call fail with an error number."""
    return 0x00050000 | error


class Comparison(ctypes.Structure):
    """A condition on an argument: `Comparison(2, MASKED_EQUAL, mask, value)` tests the third."""

    _fields_ = [
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    ]


def _library():
    found = ctypes.CDLL(ctypes.util.find_library("seccomp") or "libseccomp.so.2")
    found.seccomp_init.restype = ctypes.c_void_p
    found.seccomp_init.argtypes = [ctypes.c_uint32]
    found.seccomp_attr_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]
    found.seccomp_rule_add_exact_array.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.POINTER(Comparison),
    ]
    found.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    found.seccomp_load.argtypes = [ctypes.c_void_p]
    return found


_LIB = _library()


def number(call):
    """The number of a system call on this architecture, negative if it lacks the call; `None` if it is unknown."""
    found = _LIB.seccomp_syscall_resolve_name(call.encode())
    return None if found == _NO_SUCH_CALL else found


def _check(code):
    if code < 0:
        raise OSError(-code, os.strerror(-code))


class Filter:
    """A filter for the native architecture; `bad_architecture` is the action for calls of others."""

    def __init__(self, default=ALLOW, bad_architecture=ALLOW):
        self.context = _LIB.seccomp_init(default)
        if self.context is None:
            raise MemoryError("seccomp_init failed")
        _check(_LIB.seccomp_attr_set(self.context, _ATTRIBUTE_BAD_ARCHITECTURE, bad_architecture))

    def add(self, action, call, *comparisons):
        """Adds a rule; does nothing if this architecture or libseccomp does not know the call, as systemd does."""
        found = number(call)
        if found is None:
            return
        array = (Comparison * len(comparisons))(*comparisons)
        code = _LIB.seccomp_rule_add_exact_array(self.context, action, found, len(comparisons), array)
        if code != -errno.EDOM:
            _check(code)

    def load(self):
        """Applies the filter to this thread for ever, and sets `no_new_privs`."""
        _check(_LIB.seccomp_load(self.context))

    def export(self, descriptor):
        """Writes the BPF program."""
        _check(_LIB.seccomp_export_bpf(self.context, descriptor))
