"""Compiles all kernels for all architectures, checks them, and writes kernels.pack (or compares it: --check).

Needs Python 3.11 and requirements.txt. NVRTC is taken from the folder SOUFFLEUR_NVRTC_DIR, else from its package.

A kernel fails the checks if it spills, uses local memory or more registers than its budget (budget.toml), if the tables
of README.md do not list it with that budget, or if it does not wait for the launches before it.

The pack is one zstd frame. Decoded, all numbers little-endian:
    magic "SFLPACK1", u32 number of images, then for each image
        16 bytes: target, padded with NUL ("sm_90a", "compute_80")
        32 bytes: source file (unit), padded with NUL ("gemm.cu")
        32 bytes: SHA-256 of its inputs, see digest()
        u64 offset from the start of the decoded bytes, u64 length
    then the images, by unit and then as in TARGETS: cubins, and PTX as text that ends in NUL.
"""
import argparse
import ctypes
import fnmatch
import hashlib
import importlib.metadata
import importlib.util
import multiprocessing
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import tomllib

import zstandard

FOLDER = pathlib.Path(__file__).resolve().parent
PACK = FOLDER / "kernels.pack"
PTX = "compute_80"
# Only checked, not packed: from this architecture on, every kernel must wait for earlier launches, see ptx.cuh.
WAITING_PTX = "compute_90"
TARGETS = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_103", "sm_120", PTX, WAITING_PTX]
# The targets in the pack, each with the units left out. A cubin runs on later devices of the same major version, so
# sm_80 serves 8.6 and 8.9, and PTX serves all targets without a cubin. The limit leaves no room for more.
PACKED = {"sm_80": [], "sm_90a": ["logprobs.cu", "sampling.cu"], PTX: []}
# The version of NVRTC, then its options. The engine compiles with the same options where it finds NVRTC.
VERSION, *OPTIONS = (FOLDER / "nvrtc.txt").read_text().split()
# Drivers refuse PTX of a version above their own; 8.0 is that of CUDA 12.0, the oldest supported.
PTX_VERSION = "8.0"
LEVEL = 19
MAX_PACK_BYTES = 300_000
MAGIC = b"SFLPACK1"


def options_for(target):
    return [f"--gpu-architecture={target}", *OPTIONS]


def headers():
    return sorted(FOLDER.glob("*.cuh"), key=lambda path: path.name)


def digest(unit, target):
    """The SHA-256 of: name, NUL, u64 length and bytes of the unit and of every header by name; then each option and the
    compiler, each followed by NUL."""
    sha = hashlib.sha256()
    for path in [unit, *headers()]:
        data = path.read_bytes()
        sha.update(path.name.encode() + b"\0" + struct.pack("<Q", len(data)) + data)
    for text in [*options_for(target), f"nvrtc {VERSION}"]:
        sha.update(text.encode() + b"\0")
    return sha.digest()


