// Chats: a tree of messages each, kept in IndexedDB. Editing a message adds a sibling, so nothing is lost.

const DATABASE = "souffleur-console";
const EXPORT_FORMAT = "souffleur-console";
const ROLES = new Set(["user", "assistant", "tool"]);

const chats = {
  all: new Map(),
  current: null,
  removed: new Set(),
  database: null,

  async open() {
    try {
      this.database = await openDatabase();
      for (const chat of await finished(this.table("readonly").getAll())) this.all.set(chat.id, chat);
    } catch (error) {
      notice("store", "warn", "Chats are not kept", `This browser refuses its database: ${error.message}`);
    }
  },
  table(mode) {
    return this.database.transaction("chats", mode).objectStore("chats");
  },
  sorted() {
    return [...this.all.values()].sort((one, other) => other.updated - one.updated || (one.id < other.id ? -1 : 1));
  },
  // Keeps a chat. `touched` says that the user or the model has changed it now.
  async keep(chat, touched = true) {
    if (this.removed.has(chat.id)) return;
    if (touched) chat.updated = Date.now();
    this.all.set(chat.id, chat);
    if (!this.database) return;
    try {
      await finished(this.table("readwrite").put(structuredClone(chat)));
    } catch (error) {
      notice("store", "warn", "The chat is not kept", `This browser's database refuses it: ${error.message}`);
    }
  },
  async remove(id) {
    this.all.delete(id);
    this.removed.add(id);
    if (this.database) await finished(this.table("readwrite").delete(id));
  },
};

function openDatabase() {
  const request = indexedDB.open(DATABASE, 1);
  request.onupgradeneeded = () => request.result.createObjectStore("chats", { keyPath: "id" });
  return finished(request);
}

