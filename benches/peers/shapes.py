"""The two models and what their work costs at least: bytes to read and operations to do."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A decoder-only transformer with grouped heads and a gated MLP."""

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

    @property
    def layer_weights(self):
        """Weights of all layers' matrices."""
        attention = self.hidden * self.head * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.ffn)

    @property
    def head_weights(self):
        """Weights of the matrix that makes logits."""
        return self.vocab * self.hidden

    @property
    def weights(self):
        """All weights: what lies in memory."""
        return self.layer_weights + self.head_weights * (1 if self.tied else 2)

    @property
    def kv_bytes(self):
        """Bytes of K and V of one token, in bf16."""
        return 2 * 2 * self.layers * self.kv_heads * self.head

    def attention_ops(self, context):
        """Operations of one token's attention over `context` tokens."""
        return 4 * context * self.heads * self.head * self.layers


SHAPES = {
    "qwen3-0.6b": Shape("qwen3", 151936, 1024, 28, 16, 8, 128, 3072, True, 1e6, 1e-6, 40960),
    "llama-160m": Shape("llama", 32000, 768, 12, 12, 4, 64, 3072, False, 5e5, 1e-5, 8192),
}


@dataclass(frozen=True)
class Limits:
    """What the machine was measured to do right beside, in units a second."""

    bandwidth: float
    bf16: float
    int8: float


def prefill_seconds(shape, limits, tokens, before=0, rows=1, int8=False):
    """Least time to prefill `tokens` behind `before` cached ones, with logits for `rows` of them: bound by arithmetic.

    All layers count for all tokens, though the last one needs to compute only keys and values where no logits are wanted."""
    matrices = 2 * (shape.layer_weights * tokens + shape.head_weights * rows)
    attention = tokens * shape.attention_ops(before + tokens / 2)
    return matrices / (limits.int8 if int8 else limits.bf16) + attention / limits.bf16


def step_seconds(shape, limits, streams, context, shared=0, int8=False):
    """Least time of one decode step of `streams` with `context` tokens each, of which `shared` are the same for all."""
    read = (shape.layer_weights + shape.head_weights) * (1 if int8 else 2)
    read += (shared + streams * (context - shared)) * shape.kv_bytes
    matrices = 2 * streams * (shape.layer_weights + shape.head_weights)
    compute = matrices / (limits.int8 if int8 else limits.bf16) + streams * shape.attention_ops(context) / limits.bf16
    return max(read / limits.bandwidth, compute)
