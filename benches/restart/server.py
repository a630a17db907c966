"""Starts a Souffleur server as a separate process, sends it requests, reads its state, and kills it."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

START_LIMIT_S, ANSWER_LIMIT_S, WRITE_LIMIT_S = 300, 900, 120
POLL_S = 0.01
# Token ids that are in every vocabulary.
TOKENS = range(300, 2000)


def free_port():
    """An unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A running server, with a KV store if a folder is given."""

    def __init__(self, args, model, folder=None, flags=()):
        self.port = free_port()
        command = [args.binary, "serve", "--model-path", str(model), "--load-format", "dummy", "--skip-tokenizer-init", "--port", str(self.port),
                   "--max-total-tokens", str(args.pool_tokens), *args.flags, *flags]
        if folder:
            command += ["--kv-disk-path", str(folder)]
        env = {name: value for name, value in os.environ.items() if not name.startswith("SOUFFLEUR_") or name == "SOUFFLEUR_CPU_ISA"}
        self.log = args.scratch / f"server-{'store' if folder else 'plain'}.log"
        began = time.monotonic()
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
        try:
            self.wait("become ready", self.is_ready, START_LIMIT_S)
            self.ready_s = time.monotonic() - began
            if folder:
                self.wait("start its KV store", lambda: self.store()["serves"], START_LIMIT_S)
        except BaseException:
            self.kill()
            raise

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=ANSWER_LIMIT_S) as answer:
            return answer.read().decode()

    def is_ready(self):
        try:
            self.get("/ready")
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    def store(self):
        """The state of the KV store in /server_info."""
        return json.loads(self.get("/server_info"))["internal_states"][0]["store"]

    def written_tokens(self):
        lines = self.get("/metrics").splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith("sglang:backuped_tokens_total"))

    def wait(self, what, holds, limit_s):
        """Polls until `holds()` is true."""
        deadline = time.monotonic() + limit_s
        while not holds():
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = "\n  ".join(self.log.read_text(errors="replace").splitlines()[-5:])
                sys.exit(f"the server did not {what} (exit status {self.process.poll()}); the last lines of {self.log}:\n  {tail}")
            time.sleep(POLL_S)

    def wait_until_written(self, tokens):
        """Waits until the store has written `tokens` tokens, and no write is in flight."""
        def is_written():
            store = self.store()
            is_idle = store["queued_paths"] == 0 and store["free_buffers"] == store["buffers"]
            return is_idle and self.written_tokens() >= tokens
        self.wait(f"write {tokens} tokens", is_written, WRITE_LIMIT_S)

    def ask(self, prompts, n_tokens):
        """Sends all prompts at once. Returns an `Answer` for each."""
        answers = [None] * len(prompts)
        start = threading.Barrier(len(prompts))

        def run(index):
            start.wait()
            answers[index] = Answer(self.port, prompts[index], n_tokens)

        threads = [threading.Thread(target=run, args=(index,)) for index in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if None in answers:
            sys.exit(f"a request failed; see {self.log}")
        return answers

    def first_token(self, prompt):
        """Sends a prompt. Returns the seconds to the first token, and the tokens."""
        answer, = self.ask([prompt], 8)
        when, _ = answer.progress()[0]
        return when - answer.began, answer.tokens()

    def warm_up(self, rng):
        """Sends a prompt that is too short to be stored, so that measures contain no first accesses to memory."""
        self.ask([fresh(rng, 48)], 8)

    def kill(self):
        """Sends SIGKILL, and waits for the end of the process."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Answer:
    """A streamed answer: the received bytes with their times, parsed after all answers have ended."""

    def __init__(self, port, prompt, n_tokens):
        sampling = {"max_new_tokens": n_tokens, "temperature": 0, "ignore_eos": True}
        body = json.dumps({"input_ids": prompt, "stream": True, "sampling_params": sampling}).encode()
        head = f"POST /generate HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.parts = []
        with socket.create_connection(("127.0.0.1", port), ANSWER_LIMIT_S) as connection:
            self.began = time.monotonic()
            connection.sendall(head.encode() + body)
            while data := connection.recv(1 << 16):
                self.parts.append((time.monotonic(), data))
        self.n_tokens = n_tokens

    def events(self):
        """Yields the arrival time and the tokens of each event. Each event is a line within one HTTP chunk."""
        rest = b""
        for when, data in self.parts:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "output_ids" not in event:
                        sys.exit(f"the server sent an error in a stream: {event}")
                    yield when, event["output_ids"]

    def progress(self):
        """Pairs of an arrival time and the number of tokens received until then."""
        seen = [(when, len(tokens)) for when, tokens in self.events() if tokens]
        if not seen or seen[-1][1] != self.n_tokens:
            received = b"".join(data for _, data in self.parts)[:300]
            sys.exit(f"requested {self.n_tokens} tokens, but the last event is {seen[-1:]}; the answer begins with {received}")
        return seen

    def tokens(self):
        return [tokens for _, tokens in self.events()][-1]


def fresh(rng, count):
    """A random prompt, which is in no cache."""
    return [rng.choice(TOKENS) for _ in range(count)]
