"""Starts, pauses and stops each engine, and sends it requests: prompts of token ids with streamed answers."""

import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field

import client
import install
import machine

KV_TOKENS = 16384
# vLLM and OpenVINO take whole GiB; 2 GiB holds the same 16,384 tokens of the larger model and more of the smaller.
KV_GIB = 2
STREAMS = 16
START_LIMIT_S, REQUEST_LIMIT_S, STOP_LIMIT_S = 400, 600, 20
RETRY_S = 0.01


@dataclass(frozen=True)
class Capacity:
    """The capacity of an engine: tokens of KV cache, and concurrent streams."""

    tokens: int = KV_TOKENS
    streams: int = STREAMS


# For measures of starts: nearly all of the memory is then for the model.
SMALL = Capacity(tokens=256, streams=1)


class EngineFailed(Exception):
    """An engine did not start, or did not answer as requested."""


class NotReady(EngineFailed):
    """A server has not loaded its model yet."""


@dataclass
class Stream:
    """Arrival times of the tokens of one request, in seconds of the monotonic clock."""

    start: float
    events: list = field(default_factory=list)

    def saw(self, when, tokens):
        """Records `tokens` new tokens."""
        if tokens:
            self.events.append((when, tokens))

    @property
    def first(self):
        return self.events[0][0]

    @property
    def last(self):
        return self.events[-1][0]

    @property
    def tokens(self):
        return sum(tokens for _, tokens in self.events)


class Engine:
    """A running engine. Only one runs at a time; SIGSTOP keeps the other engines from using the processor."""

    name = ""
    # Seconds to wait between SIGCONT and the first request.
    settle_s = 0.0

    def __init__(self, scratch, model, kind, forced=None, capacity=Capacity()):
        """`forced` is the instruction set to limit the engine to; without it the engine chooses for the processor."""
        self.scratch, self.model, self.kind, self.forced, self.capacity = scratch, model, kind, forced, capacity
        self.process = None

    def command(self):
        """The command line, and additions to the environment."""
        raise NotImplementedError

    def weights(self):
        """The file or folder of weights that the engine reads at start."""
        raise NotImplementedError

    def program(self):
        """The file or folder of the engine's own code."""
        raise NotImplementedError

    def remove_caches(self):
        """Removes caches that speed up later starts."""

    def ask(self, prompts, tokens):
        """Sends all prompts at once. Returns one `Stream` for each."""
        raise NotImplementedError

    def spawn(self):
        """Starts the process. Returns the start time."""
        for path in (self.weights(), self.program()):
            machine.read_through(path)
        command, more = self.command()
        env = {name: value for name, value in os.environ.items() if not name.startswith("SOUFFLEUR_")}
        env |= more | {machine.MARK: str(self.scratch)}
        log = self.scratch / "logs" / f"{self.name}-{self.model}-{self.kind}.log"
        log.parent.mkdir(exist_ok=True)
        self.log = log
        started = time.monotonic()
        self.process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.PIPE, stdout=self.stdout(), stderr=open(log, "wb"), env=env, cwd=self.scratch,
            start_new_session=True, preexec_fn=machine.die_with_parent,
        )
        return started

    def stdout(self):
        """Where the process's standard output goes."""
        return subprocess.DEVNULL

    def check_alive(self):
        """Raises `EngineFailed` with the last lines of the log if the process has ended."""
        if self.process.poll() is not None:
            tail = "\n  ".join(self.log.read_text(errors="replace").strip().splitlines()[-5:])
            raise EngineFailed(f"{self.name} exited with {self.process.returncode}; the last lines of {self.log}:\n  {tail}")

    def run(self, prompts, tokens):
        """Sends the prompts and checks that each stream has exactly `tokens` tokens."""
        streams = self.ask(prompts, tokens)
        wrong = [stream.tokens for stream in streams if stream.tokens != tokens]
        if wrong:
            raise EngineFailed(f"{self.name}: a stream has {wrong[0]} tokens where {tokens} were asked for")
        return streams

    def signal(self, number):
        """Sends a signal to the process and its descendants."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def pause(self):
        """Suspends the engine."""
        self.signal(signal.SIGSTOP)

    def resume(self, rng):
        """Continues a suspended engine, and waits for its answer to a short prompt."""
        self.signal(signal.SIGCONT)
        time.sleep(self.settle_s)
        self.run([fresh(rng, 32)], 4)

    def stop(self):
        """Terminates the engine."""
        if self.process is None:
            return
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            pass
        self.signal(signal.SIGKILL)
        self.process.wait()
        self.process = None


def fresh(rng, count):
    """A random prompt, which is in no cache."""
    return [rng.randrange(300, 31000) for _ in range(count)]


def free_port():
    """An unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class HttpEngine(Engine):
    """An engine that serves HTTP with Server-Sent Events."""

    path = "/v1/completions"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.port = free_port()

    def body(self, prompt, tokens):
        """A request for exactly `tokens` greedy tokens."""
        return {"model": "m", "prompt": prompt, "max_tokens": tokens, "min_tokens": tokens, "stream": True, "ignore_eos": True,
                "temperature": 0, "return_token_ids": True}

    def count(self, event, before):
        """The number of new tokens in an event, after `before` earlier tokens."""
        return sum(len(choice.get("token_ids") or []) for choice in event.get("choices", []))

    def stream(self, start, events):
        """The `Stream` of a request."""
        stream = Stream(start)
        for when, event in events:
            if event.get("error"):
                raise EngineFailed(f"{self.name} failed inside a stream: {str(event)[:300]}")
            stream.saw(when, self.count(event, stream.tokens))
        return stream

    def ask(self, prompts, tokens):
        bodies = [self.body(prompt, tokens) for prompt in prompts]
        try:
            answers = client.ask(self.port, self.path, bodies, REQUEST_LIMIT_S)
            return [self.stream(start, events) for start, events in answers]
        except client.NoAnswer as error:
            self.check_alive()
            failure = NotReady if error.status in (None, 503) else EngineFailed
            raise failure(f"{self.name}: {error}") from error

    def start(self, rng):
        """Starts the engine. Returns the seconds until the first token of a 16-token prompt."""
        started, prompt = self.spawn(), fresh(rng, 16)
        while time.monotonic() - started < START_LIMIT_S:
            self.check_alive()
            if listens(self.port):
                try:
                    return self.run([prompt], 1)[0].first - started
                except NotReady:
                    pass
            time.sleep(RETRY_S)
        raise EngineFailed(f"{self.name} produced no token within {START_LIMIT_S} s of its start")


