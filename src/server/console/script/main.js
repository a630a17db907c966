// The start of the page.

const CHECK_MS = 8000;

// Asks the server for its state while the live stream, which would say it, is closed.
async function checkServer() {
  if (document.hidden || live.frame || server.phase === "key needed") return;
  const wasBlocked = isBlocked();
  try {
    const info = await getJson("server_info");
    server.info = info;
    server.model = info.served_model_name ?? server.model;
    server.version = info.version;
    server.phase = info.internal_states?.[0]?.is_paused ? "paused" : "ready";
    for (const name of ["server", "key", "host"]) clearNotice(name);
    if (wasBlocked) live.reopen();
  } catch (error) {
    server.phase = phaseOf(error);
    if (isBlocked()) {
      live.problem = error.message;
      live.needsKey = error.status === 401;
    }
    if (error instanceof Refusal && ![401, 403].includes(error.status))
      notice("server", "warn", "Not ready", error.message);
  }
  showStatus();
  engine.showState();
}

// Whether the server refuses every request of the page.
function isBlocked() {
  return server.phase === "key needed" || server.phase === "refused";
}

function phaseOf(error) {
  if (!(error instanceof Refusal)) return "unreachable";
  if (error.status === 401) return "key needed";
  if (error.status === 403) return "refused";
  return /load/.test(`${error.code} ${error.message}`) ? "loading" : "rebuilding";
}

// Asks again for all that needs a key.
async function restart() {
  server.phase = "connecting";
  await checkServer();
  if (!isBlocked()) live.reopen();
}

// For tests and for the console of the browser.
globalThis.souffleur = { live, server, chats, engine, running };

async function main() {
  makeShell();
  makeChats();
  makeTalk();
  engine.make();
  await chats.open();
  openChat(chats.sorted()[0] ?? newChat());
  await checkServer();
  if (!isBlocked()) live.reopen();
  setInterval(checkServer, CHECK_MS);
}

main();
