"""Measures other programs on the same GPU for scripts/gpu-check; prints a line of JSON for each result.

    gpu.py torch                       products and attention of PyTorch
    gpu.py transformers SHAPE LOAD..   transformers' continuous batching
    gpu.py mini-sglang SHAPE LOAD..    mini-SGLang with FlashInfer; both must be importable

SHAPE is a file of config/shapes, LOAD is STREAMS:PROMPT:OUTPUT in tokens. Models have random weights. As in `souffleur
bench`, rates are measured from the first token of the stream that starts last to the last token of all.
"""
import json
import pathlib
import random
import sys
import tempfile
import time

ROTATED_BYTES = 512 << 20
# Fields that are missing in config/shapes, with the values of the models' public configurations.
DETAILS = {
    "LlamaForCausalLM": {"model_type": "llama", "rope_theta": 500000.0, "rms_norm_eps": 1e-5},
    "Qwen3ForCausalLM": {"model_type": "qwen3", "rope_theta": 1000000.0, "rms_norm_eps": 1e-6},
}


def show(name, unit=None, value=None, note=None):
    part = "torch" if sys.argv[1] == "torch" else "peers"
    result = {"part": part, "name": name, "unit": unit, "value": value, "note": note}
    print(json.dumps({key: what for key, what in result.items() if what is not None}), flush=True)


class Clock:
    """Times calls as `souffleur gpu kernels` does: in a CUDA graph, alternating between copies of the operands that exceed the cache."""

    def __init__(self, torch):
        self.torch = torch
        self.begin = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)

    def between(self, work):
        self.begin.record()
        work()
        self.end.record()
        self.torch.cuda.synchronize()
        return self.begin.elapsed_time(self.end) / 1e3

    def seconds(self, calls):
        torch = self.torch
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for call in calls[:3] * 2:
                call()
            stream.synchronize()
            once = self.between(calls[0])
            n = max(1, min(256, int(4e-3 / max(once, 1e-7)) + 1))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                for turn in range(n):
                    calls[turn % len(calls)]()
            graph.replay()
            times = sorted(self.between(graph.replay) for _ in range(5))
        return times[2] / n


