"""The checks of `run`, in its environment: check.py SCRATCH SOUFFLEUR FILE CHECK ..."""

import math
import subprocess
import sys
from pathlib import Path

import corpus
import theirs
from server import Server

F32_RATIO, DEFAULT_RATIO, INT8_KV_RATIO = 0.001, 0.01, 0.005
# Rounding may choose another token if the two highest log probabilities differ by less.
DECISIVE_MARGIN = 1e-2
TEXT_TOKENS, GREEDY_TOKENS = 2_000, 48
# The cost of the engine's own options shows in long contexts; these checks need no transformers.
LONG_TOKENS, SPARSE_FROM = 6_144, 4_096
# Prose, Markdown and code.
TEXTS = ("README.md", "ARCHITECTURE.md", "crates/radix/src/cache/radix_tree/mod.rs")
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    \"\"\"The n-th Fibonacci number.\"\"\"\n",
    "| planet | moons |\n|---|---|\n| Earth | 1 |\n",
]
SHOWN_DIFFERENCES = 5


class Report:
    """Prints a line for each result and counts the failures."""

    def __init__(self):
        self.failures = 0

    def say(self, holds, text):
        """Prints one result."""
        self.failures += not holds
        print(f"{'ok  ' if holds else 'FAIL'} {text}", flush=True)


def first_difference(ours, others):
    """The first index at which two lists differ."""
    same = [one == other for one, other in zip(ours, others)]
    return same.index(False) if False in same else min(len(ours), len(others))


def check_tokens(server, vocabulary, report):
    """Compares ids with llama.cpp's, and texts with the decoded ids."""
    parts = corpus.parts(vocabulary.markers)
    n_bytes, n_tokens, differ, lost = 0, 0, 0, 0
    for part in parts:
        ours, others = server.tokenize(part), vocabulary.tokenize(part)
        n_bytes, n_tokens = n_bytes + len(part.encode()), n_tokens + len(others)
        if ours != others:
            differ += 1
            if differ <= SHOWN_DIFFERENCES:
                at = first_difference(ours, others)
                near = slice(max(at - 2, 0), at + 6)
                print(f"     token {at}: {ours[near]} {vocabulary.pieces(ours[near])}, llama.cpp has {others[near]} {vocabulary.pieces(others[near])}")
        lost += vocabulary.comes_back(part) and server.detokenize(ours) != part
    report.say(differ == 0, f"tokens: {n_bytes} bytes in {len(parts)} parts, {n_tokens} tokens; {differ} parts have other ids than llama.cpp's")
    report.say(lost == 0, f"tokens: {lost} of {len(parts)} parts do not decode to the original text")
    begun = [server.tokenize(PROMPTS[0], True), vocabulary.tokenize(PROMPTS[0], True)]
    report.say(begun[0] == begun[1], f"tokens: the ids of a prompt with special tokens are {begun[0]}, llama.cpp has {begun[1]}")


def perplexity(log_probabilities):
    """The exponential of the mean surprise."""
    return math.exp(-math.fsum(log_probabilities) / len(log_probabilities))


def check_perplexity(results, expected, report):
    """Compares perplexities, and prints the largest difference of a log probability."""
    wanted = perplexity(expected)
    for (name, ratio), found in zip((("f32", F32_RATIO), ("default", DEFAULT_RATIO)), results, strict=True):
        ours = perplexity(found)
        furthest = max(abs(one - other) for one, other in zip(found, expected, strict=True))
        text = f"perplexity, {name}: {ours:.4f} over {len(found)} tokens, transformers in f32 has {wanted:.4f} ({ours / wanted - 1:+.3%}, at most {ratio:.1%}); "
        report.say(abs(ours / wanted - 1) <= ratio, text + f"log probabilities off by {furthest:.4f} at most")


def check_greedy(server_texts, outputs, expected, report):
    """Compares greedy texts: in f32 they must be equal up to the first token that rounding may change."""
    exact, usual = outputs
    for prompt, ours, quantised, (chosen, margins) in zip(PROMPTS, exact, usual, expected, strict=True):
        at = first_difference(ours, chosen)
        holds = at == len(chosen) or margins[at] < DECISIVE_MARGIN
        end = "" if at == len(chosen) else f", where transformers is ahead by {margins[at]:.4f}"
        report.say(holds, f"greedy, f32: {prompt!r}: {at} of {len(chosen)} tokens as transformers has them{end}")
        print(f"     by default {first_difference(quantised, chosen)}: {server_texts(quantised)!r}")


