"""Runs mistral.rs in a Python process, and takes batches of prompts as JSON lines on stdin.

mistralrs_driver.py FILE STREAMS PACKAGE: the GGUF file, the number of concurrent streams, the folder of llama.cpp's Python
package. For an input line `{"prompts": [[ids], ...], "tokens": n}` it prints a line with the events of each stream, in seconds
of the monotonic clock, which all processes share, or a line with an error.

mistral.rs takes text. Each id becomes a word of one token, so a prompt has as many tokens as ids, and prompts share prefixes
as their ids do. The driver checks the number of prompt tokens in the answer.
"""

import json
import os
import re
import sys
import tempfile
import threading
import time
from pathlib import Path

import mistralrs

TEMPLATE = "{{ messages[0]['content'] }}"
WORD = re.compile("(?:Ġ|▁)([a-z]{3,12})$")


def words(file, package):
    """Words that are one token each after a space."""
    sys.path.insert(0, package)
    from gguf import GGUFReader

    found = [WORD.match(token) for token in GGUFReader(file).fields["tokenizer.ggml.tokens"].contents()]
    return [match[1] for match in found if match]


class Driver:
    """A loaded model that answers batches of prompts."""

    def __init__(self, file, streams, package):
        self.words = words(file, package)
        template = Path(tempfile.mkdtemp()) / "template.jinja"
        template.write_text(TEMPLATE)
        which = mistralrs.Which.GGUF(str(file.parent), file.name)
        self.sending = threading.Lock()
        self.runner = mistralrs.Runner(which, max_seqs=streams, jinja_explicit=str(template))

    def text(self, prompt):
        """A text that has as many tokens as the prompt has ids."""
        return "".join(" " + self.words[token % len(self.words)] for token in prompt)

    def stream(self, prompt, tokens, seen, errors):
        """Runs one request. Its events are pairs of a time and a number of tokens."""
        request = mistralrs.ChatCompletionRequest(
            messages=[{"role": "user", "content": self.text(prompt)}], model="default", max_tokens=tokens, stream=True, temperature=0.0, top_k=1,
            ignore_eos=True,
        )
        try:
            usage = None
            # The runner accepts one request at a time, and decodes the accepted ones together.
            with self.sending:
                chunks = self.runner.send_chat_completion_request(request)
            for chunk in chunks:
                seen["events"].append((time.monotonic(), 1))
                usage = chunk.usage or usage
            if usage is None or usage.prompt_tokens != len(prompt):
                errors.append(f"the prompt of {len(prompt)} ids became {usage and usage.prompt_tokens} tokens")
            elif (late := usage.completion_tokens - len(seen["events"])) < 0:
                errors.append(f"{len(seen['events'])} events for only {usage.completion_tokens} tokens")
            elif late:
                # Tokens that end inside a character, or have no text, have no event: they count with the last one.
                seen["events"][-1] = (seen["events"][-1][0], 1 + late)
        except Exception as error:
            errors.append(str(error))

    def run(self, prompts, tokens):
        """Runs all prompts at once. Returns the answer line."""
        start, errors = time.monotonic(), []
        seen = [{"start": start, "events": []} for _ in prompts]
        threads = [threading.Thread(target=self.stream, args=(prompt, tokens, one, errors)) for prompt, one in zip(prompts, seen)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"error": errors[0]} if errors else {"streams": seen}


def main():
    file, streams, package = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    # mistral.rs writes its log to standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    driver = Driver(file, streams, package)
    print(json.dumps({"ready": time.monotonic()}), file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(driver.run(job["prompts"], job["tokens"])), file=answers, flush=True)


if __name__ == "__main__":
    main()
