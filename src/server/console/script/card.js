// Cards of the engine's pane, and the table of each picture.

// Has a title, a picture, and at its foot the table and the explanation.
function card(title, about, table, ...children) {
  const id = `card-${title.toLowerCase().replace(/\W+/g, "-")}`;
  return h(
    "section",
    { class: "card", "aria-labelledby": id },
    h("header", {}, h("h3", { id }, title), h("p", { class: "about" }, about)),
    children,
    h("div", { class: "foot" }, table.node, explanation(title)),
  );
}

function explanation(title) {
  return h(
    "details",
    { class: "data" },
    h("summary", {}, "How it works"),
    EXPLANATIONS[title].map((text) => h("p", { class: "explanation" }, text)),
  );
}

// A table that is filled once a second while it is open.
class DataTable {
  constructor(title, columns, rows) {
    this.rows = rows;
    this.body = h("tbody");
    this.filled = 0;
    const table = h(
      "table",
      {},
      h("caption", { class: "hidden-text" }, title),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map((name) => h("th", { scope: "col" }, name)),
        ),
      ),
      this.body,
    );
    this.node = h(
      "details",
      { class: "data", ontoggle: () => this.update(true) },
      h("summary", {}, "Table"),
      h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": `${title}: table` }, table),
    );
  }

  update(isNow = false) {
    const now = performance.now();
    if (!this.node.open || (!isNow && now - this.filled < 1000)) return;
    this.filled = now;
    fill(
      this.body,
      this.rows().map((cells) =>
        h(
          "tr",
          {},
          cells.map((cell, index) => (index ? h("td", {}, cell) : h("th", { scope: "row" }, cell))),
        ),
      ),
    );
  }
}

// A canvas as large as its frame, in device pixels. `draw(context, width, height)` gets CSS pixels.
class Canvas {
  constructor(label, height, draw) {
    this.draw = draw;
    this.height = height;
    this.node = h("canvas", { role: "img", "aria-label": label });
    this.context = this.node.getContext("2d");
    new ResizeObserver(() => this.redraw()).observe(this.node);
  }

  redraw() {
    const width = this.node.clientWidth;
    if (!width) return;
    const scale = devicePixelRatio || 1;
    const size = [Math.round(width * scale), Math.round(this.height * scale)];
    this.node.style.height = `${this.height}px`;
    if (this.node.width !== size[0] || this.node.height !== size[1]) [this.node.width, this.node.height] = size;
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.context.clearRect(0, 0, width, this.height);
    this.draw(this.context, width, this.height);
  }
}

// Colours of the style sheet, for canvases. They are read again when the theme changes.
const palette = {
  values: null,
  get(name) {
    this.values ??= new Map();
    if (!this.values.has(name)) {
      this.probe ??= document.body.appendChild(h("i", { hidden: true }));
      this.probe.style.color = `var(--${name})`;
      this.values.set(name, getComputedStyle(this.probe).color);
    }
    return this.values.get(name);
  },
  forget() {
    this.values = null;
    hatches.clear();
  },
};

const hatches = new Map();

// A pattern of slanted lines, so that no meaning rests on colour alone.
function hatch(context, colour, ground) {
  const key = `${colour} ${ground}`;
  if (hatches.has(key)) return hatches.get(key);
  const tile = h("canvas", { width: 6, height: 6 });
  const ink = tile.getContext("2d");
  ink.fillStyle = ground;
  ink.fillRect(0, 0, 6, 6);
  ink.strokeStyle = colour;
  ink.lineWidth = 1.2;
  ink.beginPath();
  for (const shift of [-6, 0, 6]) {
    ink.moveTo(shift - 1, 7);
    ink.lineTo(shift + 7, -1);
  }
  ink.stroke();
  const pattern = context.createPattern(tile, "repeat");
  hatches.set(key, pattern);
  return pattern;
}

function canvasFont(size, weight = 400) {
  return `${weight} ${size}px ${getComputedStyle(document.body).fontFamily}`;
}

// A text cut to a width, with an ellipsis; empty if hardly anything fits.
function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end -= 1;
  return end > 1 ? `${text.slice(0, end)}…` : "";
}
