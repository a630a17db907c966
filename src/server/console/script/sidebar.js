// The list of chats; their import and export.

function makeChats() {
  const file = h("input", {
    type: "file",
    accept: ".json,application/json",
    hidden: true,
    id: "import-file",
    "aria-label": "File to import",
    onchange: importFile,
  });
  fill(
    byId("chats"),
    h(
      "header",
      { class: "pane-head" },
      h("h2", {}, "Chats"),
      h(
        "div",
        { class: "row" },
        iconButton("into", "Import chats", () => file.click()),
        iconButton("out", "Export all chats", exportAll),
        file,
      ),
    ),
    button([icon("plus"), "New chat"], { class: "new-chat", id: "new-chat" }, startChat),
    h("ul", { id: "chat-list", class: "chat-list" }),
    h("p", { class: "muted small-print" }, "Chats are kept in this browser only."),
  );
}

function startChat() {
  const chat = chats.current;
  openChat(pathTo(chat).length ? newChat({ system: "", params: {} }) : chat);
  byId("composer").focus();
}

function exportAll() {
  download(
    `souffleur-chats-${new Date().toISOString().slice(0, 10)}.json`,
    "application/json",
    exportJson(chats.sorted()),
  );
}

async function importFile(event) {
  const [file] = event.currentTarget.files;
  event.currentTarget.value = "";
  if (!file) return;
  try {
    const added = await importJson(await file.text());
    notice("import", "info", `${count(added, "chat")} imported`, "", ["Dismiss", () => clearNotice("import")]);
    renderChats();
  } catch (error) {
    notice("import", "warn", "Not imported", error.message, ["Dismiss", () => clearNotice("import")]);
  }
}

function renderChats() {
  const list = byId("chat-list");
  const focused = document.activeElement?.closest?.("#chat-list li")?.dataset.id;
  fill(list, chats.sorted().map(chatRow));
  if (focused) list.querySelector(`[data-id="${CSS.escape(focused)}"] button`)?.focus();
  if (!chats.all.size) list.append(h("li", { class: "muted none" }, "None yet."));
}

function chatRow(chat) {
  const isCurrent = chat === chats.current;
  const time = new Date(chat.updated);
  const isToday = time.toDateString() === new Date().toDateString();
  const when = isToday
    ? time.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })
    : time.toLocaleDateString([], { day: "numeric", month: "short" });
  return h(
    "li",
    { "data-id": chat.id, class: isCurrent ? "current" : "" },
    button(
      [
        h("span", { class: "title", dir: "auto" }, titleOf(chat)),
        h("span", { class: "when" }, running.has(chat.leaf) ? "answering" : when),
      ],
      { class: "open", "aria-current": isCurrent ? "true" : null },
      () => openChat(chat),
    ),
    h(
      "details",
      { class: "menu" },
      h("summary", { "aria-label": `Actions for ${titleOf(chat)}` }, icon("more")),
      h(
        "div",
        { class: "menu-list" },
        button("Rename", { class: "quiet" }, () => renameChat(chat)),
        button("Export JSON", { class: "quiet" }, () => {
          download(`${fileName(titleOf(chat))}.json`, "application/json", exportJson([chat]));
        }),
        button("Export Markdown", { class: "quiet" }, () => {
          download(`${fileName(titleOf(chat))}.md`, "text/markdown", exportMarkdown(chat));
        }),
        button("Delete", { class: "quiet danger" }, () => deleteChat(chat)),
      ),
    ),
  );
}

function renameChat(chat) {
  const field = h("input", { type: "text", id: "rename-field", maxlength: "120", value: titleOf(chat) });
  const dialog = h(
    "dialog",
    { class: "dialog", "aria-label": "Rename the chat", onclose: () => dialog.remove() },
    h(
      "form",
      {
        method: "dialog",
        onsubmit: () => {
          chat.title = field.value.trim();
          chats.keep(chat, false).then(renderTalk);
        },
      },
      h("label", { class: "field" }, h("span", {}, "Title"), field),
      h(
        "div",
        { class: "row end" },
        button("Cancel", { class: "quiet" }, () => dialog.close()),
        h("button", { type: "submit", class: "primary" }, "Rename"),
      ),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  field.select();
}

async function deleteChat(chat) {
  running.get(chat.leaf)?.abort();
  await chats.remove(chat.id);
  notice("deleted", "info", "Deleted", titleOf(chat), [
    "Undo",
    async () => {
      chats.removed.delete(chat.id);
      await chats.keep(chat, false);
      clearNotice("deleted");
      renderChats();
    },
  ]);
  setTimeout(() => clearNotice("deleted"), 8000);
  if (chat === chats.current) openChat(chats.sorted()[0] ?? newChat());
  else renderChats();
}
