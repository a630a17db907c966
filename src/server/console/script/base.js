// The base of the console: DOM nodes, numbers in words, small tools. The server concatenates the parts into one module
// in the order of its list (`mod.rs`), so this import is the only one.
import { lexer } from "./marked.js";

const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

// Makes an element. Properties that begin with `on` are listeners; `class`, `data-*`, `aria-*` and others are
// attributes. Children are nodes or texts; null, undefined and false are left out.
function h(tag, properties = {}, ...children) {
  return dress(document.createElement(tag), properties, children);
}

function svg(tag, properties = {}, ...children) {
  return dress(document.createElementNS(SVG, tag), properties, children);
}

function dress(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") node[name] = value;
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child != null && child !== false));
  return node;
}

function fill(node, ...children) {
  node.replaceChildren(...children.flat().filter((child) => child != null && child !== false));
  return node;
}

// Sets a text only if it differs, so that nothing is laid out or read aloud again.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function button(label, properties, onclick) {
  return h("button", { type: "button", ...properties, onclick }, label);
}

// Paths of icons on a grid of 16.
const ICONS = {
  plus: "M8 3v10M3 8h10",
  send: "M8 13V3M3.5 7.5 8 3l4.5 4.5",
  stop: "M4.5 4.5h7v7h-7z",
  copy: "M5.5 5.5h8v8h-8zM3 10.5H2.5v-8h8V3",
  edit: "M3 13l.6-2.7L11 2.9l2.1 2.1-7.4 7.4zM9.5 4.5l2 2",
  fork: "M4 2.5v11M4 9c0-2.5 8-1.5 8-5.5M12 3.5v-1M10 5l2-2.5L14 5",
  repeat: "M3 8a5 5 0 0 1 8.7-3.3L13 6M13 2.5V6H9.5M13 8a5 5 0 0 1-8.7 3.3L3 10M3 13.5V10h3.5",
  bin: "M3 4.5h10M6.5 4V2.5h3V4M4.5 4.5l.6 9h5.8l.6-9",
  key: "M8 5.5a3 3 0 1 0-6 0 3 3 0 0 0 6 0M7.1 7.6l6.4 5.9M11.3 11.5l1.6-1.7",
  theme: "M8 2.5a5.5 5.5 0 0 0 0 11zM8 2.5a5.5 5.5 0 0 1 0 11",
  help: "M5.8 6a2.2 2.2 0 1 1 3.2 2c-.7.4-1 .8-1 1.5M8 12v.4",
  sliders: "M2.5 4.5h6M11.5 4.5h2M10 3v3M2.5 11.5h2M7.5 11.5h6M6 10v3",
  chart: "M2.5 13.5h11M4 11V7M7 11V3M10 11V5.5M13 11V9",
  more: "M3.5 8h.1M8 8h.1M12.5 8h.1",
  out: "M8 10V2.5M5 5.5l3-3 3 3M3 10v3.5h10V10",
  into: "M8 2.5V10M5 7l3 3 3-3M3 10v3.5h10V10",
  before: "M9.5 4 5.5 8l4 4",
  after: "M6.5 4l4 4-4 4",
  doc: "M4 2.5h5.5l2.5 2.5v8.5H4zM9 2.5V5.5h3",
};

function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}

// A button with an icon only; the label is its name and its tooltip.
function iconButton(name, label, onclick, properties = {}) {
  return button(icon(name), { class: "ghost", "aria-label": label, title: label, ...properties }, onclick);
}

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function whole(number) {
  return WHOLE.format(number);
}

// A number with three significant digits: 0.42, 3.1, 812, 1.2k, 34M.
function brief(number) {
  if (!Number.isFinite(number)) return "–";
  for (const [size, unit] of [
    [1e9, "G"],
    [1e6, "M"],
    [1e4, "k"],
  ]) {
    if (number >= size) return fixed(number / (unit === "k" ? 1e3 : size)) + unit;
  }
  return number >= 100 ? whole(number) : fixed(number);
}

function fixed(number) {
  const digits = number >= 100 ? 0 : number >= 10 ? 1 : 2;
  return String(Number(number.toFixed(digits)));
}

function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(Math.max(Math.floor(Math.log2(Math.max(number, 1)) / 10), 0), 4);
  return `${fixed(number / 1024 ** power)} ${units[power]}`;
}

function seconds(ms) {
  if (!Number.isFinite(ms)) return "–";
  if (ms < 1) return `${fixed(ms * 1000)} µs`;
  if (ms < 1000) return `${fixed(ms)} ms`;
  if (ms < 60_000) return `${fixed(ms / 1000)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

function percent(part, all) {
  return all > 0 ? `${Math.round((100 * part) / all)} %` : "–";
}

function count(number, noun) {
  return `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
}

function randomId() {
  const random = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// FNV-1a of 32 bits over UTF-8: by it the page finds its own requests among the rows of the live stream.
function markOf(text) {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(text)) hash = Math.imul(hash ^ byte, 0x01000193);
  return hash >>> 0;
}

function sleep(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

// Runs an action at most once in `ms`, and once after the last call.
function throttle(ms, action) {
  let timer = null;
  return () => {
    timer ??= setTimeout(() => {
      timer = null;
      action();
    }, ms);
  };
}

const calmMotion = matchMedia("(prefers-reduced-motion: reduce)");

// Copies a text. Pages on plain HTTP have no clipboard, so they select the text and copy it as a user would.
async function copyText(text, from) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { class: "hidden-text", "aria-hidden": "true", value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  if (from) flashLabel(from, "Copied");
  say("Copied.");
}

function flashLabel(node, text) {
  node.dataset.flash = text;
  setTimeout(() => delete node.dataset.flash, 1200);
}

// Has screen readers speak a sentence.
function say(sentence) {
  byId("spoken").append(h("p", {}, sentence));
  while (byId("spoken").childElementCount > 4) byId("spoken").firstChild.remove();
}

function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
