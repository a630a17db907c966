"""Reads an ELF file's needed libraries and the newest glibc version that it needs."""

import re
import subprocess


def needed(binary):
    """The names of the needed libraries, such as `libc.so.6`."""
    text = readelf("--dynamic", binary)
    return re.findall(r"\(NEEDED\).*\[(.+)\]", text)


def glibc_floor(binary):
    """The newest version of glibc's symbols that the binary needs, as numbers: (2, 28)."""
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", readelf("--version-info", binary))
    return max((int(major), int(minor)) for major, minor in versions)


def readelf(option, binary):
    command = ["readelf", "--wide", option, str(binary)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
