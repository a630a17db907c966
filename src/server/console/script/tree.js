// The picture of the radix tree.

const ROW_HEIGHTS = [15, 30];
const TREE_HEIGHTS = [72, 252];

class TreePicture {
  constructor() {
    this.icicle = new Icicle();
    this.isPoolWide = false;
    this.canvas = new Canvas(
      "Radix tree of cached prefixes; the table below lists its nodes",
      TREE_HEIGHTS[0],
      (context, width, height) => this.draw(context, width, height),
    );
    this.canvas.node.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.node.addEventListener("pointerdown", (event) => this.point(event));
    this.canvas.node.addEventListener("pointerleave", () => this.showFacts(null));
    this.facts = h("p", { class: "muted", id: "tree-facts" });
    const scale = h(
      "div",
      { class: "choice", role: "group", "aria-label": "Width", onkeydown: moveFocus },
      [
        [false, "fit"],
        [true, "pool"],
      ].map(([isWide, label]) =>
        button(
          label,
          {
            "aria-pressed": String(isWide === this.isPoolWide),
            title: isWide ? "the width is the whole KV pool" : "the width is all that is cached",
          },
          (event) => this.choose(isWide, event.currentTarget),
        ),
      ),
    );
    const key = h(
      "p",
      { class: "legend" },
      h("span", {}, h("i", { class: "key cached" }), "cached"),
      h("span", {}, h("i", { class: "key computed" }), "in use by ", h("b", {}, "●n"), " requests"),
      h("span", {}, h("i", { class: "key new" }), "new"),
      h("span", {}, h("b", {}, "◆"), " pinned (", h("b", {}, "◇"), " softly)"),
      h("span", {}, h("i", { class: "key fold" }), "not drawn"),
    );
    this.table = new DataTable("Nodes", ["node", "parent", "tokens", "below", "in use", "marks"], () =>
      this.tableRows(),
    );
    this.node = card(
      "Radix tree",
      "cached prefixes, as wide as their tokens and those below",
      this.table,
      scale,
      this.canvas.node,
      h("div", { class: "row spread" }, key, this.facts),
    );
  }

  choose(isWide, chosen) {
    this.isPoolWide = isWide;
    for (const other of chosen.parentNode.children) other.setAttribute("aria-pressed", String(other === chosen));
    this.animate();
  }

  takeTree(tree) {
    this.icicle.take(live.nodes, tree.rest, tree.events ?? [], tree.kind === "snapshot");
    this.icicle.layOut();
    this.fitHeight();
    this.animate();
    if (!this.pointed) this.showFacts(null);
    this.table.update();
  }

  // Shows the node under the pointer, or else the sums of the tree.
  showFacts(node) {
    this.pointed = node;
    const { nodes, tokens } = live.treeTotals ?? { nodes: 0, tokens: 0 };
    const left = nodes - live.nodes.size;
    const sums = `${count(nodes, "node")}, ${count(tokens, "token")}${left > 0 ? `, +${whole(left)} more` : ""}`;
    setText(this.facts, node ? nodeInWords(node) : sums);
  }

  // Draws twenty times a second, as long as something moves.
  animate() {
    if (this.ticket) return;
    const tick = (time) => {
      this.ticket = null;
      if (document.hidden || !this.node.offsetParent) return;
      if (this.drawn && time - this.drawn < 45) {
        this.ticket = requestAnimationFrame(tick);
        return;
      }
      this.drawn = time;
      const moves = this.icicle.items.size > 0 && this.icicle.move(calmMotion.matches);
      this.canvas.redraw();
      if (moves || this.icicle.falling.length) this.ticket = requestAnimationFrame(tick);
    };
    this.ticket = requestAnimationFrame(tick);
  }

  // Grows with the tree, and shrinks only when it has become much lower, so that the page does not jump.
  fitHeight() {
    const [least, most] = TREE_HEIGHTS;
    const wanted = Math.min(Math.max(this.icicle.depth * 28, least), most);
    if (wanted > this.canvas.height || wanted < this.canvas.height - 60) this.canvas.height = wanted;
  }

