"""Runs transformers on model folders and records its outputs, the reference for the engine.

    python tools/oracle/oracle.py DIR ...            writes oracle.json and oracle.safetensors into each DIR
    python tools/oracle/oracle.py --out FOLDER DIR   writes them into FOLDER/<name of DIR>

The files are described in tools/README.md.
"""

import argparse
import json
import platform
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, Mxfp4Config

# 130 is beyond the windows and the original contexts of the tiny models.
PROMPT_LENGTHS = [1, 7, 33, 130]
GREEDY_TOKENS = 32
SEED = 2


@dataclass
class Answer:
    """The results of transformers for one prompt."""

    tokens: list[int]
    logits: torch.Tensor
    # Over the tokens with clear experts: the largest error of a logit, and the median of each token's largest.
    bf16_max_abs_error: float
    bf16_median_error: float
    greedy: list[int]
    margins: list[float]
    # Of models with experts: see tools/README.md.
    router_margins: list[float] | None
    router_rounding: float | None
    # The logits in f64, for prompts above `exact_above` tokens.
    exact: torch.Tensor | None = None

    def clear_experts(self):
        """For each token whether rounding to bf16 cannot change its experts."""
        if self.router_margins is None:
            return [True] * len(self.tokens)
        return [margin > self.router_rounding for margin in self.router_margins]


class RouterProbe:
    """Records the scores by which the routers of a model chose experts for the last prompt."""

    def __init__(self, model):
        self.scores, self.layers = [], []
        config = model.config.get_text_config()
        self.n_used = getattr(config, "num_experts_per_tok", None) or getattr(config, "top_k_experts", None)
        for layer in getattr(model.model, "language_model", model.model).layers:
            routers = [module for module in layer.modules() if type(module).__name__.lower().endswith(("topkrouter", "textrouter"))]
            # How many tokens a short convolution mixes, and the router after it.
            taps = config.conv_L_cache if hasattr(layer, "conv") else 1
            self.layers.append((taps, next(iter(routers), None)))
            for router in routers:
                router.register_forward_hook(lambda router, inputs, output: self.scores.append(choice(router, inputs, output)))

    def take(self):
        """Returns the scores of each layer's router, [layers, tokens, experts]; None if there are no experts."""
        scores, self.scores = self.scores, []
        return torch.stack(scores) if scores else None

    def margins(self, scores):
        """For each token the lowest chosen score minus the highest other one, in the layer where this is least.

        A short convolution mixes a token with the tokens before it: the least margin of all of them counts.
        """
        margins, of_layers = torch.full(scores.shape[1:2], torch.inf), iter(scores)
        for taps, router in self.layers:
            mixed = [margins.roll(back).index_fill(0, torch.arange(min(back, len(margins))), torch.inf) for back in range(taps)]
            margins = torch.stack(mixed).amin(dim=0)
            if router is not None:
                margins = torch.minimum(margins, self.margins_of(router, next(of_layers)))
        return margins.tolist()

    def margins_of(self, router, scores):
        """The margins of one layer's router."""
        by_group, allowed = group_margins(router, scores)
        if self.n_used == scores.shape[-1]:
            return torch.full_like(by_group, torch.inf)
        ranked = scores.masked_fill(~allowed, -torch.inf).sort(dim=-1, descending=True).values
        return torch.minimum(by_group, ranked[..., self.n_used - 1] - ranked[..., self.n_used])


def choice(router, inputs, output):
    """The numbers by which a router chooses: its logits, or their sigmoids and a correction."""
    logits, correction = output[0].float(), getattr(router, "e_score_correction_bias", None)
    if hasattr(router, "per_expert_scale"):
        # Gemma 4's router returns probabilities.
        logits = logits.log()
    if correction is None and len(inputs) > 1:
        correction = inputs[1]
    return logits if correction is None else logits.sigmoid() + correction.float()


def group_margins(router, scores):
    """The lowest chosen group's score minus the highest other one, per expert in the score; and a mask of these groups' experts."""
    n_groups = getattr(router, "num_group", None) or 1
    n_used = getattr(router, "topk_group", None) or 1
    if getattr(router, "topk_method", None) == "greedy" or n_used >= n_groups:
        return torch.full(scores.shape[:-1], torch.inf), torch.ones_like(scores, dtype=torch.bool)
    counted = 2 if hasattr(router, "e_score_correction_bias") else 1
    groups = scores.unflatten(-1, (n_groups, -1)).topk(counted, dim=-1).values.sum(dim=-1)
    ranked = groups.sort(dim=-1, descending=True)
    chosen = torch.zeros_like(groups, dtype=torch.bool).scatter(-1, ranked.indices[..., :n_used], True)
    allowed = chosen.unsqueeze(-1).expand(*groups.shape, scores.shape[-1] // n_groups).flatten(-2)
    return (ranked.values[..., n_used - 1] - ranked.values[..., n_used]) / counted, allowed


def load(directory, dtype):
    # Eager attention: plain matrix products and a softmax, no fused kernel with different numerics.
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    config = AutoConfig.from_pretrained(directory)
    quantised = getattr(config, "quantization_config", {})
    if quantised.get("quant_method") == "mxfp4":
        # bf16 has all values of these blocks.
        eager["quantization_config"] = Mxfp4Config(dequantize=True)
    # transformers has no class for only the decoder of these families.
    is_whole = config.model_type in ("mistral3", "qwen3_vl")
    automatic = AutoModelForImageTextToText if is_whole else AutoModelForCausalLM
    model = automatic.from_pretrained(directory, dtype=dtype, **eager)
    # Some quantisers leave matrices in bf16. Buffers stay as they were made: transformers keeps `inv_freq` in f32 for weights
    # of any type; rounded to bf16, it would give wrong angles at distant positions.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model.eval()


class InDouble(TorchFunctionMode):
    """Computes in f64 the parts that models compute in f32 for weights of any type: norms, softmaxes, rotations."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.float:
            return args[0].double()
        widen = lambda value: torch.float64 if value is torch.float32 else value
        return function(*map(widen, args), **{name: widen(value) for name, value in (kwargs or {}).items()})


def random_prompts(vocab_size, lengths=None, seed=SEED):
    """Draws prompts over the whole vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab_size, (n,), generator=generator).tolist() for n in lengths or PROMPT_LENGTHS]