def long_text(server):
    """Ids of a long text, half Markdown and half code."""
    texts = [(corpus.REPOSITORY / text).read_text()[: 8 * LONG_TOKENS] for text in TEXTS[1:]]
    halves = [server.tokenize(text, True)[: LONG_TOKENS // 2] for text in texts]
    return [token for half in halves for token in half]


def check_int8_kv(dense, found, report):
    """Compares the perplexity of the default KV with that of int8 KV."""
    wanted, ours = perplexity(dense), perplexity(found)
    furthest = max(abs(one - other) for one, other in zip(found, dense, strict=True))
    text = f"int8 KV: perplexity {ours:.4f} over {len(found)} tokens, {wanted:.4f} without ({ours / wanted - 1:+.3%}, at most {INT8_KV_RATIO:.1%}); "
    report.say(abs(ours / wanted - 1) <= INT8_KV_RATIO, text + f"log probabilities off by {furthest:.4f} at most")


def check_sparse(dense, results, report):
    """Compares the perplexities of sparse positions with the default number of channels and with half of it: the default must
    not cost more."""
    wanted = perplexity(dense[SPARSE_FROM - 1 :])
    costs = [perplexity(found[SPARSE_FROM - 1 :]) / wanted - 1 for found in results]
    shown = f"{costs[0]:+.3%} with the default channels, {costs[1]:+.3%} with half of them"
    report.say(costs[0] <= costs[1], f"double sparsity: perplexity of positions {SPARSE_FROM} to {len(dense)} is {wanted:.4f}; {shown}")


def ask(server, ids, prompts, checks):
    """The log probabilities and the greedy tokens of one server."""
    return (
        server.log_probabilities(ids) if "perplexity" in checks else [],
        [server.greedy(prompt, GREEDY_TOKENS) for prompt in prompts] if "greedy" in checks else [],
    )


class Engine:
    """The engine with the file, and a folder for its output."""

    def __init__(self, scratch, souffleur, file):
        self.scratch, self.souffleur, self.file = scratch, souffleur, file

    def serve(self, name, *flags):
        """A server with these flags."""
        return Server(self.souffleur, self.file, self.scratch / f"{name}.log", *flags)

    def score(self, name, ids, *flags):
        """Log probabilities of a server with these flags."""
        with self.serve(name, *flags) as server:
            return server.log_probabilities(ids)

    def calibrate(self):
        """The file of channels for double sparsity."""
        text, channels = self.scratch / "calibration.txt", self.scratch / "channels.json"
        text.write_text((corpus.REPOSITORY / TEXTS[0]).read_text())
        command = [self.souffleur, "calibrate", "--model-path", self.file, "--text", text, "-o", channels]
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
        return channels


def against_transformers(engine, checks, report):
    """The checks of perplexity and greedy texts."""
    with engine.serve("default") as server:
        # The text changes with the repository, but is the same for the engine and transformers.
        texts = [(corpus.REPOSITORY / text).read_text()[: 2 * TEXT_TOKENS] for text in TEXTS]
        ids = server.tokenize("\n".join(texts), True)[:TEXT_TOKENS]
        prompts = [server.tokenize(prompt, True) for prompt in PROMPTS]
        usual = ask(server, ids, prompts, checks)
        spelled = {tuple(output): server.detokenize(output) for output in usual[1]}
    with engine.serve("float32", "--dtype", "float32") as server:
        exact = ask(server, ids, prompts, checks)
    scores, following = theirs.reference(engine.file, ids if "perplexity" in checks else ids[:2], prompts if "greedy" in checks else [], GREEDY_TOKENS)
    if "perplexity" in checks:
        check_perplexity((exact[0], usual[0]), scores, report)
    if "greedy" in checks:
        check_greedy(lambda output: spelled[tuple(output)], (exact[1], usual[1]), following, report)


def against_itself(engine, checks, report):
    """The checks of the engine's own options on a long text."""
    with engine.serve("default") as server:
        ids = long_text(server)
        dense = server.log_probabilities(ids)
    if "int8-kv" in checks:
        check_int8_kv(dense, engine.score("int8-kv", ids, "--kv-cache-dtype", "int8"), report)
    if "sparse" in checks:
        sparse = ["--enable-double-sparsity", "--ds-channel-config-path", engine.calibrate()]
        half = ["--ds-heavy-channel-num", max(theirs.key_dim(engine.file) // 4, 32) // 2]
        results = [engine.score("sparse", ids, *sparse), engine.score("sparse-half", ids, *sparse, *half)]
        check_sparse(dense, results, report)


def main():
    """Runs the requested checks."""
    engine, checks, report = Engine(*map(Path, sys.argv[1:4])), sys.argv[4:], Report()
    if "tokens" in checks:
        vocabulary = theirs.Vocabulary(engine.file)
        with engine.serve("default") as server:
            check_tokens(server, vocabulary, report)
    if {"perplexity", "greedy"} & set(checks):
        against_transformers(engine, checks, report)
    if {"int8-kv", "sparse"} & set(checks):
        against_itself(engine, checks, report)
    sys.exit(report.failures > 0)


if __name__ == "__main__":
    main()
