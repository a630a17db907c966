"""Defines the models' shapes, and computes the floors of times from the bytes and operations of the work."""

from dataclasses import dataclass, field

from isa import READ, TITLES

# Bytes of a weight. Q4_K_M has two sizes: `Shape.read_bytes`.
BYTES = {"bf16": 2, "int8": 1, "q8_0": 34 / 32}
Q4_K, Q6_K = 144 / 256, 210 / 256
# The peak with which products of each kind of weights are compared.
PEAK = {"bf16": "bf16", "int8": "int8", "q8_0": "int8", "q4_k_m": "int4"}


@dataclass(frozen=True)
class DeltaNet:
    """Gated delta nets in all layers except every `every`th, which has attention with gated outputs."""

    every: int
    # Heads of keys and of values, and their widths.
    key_heads: int
    value_heads: int
    key: int
    value: int
    conv: int

    @property
    def channels(self):
        """Inputs of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key + self.value_heads * self.value

    @property
    def state(self):
        """Values of a layer's recurrent state, without the small state of the convolution."""
        return self.value_heads * self.key * self.value

    def weights(self, hidden):
        """Weights of a layer's matrices."""
        values = self.value_heads * self.value
        return hidden * (self.channels + 2 * values + 2 * self.value_heads)


@dataclass(frozen=True)
class Shape:
    """A decoder-only transformer with grouped heads and a gated MLP, or experts instead; some layers may be delta nets."""

    arch: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    ffn: int
    tied: bool
    theta: float
    eps: float
    context: int
    # The number of experts of width `ffn` in a layer, and the number that a token uses.
    experts: int = 0
    used: int = 0
    delta: DeltaNet | None = None

    def attends(self, layer):
        """Whether a layer has attention."""
        return not self.delta or layer % self.delta.every == self.delta.every - 1

    @property
    def attention_layers(self):
        """How many layers have attention."""
        return sum(map(self.attends, range(self.layers)))

    @property
    def attention_weights(self):
        """Weights of all layers' attention or delta nets, and of their routers."""
        queries = self.heads * (2 if self.delta else 1)
        attention = self.hidden * self.head * (queries + self.heads + 2 * self.kv_heads)
        deltas = self.delta.weights(self.hidden) * (self.layers - self.attention_layers) if self.delta else 0
        return self.attention_layers * attention + deltas + self.layers * self.hidden * self.experts

    @property
    def mlp_weights(self):
        """Weights of all layers' MLPs, or of one expert of each."""
        return self.layers * 3 * self.hidden * self.ffn

    @property
    def layer_weights(self):
        """Weights of all layers' matrices that are used for a token."""
        return self.attention_weights + self.mlp_weights * (self.used or 1)

    def experts_read(self, tokens):
        """Expected number of different experts that `tokens` tokens choose in a layer, at equal probabilities; 1 without experts."""
        if not self.experts:
            return 1
        return self.experts * (1 - (1 - self.used / self.experts) ** tokens)

    @property
    def head_weights(self):
        """Weights of the output matrix."""
        return self.vocab * self.hidden

    @property
    def weights(self):
        """All weights in memory."""
        layers = self.attention_weights + self.mlp_weights * (self.experts or 1)
        return layers + self.head_weights * (1 if self.tied else 2)

    @property
    def kv_bytes(self):
        """Bytes of K and V of one token, in bf16."""
        return 2 * 2 * self.attention_layers * self.kv_heads * self.head

    @property
    def state_values(self):
        """Values of all layers' states of one sequence."""
        return self.delta.state * (self.layers - self.attention_layers) if self.delta else 0

    def read_bytes(self, kind, tokens=1):
        """Bytes of the matrices that a step of `tokens` tokens reads."""
        if kind in BYTES:
            layers = self.attention_weights + self.mlp_weights * self.experts_read(tokens)
            return (layers + self.head_weights) * BYTES[kind]
        if self.experts or self.delta:
            raise ValueError(f"the bytes of {kind} weights are known only for dense transformers")
        # Q4_K_M: the output matrix is Q6_K, and in half of the layers so are the matrix of V and the down projection.
        finer = sum(map(self.finer, range(self.layers))) * self.hidden * (self.kv_heads * self.head + self.ffn)
        return (self.layer_weights - finer) * Q4_K + (finer + self.head_weights) * Q6_K

    def peak(self, kind):
        """The peak with which products of a kind of weights are compared."""
        return PEAK[kind]

    def finer(self, layer):
        """Whether Q4_K_M stores some of a layer's matrices in Q6_K."""
        eighth = self.layers // 8
        return layer < eighth or layer >= 7 * self.layers // 8 or (layer - eighth) % 3 == 2

    def attention_ops(self, context):
        """Operations of one token's attention over `context` tokens, and of two reads and an update of its recurrent states."""
        return 4 * context * self.heads * self.head * self.attention_layers + 6 * self.state_values


