"""Runs the rounds, each of which measures every row on every engine in turn."""

import gc
import json
import os
import time

import engines
import isa
import machine
import rows
from engines import ENGINES, EngineFailed, Souffleur
from shapes import SHAPES

# Allocated and freed before each measure of a load: more than an engine needs.
WARM_BYTES = 2 << 30
# The peers whose start is measured each round. vLLM takes minutes, so it starts once per model. GGUF files have rows of loads instead.
START_PEERS = {"bf16": ["llama.cpp", "openvino"], "int8": []}
START_PEERS_QUICK = {"bf16": ["llama.cpp"], "int8": []}


def load(path):
    """Reads the records of earlier runs, without the incomplete line of a killed run."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            print(f"[rounds] {path}: ignored an incomplete line", flush=True)
    return found


class Session:
    """One run of the command: its options, the running engines, and the records."""

    def __init__(self, options, binary):
        self.options, self.scratch = options, options.scratch
        self.digest = engines.take_souffleur(self.scratch, binary) if binary else "peers-only"
        name = f"{self.digest}-{options.forced.name}" if options.forced else self.digest
        self.results = options.results or self.scratch / "results" / f"{name}.jsonl"
        self.results.parent.mkdir(parents=True, exist_ok=True)
        self.records = load(self.results)
        self.peak = machine.Peak(self.scratch)
        self.peak_isa = options.forced or isa.native(self.peak.has())
        self.int8 = binary is not None and engines.knows_int8(Souffleur.binary)
        self.live = {}
        self.broken = set()
        self.began = time.monotonic()
        if binary is not None and not self.int8:
            print("[rounds] this binary has no --quantization: int8 rows are measured without Souffleur", flush=True)

    def record(self, model, row, kind, engine, number, **more):
        """Appends a record to the file, and prints it."""
        made = {"model": model, "row": row, "kind": kind, "engine": engine, "round": number, "isa": self.peak_isa.name, "when": round(time.time(), 1)} | more
        self.records.append(made)
        with open(self.results, "a") as file:
            file.write(json.dumps(made) + "\n")
        shown = " ".join(f"{key} {value:.3f}" for key, value in made.get("metrics", {}).items()) or f"FAILED: {made.get('error')}"
        other = f", others {made['other_cores']:.2f} cores" if "other_cores" in made else ""
        print(f"[{time.monotonic() - self.began:5.0f} s] {model} round {number} {row} {engine}: {shown}{other}", flush=True)

    def has(self, model, row, kind, engine, number=None):
        """Whether a record without an error exists."""
        key = (model, row, kind, engine)
        return any(
            (one["model"], one["row"], one["kind"], one["engine"]) == key and "error" not in one and number in (None, one["round"])
            for one in self.records
        )

    def wanted(self, model, row):
        """The engines on which a row is measured."""
        peers = row.peers_of(model, self.options.quick, self.peak_isa)
        names = [peer for peer in peers if peer in self.options.engines]
        if "souffleur" in self.options.engines and (row.kind != "int8" or self.int8):
            names.append("souffleur")
        return names

    def asked(self, name):
        """Whether the command line selects a row."""
        return not self.options.rows or name in self.options.rows

    def missing_rows(self, model, kind, number):
        """Rows that lack a record. All their engines are measured again, because ratios compare measures of the same run."""
        return [
            row for row in rows.ROWS
            if row.kind == kind and self.asked(row.name)
            and any(not self.has(model, row.name, kind, name, number) for name in self.wanted(model, row))
        ]

    def missing_starts(self, model, kind, number):
        """Engines whose start is not recorded yet."""
        if kind not in START_PEERS or not self.asked(rows.START):
            return []
        names = (START_PEERS_QUICK if self.options.quick else START_PEERS)[kind]
        names = [name for name in [*names, "souffleur"] if name in self.options.engines and (name != "souffleur" or kind == "bf16" or self.int8)]
        return [name for name in names if not self.has(model, rows.START, kind, name, number)]

    def run(self):
        """Makes the missing measures."""
        try:
            for model in self.options.models:
                for number in range(1, self.options.rounds + 1):
                    for kind in rows.kinds_of(model):
                        self.group(model, kind, number)
                self.stop_all()
        finally:
            self.stop_all()

    def group(self, model, kind, number):
        """Runs one round of the rows with one kind of weights."""
        todo = self.missing_rows(model, kind, number)
        for row in [row for row in todo if row.alone]:
            for name in rotated(self.wanted(model, row), number):
                self.measure_alone(model, row, name, number)
        todo = [row for row in todo if not row.alone]
        needed = {name for row in todo for name in self.wanted(model, row)} | set(self.missing_starts(model, kind, number))
        order = rotated([name for name in ENGINES if name in needed], number)
        for name in order:
            self.ensure(model, kind, name, number)
        for row in todo:
            for name in rotated(self.wanted(model, row), number):
                if (name, kind) in self.live:
                    self.measure(model, row, name, number)
        for name in order:
            if (name, kind) in self.live:
                resident = machine.peak_resident(self.live[name, kind].process.pid) / 2**20
                measured = {"metrics": {"mib": resident}, "rows": [row.name for row in todo]}
                self.record(model, rows.MEMORY, kind, name, number, **measured)
                if name != "vllm":
                    self.live.pop((name, kind)).stop()

    def ensure(self, model, kind, name, number):
        """Starts an engine if it is not running, and pauses it."""
        if (name, kind) in self.live or (model, name, kind) in self.broken:
            return
        engine = ENGINES[name](self.scratch, model, kind, self.options.forced)
        rng = engines.seeded(model, name, kind, number, "start")
        try:
            if name == "souffleur":
                self.first_start(engine, number, rng)
            with machine.Others() as others:
                seconds = engine.start(rng)
            resident = machine.peak_resident(engine.process.pid) / 2**20
            self.record(model, rows.START, kind, name, number, metrics={"s": seconds}, mib=resident, other_cores=others.cores, steal=others.steal)
            engines.warm_up(engine, rng)
            engine.pause()
            self.live[name, kind] = engine
        except (EngineFailed, OSError, ValueError) as error:
            engine.stop()
            self.broken.add((model, name, kind))
            self.record(model, rows.START, kind, name, number, error=str(error))

    def first_start(self, engine, number, rng):
        """Starts and stops an engine once, so that later starts find its caches."""
        fresh_folder = not engine.weights().exists()
        if self.has(engine.model, rows.FIRST_START, engine.kind, engine.name) and not fresh_folder:
            return
        if fresh_folder or engine.kind != "int8":
            engine.remove_caches()
        with machine.Others() as others:
            seconds = engine.start(rng)
        resident = machine.peak_resident(engine.process.pid) / 2**20
        engine.stop()
        os.sync()
        metrics = {"s": seconds, "mib": resident}
        self.record(engine.model, rows.FIRST_START, engine.kind, engine.name, number, metrics=metrics, other_cores=others.cores, steal=others.steal)

    def measure(self, model, row, name, number):
        """Measures the machine's limits, then a row on an engine."""
        engine = self.live[name, row.kind]
        # The same prompts for every engine.
        rng = engines.seeded(model, row.name, number)
        limits = self.peak.measure(self.peak_isa)
        try:
            engine.resume(engines.seeded(model, row.name, number, "wake"))
            gc.collect()
            gc.disable()
            with machine.Others() as others:
                metrics = row.measure(engine, rng)
        except (EngineFailed, OSError, ValueError) as error:
            self.live.pop((name, row.kind)).stop()
            self.record(model, row.name, row.kind, name, number, error=str(error))
            return
        finally:
            gc.enable()
        engine.pause()
        floor, limit = row.floor(SHAPES[model], limits)
        measured = {"metrics": metrics, "floor": floor, "limit": limit, "limits": vars(limits), "other_cores": others.cores, "steal": others.steal}
        self.record(model, row.name, row.kind, name, number, **measured)

    def measure_alone(self, model, row, name, number):
        """Measures a start with a small KV pool and no caches: the time to the first token, and the resident memory."""
        engine = ENGINES[name](self.scratch, model, row.kind, self.options.forced, engines.SMALL)
        try:
            engine.remove_caches()
            machine.warm_memory(WARM_BYTES)
            with machine.Others() as others:
                seconds = engine.start(engines.seeded(model, row.name, number))
            metrics = {"s": seconds, "mib": machine.peak_resident(engine.process.pid) / 2**20}
            more = {"file_mib": engine.weights().stat().st_size / 2**20, "other_cores": others.cores, "steal": others.steal}
            self.record(model, row.name, row.kind, name, number, metrics=metrics, **more)
        except (EngineFailed, OSError, ValueError) as error:
            self.record(model, row.name, row.kind, name, number, error=str(error))
        finally:
            engine.stop()

    def stop_all(self):
        """Stops every engine."""
        while self.live:
            self.live.popitem()[1].stop()


def rotated(names, number):
    """Rotates the names, so that each round starts with a different one."""
    shift = number % len(names) if names else 0
    return names[shift:] + names[:shift]
