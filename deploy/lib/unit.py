"""The settings of a systemd unit, and the seccomp filters that systemd makes of them (systemd.exec(5), systemd 252)."""

import collections
import errno
import os
import shlex
import socket
import subprocess

from . import seccomp
from .seccomp import EQUAL, GREATER, LESS, MASKED_EQUAL, NOT_EQUAL, Comparison, Filter, refuse

_PROT_WRITE, _PROT_EXEC, _SHM_EXEC = 2, 4, 0o100000
_NAMESPACES = [1 << 7, 1 << 17, 1 << 25, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30]
_SUID, _SGID = 0o4000, 0o2000
_SCHED_OTHER, _SCHED_BATCH, _SCHED_IDLE = 0, 3, 5
_N_FAMILIES = 46
# Directives without an argument filter, and the calls that they refuse with EPERM.
_REFUSED = {
    "PrivateDevices": ["@raw-io"],
    "ProtectClock": ["@clock"],
    "ProtectHostname": ["sethostname", "setdomainname"],
    "ProtectKernelLogs": ["syslog"],
    "ProtectKernelModules": ["@module"],
    "ProtectKernelTunables": ["_sysctl"],
}


def settings(text):
    """The values of each key in `[Service]`, in order. An empty value removes the earlier ones."""
    found, section = collections.defaultdict(list), None
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line
        elif section == "[Service]" and line and line[0] not in "#;":
            key, value = map(str.strip, line.split("=", 1))
            found[key] = found[key] + [value] if value else []
    return found


def environment(unit):
    """The variables of the `Environment=` lines."""
    return dict(part.split("=", 1) for line in unit["Environment"] for part in shlex.split(line))


def is_on(unit, key):
    """Whether the last value of a switch is true."""
    return unit[key][-1:] in (["yes"], ["true"], ["on"], ["1"])


def calls(name):
    """The system calls of a set like `@system-service` and of the sets in it; the name itself if it is no set."""
    if not name.startswith("@"):
        return {name}
    listed = subprocess.run(["systemd-analyze", "syscall-filter", name], check=True, capture_output=True, text=True)
    lines = [line.strip() for line in listed.stdout.splitlines()[1:]]
    entries = [line for line in lines if line and not line.startswith("#")]
    return set().union(*map(calls, entries))


def filters(unit, also_denied=()):
    """The filters of a unit by their directives, in the order in which systemd loads them."""
    if unit["SystemCallArchitectures"] != ["native"]:
        raise ValueError("only SystemCallArchitectures=native is implemented")
    if not set(unit["RestrictNamespaces"]) <= {"yes", "no"}:
        raise ValueError("only RestrictNamespaces=yes and no are implemented")
    made = {}
    if unit["RestrictAddressFamilies"]:
        made["RestrictAddressFamilies"] = _address_families(unit["RestrictAddressFamilies"])
    argument_filters = {
        "MemoryDenyWriteExecute": _no_writable_code,
        "RestrictRealtime": _no_realtime,
        "RestrictSUIDSGID": _no_suid,
        "RestrictNamespaces": _no_namespaces,
        "LockPersonality": _one_personality,
    }
    made.update((key, make()) for key, make in argument_filters.items() if is_on(unit, key))
    made.update((key, _refused(names)) for key, names in _REFUSED.items() if is_on(unit, key))
    # No rules: this refuses the calls of other architectures.
    made["SystemCallArchitectures"] = Filter(bad_architecture=seccomp.KILL_THREAD)
    lines = unit["SystemCallFilter"] + [f"~{name}" for name in also_denied]
    if lines:
        made["SystemCallFilter"] = _system_calls(lines, unit["SystemCallErrorNumber"][-1:])
    return made


def _error(name):
    return int(name) if name.isdigit() else getattr(errno, name)


def _system_calls(lines, error_number):
    """The first line says whether calls are allowed or denied; later lines add or remove calls."""
    is_allow_list = not lines[0].startswith("~")
    listed = dict.fromkeys(calls("@default")) if is_allow_list else {}
    for line in lines:
        denies = line.startswith("~")
        for entry in line.removeprefix("~").split():
            name, _, error = entry.partition(":")
            for call in calls(name):
                if denies != is_allow_list or error:
                    listed[call] = error
                else:
                    listed.pop(call, None)
    is_killed = error_number in ([], ["kill"])
    denied = seccomp.KILL_PROCESS if is_killed else refuse(_error(error_number[0]))
    made = Filter(default=denied if is_allow_list else seccomp.ALLOW)
    for call, error in listed.items():
        if error:
            made.add(seccomp.KILL_PROCESS if error == "kill" else refuse(_error(error)), call)
        else:
            made.add(seccomp.ALLOW if is_allow_list else denied, call)
    return made


def _refused(names):
    made = Filter()
    for call in set().union(*map(calls, names)):
        made.add(refuse(errno.EPERM), call)
    return made


def _address_families(lines):
    words = " ".join(lines).split()
    if any(word.startswith("~") for word in words) or "none" in words:
        raise ValueError("only allow-lists are implemented for RestrictAddressFamilies")
    allowed = {int(getattr(socket, word)) for word in words}
    made, action = Filter(), refuse(errno.EAFNOSUPPORT)
    made.add(action, "socket", Comparison(0, LESS, min(allowed)))
    made.add(action, "socket", Comparison(0, GREATER, max(allowed)))
    for family in set(range(1, _N_FAMILIES)) - allowed:
        made.add(action, "socket", Comparison(0, EQUAL, family))
    return made


def _has(argument, bits):
    return Comparison(argument, MASKED_EQUAL, bits, bits)


def _no_writable_code():
    made, action = Filter(), refuse(errno.EPERM)
    made.add(action, "mmap", _has(2, _PROT_EXEC | _PROT_WRITE))
    made.add(action, "mprotect", _has(2, _PROT_EXEC))
    made.add(action, "pkey_mprotect", _has(2, _PROT_EXEC))
    made.add(action, "shmat", _has(2, _SHM_EXEC))
    return made


def _no_realtime():
    made, action = Filter(), refuse(errno.EPERM)
    for policy in set(range(_SCHED_IDLE)) - {_SCHED_OTHER, _SCHED_BATCH}:
        made.add(action, "sched_setscheduler", Comparison(1, EQUAL, policy))
    made.add(action, "sched_setscheduler", Comparison(1, GREATER, _SCHED_IDLE))
    return made


def _no_suid():
    made, action = Filter(), refuse(errno.EPERM)
    modes = {
        1: ("chmod", "fchmod", "mkdir", "mknod", "creat"),
        2: ("fchmodat", "fchmodat2", "mkdirat", "mknodat"),
    }
    for bit in (_SUID, _SGID):
        for argument, names in modes.items():
            for call in names:
                made.add(action, call, _has(argument, bit))
        made.add(action, "open", _has(1, os.O_CREAT), _has(2, bit))
        made.add(action, "openat", _has(2, os.O_CREAT), _has(3, bit))
    # Its flags are in memory, which a filter cannot read.
    made.add(refuse(errno.ENOSYS), "openat2")
    return made


def _no_namespaces():
    made, action = Filter(), refuse(errno.EPERM)
    made.add(refuse(errno.ENOSYS), "clone3")
    made.add(action, "setns")
    for flag in _NAMESPACES:
        made.add(action, "unshare", _has(0, flag))
        made.add(action, "clone", _has(0, flag))
    return made


def _one_personality():
    made = Filter()
    made.add(refuse(errno.EPERM), "personality", Comparison(0, NOT_EQUAL, 0))
    return made