@torch.no_grad()
def prompt_logits(model, tokens):
    return model(torch.tensor([tokens]), use_cache=False).logits[0].float()


@torch.no_grad()
def exact_logits(directory, prompts):
    """The logits in f64, of the same weights and `inv_freq`."""
    model = load(directory, torch.float64)
    with InDouble():
        return [model(torch.tensor([tokens]), use_cache=False).logits[0].double() for tokens in prompts]


def n_greedy_after(config, n_prompt, wanted):
    """The number of greedy tokens after a prompt. With longrope a short prompt and its tokens stay within the original context:
    beyond it transformers changes the rotation of new keys, but not of cached ones."""
    config = config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return wanted
    left = rope["original_max_position_embeddings"] - n_prompt
    return min(wanted, left) if left >= 0 else wanted


@torch.no_grad()
def greedy(model, tokens, n_tokens):
    """Continues a prompt. Returns the tokens and, for each, its logit minus the second highest."""
    chosen, margins, cache, fed = [], [], None, tokens
    for _ in range(n_tokens):
        output = model(torch.tensor([fed]), past_key_values=cache, use_cache=True)
        best = output.logits[0, -1].float().topk(2)
        chosen.append(best.indices[0].item())
        margins.append((best.values[0] - best.values[1]).item())
        cache, fed = output.past_key_values, chosen[-1:]
    return chosen, margins


def answer(directory, prompts, n_greedy=GREEDY_TOKENS, exact_above=None):
    """Runs a model in f32 and in bf16 on every prompt, and in f64 on those of more than `exact_above` tokens."""
    model = load(directory, torch.float32)
    probe = RouterProbe(model)
    logits, routed = zip(*((prompt_logits(model, tokens), probe.take()) for tokens in prompts))
    router_margins = [None if router is None else probe.margins(router) for router in routed]
    lengths = [n_greedy_after(model.config, len(tokens), n_greedy) for tokens in prompts]
    continuations = [greedy(model, tokens, length) for tokens, length in zip(prompts, lengths)]
    # Two copies of a large model might not fit.
    del model
    model = load(directory, torch.bfloat16)
    probe = RouterProbe(model)
    answers = []
    for tokens, expected, (chosen, margins), router, ahead in zip(prompts, logits, continuations, routed, router_margins):
        errors = (prompt_logits(model, tokens) - expected).abs().amax(dim=-1)
        # In the first router only rounding changes a score; in later ones, tokens with other experts do, too.
        rounding = None if router is None else (probe.take() - router)[0].abs().max().item()
        answer = Answer(tokens, expected, 0.0, 0.0, chosen, margins, ahead, rounding)
        clear = errors[answer.clear_experts()]
        if len(clear):
            answer.bf16_max_abs_error, answer.bf16_median_error = clear.max().item(), clear.median().item()
        answers.append(answer)
    del model
    long = [answer for answer in answers if exact_above is not None and len(answer.tokens) > exact_above]
    if long:
        for answer, logits in zip(long, exact_logits(directory, [answer.tokens for answer in long])):
            answer.exact = logits
    return answers


def provenance(command):
    return {
        "command": command,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.machine(),
        "attention": "eager",
    }


def write(folder, answers):
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"logits.{i}": answer.logits.contiguous() for i, answer in enumerate(answers)}
    save_file(tensors, folder / "oracle.safetensors")
    prompts = [
        {
            "tokens": answer.tokens,
            "bf16_max_abs_error": answer.bf16_max_abs_error,
            "bf16_median_error": answer.bf16_median_error,
            "greedy": answer.greedy,
            "margins": [round(margin, 6) for margin in answer.margins],
        }
        for answer in answers
    ]
    for prompt, answer in zip(prompts, answers):
        if answer.router_margins is not None:
            prompt["router_margins"] = [round(min(margin, 1e6), 6) for margin in answer.router_margins]
            prompt["router_rounding"] = answer.router_rounding
    lines = [json.dumps(prompt) for prompt in prompts]
    head = json.dumps(provenance("python tools/oracle/oracle.py"))
    text = '{"provenance": ' + head + ',\n"prompts": [\n' + ",\n".join(lines) + "\n]}\n"
    (folder / "oracle.json").write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="model folders")
    parser.add_argument("--out", type=Path, help="write into FOLDER/<name of DIR> instead of DIR")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for directory in args.directories:
        vocab_size = transformers.AutoConfig.from_pretrained(directory).get_text_config().vocab_size
        answers = answer(directory, random_prompts(vocab_size))
        write(args.out / directory.name if args.out else directory, answers)
        spread = torch.cat([answer.logits for answer in answers]).std().item()
        errors = ", ".join(f"{answer.bf16_max_abs_error:.3f}" for answer in answers)
        margins = sorted(margin for answer in answers for margin in answer.margins)
        close = sum(margin <= 1e-3 for margin in margins)
        print(f"{directory}: logits std {spread:.2f}; bf16 errors {errors}; {close} close greedy margins")


if __name__ == "__main__":
    main()