def listens(port):
    """Whether a server accepts connections at the port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class LlamaCpp(HttpEngine):
    """llama.cpp's own server."""

    name = "llama.cpp"
    path = "/completion"

    def weights(self):
        return install.gguf_file(self.scratch, self.model, {"int8": "q8_0"}.get(self.kind, self.kind))

    def program(self):
        return install.llama_libraries(self.scratch, self.forced)

    def command(self):
        sizes = ["-c", self.capacity.tokens, "-np", self.capacity.streams, "-b", 2048, "-ub", 512, "-t", 2, "-tb", 2, "--cache-ram", 512]
        # Without its warm-up, a measured start runs the model once.
        once = ["--no-warmup"] if self.capacity == SMALL else []
        server = [install.llama_server(self.scratch), "-m", self.weights(), *sizes, *once]
        # The loader searches LD_LIBRARY_PATH before the RUNPATH of the server.
        return [*server, "--host", "127.0.0.1", "--port", self.port], {"LD_LIBRARY_PATH": str(self.program())}

    def body(self, prompt, tokens):
        return {"prompt": prompt, "n_predict": tokens, "stream": True, "ignore_eos": True, "temperature": 0, "cache_prompt": True,
                "samplers": ["top_k"], "top_k": 1, "return_tokens": True}

    def count(self, event, before):
        # A token that ends inside a character has no event: a later event contains it, or at the end only the total counts it.
        return event["tokens_predicted"] - before if event.get("stop") else len(event.get("tokens") or [])


class IkLlamaCpp(LlamaCpp):
    """ik_llama.cpp's server; it repacks weights only with `-rtr`, llama.cpp by default."""

    name = "ik_llama.cpp"

    def program(self):
        return install.ik_server(self.scratch).parents[1]

    def command(self):
        # One stream at a time: with two in a step, its attention aborts (`GGML_ASSERT(S > 0)`).
        sizes = ["-c", self.capacity.tokens, "-np", 1, "-b", 2048, "-ub", 512, "-t", 2, "-tb", 2, "--cache-ram", 512, "-rtr"]
        once = ["--no-warmup"] if self.capacity == SMALL else []
        server = [install.ik_server(self.scratch), "-m", self.weights(), *sizes, *once]
        return [*server, "--host", "127.0.0.1", "--port", self.port], {}

    def count(self, event, before):
        # Each event is one token without its id. Tokens that end inside a character are only in the total.
        return event["tokens_predicted"] - before if event.get("stop") else 1


class Vllm(HttpEngine):
    """vLLM's CPU build."""

    name = "vllm"

    def weights(self):
        return self.scratch / "models" / self.model

    def program(self):
        return self.scratch / "venv-vllm"

    def command(self):
        env = {
            "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB), "VLLM_CPU_OMP_THREADS_BIND": "0-1", "OMP_NUM_THREADS": "2", "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
            "VLLM_CACHE_ROOT": str(self.scratch / "cache-vllm"), "TORCHINDUCTOR_CACHE_DIR": str(self.scratch / "cache-inductor"),
            "LD_LIBRARY_PATH": str(self.scratch / "venv-vllm" / "lib"),
        }
        flags = ["--dtype", "bfloat16", "--max-model-len", 2048, "--max-num-seqs", STREAMS, "--max-num-batched-tokens", 2048,
                 "--enable-prefix-caching", "--no-enable-log-requests"]
        server = [self.scratch / "venv-vllm" / "bin" / "python", "-m", "vllm.entrypoints.openai.api_server"]
        return [*server, "--model", self.weights(), "--served-model-name", "m", *flags, "--host", "127.0.0.1", "--port", self.port], env


