"""The instruction sets that engines can be limited to, and the peaks that their rows are compared with."""

from dataclasses import dataclass

READ = "read"
# Titles of `peak.c`'s measures.
TITLES = {
    READ: "read bandwidth", "mulps_128": "mulps, addps (xmm)", "pmaddwd_128": "pmaddwd, paddd (xmm)", "fma_256": "vfmadd231ps (ymm)",
    "maddwd_256": "vpmaddwd, vpaddd (ymm)", "maddubs_i32_256": "vpmaddubsw, vpmaddwd, vpaddd (ymm)",
    "maddubs_i16_256": "vpmaddubsw, vpaddw (ymm)", "dpbusd_256": "vpdpbusd (ymm)", "fma_512": "vfmadd231ps (zmm)",
    "maddwd_512": "vpmaddwd, vpaddd (zmm)", "maddubs_i32_512": "vpmaddubsw, vpmaddwd, vpaddd (zmm)",
    "maddubs_i16_512": "vpmaddubsw, vpaddw (zmm)", "dpbusd_512": "vpdpbusd (zmm)", "dpbf16_512": "vdpbf16ps (zmm)",
    "bf16_amx": "tdpbf16ps (AMX)", "int8_amx": "tdpbsud (AMX)",
}
# All of llama.cpp's instruction options: each is set, so that none depends on the compiling machine.
LLAMA_OPTIONS = [
    "SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2", "AVX_VNNI", "AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16", "AMX_TILE", "AMX_INT8", "AMX_BF16",
]
LLAMA_AVX2 = frozenset(["SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2"])


@dataclass(frozen=True)
class Isa:
    """An instruction set with its name in `SOUFFLEUR_CPU_ISA`."""

    name: str
    # Measures of `peak.c` for products of bf16, 8-bit and 4-bit weights. The fastest one of each is used.
    bf16: tuple
    int8: tuple
    int4: tuple
    # llama.cpp's compile options and oneDNN's name for the instruction set; empty if engines cannot be limited to it.
    llama: frozenset = frozenset()
    onednn: str = ""

    @property
    def measures(self):
        """All measures, each once."""
        return list(dict.fromkeys(self.bf16 + self.int8 + self.int4))

    @property
    def wide(self):
        """Whether its vectors have 512 bits."""
        return self.name.startswith(("avx512", "amx"))

    @property
    def vnni(self):
        """Whether the instruction set has `vpdpbusd`."""
        return not self.int8[0].startswith(("maddwd", "pmaddwd"))

    def openvino(self):
        """The properties that OpenVINO chooses on a processor with only this instruction set: f32 and, without VNNI, no 8-bit activations.

        OpenVINO would choose types for the actual processor, some of which the limited oneDNN refuses."""
        return {"INFERENCE_PRECISION_HINT": "f32"} | ({} if self.vnni else {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0})

    def llama_flags(self):
        """Options for cmake."""
        return ["-DGGML_NATIVE=OFF", *(f"-DGGML_{option}={'ON' if option in self.llama else 'OFF'}" for option in LLAMA_OPTIONS)]


# Best first. The sum of two products of a byte below 128 and a signed byte fits 16 bits, so 8-bit weights can use `vpmaddubsw` with the
# signs moved to one operand. Its 16-bit sums must be widened at once; several sums of 4-bit weights can be added first.
ISAS = {
    isa.name: isa
    for isa in (
        Isa("amx", ("bf16_amx",), ("int8_amx",), ("int8_amx",)),
        Isa("avx512_bf16", ("dpbf16_512",), ("dpbusd_512",), ("dpbusd_512",)),
        Isa("avx512_vnni", ("fma_512",), ("dpbusd_512",), ("dpbusd_512",), LLAMA_AVX2 | {"AVX512", "AVX512_VNNI"}, "AVX512_CORE_VNNI"),
        Isa("avx512", ("fma_512",), ("maddwd_512", "maddubs_i32_512"), ("maddubs_i16_512",), LLAMA_AVX2 | {"AVX512"}, "AVX512_CORE"),
        Isa("avx2_vnni", ("fma_256",), ("dpbusd_256",), ("dpbusd_256",), LLAMA_AVX2 | {"AVX_VNNI"}, "AVX2_VNNI"),
        Isa("avx2", ("fma_256",), ("maddwd_256", "maddubs_i32_256"), ("maddubs_i16_256",), LLAMA_AVX2, "AVX2"),
        Isa("portable", ("mulps_128",), ("pmaddwd_128",), ("pmaddwd_128",)),
    )
}
FORCED = [isa.name for isa in ISAS.values() if isa.onednn]
# Peers that cannot be limited to an instruction set, so that the comparison would be unfair, and the reasons.
NOT_FORCED = {
    "vllm": "it chooses among its own kernels by the processor alone",
    "ik_llama.cpp": "it is compiled for the processor",
    "mistral.rs": "it chooses among its own kernels by the processor alone",
}
# The parts of limited peers that are not limited.
REMAINS = {"openvino": "ONEDNN_MAX_CPU_ISA limits its matrix products, but not its kernels for attention and norms"}


def native(has):
    """The best instruction set of a processor that supports the measures in `has`."""
    return next(isa for isa in ISAS.values() if set(isa.measures) <= set(has))
