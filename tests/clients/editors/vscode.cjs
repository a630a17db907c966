// Runs the extension llama.vscode with a stand-in of VS Code's API. Each line on stdin is a step, in JSON; each step
// ends with a line on stdout.
const fs = require("fs");
const Module = require("module");
const path = require("path");
const readline = require("readline");

const [extension, url, project] = process.argv.slice(2);
const manifest = JSON.parse(fs.readFileSync(path.join(extension, "package.json"), "utf8"));
const SETTINGS = {
  endpoint: url,
  endpoint_chat: url,
  ask_install_llamacpp: false,
  rag_enabled: false,
  health_check_compl_enabled: true,
  health_check_interval_s: 5,
  env_start_last_used: true,
  env_start_last_used_confirm: false,
};
const ENVIRONMENT = { name: "local", completion: { name: "local", endpoint: url } };
const STATE = { "llama.vscode.lastUsedEnv": ENVIRONMENT, "llama.vscode.isFirstStart": false };

// A value for all parts of the API that these steps do not use.
const nothing = new Proxy(function () {}, {
  get: (_, name) => {
    if (name === "then" || name === "toJSON") return undefined;
    if (name === Symbol.iterator) return [][Symbol.iterator].bind([]);
    if (name === Symbol.toPrimitive) return () => "";
    return nothing;
  },
  apply: () => nothing,
  construct: () => nothing,
});

class EventEmitter {
  listeners = [];
  event = (listener) => {
    this.listeners.push(listener);
    return { dispose() {} };
  };
  fire(value) {
    this.listeners.forEach((listener) => listener(value));
  }
}
class Position {
  constructor(line, character) {
    Object.assign(this, { line, character });
  }
}
class Range {
  constructor(start, end) {
    Object.assign(this, { start, end });
  }
}
class InlineCompletionItem {
  constructor(insertText, range) {
    Object.assign(this, { insertText, range });
  }
}
class LanguageModelTextPart {
  constructor(value) {
    this.value = value;
  }
}

function document(file) {
  const name = path.join(project, file);
  const lines = fs.readFileSync(name, "utf8").split("\n");
  return {
    fileName: `/project/${file}`,
    uri: { fsPath: name, scheme: "file", toString: () => `file://${name}` },
    languageId: "rust",
    isDirty: false,
    lines,
    get lineCount() {
      return lines.length;
    },
    lineAt: (line) => ({ text: lines[line.line ?? line] }),
    getText: () => lines.join("\n"),
  };
}

const defaults = manifest.contributes.configuration.properties;
const setting = (name) => SETTINGS[name] ?? defaults[`llama-vscode.${name}`]?.default;
const memory = (values) => ({
  get: (name) => values[name],
  update: async (name, value) => void (values[name] = value),
  keys: () => Object.keys(values),
});
const changed = new EventEmitter();
const saved = new EventEmitter();
let inline, chats;
// As a prototype, because bundlers copy a module's own fields and its prototype.
const others = new Proxy({}, { get: (_, name) => (["__esModule", "then"].includes(name) ? undefined : nothing) });
const known = (values) => Object.setPrototypeOf(values, others);
const vscode = known({
  EventEmitter,
  Position,
  Range,
  InlineCompletionItem,
  LanguageModelTextPart,
  LanguageModelToolCallPart: class {},
  LanguageModelToolResultPart: class {},
  LanguageModelDataPart: class {},
  LanguageModelPromptTsxPart: class {},
  LanguageModelChatMessageRole: { User: 1, Assistant: 2 },
  ConfigurationTarget: { Global: 1, Workspace: 2 },
  InlineCompletionTriggerKind: { Invoke: 0, Automatic: 1 },
  extensions: { getExtension: () => undefined },
  workspace: known({
    workspaceFolders: undefined,
    getConfiguration: () => ({
      get: setting,
      inspect: (name) => ({ globalValue: SETTINGS[name] }),
      has: () => true,
      update: async () => {},
    }),
    onDidSaveTextDocument: saved.event,
  }),
  window: known({
    activeTextEditor: undefined,
    onDidChangeActiveTextEditor: changed.event,
    showErrorMessage: (text) => void console.error(text),
    showInformationMessage: (text) => void console.error(text),
  }),
  languages: known({ registerInlineCompletionItemProvider: (_, provider) => ((inline = provider), { dispose() {} }) }),
  lm: { tools: [], registerLanguageModelChatProvider: (_, provider) => ((chats = provider), { dispose() {} }) },
});
const load = Module._load;
Module._load = (name, ...rest) => (name === "vscode" ? vscode : load(name, ...rest));

const token = { isCancellationRequested: false, onCancellationRequested: () => ({ dispose() {} }) };
let editor;
const steps = {
  open({ file }) {
    editor = { document: document(file), selection: { active: new Position(0, 0) } };
    vscode.window.activeTextEditor = editor;
    changed.fire(editor);
  },
  save() {
    editor.document.isDirty = false;
    saved.fire(editor.document);
  },
  // Adds a line, with the cursor at its end, as if it were typed at once.
  async type({ line, text }) {
    const at = new Position(line, text.length);
    editor.document.lines.splice(line, 0, text);
    editor.document.isDirty = true;
    editor.selection.active = at;
    const found = await inline.provideInlineCompletionItems(editor.document, at, { triggerKind: 1 }, token);
    return (found ?? []).map((item) => item.insertText);
  },
  async chat({ text }) {
    const [model] = await chats.provideLanguageModelChatInformation({}, token);
    const message = { role: 1, content: [new LanguageModelTextPart(text)] };
    const parts = [];
    const progress = { report: (part) => parts.push(part.value) };
    await chats.provideLanguageModelChatResponse(model, [message], {}, progress, token);
    return { model, text: parts.join("") };
  },
};

async function main() {
  console.log = () => {};
  const context = known({
    subscriptions: [],
    globalState: memory(STATE),
    workspaceState: memory({}),
    extensionPath: extension,
    storageUri: undefined,
  });
  await require(path.join(extension, manifest.main)).activate(context);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const step = JSON.parse(line);
    let answer;
    try {
      answer = await steps[step.do](step);
    } catch (error) {
      answer = { error: String(error) };
    }
    process.stdout.write(`${JSON.stringify(answer ?? null)}\n`);
  }
  process.exit(0);
}

main();