def copies(n_bytes):
    return max(1, min(64, ROTATED_BYTES // n_bytes))


def run_torch():
    import torch

    torch.manual_seed(0)
    clock = Clock(torch)
    show(f"torch {torch.__version__}, CUDA {torch.version.cuda}", note="version")

    def normal(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    def product(what, m, n, k):
        count = copies(2 * (n * k + m * k + m * n))
        operands = [(normal(m, k), normal(n, k), normal(m, n)) for _ in range(count)]
        calls = [lambda o=o: torch.mm(o[0], o[1].t(), out=o[2]) for o in operands]
        show(f"torch.mm {what}, {m} rows, {n} x {k}", "us", clock.seconds(calls) * 1e6)

    product("peak", 8192, 8192, 8192)
    llama = [("qkv", 6144, 4096), ("o", 4096, 4096), ("gate and up", 28672, 4096), ("down", 4096, 14336)]
    for what, n, k in [*llama, ("vocabulary", 128256, 4096)]:
        for m in (1, 8, 16, 32, 64, 128, 512, 4096):
            if m < 4096 or what != "vocabulary":
                product(what, m, n, k)

    sdpa = torch.nn.functional.scaled_dot_product_attention
    heads, kv_heads, dim = 32, 8, 128

    def attention(name, batch, queries, keys, causal):
        count = copies(2 * 2 * batch * keys * kv_heads * dim)
        operands = [
            (normal(batch, heads, queries, dim), normal(batch, kv_heads, keys, dim), normal(batch, kv_heads, keys, dim))
            for _ in range(count)
        ]
        calls = [lambda o=o: sdpa(*o, is_causal=causal, enable_gqa=True) for o in operands]
        show(name, "us", clock.seconds(calls) * 1e6)

    for tokens in (512, 1024, 2048, 4096, 8192, 16384):
        attention(f"torch SDPA prefill, {tokens} tokens", 1, tokens, tokens, True)
    for batch, keys in ((1, 1024), (32, 128), (32, 1024), (32, 8192), (128, 1024)):
        attention(f"torch SDPA decode, {batch} rows, {keys} tokens, not paged", batch, 1, keys, False)
    torch.cuda.empty_cache()


def config_of(shape):
    config = json.loads(pathlib.Path(shape).read_text())
    architecture = config["architectures"][0]
    return {**config, **DETAILS[architecture], "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2}


def parse_loads(texts):
    return [tuple(int(number) for number in text.split(":")) for text in texts]


def prompts_of(config, streams, tokens):
    vocab = config["vocab_size"]
    return [[random.randrange(10, vocab) for _ in range(tokens)] for _ in range(streams)]


def show_decoded(who, name, load, seen):
    """`seen` has the times of the tokens of each stream."""
    streams, prompt, output = load
    began = max(times[0] for times in seen)
    ended = max(times[-1] for times in seen)
    tokens = sum(sum(at > began for at in times) for times in seen)
    what = f"decode, {output} tokens after {prompt}"
    if streams > 1:
        what = f"{streams} concurrent streams together, {output} tokens each after prompts of {prompt}"
    if tokens == 0 or ended <= began:
        show(f"{name}: {what}, {who}", note="streams did not overlap")
        return
    show(f"{name}: {what}, {who}", "tokens/s", tokens / (ended - began))


def run_transformers(shape, loads):
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    name, config = pathlib.Path(shape).stem, config_of(shape)
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        loaded = AutoConfig.from_pretrained(folder)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(loaded, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
    who = f"transformers {transformers.__version__}"

    def seconds(prompts, output):
        generation = GenerationConfig(
            max_new_tokens=output, min_new_tokens=output, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        torch.cuda.synchronize()
        began = time.perf_counter()
        results = model.generate_batch(inputs=prompts, generation_config=generation, progress_bar=False)
        lengths = [len(result.generated_tokens) for result in results.values()]
        if lengths != [output] * len(prompts):
            raise RuntimeError(f"asked for {output} tokens from each stream, got {sorted(set(lengths))}")
        return time.perf_counter() - began

    seconds(prompts_of(config, 1, 16), 4)
    for streams, prompt, output in loads:
        prompts = prompts_of(config, streams, prompt)
        # Prefill and the overhead of a call are in both; the difference is decoding.
        short, long = seconds(prompts, 2), seconds(prompts_of(config, streams, prompt), output)
        what = f"{name}: {streams} streams, {output} tokens after {prompt}, {who}"
        if long > short:
            show(what, "tokens/s", streams * (output - 2) / (long - short))
        else:
            show(what, note="took no longer than 2 tokens")


class NoTokenizer:
    eos_token_id = -1

    def decode(self, ids):
        return ""


def run_mini_sglang(shape, loads):
    import torch
    from minisgl.core import SamplingParams
    from minisgl.engine.engine import Engine
    from minisgl.llm import LLM
    from minisgl.scheduler import scheduler

    scheduler.load_tokenizer = lambda path: NoTokenizer()

    def small_weights(self, config):
        """Random weights that are small enough: activations overflow with the dummy weights of mini-SGLang."""
        def tensor(value):
            made = torch.empty_like(value, device=self.device)
            return made.normal_(0.0, 0.02) if made.dim() > 1 else made.fill_(1.0)

        return {name: tensor(value) for name, value in self.model.state_dict().items()}

    Engine._load_weight_state_dict = small_weights

    class Timed(LLM):
        seen = {}

        def offline_send_result(self, reply):
            now = time.perf_counter()
            for message in reply:
                self.seen.setdefault(message.uid, []).append(now)
            super().offline_send_result(reply)

    name, config = pathlib.Path(shape).stem, config_of(shape)
    longest = max(prompt + output for _, prompt, output in loads)
    folder = tempfile.mkdtemp()
    (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
    llm = Timed(
        folder,
        use_dummy_weight=True,
        attention_backend="fi",
        max_seq_len_override=longest + 64,
        cuda_graph_bs=sorted({streams for streams, _, _ in loads}),
        max_extend_tokens=8192,
    )

    def generate(streams, prompt, output):
        llm.seen = {}
        sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=output)
        llm.generate(prompts_of(config, streams, prompt), sampling)
        return list(llm.seen.values())

    generate(1, 16, 4)
    for load in loads:
        generate(load[0], 16, 4)
        seen = generate(*load)
        if any(len(times) != load[2] for times in seen):
            show(f"{name}: {load}, mini-SGLang", note=f"streams had {sorted({len(times) for times in seen})} tokens")
            continue
        if load[2] > 1:
            show_decoded("mini-SGLang", name, load, seen)


def main():
    random.seed(1)
    match sys.argv[1:]:
        case ["torch"]:
            run_torch()
        case ["transformers", shape, *loads]:
            run_transformers(shape, parse_loads(loads))
        case ["mini-sglang", shape, *loads]:
            run_mini_sglang(shape, parse_loads(loads))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
