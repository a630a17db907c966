// The actors and their messages as a picture: that of ARCHITECTURE.md, with the numbers of the live stream.

const ACTORS = {
  server: { label: "Server", about: "HTTP and SSE" },
  tokenizer: { label: "Tokenizer", about: "text ⇄ tokens" },
  scheduler: { label: "Scheduler", about: "who runs next" },
  radix_cache: { label: "RadixCache", about: "tree of prefixes" },
  allocator: { label: "Allocator", about: "free pages and rows" },
  executor: { label: "Executor", about: "computes the steps" },
  kv_store: { label: "KvStore", about: "prefixes on disk" },
  watchdog: { label: "Watchdog", about: "rebuilds all of these" },
};

// The receivers of messages, by which the stream's rows are found. Events do not pass a mailbox: they are the Server's.
const RECEIVERS = {
  Generate: "tokenizer",
  events: null,
  Submit: "scheduler",
  TokensReady: "tokenizer",
  PlanStep: "radix_cache",
  ReservePages: "allocator",
  StepPlanned: "scheduler",
  RunStep: "executor",
  StepDone: "scheduler",
  StoreOrders: "kv_store",
  StoreNews: "scheduler",
};

// Places of the boxes, and for each message its path and the place and side of its name.
const WIDE_LAYOUT = {
  box: [600, 288],
  size: [134, 62],
  server: [2, 4],
  tokenizer: [233, 4],
  watchdog: [464, 4],
  radix_cache: [2, 113],
  scheduler: [233, 113],
  executor: [464, 113],
  allocator: [2, 222],
  kv_store: [464, 222],
  lines: {
    Generate: ["M136 26H231", 183, 20, "middle"],
    events: ["M233 46H138", 183, 60, "middle"],
    Submit: ["M285 66V111", 278, 93, "end"],
    TokensReady: ["M315 113V68", 322, 93, "start"],
    PlanStep: ["M233 144H138", 185, 138, "middle"],
    ReservePages: ["M69 175V220", 76, 202, "start"],
    StepPlanned: ["M136 253H268V177", 200, 247, "middle"],
    RunStep: ["M367 134H462", 415, 128, "middle"],
    StepDone: ["M464 154H369", 416, 168, "middle"],
    StoreOrders: ["M345 175V243H462", 404, 237, "middle"],
    StoreNews: ["M464 264H316V177", 400, 278, "middle"],
  },
};
const TALL_LAYOUT = {
  box: [366, 396],
  size: [124, 62],
  server: [2, 4],
  tokenizer: [218, 4],
  executor: [2, 113],
  scheduler: [218, 113],
  allocator: [2, 222],
  radix_cache: [218, 222],
  watchdog: [2, 331],
  kv_store: [218, 331],
  lines: {
    Generate: ["M126 26H216", 171, 20, "middle"],
    events: ["M218 46H128", 171, 60, "middle"],
    Submit: ["M260 66V111", 253, 93, "end"],
    TokensReady: ["M284 113V68", 291, 93, "start"],
    RunStep: ["M218 134H128", 171, 128, "middle"],
    StepDone: ["M126 154H216", 171, 168, "middle"],
    PlanStep: ["M290 175V220", 297, 202, "start"],
    ReservePages: ["M218 253H128", 173, 247, "middle"],
    StepPlanned: ["M96 222V199H246V177", 170, 193, "middle"],
    StoreOrders: ["M342 136H362V371H344", 211, 358, "end"],
    StoreNews: ["M342 355H353V153H344", 211, 374, "end"],
  },
};
const LONG_QUEUE = 8;

class ActorsPicture {
  constructor() {
    this.frame = h("div", { class: "actors" });
    this.table = new DataTable("Actors", ["actor", "waiting", "messages/s", "busy"], () => this.tableRows());
    const key = h(
      "p",
      { class: "legend" },
      h("span", {}, h("b", { class: "queue-key" }, "▪"), " messages that wait"),
      h("span", {}, h("i", { class: "key busy-key" }), "share of the time at work"),
    );
    this.node = card("Actors", "they share nothing and send messages", this.table, this.frame, key);
    new ResizeObserver(() => this.layOut()).observe(this.frame);
  }

