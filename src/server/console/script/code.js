// The request of an answer as a command or a program.

function baseUrl() {
  return new URL("v1", document.baseURI).href;
}

const hasKey = () => keyFor(false) !== "";

function shellQuoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function asCurl(body) {
  const lines = [`curl -N ${shellQuoted(`${baseUrl()}/chat/completions`)}`, "-H 'Content-Type: application/json'"];
  if (hasKey()) lines.push('-H "Authorization: Bearer $SOUFFLEUR_API_KEY"');
  lines.push(`-d ${shellQuoted(JSON.stringify({ ...body, stream: true }, null, 2))}`);
  return `${lines.join(" \\\n  ")}\n`;
}

function pythonLiteral(value, indent = "") {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const items = Array.isArray(value)
    ? value.map((item) => pythonLiteral(item, inner))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${pythonLiteral(item, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return items.length
    ? `${open}\n${items.map((item) => `${inner}${item},\n`).join("")}${indent}${close}`
    : open + close;
}

// Fields that OpenAI's client passes on in `extra_body` only.
const EXTRA_FIELDS = new Set([
  "top_k",
  "min_p",
  "repetition_penalty",
  "continue_final_message",
  "chat_template_kwargs",
]);

function asPython(body) {
  const own = Object.entries(body).filter(([name]) => !EXTRA_FIELDS.has(name));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => EXTRA_FIELDS.has(name)));
  const key = hasKey() ? 'os.environ["SOUFFLEUR_API_KEY"]' : '"none"';
  const fields = own.map(([name, value]) => `    ${name}=${pythonLiteral(value, "    ")},`);
  if (Object.keys(extra).length) fields.push(`    extra_body=${pythonLiteral(extra, "    ")},`);
  return `${hasKey() ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(baseUrl())}, api_key=${key})
stream = client.chat.completions.create(
${fields.join("\n")}
    stream=True,
)
for chunk in stream:
    if chunk.choices and chunk.choices[0].delta.content:
        print(chunk.choices[0].delta.content, end="", flush=True)
print()
`;
}

function asJavaScript(body) {
  const key = hasKey() ? "\n    Authorization: `Bearer ${process.env.SOUFFLEUR_API_KEY}`," : "";
  const text = JSON.stringify({ ...body, stream: true }, null, 2).replaceAll("\n", "\n  ");
  return `const response = await fetch(${JSON.stringify(`${baseUrl()}/chat/completions`)}, {
  method: "POST",
  headers: {
    "Content-Type": "application/json",${key}
  },
  body: JSON.stringify(${text}),
});
let rest = "";
for await (const part of response.body.pipeThrough(new TextDecoderStream())) {
  const lines = (rest + part).split("\\n");
  rest = lines.pop();
  for (const line of lines) {
    if (!line.startsWith("data: {")) continue;
    const [choice] = JSON.parse(line.slice(6)).choices;
    process.stdout.write(choice?.delta.content ?? "");
  }
}
`;
}

const LANGUAGES = [
  ["curl", asCurl],
  ["Python", asPython],
  ["JavaScript", asJavaScript],
];

// The dialog with the request in three languages.
function showCode(body) {
  const shown = h("code");
  const tabs = LANGUAGES.map(([name, write]) =>
    button(name, { role: "tab", "aria-selected": "false" }, (event) => {
      for (const tab of tabs) tab.setAttribute("aria-selected", String(tab === event.currentTarget));
      setText(shown, write(body));
    }),
  );
  const dialog = h(
    "dialog",
    { class: "dialog wide", "aria-label": "The request as code", onclose: () => dialog.remove() },
    h(
      "div",
      { class: "row" },
      h("div", { class: "choice", role: "tablist", "aria-label": "Language", onkeydown: moveFocus }, tabs),
      button("Copy", { class: "primary push" }, (event) => copyText(shown.textContent, event.currentTarget)),
      button("Close", { class: "quiet" }, () => dialog.close()),
    ),
    h("pre", { class: "listing", tabindex: "0", "aria-label": "Code" }, shown),
  );
  document.body.append(dialog);
  tabs[0].click();
  dialog.showModal();
}

// The arrow keys move among the buttons of a group.
function moveFocus(event) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const items = Array.from(event.currentTarget.querySelectorAll("button"));
  const next = items[items.indexOf(document.activeElement) + step];
  if (!next) return;
  event.preventDefault();
  next.focus();
  if (next.getAttribute("role") === "tab") next.click();
}