  get tokensWide() {
    const pool = live.hello?.limits?.max_total_tokens ?? 0;
    return this.isPoolWide ? Math.max(pool, this.icicle.width) : this.icicle.width;
  }

  rowHeight(height) {
    const [least, most] = ROW_HEIGHTS;
    return Math.min(Math.max(height / Math.max(this.icicle.depth, 1), least), most);
  }

  draw(context, width, height) {
    if (!this.icicle.items.size && !this.icicle.falling.length) {
      this.drawEmpty(context, width, height);
      return;
    }
    const view = {
      scale: width / Math.max(this.tokensWide, 1),
      row: this.rowHeight(height),
      now: performance.now(),
      width,
    };
    if (this.isPoolWide) this.drawRoom(context, view);
    for (const fold of this.icicle.folds) this.drawFold(context, fold, view);
    for (const item of this.icicle.items.values()) this.drawItem(context, item, view);
    for (const item of this.icicle.falling) this.drawFalling(context, item, view);
  }

  // Outlines the part of the KV pool that caches nothing.
  drawRoom(context, { scale, row, width }) {
    const x = this.icicle.width * scale;
    if (width - x < 8) return;
    context.strokeStyle = palette.get("line-strong");
    context.setLineDash([4, 3]);
    context.strokeRect(x + 1.5, 0.5, width - x - 2, row - 3);
    context.setLineDash([]);
    context.fillStyle = palette.get("muted");
    context.font = canvasFont(11);
    const text = `not cached: ${whole(this.tokensWide - this.icicle.width)}`;
    context.fillText(fitted(context, text, width - x - 12), x + 8, row / 2 + 2.5);
  }

  drawEmpty(context, width, height) {
    context.fillStyle = palette.get("muted");
    context.font = canvasFont(12.5);
    const text = live.frame ? "Nothing is cached yet: the first prompt becomes the first branch." : "no connection";
    context.fillText(
      fitted(context, text, width),
      Math.max((width - context.measureText(text).width) / 2, 0),
      height / 2,
    );
  }

  drawItem(context, item, { scale, row, now, width }) {
    const x = item.x * scale;
    const y = item.y * row;
    const w = Math.max(item.w * scale - 1, 0.7);
    if (x > width || w <= 0) return;
    const { node } = item;
    context.fillStyle = palette.get(node.locks > 0 ? "accent" : "cached");
    roundRect(context, x, y, w, row - 2, 3);
    context.fill();
    this.drawFlash(context, item, { x, y, w, row, now });
    this.drawCut(context, item, { x, y, w, row, now });
    if (w > 22 && row > 13) this.drawLabel(context, node, { x, y, w, row });
  }

  // A new node flashes as a whole, one that has grown at its lower edge.
  drawFlash(context, item, { x, y, w, row, now }) {
    const youth = 1 - (now - item.born) / FLASH_MS;
    const growth = 1 - (now - (item.grown ?? -FLASH_MS)) / FLASH_MS;
    context.fillStyle = palette.get("flash");
    context.globalAlpha = Math.max(youth, growth, 0);
    if (youth > 0) context.fill();
    else if (growth > 0) context.fillRect(x, y + row - 5, w, 3);
    context.globalAlpha = 1;
  }

  // A split shows as a line between the two halves, for as long as a flash.
  drawCut(context, item, { x, y, w, row, now }) {
    const age = (now - (item.cut ?? -FLASH_MS)) / FLASH_MS;
    if (age >= 1) return;
    context.globalAlpha = 1 - age;
    context.strokeStyle = palette.get("flash");
    context.lineWidth = 2;
    context.strokeRect(x + 1, y + 1, Math.max(w - 2, 0), row - 4);
    context.globalAlpha = 1;
  }

