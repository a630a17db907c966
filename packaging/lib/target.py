"""The systems and machines that have packages, and which of them a binary is for."""

import struct
from typing import NamedTuple

VENDORS = {"linux": "unknown-linux-gnu", "darwin": "apple-darwin"}
ELF_MACHINES = {62: "x86_64", 183: "aarch64"}
MACH_O_ARM64 = 0x0100000C
MACH_O_EXECUTABLE = 2
MACH_O_HEADER = 32
BUILD_VERSION = 0x32


class Target(NamedTuple):
    """A system, as Node names it, and a machine, as Linux names it."""

    system: str
    machine: str

    @property
    def triple(self):
        return f"{self.machine}-{VENDORS[self.system]}"


# Each release has the packages of all of these.
TARGETS = (Target("linux", "x86_64"), Target("linux", "aarch64"), Target("darwin", "aarch64"))


def target_of(binary):
    """The target of an ELF file or of a Mach-O executable."""
    with open(binary, "rb") as file:
        head = file.read(MACH_O_HEADER)
    if len(head) == MACH_O_HEADER and head[:4] == b"\x7fELF":
        machine = ELF_MACHINES.get(int.from_bytes(head[18:20], "little"))
        if machine:
            return Target("linux", machine)
    if len(head) == MACH_O_HEADER and head[:4] == b"\xcf\xfa\xed\xfe":
        _, machine, _, kind = struct.unpack_from("<4I", head)
        if (machine, kind) == (MACH_O_ARM64, MACH_O_EXECUTABLE):
            return Target("darwin", "aarch64")
    raise SystemExit(f"{binary} is not an ELF file for x86-64 or aarch64, nor a Mach-O executable for arm64")


def macos_floor(binary):
    """The oldest macOS on which a Mach-O executable runs, as numbers: (11, 0)."""
    data = binary.read_bytes()
    (count,) = struct.unpack_from("<I", data, 16)
    offset = MACH_O_HEADER
    for _ in range(count):
        command, size = struct.unpack_from("<II", data, offset)
        if command == BUILD_VERSION:
            (version,) = struct.unpack_from("<I", data, offset + 12)
            return version >> 16, version >> 8 & 0xFF
        offset += size
    raise SystemExit(f"{binary} does not name the oldest macOS that it runs on (LC_BUILD_VERSION)")