  layOut() {
    const layout = this.frame.clientWidth < 460 ? TALL_LAYOUT : WIDE_LAYOUT;
    const hasStore = Boolean(live.hello?.actors?.includes("kv_store"));
    if (this.layout === layout && this.hasStore === hasStore) return;
    Object.assign(this, { layout, hasStore, boxes: {}, lines: {} });
    const arrow = svg(
      "marker",
      { id: "arrow", viewBox: "0 0 8 8", refX: "6", refY: "4", markerWidth: "7", markerHeight: "7", orient: "auto" },
      svg("path", { d: "M2 1l4 3-4 3", class: "arrow" }),
    );
    const lines = Object.keys(layout.lines).filter((name) => hasStore || !name.startsWith("Store"));
    const boxes = Object.keys(ACTORS).filter((name) => hasStore || name !== "kv_store");
    fill(
      this.frame,
      svg(
        "svg",
        {
          viewBox: `0 0 ${layout.box.join(" ")}`,
          role: "img",
          "aria-label": "Picture of the actors; the table below has its numbers",
        },
        svg("defs", {}, arrow),
        lines.map((name) => this.lineOf(name)),
        boxes.map((name) => this.boxOf(name)),
      ),
    );
    this.update();
  }

  boxOf(name) {
    const [x, y] = this.layout[name];
    const [width, height] = this.layout.size;
    const { label, about } = ACTORS[name];
    const parts = {
      queue: svg("text", { x: width - 9, y: 19, class: "queue", "text-anchor": "end" }),
      note: svg("text", { x: 10, y: height - 14, class: "depth" }),
      busy: svg("rect", { x: 0, y: height - 5, width: 0, height: 5, class: "busy" }),
      group: null,
    };
    this.boxes[name] = parts;
    const clip = `clip-${name}`;
    parts.group = svg(
      "g",
      { transform: `translate(${x} ${y})`, class: `actor ${name}` },
      svg("clipPath", { id: clip }, svg("rect", { width, height, rx: 9 })),
      svg("rect", { width, height, rx: 9, class: "box" }),
      svg("g", { "clip-path": `url(#${clip})` }, parts.busy),
      svg("text", { x: 10, y: 19, class: "name" }, label),
      parts.queue,
      svg("text", { x: 10, y: 33, class: "about" }, about),
      parts.note,
    );
    return parts.group;
  }

  lineOf(name) {
    const [path, x, y, side] = this.layout.lines[name];
    const flow = svg("path", { d: path, class: "flow" });
    const label = svg("text", { x, y, "text-anchor": side, class: "message-name" }, name);
    this.lines[name] = { flow, label };
    return svg("g", {}, svg("path", { d: path, class: "wire", "marker-end": "url(#arrow)" }), flow, label);
  }

  update() {
    if (!this.boxes || !live.hello) return;
    for (const [name, box] of Object.entries(this.boxes)) this.updateBox(name, box);
    for (const [name, line] of Object.entries(this.lines)) {
      const actor = RECEIVERS[name];
      this.updateLine(line, actor ? live.mailboxRate(actor, "handled", name) : live.rate("output_tokens"));
    }
    this.table.update();
  }

  updateBox(name, { queue, note, busy, group }) {
    if (name === "server") return;
    if (name === "watchdog") {
      setText(note, `generation ${live.hello.generation}`);
      return;
    }
    const isDead = server.phase !== "ready" && live.hello.died?.actor === name;
    group.classList.toggle("dead", isDead);
    if (isDead) {
      setText(note, "✕ died");
      return;
    }
    const { perSecond, waiting, share } = actorNumbers(name);
    const busyShare = (100 * share).toFixed(share < 0.1 ? 1 : 0);
    setText(note, live.frame ? `${brief(perSecond)}/s · ${busyShare} % busy` : "");
    setText(queue, waiting > 0 ? `▪ ${whole(waiting)}` : "");
    busy.setAttribute("width", this.layout.size[0] * share);
    group.classList.toggle("has-queue", waiting >= LONG_QUEUE);
  }

  updateLine({ flow, label }, perSecond) {
    const isLive = perSecond > 0.05;
    flow.classList.toggle("on", isLive);
    label.classList.toggle("on", isLive);
    if (!isLive) return;
    flow.style.strokeWidth = String(1.4 + Math.min(Math.log10(1 + perSecond), 3) * 0.5);
    const pace = perSecond > 200 ? 0.4 : perSecond > 30 ? 0.8 : perSecond > 3 ? 1.4 : 2.4;
    if (flow.dataset.pace !== String(pace)) {
      flow.dataset.pace = pace;
      flow.style.animationDuration = `${pace}s`;
    }
  }

  tableRows() {
    return (live.hello?.actors ?? []).map((name) => {
      const { perSecond, waiting, share } = actorNumbers(name);
      return [ACTORS[name]?.label ?? name, whole(waiting), brief(perSecond), `${(100 * share).toFixed(1)} %`];
    });
  }
}

function actorNumbers(name) {
  const rows = (live.mailboxes ?? []).filter((row) => row.actor === name);
  return {
    waiting: rows.reduce((sum, row) => sum + row.depth, 0),
    perSecond: live.mailboxRate(name, "handled"),
    share: Math.min(live.mailboxRate(name, "busy_us") / 1e6, 1),
  };
}
