"""Compares the decode rates of running servers on texts of `make_texts.py`.

    compare_servers.py TEXTS NAME=URL NAME=URL... [--kind edit] [--rounds 7] [--max-tokens 400]

Each text's prompt, with `--ask` at its end, is a chat of one message, answered greedily at /v1/chat/completions. The
servers answer the same prompt in turn, one stream at a time, in an order that changes from round to round; each round has
another text, and a text for which a server writes less than `--min-tokens` is no round. The first server is the base of
the ratios. A rate counts the tokens after the first event of an answer, in the time from this event to the last one.

`NAME=URL#prediction` sends the request with a right `prediction` (the text's output), and `NAME=URL#wrong` with another
text's output. Needs the standard library.
"""

import argparse
import json
import statistics
import time
import urllib.parse
import urllib.request


# The end of a prompt that a completion continues.
COMPLETION = "Answer:\n```\n"


def answer(url, body, limit_s):
    """Returns the text, the number of tokens, and the seconds from the first event with text to the last."""
    request = urllib.request.Request(
        url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    text, tokens, first, last = "", None, None, None
    with urllib.request.urlopen(request, timeout=limit_s) as stream:
        for line in stream:
            now = time.monotonic()
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            event = json.loads(line[5:])
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
            for choice in event.get("choices") or []:
                if choice["delta"].get("content"):
                    text += choice["delta"]["content"]
                    first, last = first or now, now
    if tokens is None or first is None:
        raise SystemExit(f"{url}: the answer has no usage or no text")
    return text, tokens, last - first


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", help="the file of make_texts.py")
    parser.add_argument("servers", nargs="+", metavar="NAME=URL")
    parser.add_argument("--kind", default="edit")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--min-tokens", type=int, default=100)
    parser.add_argument("--ask", default="Reply with the complete file after this change, in one code block.")
    parser.add_argument("--limit-s", type=float, default=600)
    arguments = parser.parse_args()
    with open(arguments.texts, encoding="utf-8") as file:
        texts = [text for text in map(json.loads, file) if text["kind"] == arguments.kind]
    if len(texts) < 2:
        parser.error(f"{arguments.texts} has {len(texts)} texts of the kind {arguments.kind}, at least 2 are needed")
    servers = [server.split("=", 1) for server in arguments.servers]
    rates = {name: [] for name, _ in servers}
    for number, (text, other) in enumerate(zip(texts, texts[1:] + texts[:1])):
        if len(rates[servers[0][0]]) == arguments.rounds:
            break
        first = number % len(servers)
        found = ask_all(servers[first:] + servers[:first], text, other, arguments)
        outputs = {name: output for name, (output, _, _) in found.items()}
        same = [name for name, _ in servers[1:] if outputs[name] == outputs[servers[0][0]]]
        print(f"text {number}: as {servers[0][0]}: {', '.join(same) or 'none'}", flush=True)
        if min(tokens for _, tokens, _ in found.values()) < arguments.min_tokens:
            continue
        for name, (_, tokens, seconds) in found.items():
            rates[name].append((tokens - 1) / seconds)
    report(servers, rates)


def ask_all(servers, text, other, arguments):
    """The answers of the servers to one text: texts, tokens and seconds."""
    predictions = {"prediction": text["output"], "wrong": other["output"]}
    found = {}
    for name, address in servers:
        url, prediction = urllib.parse.urldefrag(address)
        body = {
            "model": "default",
            "messages": [{"role": "user", "content": text["prompt"].removesuffix(COMPLETION) + arguments.ask}],
            "temperature": 0,
            "max_tokens": arguments.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if prediction:
            body["prediction"] = {"type": "content", "content": predictions[prediction]}
        found[name] = answer(url, body, arguments.limit_s)
        _, tokens, seconds = found[name]
        print(f"{name}: {tokens} tokens in {seconds:.2f} s", flush=True)
    return found


def report(servers, rates):
    base = rates[servers[0][0]]
    if not base:
        raise SystemExit("no text was long enough: lower --min-tokens")
    for name, _ in servers:
        ratios = sorted(rate / first for rate, first in zip(rates[name], base))
        median, ratio = statistics.median(rates[name]), statistics.median(ratios)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"{name}: {median:.1f} tok/s, ratio {ratio:.3f} ({spread}), {len(ratios)} rounds")


if __name__ == "__main__":
    main()
