// Markdown of the model's output as DOM nodes. The lexer's tokens become elements and texts, never HTML. A text that is
// too long or too deep for it is shown as plain text, in chunks that the browser lays out when they are scrolled to.

const RICH_CHARS = 60_000;
const BLOCK_CHARS = 16_000;
const PLAIN_CHARS = 120_000;
const CHUNK_CHARS = 16_000;
const LIST_ITEMS = 300;
const MAX_DEPTH = 24;
const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const BIDI = /[\u202a-\u202e\u2066-\u2069\u200e\u200f]/;

// A text as nodes: characters that reorder their neighbours are shown instead of obeyed.
function safeText(text) {
  if (!BIDI.test(text)) return [document.createTextNode(text)];
  return text
    .split(/([\u202a-\u202e\u2066-\u2069\u200e\u200f])/)
    .filter(Boolean)
    .map((part) => {
      if (!BIDI.test(part)) return document.createTextNode(part);
      const code = part.codePointAt(0).toString(16).toUpperCase();
      return h("span", { class: "control", title: "a control character of text direction" }, `U+${code}`);
    });
}

// An area that shows a growing text. Blocks that are complete are rendered once.
class Rendered {
  constructor() {
    this.settled = 0;
    this.tail = h("div", { class: "tail" });
    this.node = h("div", { class: "prose", dir: "auto" }, this.tail);
    this.showsAll = false;
    this.plainShown = -1;
  }

  // Shows the text, which begins with the text of the last call.
  update(text) {
    const rich = Math.min(text.length, RICH_CHARS);
    if (this.settled < rich && !this.plain) this.render(text.slice(this.settled, rich));
    if (text.length > RICH_CHARS || this.plain) this.showPlain(text);
  }

  render(text) {
    const tokens = text.length > BLOCK_CHARS * 2 ? null : tokensOf(text);
    if (!tokens || tokens.some((token) => token.raw.length > BLOCK_CHARS && token.type !== "list")) {
      this.settleLines(text);
      return;
    }
    const whole = tokens.slice(0, -1);
    if (whole.reduce((sum, token) => sum + token.raw.length, 0) + (tokens.at(-1)?.raw.length ?? 0) !== text.length) {
      fill(this.tail, blocks(tokens, 0));
      return;
    }
    this.tail.before(...blocks(whole, 0));
    for (const token of whole) this.settled += token.raw.length;
    fill(this.tail, blocks(tokens.slice(-1), 0));
  }

  // Settles the text up to the last empty line within a block's size; without one, the rest stays plain.
  settleLines(text) {
    const end = text.lastIndexOf("\n\n", BLOCK_CHARS) + 2;
    const tokens = end > 2 ? tokensOf(text.slice(0, end)) : null;
    if (!tokens) {
      this.plain = true;
      this.tail.replaceChildren();
      return;
    }
    this.tail.before(...blocks(tokens, 0));
    this.settled += end;
    this.render(text.slice(end));
  }

  showPlain(text) {
    if (!this.plain) {
      this.plain = true;
      this.settled = Math.max(this.settled, 0);
      this.tail.replaceChildren();
    }
    const rest = text.length - this.settled;
    const shown = this.showsAll ? rest : Math.min(rest, PLAIN_CHARS);
    if (shown !== this.plainShown) this.growPlain(text, shown);
    if (rest <= shown) this.more?.remove();
    else this.offerRest(text, rest);
  }

  growPlain(text, shown) {
    this.chunks ??= this.tail.appendChild(h("div", { class: "plain", dir: "auto" }));
    let from = Math.max(this.plainShown, 0);
    const last = this.chunks.lastChild;
    if (last && from % CHUNK_CHARS !== 0) {
      from -= from % CHUNK_CHARS;
      last.remove();
    }
    for (; from < shown; from += CHUNK_CHARS) {
      const start = this.settled + from;
      const piece = text.slice(start, Math.min(start + CHUNK_CHARS, this.settled + shown));
      this.chunks.append(h("div", { class: "chunk" }, safeText(piece)));
    }
    this.plainShown = shown;
  }

  offerRest(text, rest) {
    this.text = text;
    this.more ??= button("", { class: "quiet" }, () => {
      this.showsAll = true;
      this.showPlain(this.text);
    });
    setText(this.more, `Show all ${bytes(rest)} of plain text`);
    if (!this.more.isConnected) this.tail.append(this.more);
  }
}