class Nvrtc:
    def __init__(self):
        folder = os.environ.get("SOUFFLEUR_NVRTC_DIR")
        if folder is None:
            installed = importlib.metadata.version("nvidia-cuda-nvrtc-cu12")
            if installed != VERSION:
                package = f"nvidia-cuda-nvrtc-cu12=={VERSION}"
                sys.exit(f"NVRTC {installed} is installed, need {VERSION}: pip install {package}")
            package = importlib.util.find_spec("nvidia.cuda_nvrtc")
            folder = pathlib.Path(package.submodule_search_locations[0]) / "lib"
        # NVRTC finds its builtins library only if that is already loaded.
        ctypes.CDLL(os.path.join(folder, "libnvrtc-builtins.so.12.9"))
        self.library = ctypes.CDLL(os.path.join(folder, "libnvrtc.so.12"))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        if not VERSION.startswith(f"{major.value}.{minor.value}."):
            sys.exit(f"{folder} has NVRTC {major.value}.{minor.value}, need {VERSION}: change SOUFFLEUR_NVRTC_DIR")

    def compile(self, unit, target):
        """Returns the image, or None after an error, and the log."""
        include = headers()
        texts = (ctypes.c_char_p * len(include))(*[path.read_bytes() for path in include])
        names = (ctypes.c_char_p * len(include))(*[path.name.encode() for path in include])
        program = ctypes.c_void_p()
        source, name = unit.read_bytes(), unit.name.encode()
        created = self.library.nvrtcCreateProgram(ctypes.byref(program), source, name, len(include), texts, names)
        assert created == 0, created
        # The report of ptxas (-v) does not change the image.
        options = [option.encode() for option in [*options_for(target), "--ptxas-options=-v"]]
        failed = self.library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        log = self.read(program, "ProgramLog").rstrip(b"\0").decode()
        image = None if failed else self.read(program, "PTX" if target.startswith("compute_") else "CUBIN")
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return image, log

    def read(self, program, what):
        size = ctypes.c_size_t()
        failed = getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        assert failed == 0, f"{what}: {failed}"
        buffer = ctypes.create_string_buffer(size.value)
        failed = getattr(self.library, f"nvrtcGet{what}")(program, buffer)
        assert failed == 0, f"{what}: {failed}"
        return buffer.raw


def resources(log):
    """Kernel to registers, bytes of local memory and bytes spilled, from the report of ptxas."""
    found, kernel = {}, None
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = found[match[1]] = {"registers": None, "local": None, "spilled": None}
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            kernel["local"], kernel["spilled"] = int(match[1]), int(match[2]) + int(match[3])
        elif match := re.search(r"Used (\d+) registers", line):
            kernel["registers"] = int(match[1])
    return found


def relabel(ptx):
    """Declares the PTX to be of PTX_VERSION, and removes hints that this version does not have."""
    ptx, relabelled = re.subn(rb"(?m)^\.version [0-9.]+$", f".version {PTX_VERSION}".encode(), ptx)
    assert relabelled == 1
    return re.sub(rb'(?m)^\s*\.pragma "used_bytes_mask [^\n]*\n', b"", ptx)


def assemble_ptx(ptx):
    """The errors of ptxas, or an empty string."""
    package = importlib.util.find_spec("nvidia.cuda_nvcc")
    ptxas = pathlib.Path(package.submodule_search_locations[0]) / "bin" / "ptxas"
    ptxas.chmod(0o755)
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "kernels.ptx"
        source.write_bytes(ptx.rstrip(b"\0"))
        command = [ptxas, "-arch=sm_80", source, "-o", source.with_suffix(".cubin")]
        result = subprocess.run(command, capture_output=True, text=True)
    return "" if result.returncode == 0 else result.stdout + result.stderr


def compile_one(job):
    unit, target = job
    image, log = Nvrtc().compile(unit, target)
    if target == PTX and image is not None:
        image = relabel(image)
        if errors := assemble_ptx(image):
            return unit, target, None, errors
    return unit, target, image, log


def wait_failures(ptx):
    """Errors for kernels that do not wait for earlier launches, which would overlap with them, or that let the next
    launch begin before they have waited."""
    for entry in ptx.decode().rstrip("\0").split(".entry ")[1:]:
        wait, next_begins = (entry.find(f"griddepcontrol.{what}") for what in ("wait", "launch_dependents"))
        if wait < 0 or 0 <= next_begins < wait:
            yield f"{entry.split('(')[0]}: no call of after_earlier_launches()"


def budget_of(kernel, budgets):
    """The budget of the first pattern that the kernel matches."""
    return next((registers for pattern, registers in budgets.items() if fnmatch.fnmatchcase(kernel, pattern)), None)


