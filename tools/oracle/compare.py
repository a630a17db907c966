"""Compares the engine with transformers on any model folder.

    python tools/oracle/compare.py DIR [--text FILE] [--lengths N ...] [--engine "target/release/souffleur"]

Fails (exit status 1) unless, for every prompt,
- in f32 every logit is within 1e-4 + 1e-4 * |oracle| of the oracle's. For prompts above 512 tokens, whose errors in
  transformers in f32 reach this limit, the oracle is transformers in f64, and an error may also be twice the largest error
  of transformers in f32 up to that position,
- in f32 the engine, fed the oracle's greedy tokens, prefers the same next token wherever the oracle's margin is above
  1e-3,
- in bf16 the largest error of a logit, against the oracle in f32, is at most twice that of transformers in bf16, and so
  is the median of the tokens' largest errors: one token that chose other experts raises the first bar, not the second.
  Tokens whose experts rounding may change are left out, up to a third of all tokens;
- with --quantization int8 the error of the logits, relative to those in bf16 (root of the mean squares), is at most 0.1.
  In models with experts this holds for two thirds of the tokens, each by itself: rounding to int8 makes others choose
  other experts;
- with --kv-cache-dtype int8 the log probability of the token that the engine prefers with KV in bf16 is off by at most 0.1
  in the mean over all tokens. With --kv-only nothing else is compared, and transformers is not asked.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer

import oracle

REPOSITORY = Path(__file__).resolve().parents[2]
ABSOLUTE, RELATIVE = 1e-4, 1e-4
F32_RATIO = 2.0
EXACT_ABOVE = 512
DECISIVE_MARGIN = 1e-3
BF16_RATIO = 2.0
MOST_LEFT_OUT = 1 / 3
INT8_RELATIVE = 0.1
INT8_KV_MEAN = 0.1


def engine_logits(engine, directory, dtype, inputs, *more):
    """Runs the engine; returns one tensor [tokens, vocabulary] for each input."""
    with tempfile.TemporaryDirectory() as folder:
        request, reply = Path(folder) / "prompts.json", Path(folder) / "logits.safetensors"
        request.write_text(json.dumps({"prompts": inputs}))
        flags = ["--model-path", directory, "--dtype", dtype, "--input", request, "--output", reply, *more]
        subprocess.run([*shlex.split(engine), "logits", *flags], check=True, cwd=REPOSITORY)
        tensors = load_file(reply)
    logits = [tensors[f"logits.{i}"] for i in range(len(inputs))]
    for tokens, rows in zip(inputs, logits):
        assert rows.dtype == torch.float32 and rows.shape[0] == len(tokens), (rows.dtype, rows.shape)
    return logits


def check_f32(answer, rows):
    """Returns a line to print, and whether the errors are within the limits."""
    n_prompt = len(answer.tokens)
    expected, own = answer.logits, torch.zeros(n_prompt)
    if answer.exact is not None:
        expected = answer.exact
        own = (answer.logits - expected).abs().amax(dim=-1).cummax(dim=0).values
    error = (rows[:n_prompt] - expected).abs()
    bar = torch.maximum(ABSOLUTE + RELATIVE * expected.abs(), F32_RATIO * own[:, None])
    used = (error / bar).max().item()
    preferred = rows[n_prompt - 1 :].argmax(dim=-1).tolist()
    decisive = [margin > DECISIVE_MARGIN for margin in answer.margins]
    wrong = sum(d and p != g for d, p, g in zip(decisive, preferred, answer.greedy, strict=True))
    report = f"max error {error.max().item():.2e} ({used:.1%} of the bar), {wrong} of {sum(decisive)} greedy tokens differ"
    if answer.exact is not None:
        report += f"; against f64, where transformers in f32 has {own.max().item():.2e}"
    # Written so that NaN fails.
    return report, used <= 1.0 and wrong == 0


def check_bf16(answer, rows):
    """Returns a line to print, and whether the errors are within the limits."""
    errors = (rows[: len(answer.tokens)] - answer.logits).abs().amax(dim=-1)
    clear = answer.clear_experts()
    if not any(clear):
        return "all tokens left out: rounding may change their experts", True
    largest, median = errors[clear].max().item(), errors[clear].median().item()
    report = f"max error {largest:.2e}, transformers has {answer.bf16_max_abs_error:.2e}; "
    report += f"median {median:.2e} and {answer.bf16_median_error:.2e}"
    unclear = len(clear) - sum(clear)
    if unclear:
        report += f"; {unclear} tokens left out whose experts rounding may change"
    holds = largest <= BF16_RATIO * answer.bf16_max_abs_error and median <= BF16_RATIO * answer.bf16_median_error
    return report, holds


def check_left_out(answers):
    """Returns the report, and whether enough tokens were compared in bf16 to say anything."""
    clear = [is_clear for answer in answers for is_clear in answer.clear_experts()]
    left_out = len(clear) - sum(clear)
    report = f"{left_out} of {len(clear)} tokens left out, at most {MOST_LEFT_OUT:.0%}"
    if left_out > MOST_LEFT_OUT * len(clear):
        report += ": other prompts (--text), or weights that choose experts more clearly, leave out fewer"
    return report, left_out <= MOST_LEFT_OUT * len(clear)


def check_int8(bf16, int8, has_experts):
    """Returns a line to print, and whether the error is within the limit."""
    error = int8 - bf16
    relative = (error.norm() / bf16.norm()).item()
    report = f"relative error {relative:.4f} against bfloat16, "
    if has_experts:
        relative = (error.norm(dim=-1) / bf16.norm(dim=-1)).quantile(1 - MOST_LEFT_OUT).item()
        report += f"at most {relative:.4f} in two thirds of the tokens, "
    same = (int8.argmax(dim=-1) == bf16.argmax(dim=-1)).float().mean().item()
    report += f"largest {error.abs().max().item():.2e}, the same token preferred at {same:.1%} of the positions"
    return report, relative <= INT8_RELATIVE


def check_int8_kv(bf16, int8):
    """Returns a line to print, and whether the error is within the limit."""
    best = bf16.argmax(dim=-1, keepdim=True)
    errors = [rows.double().log_softmax(dim=-1).gather(-1, best) for rows in (bf16, int8)]
    error = (errors[1] - errors[0]).abs()
    same = (int8.argmax(dim=-1) == best.squeeze(-1)).float().mean().item()
    report = f"log probabilities off by {error.mean().item():.4f} on average, at most {error.max().item():.3f}, "
    report += f"the same token preferred at {same:.1%} of the positions"
    return report, error.mean().item() <= INT8_KV_MEAN


def compare_kv(engine, directory, inputs, say):
    """Compares the engine with int8 KV with itself."""
    bf16 = engine_logits(engine, directory, "bfloat16", inputs)
    int8 = engine_logits(engine, directory, "bfloat16", inputs, "--kv-cache-dtype", "int8")
    say("int8 KV", [token for tokens in inputs for token in tokens], *check_int8_kv(torch.cat(bf16), torch.cat(int8)))


def choose_prompts(directory, text, lengths):
    if text is None:
        config = transformers.AutoConfig.from_pretrained(directory)
        return oracle.random_prompts(config.get_text_config().vocab_size, lengths)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = tokenizer.encode(text.read_text()).ids
    return [ids[:n] for n in lengths if n <= len(ids)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIR", help="model folder in Hugging Face layout")
    parser.add_argument("--text", type=Path, help="make the prompts from this text (random tokens)")
    parser.add_argument("--lengths", type=int, nargs="+", default=oracle.PROMPT_LENGTHS, metavar="N", help="tokens of the prompts")
    parser.add_argument("--engine", default="cargo run --release --quiet --", help="command that runs the engine")
    parser.add_argument("--kv-only", action="store_true", help="compare only int8 KV with KV in bfloat16")
    args = parser.parse_args()

    directory = args.directory.resolve()
    prompts = choose_prompts(directory, args.text, args.lengths)
    failures = 0

    def say(name, tokens, report, holds):
        nonlocal failures
        failures += not holds
        print(f"{'ok  ' if holds else 'FAIL'} {name:8} {len(tokens):5} tokens: {report}")

    if args.kv_only:
        compare_kv(args.engine, directory, prompts, say)
        sys.exit(failures > 0)
    answers = oracle.answer(directory, prompts, exact_above=EXACT_ABOVE)
    # The last greedy token is only predicted, never fed.
    inputs = [answer.tokens + answer.greedy[:-1] for answer in answers]
    f32 = engine_logits(args.engine, directory, "float32", inputs)
    bf16 = engine_logits(args.engine, directory, "bfloat16", inputs)
    int8 = engine_logits(args.engine, directory, "bfloat16", inputs, "--quantization", "int8")
    for answer, rows in zip(answers, f32, strict=True):
        say("float32", answer.tokens, *check_f32(answer, rows))
    for answer, rows in zip(answers, bf16, strict=True):
        say("bfloat16", answer.tokens, *check_bf16(answer, rows))
    say("bfloat16", [token for answer in answers for token in answer.tokens], *check_left_out(answers))
    for answer, tokens, rows, quantised in zip(answers, inputs, bf16, int8, strict=True):
        say("int8", tokens, *check_int8(rows, quantised, answer.router_margins is not None))
    compare_kv(args.engine, directory, inputs, say)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
