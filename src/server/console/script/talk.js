// The conversation: its messages, and the actions that add to it.

let views = new Map();

// Shows the current chat. Views of messages that are still shown are kept.
function renderTalk() {
  const chat = chats.current;
  const path = pathTo(chat);
  const kept = new Map();
  for (const node of path) {
    const known = views.get(node.id);
    kept.set(node.id, known?.chat === chat ? known : new MessageView(chat, node));
  }
  views = kept;
  const list = byId("messages");
  fill(list, path.length ? Array.from(views.values(), (view) => view.node) : emptyTalk());
  for (const view of views.values()) view.update();
  setText(byId("chat-title"), titleOf(chat));
  list.scrollTop = path.length ? list.scrollHeight : 0;
  updateComposer();
  renderChats();
}

const EXAMPLES = [
  ["Who are you?", "A short prompt"],
  ["Write a list of five things that a prompter in a theatre does.", "A longer answer"],
  ["Who are you, and who wrote you?", "Shares its beginning with the first: watch the cache"],
];

function emptyTalk() {
  return [
    h(
      "div",
      { class: "empty" },
      h("h2", {}, "Ask something"),
      h(
        "p",
        { class: "muted" },
        "Each answer shows the engine's work for it: how much of the prompt was cached, " +
          "how much was computed, and why no more was cached.",
      ),
      h(
        "div",
        { class: "examples" },
        EXAMPLES.map(([text, why]) =>
          button([h("b", {}, text), h("small", {}, why)], { class: "example" }, () => ask(text)),
        ),
      ),
    ),
  ];
}

// Runs a change of the message list; if its end was in view, it stays in view.
function keepAtEnd(change) {
  const list = byId("messages");
  const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 80;
  change();
  if (isAtEnd) list.scrollTop = list.scrollHeight;
}

function tryTo(action) {
  try {
    return action();
  } catch (error) {
    notice("input", "warn", "Not sent", error.message, ["Dismiss", () => clearNotice("input")]);
    return null;
  }
}

// Adds the user's message and its answer.
function ask(text) {
  const chat = chats.current;
  if (!text.trim() || isAnswering(chat)) return false;
  if (tryTo(() => bodyOf(chat, [])) === null) return false;
  clearNotice("input");
  answer(chat, addNode(chat, chat.leaf, { role: "user", content: text }));
  return true;
}

function isAnswering(chat) {
  return running.has(chat.leaf);
}

function freshSeed() {
  return crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;
}

// Adds an answer after `parent`. With a `content`, the answer begins with it and is continued. Each answer has a seed,
// so that it can be repeated.
async function answer(chat, parent, { content = "", reasoning, seed, params, compareWith } = {}) {
  const path = pathTo(chat, parent.id);
  const start = content ? [{ role: "assistant", content, reasoning }] : [];
  const body = tryTo(() => bodyOf(chat, [...path, ...start], params));
  if (!body) {
    renderTalk();
    return;
  }
  body.seed = seed ?? chat.params.seed ?? freshSeed();
  if (content) body.continue_final_message = true;
  const node = addNode(chat, parent.id, { role: "assistant", content, ...(reasoning && { reasoning }) });
  await chats.keep(chat);
  const done = run(chat, node, body, () => views.get(node.id)?.schedule());
  if (chat === chats.current) renderTalk();
  await done;
  if (compareWith) compareRuns(node, compareWith);
  await chats.keep(chat, false);
  views.get(node.id)?.schedule();
  updateComposer();
  renderChats();
}

// The body of the request whose answer `node` is.
function repeatBody(chat, node) {
  const path = pathTo(chat, node.parent);
  const prefix = node.content.slice(0, node.run?.prefix ?? 0);
  const start = prefix ? [{ role: "assistant", content: prefix, reasoning: node.reasoning }] : [];
  const body = bodyOf(chat, [...path, ...start], node.run?.params);
  if (prefix) body.continue_final_message = true;
  return node.run?.seed === undefined ? body : { ...body, seed: node.run.seed };
}

// Computes an answer again with its seed, and compares the two.
function repeatRun(chat, node) {
  if (isAnswering(chat)) return;
  const content = node.content.slice(0, node.run.prefix ?? 0);
  answer(chat, chat.nodes[node.parent], {
    content,
    seed: node.run.seed,
    params: node.run.params,
    compareWith: node,
  });
}

function compareRuns(node, earlier) {
  if (node.run.finish === "stopped" || node.run.error) return;
  const [one, other] = [node, earlier].map(({ reasoning = "", content }) => reasoning + content);
  const [mine, theirs] = [node.run.tokens, earlier.run.tokens].map((tokens) => tokens?.map(({ p }) => p).join());
  const hasBits = mine !== undefined && theirs !== undefined;
  let at = 0;
  while (at < one.length && one[at] === other[at]) at += 1;
  const same = one === other && (!hasBits || mine === theirs);
  node.run.compare = { same, at, parts: hasBits ? "texts and log probabilities" : `${count(one.length, "character")}` };
  if (same) say("Same seed, same bits.");
}

function stop() {
  const stopper = running.get(chats.current.leaf);
  stopper?.abort();
  return Boolean(stopper);
}

async function openFork(chat, node) {
  const fork = forkedChat(chat, node.id);
  await chats.keep(fork);
  openChat(fork);
}

function openChat(chat) {
  chats.current = chat;
  views = new Map();
  renderSettings();
  renderTalk();
  showTab("talk");
}