function tokensOf(text) {
  try {
    return lexer(text, { gfm: true });
  } catch {
    return null;
  }
}

function blocks(tokens, depth) {
  if (depth > MAX_DEPTH) return [h("p", {}, safeText(tokens.map((token) => token.raw).join("")))];
  return tokens.flatMap((token) => blockOf(token, depth + 1) ?? []);
}

function blockOf(token, depth) {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      return h(`h${Math.min(token.depth + 2, 6)}`, { dir: "auto" }, inlines(token.tokens, depth));
    case "paragraph":
      return h("p", { dir: "auto" }, inlines(token.tokens, depth));
    case "text":
      return token.tokens ? h("span", {}, inlines(token.tokens, depth)) : h("span", {}, safeText(token.text));
    case "blockquote":
      return h("blockquote", { dir: "auto" }, blocks(token.tokens, depth));
    case "hr":
      return h("hr");
    case "code":
      return codeBlock(token.text, (token.lang ?? "").split(/\s/)[0]);
    case "list":
      return listOf(token, depth);
    case "table":
      return tableOf(token, depth);
    default:
      return h("p", { dir: "auto" }, safeText(token.raw));
  }
}

function codeBlock(text, language) {
  const copy = button("Copy", { class: "quiet small" }, (event) => copyText(text, event.currentTarget));
  return h(
    "figure",
    { class: "code" },
    h("figcaption", {}, h("span", {}, language || "text"), copy),
    h("pre", { tabindex: "0", dir: "ltr" }, h("code", {}, safeText(text))),
  );
}

function listOf(token, depth) {
  const list = h(token.ordered ? "ol" : "ul", token.ordered && token.start > 1 ? { start: token.start } : {});
  const add = (from, to) => list.append(...token.items.slice(from, to).map((item) => itemOf(item, depth)));
  add(0, LIST_ITEMS);
  if (token.items.length <= LIST_ITEMS) return list;
  const more = button(`Show all ${whole(token.items.length)} items`, { class: "quiet" }, () => {
    more.remove();
    add(LIST_ITEMS);
  });
  return h("div", {}, list, more);
}

function itemOf(item, depth) {
  const box = item.task
    ? h("input", {
        type: "checkbox",
        disabled: true,
        checked: item.checked,
        "aria-label": item.checked ? "done" : "open",
      })
    : null;
  return h("li", { dir: "auto" }, box, blocks(item.tokens, depth));
}

function tableOf(token, depth) {
  const cell = (tag) => (part) => {
    const node = h(tag, { dir: "auto", class: part.align ? `align-${part.align}` : null });
    node.append(...inlines(part.tokens, depth));
    return node;
  };
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "group", "aria-label": "Table" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, token.header.map(cell("th")))),
      h(
        "tbody",
        {},
        token.rows.map((row) => h("tr", {}, row.map(cell("td")))),
      ),
    ),
  );
}

function inlines(tokens = [], depth) {
  if (depth > MAX_DEPTH) return safeText(tokens.map((token) => token.raw).join(""));
  return tokens.flatMap((token) => inlineOf(token, depth + 1));
}

function inlineOf(token, depth) {
  switch (token.type) {
    case "strong":
    case "em":
    case "del":
      return h(token.type, {}, inlines(token.tokens, depth));
    case "codespan":
      return h("code", { dir: "auto" }, safeText(token.text));
    case "br":
      return h("br");
    case "link":
      return linkOf(token.href, inlines(token.tokens, depth));
    case "image":
      return linkOf(token.href, [`image: ${token.text || token.href}`]);
    case "escape":
      return safeText(token.text);
    case "text":
      return token.tokens ? inlines(token.tokens, depth) : safeText(unescaped(token.text));
    default:
      return safeText(token.raw);
  }
}

const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

function unescaped(text) {
  return text.replace(/&(amp|lt|gt|quot|apos|nbsp);/g, (_, name) => ENTITIES[name]);
}

// A link to another page, if its scheme is harmless; else its text. Nothing is loaded until it is clicked.
function linkOf(href, children) {
  let url = null;
  try {
    url = new URL(href);
  } catch {
    // A relative address would lead into this server.
  }
  if (!url || !SCHEMES.has(url.protocol)) {
    return h("span", { class: "no-link", title: `not a link: ${href.slice(0, 200)}` }, children);
  }
  return h("a", { href: url.href, title: url.href, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}
