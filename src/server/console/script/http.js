// Requests to the server. Keys live in sessionStorage only and travel in headers only.

const KEY = "souffleur-key";
const ADMIN_KEY = "souffleur-admin-key";

// Session storage may be refused by the browser; then keys last as long as the page.
const keyRing = {
  kept: new Map(),
  get(name) {
    try {
      return sessionStorage.getItem(name) ?? "";
    } catch {
      return this.kept.get(name) ?? "";
    }
  },
  set(name, value) {
    this.kept.set(name, value);
    try {
      if (value) sessionStorage.setItem(name, value);
      else sessionStorage.removeItem(name);
    } catch {
      // The map has it.
    }
  },
};

// A refusal by the server: an HTTP status with the code and message of OpenAI's error object.
class Refusal extends Error {
  constructor(status, code, message, retryAfter) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

function keyFor(asAdmin) {
  const admin = keyRing.get(ADMIN_KEY);
  return (asAdmin && admin) || keyRing.get(KEY) || admin;
}

// Sends a request to a path relative to the page. Answers the response, or throws a `Refusal`.
async function send(path, { method = "GET", body, signal, asAdmin = false, accept, isQuiet = false } = {}) {
  const headers = {};
  const key = keyFor(asAdmin);
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (accept) headers.Accept = accept;
  const response = await fetch(path, {
    method,
    headers,
    signal,
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
  });
  if (response.ok) return response;
  const refusal = await refusalOf(response);
  if (!isQuiet) noteRefusal(refusal);
  throw refusal;
}

async function refusalOf(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // The status says it.
  }
  return new Refusal(
    response.status,
    error.code ?? "",
    error.message || `the server answered ${response.status}`,
    Number(response.headers.get("retry-after")) || null,
  );
}

async function getJson(path, options = {}) {
  return (await send(path, options)).json();
}

// Reads an event stream: yields `{event, data}` with the data as text.
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let line = [];
  let event = { event: "message", data: [] };
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    let from = 0;
    for (let end = value.indexOf("\n"); end >= 0; end = value.indexOf("\n", from)) {
      line.push(value.slice(from, end));
      from = end + 1;
      const text = line.join("").replace(/\r$/, "");
      line = [];
      if (text === "") {
        if (event.data.length) yield { event: event.event, data: event.data.join("\n") };
        event = { event: "message", data: [] };
      } else {
        readField(event, text);
      }
    }
    if (from < value.length) line.push(value.slice(from));
  }
}

function readField(event, line) {
  const colon = line.indexOf(":");
  const name = colon < 0 ? line : line.slice(0, colon);
  const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
  if (name === "event") event.event = value;
  if (name === "data") event.data.push(value);
}

// The dialog that asks for keys. It opens by itself on a 401.
const keyDialog = {
  node: null,
  open(reason = "") {
    this.node ??= this.make();
    byId("key-reason").textContent = reason;
    byId("key-field").value = keyRing.get(KEY);
    byId("admin-field").value = keyRing.get(ADMIN_KEY);
    if (!this.node.open) this.node.showModal();
    byId("key-field").focus();
  },
  make() {
    const field = (id, label, hint) =>
      h(
        "label",
        { class: "field", for: id },
        h("span", {}, label),
        h("input", { id, type: "password", autocomplete: "off", spellcheck: "false" }),
        h("small", {}, hint),
      );
    const form = h(
      "form",
      { method: "dialog", onsubmit: () => this.keep() },
      h("h2", { id: "key-title" }, "Keys"),
      h("p", { id: "key-reason", class: "reason" }),
      field("key-field", "API key", "Needed if the server runs with --api-key."),
      field("admin-field", "Admin key, optional", "Shows prompts’ texts at a miss and the ids of requests."),
      h("p", { class: "muted" }, "Both stay in this tab until it is closed, and are sent as headers only."),
      h(
        "div",
        { class: "row end" },
        button("Cancel", { class: "quiet" }, () => this.node.close()),
        h("button", { type: "submit", class: "primary" }, "Use these keys"),
      ),
    );
    const dialog = h("dialog", { class: "dialog", "aria-labelledby": "key-title" }, form);
    document.body.append(dialog);
    return dialog;
  },
  keep() {
    keyRing.set(KEY, byId("key-field").value.trim());
    keyRing.set(ADMIN_KEY, byId("admin-field").value.trim());
    clearNotice("key");
    clearNotice("host");
    restart();
  },
};

// Refusals that concern the whole page get a notice; the caller shows the others.
function noteRefusal(refusal) {
  if (refusal.status === 401) {
    notice("key", "warn", "A key is needed", refusal.message, ["Enter the key", () => keyDialog.open()]);
    if (!keyDialog.asked) {
      keyDialog.asked = true;
      keyDialog.open(refusal.message);
    }
  }
  if (refusal.code === "host_not_allowed" || refusal.code === "origin_not_allowed") {
    notice("host", "warn", `The server does not know the name “${location.host}”`, refusal.message);
  }
}

// A notice at the top of the page: `[label, action]` adds a button. There is one notice for each name.
function notice(name, kind, title, text, act) {
  const known = byId(`notice-${name}`);
  if (known?.dataset.text === title + text) return;
  const node = h(
    "div",
    { id: `notice-${name}`, class: `notice ${kind}`, role: "status", "data-text": title + text },
    h("strong", {}, title),
    h("span", {}, text),
    act && button(act[0], { class: "quiet" }, act[1]),
  );
  if (known) known.replaceWith(node);
  else byId("notices").append(node);
}

function clearNotice(name) {
  byId(`notice-${name}`)?.remove();
}
