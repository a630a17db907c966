"""Compares the decode rates of running servers on texts of `make_texts.py`.

    compare_servers.py TEXTS NAME=URL NAME=URL... [--kind edit] [--rounds 7] [--max-tokens 400]

Each text's prompt is a chat of one message, answered greedily at /v1/chat/completions. The servers answer the same prompt
in turn, one stream at a time, in an order that changes from round to round; each round has another text. The first server
is the base of the ratios. A rate counts the tokens after the first event of an answer, in the time from this event to
the last one.

`NAME=URL#prediction` sends the request with a right `prediction` (the text's output), and `NAME=URL#wrong` with another
text's output. Needs the standard library.
"""

import argparse
import json
import statistics
import time
import urllib.parse
import urllib.request


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
    parser.add_argument("--limit-s", type=float, default=600)
    arguments = parser.parse_args()
    with open(arguments.texts, encoding="utf-8") as file:
        texts = [text for text in map(json.loads, file) if text["kind"] == arguments.kind]
    if len(texts) < 2:
        parser.error(f"{arguments.texts} has {len(texts)} texts of the kind {arguments.kind}, at least 2 are needed")
    servers = [server.split("=", 1) for server in arguments.servers]
    rates = {name: [] for name, _ in servers}
    for round_ in range(arguments.rounds):
        text, other = texts[round_ % len(texts)], texts[(round_ + 1) % len(texts)]
        predictions = {"prediction": text["output"], "wrong": other["output"]}
        outputs = {}
        turns = servers[round_ % len(servers) :] + servers[: round_ % len(servers)]
        for name, address in turns:
            url, prediction = urllib.parse.urldefrag(address)
            body = {
                "model": "default",
                "messages": [{"role": "user", "content": text["prompt"]}],
                "temperature": 0,
                "max_tokens": arguments.max_tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            if prediction:
                body["prediction"] = {"type": "content", "content": predictions[prediction]}
            outputs[name], tokens, seconds = answer(url, body, arguments.limit_s)
            # A text of one event has no rate.
            rates[name].append((tokens - 1) / seconds if seconds > 0 else None)
            print(f"round {round_ + 1}: {name}: {tokens} tokens, {rates[name][-1] or 0:.1f} tok/s", flush=True)
        base = outputs[servers[0][0]]
        same = [name for name, _ in servers[1:] if outputs[name] == base]
        print(f"round {round_ + 1}: same text as {servers[0][0]}: {', '.join(same) or 'none'}", flush=True)
    base = rates[servers[0][0]]
    for name, _ in servers:
        known = [(rate, first) for rate, first in zip(rates[name], base) if rate and first]
        median = statistics.median(rate for rate, _ in known)
        ratios = sorted(rate / first for rate, first in known)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"{name}: {median:.1f} tok/s, ratio {statistics.median(ratios):.3f} ({spread}), {len(known)} rounds")


if __name__ == "__main__":
    main()
