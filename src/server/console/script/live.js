// The live stream of the engine: `GET /console/live`, as docs/console-protocol.md has it. It is open only while the
// page and the engine's pane are in view.

const STEP_LIMIT = 4096;
const RATE_WINDOW_MS = 1200;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;
const SILENCE_MS = 10_000;
// Statuses that another try does not change: a key is needed, the name is not allowed, the stream is off.
const REFUSED = [401, 403, 404];

// The page's knowledge of the server, from the stream and from `/server_info`.
const server = { model: "", version: "", phase: "connecting", info: null };

const live = {
  hello: null,
  frame: null,
  history: [],
  steps: [],
  requests: [],
  nodes: new Map(),
  treeTotals: null,
  listeners: [],
  stopper: null,
  problem: null,
  // Until the first answer of the server, and while it refuses the stream.
  isRefused: true,

  // Opens or closes the stream, as is needed now.
  follow() {
    const wants = !document.hidden && isEngineShown() && !this.isRefused;
    if (wants && !this.stopper) this.watch();
    if (!wants && this.stopper) this.close();
  },
  close() {
    this.stopper?.abort();
    this.stopper = null;
  },
  reopen() {
    this.close();
    this.isRefused = false;
    this.needsKey = false;
    this.follow();
  },

  async watch() {
    const stopper = new AbortController();
    this.stopper = stopper;
    let wait = FIRST_WAIT_MS;
    while (!stopper.signal.aborted) {
      try {
        await this.listen(stopper.signal, () => {
          wait = FIRST_WAIT_MS;
        });
        this.problem = "The stream has ended";
      } catch (error) {
        if (stopper.signal.aborted) return;
        this.problem = error instanceof Refusal ? error.message : "The server does not answer";
        if (REFUSED.includes(error.status)) {
          this.isRefused = true;
          this.needsKey = error.status === 401;
          this.stopper = null;
          this.lost();
          return;
        }
        if (error.retryAfter) wait = 1000 * error.retryAfter;
      }
      if (stopper.signal.aborted) return;
      this.lost();
      await sleep(wait * (0.75 + Math.random() / 2));
      wait = Math.min(2 * wait, LONGEST_WAIT_MS);
    }
  },

  // Takes the events of one connection. It is given up after a long silence: a machine that slept misses its end.
  async listen(signal, opened) {
    const silence = new AbortController();
    const hz = calmMotion.matches ? 2 : 4;
    this.heard = performance.now();
    const timer = setInterval(() => performance.now() - this.heard > SILENCE_MS && silence.abort(), 2000);
    try {
      const response = await send(`console/live?hz=${hz}`, {
        signal: AbortSignal.any([signal, silence.signal]),
        asAdmin: true,
        accept: "text/event-stream",
        isQuiet: true,
      });
      opened();
      for await (const event of eventsOf(response)) this.take(event);
    } finally {
      clearInterval(timer);
    }
  },

  lost() {
    this.frame = null;
    this.history = [];
    this.mailboxes = [];
    server.phase = this.isRefused ? server.phase : "disconnected";
    this.tell("frame");
    showStatus();
  },

  take({ event, data }) {
    this.heard = performance.now();
    const value = JSON.parse(data);
    this.problem = null;
    if (event === "hello") this.takeHello(value);
    if (!this.hello) return;
    if (event === "frame") this.takeFrame(value);
    if (event === "tree") this.takeTree(value);
  },
  takeHello(hello) {
    clearNotice("server");
    if (hello.generation !== this.hello?.generation) {
      this.steps = [];
      this.nodes = new Map();
    }
    this.hello = hello;
    this.history = [];
    server.model = hello.model || server.model;
    server.version = hello.version;
    server.phase = hello.phase;
    this.tell("hello");
    showStatus();
  },
  takeFrame(frame) {
    this.frame = frame;
    this.received = performance.now();
    this.mailboxes = this.rows("mailboxes", frame.mailboxes ?? []);
    this.requests = this.rows("requests", frame.requests ?? []);
    for (const step of this.rows("steps", frame.steps ?? [])) this.steps.push({ ...step, kind: kindOf(step) });
    if (this.steps.length > STEP_LIMIT) this.steps.splice(0, this.steps.length - STEP_LIMIT);
    this.history.push({ t: frame.t_ms, counters: frame.counters ?? {}, mailboxes: this.mailboxes });
    while (this.history.length > 2 && frame.t_ms - this.history[1].t > RATE_WINDOW_MS) this.history.shift();
    if (frame.phase !== server.phase) {
      server.phase = frame.phase;
      showStatus();
    }
    this.tell("frame");
  },
  takeTree(tree) {
    if (tree.kind === "snapshot") this.nodes = new Map();
    for (const id of tree.gone ?? []) this.nodes.delete(id);
    for (const node of this.rows("nodes", tree.set ?? [])) this.nodes.set(node.id, node);
    this.treeTotals = tree.total;
    this.namespaces = tree.namespaces ?? this.namespaces ?? {};
    this.tell("tree", tree);
  },

  // Rows of a frame as objects, by the columns that `hello` names.
  rows(table, rows) {
    const columns = this.hello.columns[table];
    return rows.map((row) => Object.fromEntries(columns.map((name, index) => [name, row[index]])));
  },
  on(listener) {
    this.listeners.push(listener);
  },
  tell(kind, value) {
    for (const listener of this.listeners) listener(kind, value);
  },

  // The increase of a counter per second, over the last second.
  rate(name) {
    return this.slope((entry) => entry.counters[name] ?? 0);
  },
  mailboxRate(actor, field, message) {
    return this.slope((entry) =>
      entry.mailboxes
        .filter((row) => row.actor === actor && (!message || row.message === message))
        .reduce((sum, row) => sum + row[field], 0),
    );
  },
  slope(value) {
    const [first, last] = [this.history[0], this.history.at(-1)];
    if (!first || first === last || last.t === first.t) return 0;
    return Math.max(0, (1000 * (value(last) - value(first))) / (last.t - first.t));
  },

  // The engine's clock now, in ms: that of the last frame, moved on.
  now() {
    return this.frame ? this.frame.t_ms + performance.now() - this.received : 0;
  },
  rowOf(rid) {
    const mark = markOf(rid);
    return this.requests.find((row) => row.mark === mark);
  },
};

