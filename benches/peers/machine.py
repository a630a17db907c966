"""Measures the machine's peak rates, and the CPU time that other processes use."""

import ctypes
import fcntl
import mmap
import os
import signal
import subprocess
import time
from pathlib import Path

import isa
from shapes import Limits

HERE = Path(__file__).resolve().parent
TICK = os.sysconf("SC_CLK_TCK")
READ_KIB, READ_PASSES = 1 << 20, 4
PR_SET_PDEATHSIG = 1
THREADS = 2
# An environment variable that marks every engine's process. Its value is the path of the scratch folder.
MARK = "SOUFFLEUR_PEERS_SCRATCH"


class Peak:
    """Compiles and runs `peak.c`, which measures the peak rates of this processor with two threads."""

    def __init__(self, scratch):
        self.program = scratch / "peak"
        source = HERE / "peak.c"
        if not self.program.exists() or self.program.stat().st_mtime < source.stat().st_mtime:
            subprocess.run(["cc", "-O2", "-pthread", str(source), "-o", str(self.program)], check=True)

    def _run(self, *words):
        return subprocess.run([str(self.program), *map(str, words)], capture_output=True, text=True, check=True).stdout

    def has(self):
        """The measures that this processor supports."""
        return self._run("list").split()

    def measure(self, peak_isa):
        """Measures read bandwidth and the peaks of an instruction set's products, in about a second."""
        bandwidth = float(self._run(isa.READ, THREADS, READ_KIB, READ_PASSES)) * 1e9
        peaks = {measure: float(self._run(measure, THREADS)) * 1e9 for measure in peak_isa.measures}
        best = {kind: max(getattr(peak_isa, kind), key=peaks.get) for kind in ("bf16", "int8", "int4")}
        return Limits(bandwidth, *(peaks[best[kind]] for kind in ("bf16", "int8", "int4")), best)


def busy():
    """Busy and stolen seconds of all CPUs since boot."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:3]) + fields[5] + fields[6]) / TICK, fields[7] / TICK


def tree(root):
    """A process and all its descendants."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found, frontier = {root}, [root]
    while frontier:
        parent = frontier.pop()
        children = [pid for pid, its_parent in parents.items() if its_parent == parent]
        frontier += children
        found |= set(children)
    return found


def used(pids):
    """CPU seconds of these processes and of their terminated children."""
    total = 0
    for pid in pids:
        try:
            total += sum(int(field) for field in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:15])
        except OSError:
            continue
    return total / TICK


def peak_resident(pid):
    """Bytes: the sum of the largest resident sizes of a process and its descendants."""
    total = 0
    for member in tree(pid):
        try:
            for line in Path(f"/proc/{member}/status").read_text().splitlines():
                if line.startswith("VmHWM"):
                    total += int(line.split()[1]) * 1024
        except OSError:
            continue
    return total


class Others:
    """The cores that other processes use during a `with` block, as their load distorts a measure."""

    def __enter__(self):
        self.start, self.before, self.own = time.monotonic(), busy(), used(tree(os.getpid()))
        return self

    def __exit__(self, *error):
        wall = time.monotonic() - self.start
        now, own = busy(), used(tree(os.getpid()))
        self.cores = max(0.0, (now[0] - self.before[0]) - (own - self.own)) / wall
        self.steal = (now[1] - self.before[1]) / wall


def die_with_parent():
    """Called in a child process: the kernel kills the child when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def warm_memory(size):
    """Allocates, writes and frees memory in huge pages, so that the next start gets memory that is present in the machine.

    A hypervisor may reclaim free memory after some seconds. The first access then costs two or three milliseconds per MiB."""
    # MAP_PRIVATE: shared mappings get no huge pages.
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1


def read_through(path):
    """Reads a file, or all files of a folder, into the page cache."""
    for file in [path] if path.is_file() else sorted(part for part in path.rglob("*") if part.is_file()):
        with open(file, "rb", buffering=0) as opened:
            while opened.read(1 << 24):
                pass


def end_leftovers(scratch):
    """Kills the engines of an earlier, killed run with this scratch folder. The caller has the lock, so no other run is active."""
    entry = f"{MARK}={scratch}".encode()
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and entry in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            continue


def lock(scratch):
    """Locks the scratch folder while the returned file is open. Returns None if another run has the lock."""
    file = open(scratch / "lock", "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    return file
