// Requests as lanes: the prompt (cached, computed, still to compute), then the output as it grows.

const STATES = {
  waiting: "⋯ waits",
  loading: "↓ loads",
  prefill: "▸ prefill",
  decode: "● decodes",
  retracted: "↩ retracted",
  ended: "✓ ended",
};
const KEEP_ENDED_MS = 1400;

class LanesPicture {
  constructor() {
    this.lanes = new Map();
    this.list = h("div", {
      class: "lanes",
      role: "group",
      tabindex: "0",
      "aria-label": "Lanes; the table below has their numbers",
    });
    this.more = h("p", { class: "muted" });
    this.empty = h(
      "div",
      { class: "empty small" },
      h("p", { class: "muted" }, "No requests."),
      button("Send eight prompts with a common beginning", { class: "quiet", id: "try-load" }, () => sendLoad()),
    );
    this.table = new DataTable(
      "Requests",
      ["request", "state", "prompt", "cached", "computed", "output", "waited", "ran"],
      () =>
        live.requests.map((row) => [
          nameOfRequest(row),
          row.state,
          whole(row.prompt),
          whole(row.cached),
          whole(row.computed),
          whole(row.output),
          seconds(row.queued_ms),
          seconds(row.running_ms),
        ]),
    );
    const key = h(
      "p",
      { class: "legend" },
      [
        ["cached", "cached"],
        ["computed", "computed"],
        ["pending", "to compute"],
        ["output", "output"],
      ].map(([look, words]) => h("span", {}, h("i", { class: `key ${look}` }), words)),
    );
    this.node = card("Requests", "prompt, then output", this.table, this.empty, this.list, this.more, key);
  }

  update() {
    const now = performance.now();
    const longest = Math.max(...live.requests.map((row) => row.prompt + Math.max(row.output, 16)), 64);
    for (const row of live.requests) this.laneOf(row).update(row, longest);
    const present = new Set(live.requests.map((row) => row.id));
    for (const [id, lane] of this.lanes) {
      if (present.has(id)) continue;
      lane.end(now);
      if (now - lane.ended < KEEP_ENDED_MS && live.frame) continue;
      lane.node.remove();
      this.lanes.delete(id);
    }
    const { shown, all } = { shown: live.requests.length, all: live.frame?.requests_total ?? 0 };
    setText(this.more, all > shown ? `+${whole(all - shown)} more` : "");
    this.empty.hidden = this.lanes.size > 0;
    this.table.update();
  }

  laneOf(row) {
    if (!this.lanes.has(row.id)) {
      const lane = new Lane(row);
      this.lanes.set(row.id, lane);
      this.list.append(lane.node);
    }
    return this.lanes.get(row.id);
  }
}

function nameOfRequest(row) {
  if (isOwn(row)) return "this chat";
  return row.rid ? `…${row.rid.slice(-7)}` : `#${row.id}`;
}

function isOwn(row) {
  for (const id of running.keys()) {
    const rid = views.get(id)?.message.run?.rid;
    if (rid && markOf(rid) === row.mark) return true;
  }
  return false;
}

class Lane {
  constructor(row) {
    this.parts = Object.fromEntries(
      ["cached", "computed", "pending", "output", "rest"].map((look) => [look, h("span", { class: `part ${look}` })]),
    );
    this.name = h("span", { class: "name", title: row.rid ?? "" }, nameOfRequest(row));
    this.state = h("span", { class: "state" });
    this.numbers = h("span", { class: "numbers" });
    this.node = h(
      "div",
      { class: "lane" },
      this.name,
      this.state,
      h("div", { class: "bar thin", "aria-hidden": "true" }, Object.values(this.parts)),
      this.numbers,
    );
  }

  update(row, longest) {
    const { prompt, cached, computed, output } = row;
    const sizes = {
      cached,
      computed,
      pending: Math.max(prompt - cached - computed, 0),
      output,
      rest: Math.max(longest - prompt - output, 0),
    };
    for (const [look, size] of Object.entries(sizes)) this.parts[look].style.flexGrow = String(size);
    if (isOwn(row)) this.node.classList.add("own");
    if (this.node.classList.contains("own")) setText(this.name, "this chat");
    setText(this.state, STATES[row.state] ?? row.state);
    setText(this.numbers, `${brief(prompt)} + ${brief(output)}`);
    this.seen = `${brief(prompt)} + ≥ ${brief(output)}`;
    this.ended = null;
    this.node.classList.remove("ended");
  }

  end(now) {
    if (this.ended) return;
    this.ended = now;
    this.node.classList.add("ended");
    setText(this.state, STATES.ended);
    // The last frame before the end may lack tokens.
    setText(this.numbers, this.seen);
  }
}

// Sends eight prompts in one call, for those who want to see the engine work.
async function sendLoad() {
  const start = "The prompter sits below the stage and whispers the first words of each line to the actors. ";
  const ends = ["Who", "What", "Where", "When", "Why", "Who wrote", "What comes after", "Where does"];
  const body = {
    model: server.model || "default",
    prompt: ends.map((end) => `${start}${end}`),
    max_tokens: 120,
    temperature: 0.9,
  };
  try {
    await (await send("v1/completions", { method: "POST", body })).json();
  } catch (error) {
    if (error.status !== 401) notice("load", "warn", "Not sent", error.message, ["Dismiss", () => clearNotice("load")]);
  }
}