function kindOf({ prefill_tokens: prefill, decode_tokens: decode }) {
  if (prefill && decode) return "mixed";
  return prefill ? "prefill" : "decode";
}

const PHASES = {
  connecting: ["busy", "connecting"],
  loading: ["busy", "loading"],
  ready: ["good", "ready"],
  paused: ["warn", "paused"],
  rebuilding: ["warn", "rebuilding"],
  stopping: ["warn", "shutting down"],
  failed: ["bad", "failed"],
  disconnected: ["bad", "disconnected"],
  unreachable: ["bad", "not reachable"],
};

// Shows the server's state at the top of the page, and faults as notices.
function showStatus() {
  const [kind, word] = PHASES[server.phase] ?? ["warn", server.phase];
  const key = `${kind} ${word} ${server.model}`;
  const node = byId("status");
  if (node.dataset.key !== key) {
    node.dataset.key = key;
    fill(
      node,
      h("span", { class: `dot ${kind}`, "aria-hidden": "true" }),
      h("span", { class: "phase" }, word),
      server.model && h("span", { class: "model" }, server.model),
    );
  }
  showDeath();
  if (server.phase === "failed") {
    notice(
      "failed",
      "bad",
      "The engine has failed",
      live.hello?.reason ?? "It will not be rebuilt: restart the server.",
    );
  } else {
    clearNotice("failed");
  }
}

function showDeath() {
  const { died } = live.hello ?? {};
  if (!died) {
    clearNotice("died");
    return;
  }
  if (live.seenDeath === died.generation && server.phase === "ready") return;
  const isBack = server.phase === "ready";
  const title = `The ${died.actor.replaceAll("_", " ")} died, generation ${whole(died.generation)}`;
  const text = isBack
    ? `Generation ${whole(live.hello.generation)} runs now. Older requests got engine_down; the cache began empty.`
    : "The watchdog ends all actors and builds new ones. Requests wait or fail with engine_down.";
  notice("died", isBack ? "info" : "bad", title, text, [
    "Dismiss",
    () => {
      live.seenDeath = died.generation;
      clearNotice("died");
    },
  ]);
}