@dataclass(frozen=True)
class FileShape(Shape):
    """A dense model in a GGUF file from `--gguf`, with the bytes of the matrices in the file."""

    matrix_bytes: int = 0
    # Whether most of these bytes are of types with few enough bits for the peak of 4-bit products.
    nibbles: bool = False

    def read_bytes(self, kind, tokens=1):
        return self.matrix_bytes

    def peak(self, kind):
        return "int4" if self.nibbles else "int8"


SHAPES = {
    "qwen3-0.6b": Shape("qwen3", 151936, 1024, 28, 16, 8, 128, 3072, True, 1e6, 1e-6, 40960),
    "llama-160m": Shape("llama", 32000, 768, 12, 12, 4, 64, 3072, False, 5e5, 1e-5, 8192),
    "qwen3-moe-1b": Shape("qwen3_moe", 98304, 1024, 20, 16, 4, 64, 512, True, 1e6, 1e-6, 40960, experts=32, used=4),
    "qwen3-5-0.8b": Shape(
        "qwen3_5_text", 98304, 1024, 24, 8, 2, 256, 3584, True, 1e7, 1e-6, 32768, delta=DeltaNet(4, 16, 16, 128, 128, 4)
    ),
    "qwen3-tiny": Shape("qwen3", 32000, 256, 4, 4, 2, 64, 768, True, 1e6, 1e-6, 8192),
}
# qwen3-tiny only shows that everything runs. Models with experts and delta nets are measured on request, in bf16.
MEASURED = ["qwen3-0.6b", "llama-160m"]


@dataclass(frozen=True)
class Limits:
    """The machine's measured rates: bytes or operations per second."""

    bandwidth: float
    bf16: float
    int8: float
    int4: float
    # The measure of `peak.c` for each of the last three.
    measures: dict = field(default_factory=dict)

    def title(self, peak):
        """The title of the measure of a peak."""
        return TITLES[self.measures[peak]]


@dataclass(frozen=True)
class Floor:
    """The floor of a time, and the title of the limit that determines it."""

    seconds: float
    limit: str


def prefill(shape, limits, tokens, before=0, rows=1, kind="bf16"):
    """The floor of prefilling `tokens` tokens after `before` cached ones, with logits for `rows` of them: compute-bound.

    Counts all layers for all tokens, although the last layer needs only keys and values for tokens without logits."""
    matrices = 2 * (shape.layer_weights * tokens + shape.head_weights * rows)
    attention = tokens * shape.attention_ops(before + tokens / 2)
    return Floor(matrices / getattr(limits, shape.peak(kind)) + attention / limits.bf16, limits.title(shape.peak(kind)))


def step(shape, limits, streams, context, shared=0, kind="bf16"):
    """The floor of a decode step of `streams` streams with `context` tokens each, `shared` of which are a common prefix."""
    read = shape.read_bytes(kind, streams) + (shared + streams * (context - shared)) * shape.kv_bytes
    # Recurrent states are read and written once.
    read += streams * 2 * 4 * shape.state_values
    matrices = 2 * streams * (shape.layer_weights + shape.head_weights)
    compute = matrices / getattr(limits, shape.peak(kind)) + streams * shape.attention_ops(context) / limits.bf16
    reading = read / limits.bandwidth
    return Floor(reading, TITLES[READ]) if reading > compute else Floor(compute, limits.title(shape.peak(kind)))
