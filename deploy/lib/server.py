"""A server process: its address, answers, threads and exit."""

import hashlib
import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import time
import urllib.request

LIMIT_S = 180
HEADER_BYTES = 4096
# Several blocks of the KV store.
PROMPT = "Tell me about the sea and the wind. " * 30
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


class Failure(Exception):
    """A failure of the server or of the check."""


def until(what, get):
    """The first true value of `get`."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        if found := get():
            return found
        time.sleep(0.02)
    raise Failure(f"waited {LIMIT_S} s for {what}")


def _limits():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Server:
    """A server that `command` starts; `inherited` are descriptors of the command."""

    def __init__(self, command, environment, folder, inherited=()):
        self.log = pathlib.Path(folder, "log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=inherited,
                umask=0o077,
                preexec_fn=_limits,
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.has_ended():
            self.process.kill()
            self.process.wait()

    def messages(self):
        """The complete lines of the log that are JSON."""
        for line in self.log.read_text(errors="replace").splitlines(keepends=True):
            if line.startswith("{") and line.endswith("\n"):
                yield json.loads(line)

    def has_ended(self):
        """Whether the process has ended."""
        return self.process.poll() is not None

    def address(self):
        """The address, once model and KV store are ready."""
        found = {line.get("message"): line for line in self.messages()}
        return "KV store ready" in found and found.get("serving", {}).get("address")

    def serves(self):
        """Waits for the address and the KV store; fails if the server ends before."""
        until("a served model", lambda: self.has_ended() or self.address())
        if self.has_ended():
            raise Failure(f"the server ended with {self.ending()} before it served:\n{self.log.read_text()}")

    def ask(self, path, body=None):
        """The answer to a request: GET without a body, else POST."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{self.address()}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return answer.read().decode()

    def answers(self):
        """Text, tokens and log probabilities of a prompt, and text and log probabilities with a JSON schema."""
        sampling = {"temperature": 0, "max_new_tokens": 48, "ignore_eos": True}
        asked = {"text": PROMPT, "sampling_params": sampling, "return_logprob": True}
        answer = json.loads(self.ask("/generate", asked | {"logprob_start_len": 0, "top_logprobs_num": 3}))
        kept = {key: value for key, value in answer["meta_info"].items() if "logprobs" in key}
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
        chat = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 48}
        chat |= {"logprobs": True, "top_logprobs": 3, "response_format": form}
        choices = json.loads(self.ask("/v1/chat/completions", chat))["choices"]
        return {"text": answer["text"], "ids": answer["output_ids"], "logprobs": kept, "choices": choices}

    def threads(self, process):
        """The CPUs of each compute thread: the threads of the CPU executor's pool, and the one that drives it."""
        found = []
        for status in sorted(pathlib.Path(f"/proc/{process}/task").glob("*/status")):
            fields = fields_of(status.read_text())
            # The kernel keeps 15 bytes of a name.
            if fields["Name"].startswith(("souffleur-cpu", "souffleur-execu")):
                found.append((fields["Name"], fields["Cpus_allowed_list"]))
        return sorted(found)

    def ending(self):
        """The exit code; a signal's number is added to 128, as bwrap and shells do."""
        code = self.process.wait(LIMIT_S)
        return code if code >= 0 else 128 - code

    def stop(self, process):
        """Sends SIGTERM to the server and returns the exit code."""
        os.kill(process, signal.SIGTERM)
        return self.ending()


def stored_blocks(folder):
    """The SHA-256 of the keys and values of each record in a KV store."""
    digests = []
    for segment in pathlib.Path(folder).glob("*/seg-kv-*"):
        bytes_ = segment.read_bytes()
        for at in range(0, len(bytes_), HEADER_BYTES):
            if bytes_.startswith(b"SFKVBLK1", at):
                length = int.from_bytes(bytes_[at + 120 : at + 128], "little")
                begin = at + HEADER_BYTES
                digests.append(hashlib.sha256(bytes_[begin : begin + length]).hexdigest())
    return sorted(digests)


def fields_of(status):
    """The fields of a file `/proc/PID/status`."""
    return {key: value.strip() for key, _, value in (line.partition(":") for line in status.splitlines())}


class Notifications:
    """A socket that receives the states for systemd."""

    def __init__(self, path):
        self.path, self.states = path, []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)
        os.chmod(path, 0o666)

    def has(self, state):
        """Whether a state has come."""
        while True:
            try:
                self.states += self.socket.recv(4096).decode().splitlines()
            except BlockingIOError:
                return state in self.states