def resource_failures(target, log, budgets):
    for kernel, used in resources(log).items():
        if None in used.values():
            yield f"{kernel} on {target}: ptxas does not report all of {used}"
        elif used["local"] or used["spilled"]:
            yield f"{kernel} on {target}: {used['local']} bytes of local memory, {used['spilled']} bytes spilled"
        elif (budget := budget_of(kernel, budgets)) is None:
            yield f"{kernel}: no budget of registers in budget.toml ({used['registers']} on {target})"
        elif used["registers"] > budget:
            yield f"{kernel} on {target}: {used['registers']} registers, the budget is {budget}"


def documented_registers():
    """Patterns of kernel names, and registers, from the tables of README.md that have a column of registers."""
    column, found = None, []
    for line in (FOLDER / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            column = None
        elif "registers" in cells:
            column = cells.index("registers")
        elif column is not None and cells[column].isdigit():
            found += [(name, int(cells[column])) for name in re.findall(r"`(\w+\*?)`", line)]
    return found


def documentation_failures(kernels, budgets, rows):
    for kernel in sorted(kernels):
        budget = budget_of(kernel, budgets)
        registers = {registers for pattern, registers in rows if fnmatch.fnmatchcase(kernel, pattern)}
        if registers != {budget}:
            yield f"{kernel}: README.md lists {registers or 'no'} registers, the budget is {budget}"


def is_packed(unit, target):
    return target in PACKED and unit.name not in PACKED[target]


def assemble(images):
    table_bytes = len(MAGIC) + 4 + len(images) * (16 + 32 + 32 + 16)
    table, data = MAGIC + struct.pack("<I", len(images)), b""
    for unit, target, image in images:
        assert len(target) <= 16 and len(unit.name) <= 32
        table += target.encode().ljust(16, b"\0") + unit.name.encode().ljust(32, b"\0") + digest(unit, target)
        table += struct.pack("<QQ", table_bytes + len(data), len(image))
        data += image
    return zstandard.ZstdCompressor(level=LEVEL).compress(table + data)


def report(results):
    most = {}
    for unit, target, image, log in results:
        size = len(zstandard.ZstdCompressor(level=LEVEL).compress(image)) if image else 0
        print(f"{unit.name:40} {target:10} {size:7} bytes compressed")
        for kernel, used in resources(log).items():
            most[kernel] = max(most.get(kernel, (0, "")), (used["registers"] or 0, target))
    for kernel, (registers, target) in sorted(most.items()):
        print(f"{kernel:40} {registers:4} registers at most ({target})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with kernels.pack instead of writing it")
    parser.add_argument("--report", action="store_true", help="print the registers of each kernel")
    arguments = parser.parse_args()

    units = sorted(FOLDER.glob("*.cu"), key=lambda path: path.name)
    jobs = [(unit, target) for unit in units for target in TARGETS]
    with multiprocessing.Pool() as pool:
        results = pool.map(compile_one, jobs, chunksize=1)
    if arguments.report:
        report(results)

    budgets = tomllib.loads((FOLDER / "budget.toml").read_text())["registers"]
    failures = [f"{unit.name} for {target}:\n{log}" for unit, target, image, log in results if image is None]
    for _, target, image, log in results:
        failures += resource_failures(target, log, budgets)
        if target == WAITING_PTX and image is not None:
            failures += wait_failures(image)
    kernels = {kernel for _, _, _, log in results for kernel in resources(log)}
    failures += documentation_failures(kernels, budgets, documented_registers())
    if failures:
        sys.exit("\n".join(failures))

    packed = [(unit, target, image) for unit, target, image, _ in results if is_packed(unit, target)]
    pack = assemble(packed)
    print(f"{len(jobs)} images compiled, {len(packed)} packed: {len(pack)} bytes")
    if len(pack) > MAX_PACK_BYTES:
        sys.exit(f"the pack has {len(pack)} bytes, the limit is {MAX_PACK_BYTES}")
    if not arguments.check:
        PACK.write_bytes(pack)
    elif not PACK.exists() or PACK.read_bytes() != pack:
        sys.exit("kernels.pack differs from a pack of these sources: run kernels/pack.py and commit it")


if __name__ == "__main__":
    main()
