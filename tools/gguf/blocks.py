"""Writes tests/fixtures/blocks: quantised blocks of GGUF files with the f32 values that they stand for.

blocks.py [--ggml LIBGGML_BASE] [--out DIR]: the `gguf` package dequantises the values. With `--ggml`, llama.cpp's library
has to give the same values bit for bit, and quantises the types that `gguf` only reads. README.md next to the files
describes their content.
"""

import argparse
import ctypes
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

OUT = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "blocks"
SEED = 1234
# The inputs of one unit: one block of a K-quant, or eight blocks of 32.
UNIT = 256
QUANTISED_UNITS, RANDOM_UNITS = 1, 2
# Where the f16 fields of a block are.
F16_FIELDS = {
    Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0], Type.Q2_K: [80, 82], Type.Q3_K: [108],
    Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208], Type.IQ4_NL: [0], Type.IQ4_XS: [0], Type.MXFP4: [],
}
# Types that `gguf` quantises as llama.cpp does; it only reads the others.
QUANTISED_BY_GGUF = {Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.MXFP4}
# The largest exponent of MXFP4 at which 12 times the power is finite.
MXFP4_LARGEST = 252
F16_EXPONENT = 0x7C00


class Ggml:
    """llama.cpp's libggml-base."""

    def __init__(self, path):
        self.library = ctypes.CDLL(str(path))
        self.library.ggml_quantize_chunk.restype = ctypes.c_size_t
        self.library.ggml_quantize_chunk.argtypes = [
            ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
        ]

    def quantise(self, values, kind):
        """The blocks of one row."""
        _, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = np.zeros(values.size // gguf.GGML_QUANT_SIZES[kind][0] * size, np.uint8)
        written = self.library.ggml_quantize_chunk(kind, values.ctypes.data, blocks.ctypes.data, 0, 1, values.size, None)
        if written != blocks.size:
            raise SystemExit(f"blocks: ggml_quantize_chunk wrote {written} bytes of {kind.name}, {blocks.size} were expected")
        return blocks

    def dequantise(self, blocks, kind, count):
        """The values of the blocks."""
        values = np.zeros(count, np.float32)
        one = getattr(self.library, f"dequantize_row_{function_name(kind)}")
        one.restype, one.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        one(blocks.ctypes.data, values.ctypes.data, count)
        return values


def function_name(kind):
    """The type as the names of ggml's functions spell it."""
    return kind.name.lower().replace("_k", "_K")


def quantised(rng, kind, ggml):
    """Gaussian values as blocks; none for types that neither library quantises."""
    values = rng.standard_normal(QUANTISED_UNITS * UNIT, dtype=np.float32)
    if ggml is not None:
        made = ggml.quantise(values, kind)
        if kind in QUANTISED_BY_GGUF and not np.array_equal(made, gguf.quantize(values, kind)):
            print(f"blocks: {kind.name}: gguf and ggml quantise differently: using ggml's blocks", flush=True)
        return made
    if kind in QUANTISED_BY_GGUF:
        return gguf.quantize(values, kind)
    return np.zeros(0, np.uint8)


def random_blocks(rng, kind):
    """Random bytes with finite f16 fields."""
    inputs, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (RANDOM_UNITS * UNIT // inputs, size), np.uint8)
    for at in F16_FIELDS[kind]:
        # Clearing the exponent's lowest bit where all five are set makes infinities and NaN finite.
        bits = blocks[:, at : at + 2].copy().view(np.uint16)[:, 0]
        bits[(bits & F16_EXPONENT) == F16_EXPONENT] &= 0xFBFF
        blocks[:, at : at + 2] = bits[:, None].view(np.uint8)
    if kind is Type.MXFP4:
        blocks[:, 0] = np.minimum(blocks[:, 0], MXFP4_LARGEST)
        # Exponents whose powers are not normal, and the largest.
        blocks[:3, 0] = [0, 1, MXFP4_LARGEST]
    return blocks.ravel()


def write(folder, kind, ggml):
    """Writes the file of one type."""
    rng = np.random.default_rng([SEED, kind])
    blocks = np.concatenate([quantised(rng, kind, ggml), random_blocks(rng, kind)])
    values = gguf.dequantize(blocks, kind)
    if not np.isfinite(values).all():
        raise SystemExit(f"blocks: {kind.name}: a value is not finite")
    if ggml is not None:
        theirs = ggml.dequantise(blocks, kind, values.size)
        differ = np.flatnonzero(values.view(np.uint32) != theirs.view(np.uint32))
        if differ.size:
            at = differ[0]
            raise SystemExit(f"blocks: {kind.name}: value {at} is {values[at]!r} in gguf and {theirs[at]!r} in ggml; {differ.size} values differ")
    path = folder / f"{kind.name.lower()}.bin"
    path.write_bytes(blocks.tobytes() + values.astype("<f4").tobytes())
    print(f"{path.name}: {blocks.size} bytes of blocks, {values.size} values", flush=True)


def main():
    """Writes a file for each type."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ggml", type=Path, metavar="LIBGGML_BASE", help="libggml-base.so as llama.cpp's build makes it")
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="[default: tests/fixtures/blocks]")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    ggml = Ggml(options.ggml) if options.ggml else None
    for kind in F16_FIELDS:
        write(options.out, kind, ggml)


if __name__ == "__main__":
    main()
