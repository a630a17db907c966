// The frame of the page: tabs, theme, keys of the keyboard, help.

const TABS = [
  ["chats", "Chats"],
  ["talk", "Conversation"],
  ["engine", "Engine"],
];
const THEMES = [
  ["auto", "Auto"],
  ["light", "Light"],
  ["dark", "Dark"],
];
const NARROW = matchMedia("(max-width: 1020px)");
const SHORTCUTS = [
  [SEND_KEYS.split(" "), "send the message"],
  [["Esc"], "stop the answer"],
  [["/"], "go to the message field"],
  [["n"], "new chat"],
  [["s"], "settings of the chat"],
  [["e"], "show or hide the engine"],
  [["1"], "chats"],
  [["2"], "conversation"],
  [["3"], "engine"],
  [["?"], "this list"],
];

// Layout and theme outlast the page; nothing else does, outside of the chats.
const taste = {
  get(name, fallback) {
    try {
      return localStorage.getItem(`souffleur-${name}`) ?? fallback;
    } catch {
      return fallback;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(`souffleur-${name}`, value);
    } catch {
      // It lasts as long as the page.
    }
  },
};

function makeShell() {
  fill(
    byId("tabs"),
    TABS.map(([name, label]) => button(label, { "data-tab": name }, () => showTab(name))),
  );
  const theme = h(
    "div",
    { class: "choice", role: "group", "aria-label": "Theme", onkeydown: moveFocus },
    THEMES.map(([name, label]) => button(label, { "data-theme-name": name }, () => setTheme(name))),
  );
  const cycle = button("", { id: "theme-cycle", class: "quiet small narrow-only", title: "Theme" }, nextTheme);
  fill(
    byId("top-tools"),
    theme,
    cycle,
    iconButton("chart", "Show or hide the engine (e)", toggleEngine, { id: "engine-button", class: "ghost wide-only" }),
    iconButton("key", "Keys of the server", () => keyDialog.open()),
    iconButton("help", "Keyboard (?)", showHelp),
  );
  setTheme(taste.get("theme", "auto"));
  setEngine(taste.get("engine", "on"));
  showTab("talk");
  document.addEventListener("keydown", onKey);
  document.querySelector(".skip").addEventListener("click", () => focusOn("talk", "composer"));
  document.addEventListener("click", closeMenus);
  document.addEventListener("visibilitychange", () => live.follow());
  NARROW.addEventListener("change", () => {
    showTab(document.documentElement.dataset.tab);
    live.follow();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  taste.set("theme", name);
  for (const node of document.querySelectorAll("[data-theme-name]")) {
    node.setAttribute("aria-pressed", String(node.dataset.themeName === name));
  }
  const label = THEMES.find(([known]) => known === name)?.[1] ?? "Auto";
  byId("theme-cycle").setAttribute("aria-label", `Theme: ${label}`);
  fill(byId("theme-cycle"), icon("theme"), label);
  redrawAll();
}

function nextTheme() {
  const names = THEMES.map(([name]) => name);
  setTheme(names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length]);
}

function redrawAll() {
  palette.forget();
  for (const picture of Object.values(engine.pictures ?? {})) picture.canvas?.redraw();
}

function showTab(name) {
  document.documentElement.dataset.tab = name;
  for (const node of byId("tabs").children) {
    if (node.dataset.tab === name) node.setAttribute("aria-current", "true");
    else node.removeAttribute("aria-current");
  }
  live.follow();
  if (name === "engine") redrawAll();
}

function isEngineShown() {
  const { tab, engine: state } = document.documentElement.dataset;
  return NARROW.matches ? tab === "engine" : state !== "off";
}

function toggleEngine() {
  if (NARROW.matches) {
    showTab("engine");
    return;
  }
  const { dataset } = document.documentElement;
  setEngine(dataset.engine === "off" ? "on" : "off");
  live.follow();
}

function setEngine(state) {
  document.documentElement.dataset.engine = state;
  byId("engine-button").setAttribute("aria-pressed", String(state === "on"));
  taste.set("engine", state);
}

function closeMenus(event) {
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(event.target) || event.target.closest(".menu-list button")) menu.open = false;
  }
}

function onKey(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.id === "composer") {
    event.preventDefault();
    if (!isAnswering(chats.current)) sendComposed();
    return;
  }
  if (event.key === "Escape") {
    const open = document.querySelector("details.menu[open]");
    if (open) open.open = false;
    else if (!document.querySelector("dialog[open]")) stop();
    return;
  }
  const isTyping = event.target.closest("input, textarea, select, dialog");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const action = {
    "?": showHelp,
    "/": () => focusOn("talk", "composer"),
    n: startChat,
    s: toggleSettings,
    e: toggleEngine,
    1: () => focusOn("chats", "new-chat"),
    2: () => focusOn("talk", "messages"),
    3: () => focusOn("engine", "engine"),
  }[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

function focusOn(tab, id) {
  showTab(tab);
  byId(id)?.focus();
}

function showHelp() {
  const rows = SHORTCUTS.map(([keys, text]) =>
    h(
      "div",
      {},
      h(
        "dt",
        {},
        keys.map((key) => h("kbd", {}, key)),
      ),
      h("dd", {}, text),
    ),
  );
  const dialog = h(
    "dialog",
    { class: "dialog", "aria-labelledby": "help-title", onclose: () => dialog.remove() },
    h("h2", { id: "help-title" }, "Keyboard"),
    h("dl", { class: "shortcuts" }, rows),
    h("p", { class: "muted" }, "Enter begins a new line. In tinted tokens, the arrow keys move."),
    h(
      "div",
      { class: "row end" },
      h("a", { href: "docs", class: "push-start" }, "The API"),
      button("Close", { class: "primary", autofocus: true }, () => dialog.close()),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
}
