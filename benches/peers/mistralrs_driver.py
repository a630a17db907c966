"""mistral.rs's package runs in a Python process: this one takes batches as JSON lines on stdin.

mistralrs_driver.py FILE STREAMS PACKAGE: the GGUF file, streams at once, the folder of llama.cpp's Python package. In
`{"prompts": [[ids], ...], "tokens": n}`, out a line with each stream's events, in seconds of the monotonic clock, which all
processes share, or with an error.

mistral.rs takes texts. Each id becomes a word that is one token, so a prompt has as many tokens as ids, and prompts share
prefixes as their ids do; the count that comes with the answer is checked.
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
    """Words that are one token each after a blank."""
    sys.path.insert(0, package)
    from gguf import GGUFReader

    found = [WORD.match(token) for token in GGUFReader(file).fields["tokenizer.ggml.tokens"].contents()]
    return [match[1] for match in found if match]


class Driver:
    """A loaded model."""

    def __init__(self, file, streams, package):
        self.words = words(file, package)
        template = Path(tempfile.mkdtemp()) / "template.jinja"
        template.write_text(TEMPLATE)
        which = mistralrs.Which.GGUF(str(file.parent), file.name)
        self.taking = threading.Lock()
        self.runner = mistralrs.Runner(which, max_seqs=streams, jinja_explicit=str(template))

    def text(self, prompt):
        """A text of as many tokens as the prompt has ids."""
        return "".join(" " + self.words[token % len(self.words)] for token in prompt)

    def stream(self, prompt, tokens, seen, errors):
        """Runs one request; each event is its time and how many tokens came."""
        request = mistralrs.ChatCompletionRequest(
            messages=[{"role": "user", "content": self.text(prompt)}], model="default", max_tokens=tokens, stream=True, temperature=0.0, top_k=1,
            ignore_eos=True,
        )
        try:
            usage = None
            # The runner is borrowed while it takes a request, and takes one at a time; the answers come together.
            with self.taking:
                chunks = self.runner.send_chat_completion_request(request)
            for chunk in chunks:
                seen["events"].append((time.monotonic(), 1))
                usage = chunk.usage or usage
            if usage is None or usage.prompt_tokens != len(prompt):
                errors.append(f"the prompt of {len(prompt)} ids became {usage and usage.prompt_tokens} tokens")
            elif (late := usage.completion_tokens - len(seen["events"])) < 0:
                errors.append(f"{len(seen['events'])} events brought {usage.completion_tokens} tokens")
            elif late:
                # A token that ends inside a character, or has no text, has no event: it counts with the last one.
                seen["events"][-1] = (seen["events"][-1][0], 1 + late)
        except Exception as error:
            errors.append(str(error))

    def run(self, prompts, tokens):
        """All prompts arrive at once."""
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
