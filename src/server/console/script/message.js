// One message of the conversation: its text, its reasoning and calls, and the engine's work for it.

const MAX_ARGUMENTS = 20_000;
const MAX_ERROR = 1000;
const ROLE_NAMES = { user: "You", assistant: "Model", tool: "Tool result" };

class MessageView {
  constructor(chat, node) {
    this.chat = chat;
    this.message = node;
    this.spoken = node.content.length;
    this.body = h("div", { class: "body" });
    this.facts = h("div", { class: "facts" });
    this.head = h("header", { class: "message-head" });
    this.acts = h("div", { class: "acts" });
    this.node = h(
      "article",
      { class: `message ${node.role}`, "aria-label": ROLE_NAMES[node.role] },
      this.head,
      this.body,
      this.facts,
      this.acts,
    );
    this.text = new Rendered();
    this.body.append(this.text.node);
    this.schedule = this.scheduler();
  }

  // Shows a change soon: at most every 60 ms, and less often if showing takes long.
  scheduler() {
    let timer = null;
    let wait = 60;
    return () => {
      timer ??= setTimeout(() => {
        timer = null;
        const began = performance.now();
        keepAtEnd(() => this.update());
        wait = Math.min(Math.max(60, 4 * (performance.now() - began)), 2000);
      }, wait);
    };
  }

  get isRunning() {
    return running.has(this.message.id);
  }

  update() {
    const { message } = this;
    this.node.classList.toggle("running", this.isRunning);
    fill(this.head, this.headParts());
    this.updateReasoning();
    this.updateText();
    this.updateCalls();
    if (message.role === "assistant") fill(this.facts, factsOf(message, this.isRunning, this.chat));
    this.updateActs();
    this.speak();
  }

  headParts() {
    const family = siblings(this.chat, this.message);
    const at = family.indexOf(this.message);
    const go = (step) => () => {
      showBranch(this.chat, family[at + step]);
      chats.keep(this.chat, false);
      renderTalk();
    };
    const time = new Date(this.message.at);
    return [
      h("span", { class: "role" }, ROLE_NAMES[this.message.role]),
      family.length > 1 &&
        h(
          "span",
          { class: "branches" },
          iconButton("before", "Previous version", go(-1), { disabled: at === 0 }),
          h("span", {}, `${at + 1} / ${family.length}`),
          iconButton("after", "Next version", go(1), { disabled: at === family.length - 1 }),
        ),
      h("time", { datetime: time.toISOString() }, time.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })),
    ];
  }

  updateReasoning() {
    if (!this.message.reasoning) return;
    if (!this.thought) {
      this.thought = new Rendered();
      this.thoughtTitle = h("summary");
      this.body.prepend(h("details", { class: "reasoning" }, this.thoughtTitle, this.thought.node));
    }
    const tokens = this.message.run?.reasoning_tokens;
    const isThinking = this.isRunning && !this.message.content;
    const size = tokens ? ` · ${count(tokens, "token")}` : "";
    setText(this.thoughtTitle, isThinking ? "Reasoning …" : `Reasoning${size}`);
    this.thought.update(this.message.reasoning);
  }

  updateText() {
    const tokens = this.message.run?.tokens;
    const wantsTokens = Boolean(tokens && this.chat.logprobs && this.showsTokens !== false);
    if (wantsTokens && !this.tokens) {
      this.tokens = new TokenView(this.chat, this.message);
      this.text.node.after(this.tokens.node);
    }
    if (this.tokens) this.tokens.node.hidden = !wantsTokens || Boolean(this.editor);
    if (wantsTokens) this.tokens.update();
    this.text.node.hidden = wantsTokens;
    this.text.update(this.message.content);
    if (this.editor) this.text.node.hidden = true;
  }

  updateCalls() {
    const { calls } = this.message;
    if (!calls?.length) return;
    this.callList ??= this.body.appendChild(h("div", { class: "calls" }));
    if (this.callList.contains(document.activeElement)) return;
    fill(
      this.callList,
      calls.map((call) => this.callNode(call)),
      this.resultButton(),
    );
  }

  callNode(call) {
    const isOpen = !this.isRunning && this.chat.leaf === this.message.id;
    const result =
      isOpen &&
      h("textarea", {
        rows: "2",
        class: "result",
        placeholder: "The tool's answer",
        "aria-label": `Result of ${call.name}`,
      });
    return h(
      "figure",
      { class: "call" },
      h("figcaption", {}, "calls ", h("b", {}, safeText(call.name))),
      h("pre", { tabindex: "0", "aria-label": "Arguments" }, h("code", {}, safeText(prettyJson(call.arguments)))),
      result,
    );
  }

  resultButton() {
    if (this.isRunning || this.chat.leaf !== this.message.id) return null;
    return button("Send the results", { class: "primary" }, () => {
      const results = Array.from(this.callList.querySelectorAll("textarea"), (area) => area.value);
      let last = this.message;
      this.message.calls.forEach((call, index) => {
        last = addNode(this.chat, last.id, { role: "tool", content: results[index], callId: call.id });
      });
      answer(this.chat, last);
    });
  }

  updateActs() {
    const state = `${this.isRunning} ${Boolean(this.message.run?.tokens)} ${this.chat.logprobs} ${this.showsTokens}`;
    if (this.actsState === state) return;
    this.actsState = state;
    fill(this.acts, this.isRunning ? null : this.actions());
  }

  actions() {
    const { chat, message } = this;
    const isAnswer = message.role === "assistant";
    return [
      iconButton("copy", "Copy the text", (event) => copyText(message.content, event.currentTarget)),
      message.role !== "tool" &&
        iconButton("edit", isAnswer ? "Edit and continue" : "Edit and fork", () => this.edit()),
      isAnswer && iconButton("repeat", "Another answer", () => answer(chat, chat.nodes[message.parent])),
      iconButton("fork", "New chat from here", () => openFork(chat, message)),
      isAnswer && iconButton("doc", "As curl, Python, JavaScript", () => tryTo(() => showCode(this.repeatBody()))),
      isAnswer &&
        message.run &&
        button("Same seed, same bits?", { class: "quiet small" }, () => repeatRun(chat, message)),
      isAnswer && message.run && this.tokenButton(),
    ];
  }

  repeatBody() {
    return repeatBody(this.chat, this.message);
  }

  tokenButton() {
    const hasTokens = Boolean(this.message.run.tokens);
    const isShown = hasTokens && this.chat.logprobs && this.showsTokens !== false;
    return button(isShown ? "As text" : "Log probabilities", { class: "quiet small" }, () => {
      if (!hasTokens) {
        this.chat.logprobs = true;
        repeatRun(this.chat, this.message);
        return;
      }
      this.chat.logprobs = true;
      this.showsTokens = !isShown;
      this.update();
    });
  }

  edit() {
    if (this.editor) return;
    const area = h("textarea", {
      class: "edit",
      rows: "4",
      "aria-label": "Text of the message",
      value: this.message.content,
    });
    const close = () => {
      this.editor.remove();
      this.editor = null;
      this.update();
    };
    const save = () => {
      const { chat, message } = this;
      const content = area.value;
      close();
      if (message.role === "assistant") answer(chat, chat.nodes[message.parent], { content });
      else answer(chat, addNode(chat, message.parent, { role: "user", content }));
    };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
      else if (event.key === "Escape") close();
      else return;
      event.stopPropagation();
      event.preventDefault();
    });
    this.editor = h(
      "div",
      { class: "editor" },
      area,
      h(
        "div",
        { class: "row end" },
        button("Cancel", { class: "quiet" }, close),
        button(this.message.role === "assistant" ? "Continue" : "Send", { class: "primary" }, save),
      ),
    );
    this.text.node.after(this.editor);
    this.update();
    area.focus();
  }

  // Has complete sentences of the answer read aloud while it streams.
  speak() {
    if (this.message.role !== "assistant") return;
    const rest = this.message.content.slice(this.spoken);
    const end = this.isRunning ? lastSentenceEnd(rest) : rest.length;
    if (end <= 0) return;
    say(rest.slice(0, Math.min(end, 600)));
    this.spoken += end;
  }
}