function finished(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function newChat(from = {}) {
  const now = Date.now();
  return {
    id: randomId(),
    title: "",
    created: now,
    updated: now,
    system: from.system ?? "",
    params: { ...from.params },
    tools: from.tools ?? "",
    schema: from.schema ?? "",
    logprobs: from.logprobs ?? false,
    nodes: {},
    leaf: null,
  };
}

// Adds a message after `parent` and makes it the last of the shown branch.
function addNode(chat, parent, node) {
  const id = randomId().slice(0, 12);
  chat.nodes[id] = { id, parent, content: "", at: Date.now(), ...node };
  chat.leaf = id;
  return chat.nodes[id];
}

// The messages from the first one to `leaf`.
function pathTo(chat, leaf = chat.leaf) {
  const path = [];
  for (let node = chat.nodes[leaf]; node; node = chat.nodes[node.parent]) path.unshift(node);
  return path;
}

function siblings(chat, node) {
  return Object.values(chat.nodes)
    .filter((other) => other.parent === node.parent)
    .sort((one, other) => one.at - other.at || (one.id < other.id ? -1 : 1));
}

// Shows the branch of `node`, down to its newest messages.
function showBranch(chat, node) {
  let leaf = node;
  for (;;) {
    const next = Object.values(chat.nodes).filter((other) => other.parent === leaf.id);
    if (!next.length) break;
    leaf = next.reduce((newest, other) => (other.at > newest.at ? other : newest));
  }
  chat.leaf = leaf.id;
}

function titleOf(chat) {
  if (chat.title) return chat.title;
  const first = pathTo(chat).find((node) => node.role === "user");
  return first?.content.trim().replace(/\s+/g, " ").slice(0, 70) || "New chat";
}

// A chat with the messages up to `leaf` only.
function forkedChat(chat, leaf) {
  const fork = newChat(chat);
  const path = structuredClone(pathTo(chat, leaf));
  fork.nodes = Object.fromEntries(path.map((node) => [node.id, node]));
  fork.leaf = leaf;
  fork.title = `${titleOf(chat).slice(0, 60)} (fork)`;
  return fork;
}

function exportJson(list) {
  return JSON.stringify({ format: EXPORT_FORMAT, version: 1, chats: list }, null, 1);
}

// Adds the chats of an exported text. One that is known and unchanged is skipped; one that differs from the known one
// gets a new id. Answers how many were added.
async function importJson(text) {
  const file = JSON.parse(text);
  if (file?.format !== EXPORT_FORMAT || file.version !== 1 || !Array.isArray(file.chats)) {
    throw new Error("this is no export of the console");
  }
  const added = file.chats.map(checkedChat).filter((chat) => !isKnown(chat));
  for (const chat of added) {
    if (chats.all.has(chat.id)) chat.id = randomId();
    await chats.keep(chat, false);
  }
  return added.length;
}

function isKnown(chat) {
  const known = chats.all.get(chat.id);
  return known !== undefined && JSON.stringify(known) === JSON.stringify(chat);
}

// Checks that a chat has the shape that the page relies on. Other fields pass: they are only shown as text.
function checkedChat(chat) {
  const texts = [chat.id, chat.title, chat.system, chat.tools, chat.schema];
  const numbers = [chat.created, chat.updated];
  const isChat =
    texts.every((text) => typeof text === "string") &&
    numbers.every(Number.isFinite) &&
    isObject(chat.params) &&
    isObject(chat.nodes) &&
    chat.id !== "";
  if (!isChat || !Object.entries(chat.nodes).every(isNode) || !hasNoLoop(chat)) {
    throw new Error("a chat in the file is damaged");
  }
  return chat;
}

function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

function isNode([id, node]) {
  return (
    isObject(node) &&
    node.id === id &&
    ROLES.has(node.role) &&
    typeof node.content === "string" &&
    Number.isFinite(node.at) &&
    (node.parent === null || typeof node.parent === "string") &&
    isTextOrNone(node.reasoning) &&
    isListOrNone(node.calls, isCall) &&
    (node.run === undefined || isRun(node.run))
  );
}

function isTextOrNone(value) {
  return value === undefined || typeof value === "string";
}

function isListOrNone(value, isRight) {
  return value === undefined || (Array.isArray(value) && value.every(isRight));
}

function isCall(call) {
  return isObject(call) && [call.id, call.name, call.arguments].every((text) => typeof text === "string");
}

function isRun(details) {
  const { miss, params, compare } = details;
  return (
    isObject(details) &&
    [miss, params, compare].every((part) => part === undefined || isObject(part)) &&
    typeof details.rid === "string" &&
    isTextOrNone(details.error) &&
    isTextOrNone(details.finish) &&
    isListOrNone(details.tokens, (token) => isToken(token) && isListOrNone(token.top, isToken))
  );
}

function isToken(token) {
  return (
    isObject(token) &&
    typeof token.t === "string" &&
    Number.isFinite(token.p) &&
    isListOrNone(token.b, Number.isInteger)
  );
}

function hasNoLoop(chat) {
  const limit = Object.keys(chat.nodes).length;
  return Object.values(chat.nodes).every((start) => {
    let steps = 0;
    for (let node = start; node; node = chat.nodes[node.parent]) if (++steps > limit) return false;
    return true;
  });
}

// The shown branch as Markdown, with parameters and times.
function exportMarkdown(chat) {
  const params = Object.entries(chat.params).map(([name, value]) => `| ${name} | ${JSON.stringify(value)} |`);
  const parts = [`# ${titleOf(chat)}`, `Begun ${new Date(chat.created).toISOString()}.`];
  if (params.length) parts.push(["| parameter | value |", "|---|---|", ...params].join("\n"));
  if (chat.system) parts.push("## System", chat.system);
  if (chat.tools) parts.push("## Tools", fenced(chat.tools, "json"));
  if (chat.schema) parts.push("## Schema", fenced(chat.schema, "json"));
  for (const node of pathTo(chat)) parts.push(...markdownOf(node));
  return `${parts.join("\n\n")}\n`;
}

function markdownOf(node) {
  const title = { user: "User", assistant: "Model", tool: "Tool" }[node.role];
  const parts = [`## ${title}, ${new Date(node.at).toISOString()}`];
  if (node.reasoning) parts.push(`<details><summary>Reasoning</summary>\n\n${node.reasoning}\n\n</details>`);
  if (node.content) parts.push(node.content);
  for (const call of node.calls ?? []) parts.push(`Calls \`${call.name}\`:`, fenced(call.arguments, "json"));
  if (node.run) parts.push(`*${runInWords(node.run)}*`);
  return parts;
}

function fenced(text, language) {
  const ticks = "`".repeat(Math.max(3, ...Array.from(text.matchAll(/`+/g), ([run]) => run.length + 1)));
  return `${ticks}${language}\n${text}\n${ticks}`;
}
