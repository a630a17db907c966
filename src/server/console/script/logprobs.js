// An answer as tinted tokens. A click on one lists the alternatives; each continues the answer from there.

const TINTS = [
  [0.9, "sure"],
  [0.6, "likely"],
  [0.3, "open"],
  [0.1, "unlikely"],
  [0, "rare"],
];

function tintOf(probability) {
  return TINTS.find(([least]) => probability >= least)[1];
}

function shownToken(text) {
  return text === "" ? "∅" : text.replace(/\n/g, "⏎\n").replace(/\t/g, "⇥");
}

// The text of tokens. A character may be divided among tokens, so their bytes are joined first.
function textOfTokens(tokens) {
  if (tokens.some((token) => !token.b)) return tokens.map((token) => token.t).join("");
  return new TextDecoder().decode(new Uint8Array(tokens.flatMap((token) => token.b)));
}

// The index of the first token of the answer's text: tokens of its reasoning precede it.
function firstOfContent(node) {
  const { tokens, prefix } = node.run;
  if (!node.reasoning) return 0;
  const content = node.content.slice(prefix);
  let index = tokens.length;
  for (let text = ""; index > 0 && !text.includes(content); index -= 1) text = tokens[index - 1].t + text;
  return index;
}

function inPercent(share) {
  return share < 0.00005 ? "< 0.01 %" : `${(100 * share).toFixed(2)} %`;
}

class TokenView {
  constructor(chat, node) {
    this.chat = chat;
    this.owner = node;
    this.shown = 0;
    this.selected = null;
    this.list = h("div", { class: "tokens", role: "group", "aria-label": "Tokens of the answer", dir: "auto" });
    this.list.addEventListener("click", (event) => this.pick(event.target.closest("button")));
    this.list.addEventListener("keydown", (event) => this.move(event));
    this.choices = h("div", { class: "alternatives", role: "group", "aria-label": "Alternatives", hidden: true });
    const start = node.content.slice(0, node.run.prefix ?? 0);
    const legend = h(
      "p",
      { class: "legend" },
      "probability",
      TINTS.map(([least, name], index) =>
        h("span", {}, h("i", { class: `token-key ${name}` }), index === 4 ? "less" : `≥ ${100 * least} %`),
      ),
    );
    this.node = h(
      "div",
      { class: "token-view" },
      legend,
      start && h("p", { class: "begun", dir: "auto", title: "given, not generated" }, safeText(start)),
      this.list,
      this.choices,
    );
  }

  update() {
    const { tokens } = this.owner.run;
    const end = Math.min(tokens.length, this.limit ?? 1500);
    for (; this.shown < end; this.shown += 1) {
      const token = tokens[this.shown];
      this.list.append(this.tokenNode(token, this.shown));
      // A line break within a button does not break the line of the list.
      if (token.t.endsWith("\n")) this.list.append(h("br"));
    }
    if (end < tokens.length && !this.more) {
      this.more = button(`Show all ${whole(tokens.length)} tokens`, { class: "quiet" }, () => {
        this.limit = Infinity;
        this.more.remove();
        this.update();
      });
      this.list.after(this.more);
    }
  }

  tokenNode(token, index) {
    const probability = Math.exp(token.p);
    return h(
      "button",
      {
        type: "button",
        class: `token ${tintOf(probability)}`,
        "data-index": index,
        tabindex: index === 0 ? "0" : "-1",
        title: `${(100 * probability).toFixed(1)} %`,
      },
      safeText(shownToken(token.t)),
    );
  }

  move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -1e9, End: 1e9 }[event.key];
    if (!step) return;
    const items = Array.from(this.list.querySelectorAll("button"));
    const at = items.indexOf(document.activeElement);
    const next = items[Math.min(Math.max(at + step, 0), items.length - 1)];
    items[at]?.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
    event.preventDefault();
  }

  pick(token) {
    if (!token) return;
    this.selected?.removeAttribute("aria-pressed");
    const closes = this.selected === token;
    this.selected = closes ? null : token;
    this.choices.hidden = closes;
    if (closes) return;
    token.setAttribute("aria-pressed", "true");
    const index = Number(token.dataset.index);
    fill(this.choices, this.alternatives(index));
    if (!this.choices.matches(":hover")) this.choices.scrollIntoView({ block: "nearest" });
  }

  alternatives(index) {
    const token = this.owner.run.tokens[index];
    const others = token.top.length ? token.top : [token];
    const isInContent = index >= firstOfContent(this.owner);
    const title = isInContent ? "Continue from another token" : "Alternatives (in the reasoning: no fork)";
    const rows = others.map((other) => this.alternative(index, other, other.t === token.t, isInContent));
    return [h("p", { class: "muted" }, title), h("ul", {}, rows)];
  }

  alternative(index, other, isTaken, isInContent) {
    const share = Math.exp(other.p);
    const bar = h("span", { class: "share", "aria-hidden": "true" });
    bar.style.width = `${100 * share}%`;
    const label = [
      h("span", { class: "text" }, safeText(shownToken(other.t))),
      h("span", { class: "meter" }, bar),
      h("span", { class: "number" }, inPercent(share)),
    ];
    if (isTaken || !isInContent) {
      return h("li", { class: isTaken ? "taken" : "" }, h("div", { class: "alternative" }, label));
    }
    return h(
      "li",
      {},
      h(
        "button",
        {
          type: "button",
          class: "alternative",
          title: "Fork here with this token",
          onclick: () => this.fork(index, other),
        },
        label,
      ),
    );
  }

  fork(index, other) {
    const { tokens, prefix } = this.owner.run;
    const kept = [...tokens.slice(firstOfContent(this.owner), index), other];
    const content = this.owner.content.slice(0, prefix) + textOfTokens(kept);
    answer(this.chat, this.chat.nodes[this.owner.parent], { content, reasoning: this.owner.reasoning });
  }
}