class Souffleur(HttpEngine):
    """This repository's release binary."""

    name = "souffleur"
    binary = None
    # actix-web updates its clock every half second: right after SIGCONT, requests seem to have exceeded their time limits.
    settle_s = 0.75

    def folder(self):
        """A separate folder with hard links to the model, which the caches are written to as well."""
        return self.scratch / "served" / (f"{self.model}-{self.kind}" if self.kind in install.GGUF_KINDS else self.model)

    def weights(self):
        return self.folder() / "model.gguf" if self.kind in install.GGUF_KINDS else self.folder()

    def program(self):
        return self.binary

    def remove_caches(self):
        """Makes the folder of links anew, without caches, so that the next start is a first start."""
        shutil.rmtree(self.folder(), ignore_errors=True)
        self.folder().mkdir(parents=True)
        if self.kind in install.GGUF_KINDS:
            file = install.gguf_file(self.scratch, self.model, self.kind)
            if self.kind == install.GIVEN:
                self.weights().symlink_to(file.resolve())
            else:
                os.link(file, self.weights())
            return
        for file in (self.scratch / "models" / self.model).iterdir():
            os.link(file, self.folder() / file.name)

    def command(self):
        served = ["--model-path", self.weights(), "--served-model-name", "m", "--max-total-tokens", self.capacity.tokens, "--log-level", "warn"]
        flags = ["--quantization", "int8"] if self.kind == "int8" else []
        env = {"XDG_CACHE_HOME": str(self.folder() / "xdg")} | ({"SOUFFLEUR_CPU_ISA": self.forced.name} if self.forced else {})
        return [self.binary, "serve", *served, *flags, "--host", "127.0.0.1", "--port", self.port], env


class DriverEngine(Engine):
    """An engine without a server in its package: a Python process that takes batches as JSON lines on stdin."""

    def stdout(self):
        return subprocess.PIPE

    def _line(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.check_alive()
        return json.loads(line)

    def start(self, rng):
        """Like `HttpEngine.start`; Python's imports count too."""
        started = self.spawn()
        self._line()
        return self.run([fresh(rng, 16)], 1)[0].first - started

    def ask(self, prompts, tokens):
        self.process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}).encode() + b"\n")
        self.process.stdin.flush()
        answer = self._line()
        if "error" in answer:
            raise EngineFailed(f"{self.name}: {answer['error']}")
        return [Stream(seen["start"], [tuple(event) for event in seen["events"]]) for seen in answer["streams"]]


class OpenVino(DriverEngine):
    """OpenVINO GenAI (`ov_driver.py`)."""

    name = "openvino"

    def weights(self):
        return install.openvino_model(self.scratch, self.model, self.kind)

    def program(self):
        return self.scratch / "venv-openvino"

    def command(self):
        driver = [self.scratch / "venv-openvino" / "bin" / "python", install.HERE / "ov_driver.py"]
        properties, env = (self.forced.openvino(), {"ONEDNN_MAX_CPU_ISA": self.forced.onednn}) if self.forced else ({}, {})
        return [*driver, self.weights(), KV_GIB, json.dumps(properties)], env


class MistralRs(DriverEngine):
    """mistral.rs (`mistralrs_driver.py`)."""

    name = "mistral.rs"

    def weights(self):
        return install.gguf_file(self.scratch, self.model, self.kind)

    def program(self):
        return self.scratch / "venv-mistralrs"

    def command(self):
        driver = [self.scratch / "venv-mistralrs" / "bin" / "python", install.HERE / "mistralrs_driver.py"]
        package = self.scratch / "llama.cpp" / "gguf-py"
        # One stream at a time: a step with prompts of several requests fails with "input tensor is not contiguous".
        return [*driver, self.weights().resolve(), 1, package], {"RAYON_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}


ENGINES = {engine.name: engine for engine in (LlamaCpp, IkLlamaCpp, MistralRs, Vllm, OpenVino, Souffleur)}


def take_souffleur(scratch, path):
    """Copies the binary, so that a build during a run does not replace it. Returns its hash."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    program = scratch / "bin" / f"souffleur-{digest}"
    program.parent.mkdir(exist_ok=True)
    if not program.exists():
        shutil.copy2(path, program)
    Souffleur.binary = program
    return digest


def knows_int8(program):
    """Whether this binary can quantise at load."""
    return "--quantization" in subprocess.run([str(program), "serve", "--help"], capture_output=True, text=True, check=True).stdout


def warm_up(engine, rng):
    """Runs every kind of work once, so that measures contain no first-time costs."""
    engine.run([fresh(rng, 512)], 4)
    engine.run([fresh(rng, 16) for _ in range(STREAMS)], 4)


def seeded(*parts):
    """A random number generator whose seed is these names."""
    return random.Random("/".join(map(str, parts)))