  drawLabel(context, node, { x, y, w, row }) {
    const marks = [
      node.pin > 0 && (node.pin === 2 ? "◆" : "◇"),
      whole(node.tokens),
      node.locks > 0 && `●${node.locks}`,
      node.parent === null && namespaceName(node.ns),
    ];
    context.font = canvasFont(row > 20 ? 11 : 10, 500);
    context.fillStyle = palette.get(node.locks > 0 ? "on-accent" : "ink");
    context.fillText(labelOf(context, marks.filter(Boolean), w - 8), x + 4, y + row / 2 + 2.5);
  }

  drawFold(context, fold, { scale, row, width }) {
    const x = fold.x * scale;
    const w = Math.min(Math.max(fold.tokens * scale - 1, 1), width - x);
    const y = fold.depth * row;
    context.fillStyle = hatch(context, palette.get("hatch"), palette.get("panel"));
    roundRect(context, x, y, w, row - 2, 3);
    context.fill();
    if (w < 30) return;
    const text = fitted(context, `+${whole(fold.nodes)} more`, w - 8);
    context.font = canvasFont(10.5, 500);
    context.fillStyle = palette.get("panel");
    context.fillRect(x + 3, y + 3, context.measureText(text).width + 4, row - 8);
    context.fillStyle = palette.get("ink");
    context.fillText(text, x + 5, y + row / 2 + 2.5);
  }

  drawFalling(context, item, { scale, row, now }) {
    const age = (now - item.fell) / FALL_MS;
    context.globalAlpha = Math.max(1 - age, 0) * 0.8;
    context.fillStyle = palette.get("cached");
    roundRect(context, item.x * scale, item.y * row + 140 * age * age, Math.max(item.w * scale - 1, 1), row - 2, 3);
    context.fill();
    context.globalAlpha = 1;
  }

  point(event) {
    const { left, top, width } = this.canvas.node.getBoundingClientRect();
    const tokens = ((event.clientX - left) * this.tokensWide) / width;
    const depth = Math.floor((event.clientY - top) / this.rowHeight(this.canvas.height));
    const item = this.icicle.at(tokens, depth);
    this.showFacts(item?.node ?? null);
  }

  tableRows() {
    return Array.from(live.nodes.values())
      .sort((one, other) => other.tokens + other.below - one.tokens - one.below)
      .slice(0, 100)
      .map((node) => [
        node.id,
        node.parent ?? "–",
        whole(node.tokens),
        whole(node.below),
        whole(node.locks),
        marksOf(node).join(", ") || "–",
      ]);
  }
}

// As many of the marks as fit. Numbers are not cut: half of one would be another number.
function labelOf(context, marks, width) {
  let label = "";
  for (const mark of marks) {
    const longer = label ? `${label} ${mark}` : mark;
    if (context.measureText(longer).width > width) {
      const cut = mark.startsWith("[") ? fitted(context, longer, width) : "";
      return cut.length > label.length + 4 ? cut : label;
    }
    label = longer;
  }
  return label;
}

function roundRect(context, x, y, w, height, radius) {
  context.beginPath();
  context.roundRect(x, y, w, height, Math.min(radius, w / 2));
}

// Namespaces with a salt are not told apart: they have the number −1. The default namespace has 0.
function namespaceName(number) {
  if (!number) return "";
  return number < 0 ? "[salted]" : `[${live.namespaces?.[number] ?? `namespace ${number}`}]`;
}

function marksOf(node) {
  return [
    ["", "softly pinned", "pinned"][node.pin],
    node.parent === null && namespaceName(node.ns),
    node.folded > 0 && `+${whole(node.folded)} more below`,
  ].filter(Boolean);
}

function nodeInWords(node) {
  const parts = [
    `${count(node.tokens, "token")}`,
    `${whole(node.below)} below`,
    node.locks ? `in use by ${count(node.locks, "request")}` : "evictable",
    ...marksOf(node),
  ];
  return `Node ${node.id}: ${parts.join(", ")}`;
}