function lastSentenceEnd(text) {
  const ends = Array.from(text.slice(-2000).matchAll(/[.!?…:](?=\s)|\n/g));
  return ends.length ? Math.max(text.length - 2000, 0) + ends.at(-1).index + 1 : 0;
}

// The text of arguments, indented if they are JSON. Of very long ones the beginning is shown.
function prettyJson(text) {
  if (text.length > MAX_ARGUMENTS) return `${text.slice(0, MAX_ARGUMENTS)}… (${bytes(text.length)})`;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

// The engine's work for an answer: prompt bar, times, finish reason, the sentence about the miss.
function factsOf(message, isRunning, chat) {
  const details = message.run;
  if (!details) return isRunning ? [] : [h("p", { class: "error" }, "interrupted")];
  const speed = speedOf(details);
  const fact = (label, value, title) =>
    value && h("span", { class: "fact", title }, label && `${label} `, h("b", {}, value));
  return [
    isRunning && !details.ttft_ms && waitingNode(details),
    details.error && h("p", { class: "error", role: "alert" }, details.error.slice(0, MAX_ERROR)),
    promptBar(details),
    h(
      "p",
      { class: "numbers" },
      fact(
        "first token",
        details.ttft_ms !== undefined && seconds(details.ttft_ms),
        "from the click to the first text",
      ),
      fact("", speed && `${brief(speed)} tok/s`, "output tokens per second after the first"),
      fact("output", details.completion_tokens !== undefined && count(details.completion_tokens, "token")),
      fact("ended by", details.finish ? finishInWords(details.finish) : !isRunning && !details.error && "interruption"),
      fact("seed", details.seed !== undefined && String(details.seed)),
    ),
    details.compare && compareNode(details.compare, chat),
    missNode(details.miss),
  ];
}

function finishInWords(finish) {
  return { stop: "stop", length: "length", tool_calls: "tool calls", stopped: "you" }[finish] ?? finish;
}

function waitingNode(details) {
  const row = live.rowOf(details.rid);
  const text =
    row && row.prompt > 0
      ? `${row.state}: ${whole(row.cached + row.computed)} of ${whole(row.prompt)} prompt tokens`
      : "waiting for the first token";
  return h("p", { class: "waiting" }, h("span", { class: "pulse", "aria-hidden": "true" }), text);
}

function compareNode(compare) {
  const text = compare.same
    ? `Same seed, same bits: ${compare.parts} are identical.`
    : `The answers differ from character ${whole(compare.at)} on.`;
  return h(
    "p",
    { class: compare.same ? "compare same" : "compare differs" },
    h("span", { "aria-hidden": "true" }, compare.same ? "= " : "≠ "),
    text,
  );
}
