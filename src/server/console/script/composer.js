// The pane of the conversation: title, settings, messages, and the field for the next one.

const hasKeyboard = matchMedia("(pointer: fine)").matches;
const SEND_KEYS = /Mac/.test(navigator.platform) ? "⌘ Enter" : "Ctrl Enter";

function makeTalk() {
  const tools = h(
    "div",
    { class: "row" },
    iconButton("sliders", "Settings of this chat", toggleSettings, {
      id: "settings-button",
      "aria-expanded": "false",
      "aria-controls": "settings",
    }),
    iconButton("out", "Export this chat as Markdown", () => {
      download(`${fileName(titleOf(chats.current))}.md`, "text/markdown", exportMarkdown(chats.current));
    }),
  );
  const area = h("textarea", {
    id: "composer",
    rows: "1",
    placeholder: hasKeyboard ? `Message (${SEND_KEYS} sends)` : "Message",
    "aria-label": "Message",
    enterkeyhint: "enter",
    oninput: growComposer,
  });
  const form = h(
    "form",
    {
      class: "composer",
      onsubmit: (event) => {
        event.preventDefault();
        sendComposed();
      },
    },
    area,
    h(
      "button",
      {
        type: "submit",
        id: "send",
        class: "primary round",
        "aria-label": `Send (${SEND_KEYS})`,
        title: `Send (${SEND_KEYS})`,
      },
      icon("send"),
    ),
  );
  fill(
    byId("talk"),
    h("header", { class: "pane-head" }, h("h2", { id: "chat-title", dir: "auto" }), tools),
    h("div", { id: "settings", class: "settings", hidden: true }),
    h("div", { id: "messages", class: "messages", tabindex: "0", role: "region", "aria-label": "Messages" }),
    form,
  );
}

function fileName(title) {
  return (
    title
      .replace(/[^\p{L}\p{N}]+/gu, "-")
      .replace(/^-|-$/g, "")
      .slice(0, 60) || "chat"
  );
}

function growComposer() {
  const area = byId("composer");
  area.style.height = "auto";
  area.style.height = `${Math.min(area.scrollHeight, innerHeight * 0.4)}px`;
  updateComposer();
}

function sendComposed() {
  if (isAnswering(chats.current)) {
    stop();
    return;
  }
  const area = byId("composer");
  if (!ask(area.value)) return;
  area.value = "";
  growComposer();
}

function updateComposer() {
  const control = byId("send");
  const isBusy = isAnswering(chats.current);
  const label = isBusy ? "Stop (Esc)" : `Send (${SEND_KEYS})`;
  if (control.title !== label) {
    control.title = label;
    control.setAttribute("aria-label", label);
    fill(control, icon(isBusy ? "stop" : "send"));
  }
  control.disabled = !isBusy && !byId("composer").value.trim();
}

function toggleSettings() {
  const panel = byId("settings");
  panel.hidden = !panel.hidden;
  byId("settings-button").setAttribute("aria-expanded", String(!panel.hidden));
  if (!panel.hidden) {
    loadDefaults();
    panel.querySelector("textarea")?.focus();
  }
}

let defaults = null;

// The defaults of the model and the server, from the document of the API.
async function loadDefaults() {
  if (defaults) return;
  try {
    const { paths, components } = await getJson("openapi.json");
    let schema = paths["/v1/chat/completions"].post.requestBody.content["application/json"].schema;
    if (schema.$ref) schema = components.schemas[schema.$ref.split("/").pop()];
    defaults = schema.properties;
  } catch {
    return;
  }
  for (const { name } of PARAMS) {
    const value = defaults[name]?.default;
    if (value !== undefined && value !== null) byId(`param-${name}`).placeholder = `${value} (default)`;
  }
}

const keepSettings = throttle(300, () => chats.keep(chats.current, false));

function renderSettings() {
  const chat = chats.current;
  fill(
    byId("settings"),
    textSetting(chat, "system", "System prompt", "Instructions for every answer", 3),
    h(
      "div",
      { class: "params" },
      PARAMS.map((param) => numberSetting(chat, param)),
      effortSetting(chat),
    ),
    h(
      "details",
      { open: Boolean(chat.tools || chat.schema) },
      h("summary", {}, "Tools and schema"),
      textSetting(
        chat,
        "tools",
        "Tools, a JSON list",
        '[{"type": "function", "function": {"name": …}}]',
        4,
        Array.isArray,
      ),
      textSetting(chat, "schema", "JSON schema of the answer", '{"type": "object", …}', 4, isObject),
    ),
    h(
      "label",
      { class: "check" },
      h("input", {
        type: "checkbox",
        checked: chat.logprobs,
        onchange: (event) => {
          chat.logprobs = event.currentTarget.checked;
          keepSettings();
          renderTalk();
        },
      }),
      "Log probabilities: tint each token, list its alternatives",
    ),
  );
  defaults && ((defaults = null), loadDefaults());
}

function textSetting(chat, field, label, placeholder, rows, isRight) {
  const problem = h("small", { class: "problem", id: `problem-${field}` });
  const check = (area) => {
    let text = "";
    try {
      if (isRight && area.value.trim()) parsed(area.value, "JSON", isRight);
    } catch (error) {
      text = error.message;
    }
    setText(problem, text);
    area.toggleAttribute("aria-invalid", text !== "");
  };
  const area = h("textarea", {
    rows,
    placeholder,
    spellcheck: isRight ? "false" : "true",
    class: isRight ? "mono" : "",
    "aria-describedby": `problem-${field}`,
    value: chat[field],
    oninput: (event) => {
      chat[field] = event.currentTarget.value;
      check(event.currentTarget);
      keepSettings();
    },
  });
  check(area);
  return h("label", { class: "field" }, h("span", {}, label), area, problem);
}

function numberSetting(chat, { name, label, step, min, max, hint }) {
  return h(
    "label",
    { class: "field", title: hint },
    h("span", {}, label),
    h("input", {
      id: `param-${name}`,
      type: "number",
      step: name === "seed" ? "1" : "any",
      "data-step": step,
      min,
      max,
      placeholder: "default",
      value: chat.params[name] ?? "",
      oninput: (event) => {
        const { value, validity } = event.currentTarget;
        if (value === "" || !validity.valid) delete chat.params[name];
        else chat.params[name] = Number(value);
        keepSettings();
      },
    }),
  );
}

function effortSetting(chat) {
  const options = EFFORTS.map((value) =>
    h("option", { value, selected: value === (chat.params.reasoning_effort ?? "") }, value || "default"),
  );
  return h(
    "label",
    { class: "field", title: "for models that reason" },
    h("span", {}, "Reasoning effort"),
    h(
      "select",
      {
        onchange: (event) => {
          if (event.currentTarget.value) chat.params.reasoning_effort = event.currentTarget.value;
          else delete chat.params.reasoning_effort;
          keepSettings();
        },
      },
      options,
    ),
  );
}
