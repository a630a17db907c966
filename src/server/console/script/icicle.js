// The layout of the radix tree: a node is as wide as the tokens of its whole subtree, and lies below its parent. Nodes
// move to their new places; new ones flash, evicted ones fall.

const FLASH_MS = 1600;
const FALL_MS = 700;
// After this time a node has covered two thirds of its way.
const MOVE_MS = 90;

class Icicle {
  constructor() {
    this.items = new Map();
    this.falling = [];
    this.order = 0;
    this.moved = 0;
  }

  // Takes the nodes of the stream, and the events that changed them.
  take(nodes, rest, events, isSnapshot) {
    this.rest = rest;
    const now = performance.now();
    if (isSnapshot) this.items.clear();
    for (const [kind, ...values] of events) this.note(kind, values, now);
    for (const [id, item] of this.items) if (!nodes.has(id)) this.drop(id, item, now, !isSnapshot);
    for (const node of nodes.values()) this.hold(node, isSnapshot ? -FLASH_MS : now);
  }

  note(kind, values, now) {
    if (kind === "split") {
      const [upper, lower] = values;
      const item = this.items.get(lower);
      if (!item) return;
      this.items.set(upper, { ...item, cut: now });
      item.cut = now;
    }
    if (kind === "removed") {
      const item = this.items.get(values[0]);
      if (item) this.drop(values[0], item, now, true);
    }
    if (kind === "cleared") for (const [id, item] of this.items) this.drop(id, item, now, true);
  }

  drop(id, item, now, isShown) {
    this.items.delete(id);
    if (isShown && item.w > 0.5 && this.falling.length < 200) this.falling.push({ ...item, fell: now });
  }

  hold(node, now) {
    const item = this.items.get(node.id);
    if (item) {
      if (node.tokens + node.below > item.node.tokens + item.node.below) item.grown = now;
      item.node = node;
    } else {
      this.items.set(node.id, { node, order: this.order++, born: now, x: null, w: 0, y: 0 });
    }
  }

  // Gives each node its place: `[x, w]` in tokens, and its depth.
  layOut() {
    const families = new Map();
    for (const item of this.items.values()) {
      const parent = this.items.has(item.node.parent) ? item.node.parent : null;
      if (!families.has(parent)) families.set(parent, []);
      families.get(parent).push(item);
    }
    for (const family of families.values()) family.sort((one, other) => one.order - other.order);
    this.depth = 0;
    this.folds = [];
    this.width = this.place(families, null, 0, 0);
    if (this.rest?.nodes > 0) {
      this.fold(this.rest.nodes, this.rest.tokens, this.width, 0);
      this.width += this.rest.tokens;
    }
  }

  place(families, parent, from, depth) {
    let x = from;
    for (const item of families.get(parent) ?? []) {
      item.to = { x, w: item.node.tokens + item.node.below, depth };
      this.depth = Math.max(this.depth, depth + 1);
      const end = this.place(families, item.node.id, x, depth + 1);
      if (item.node.folded > 0) this.fold(item.node.folded, item.node.folded_tokens, end, depth + 1);
      x += item.to.w;
    }
    return x;
  }

  fold(nodes, tokens, x, depth) {
    this.folds.push({ nodes, tokens, x, depth });
    this.depth = Math.max(this.depth, depth + 1);
  }

  // Moves all nodes closer to their places. Answers whether something still moves.
  move(isCalm) {
    const now = performance.now();
    const share = isCalm ? 1 : 1 - Math.exp(-Math.min(now - this.moved, 60) / MOVE_MS);
    this.moved = now;
    let moves = false;
    for (const item of this.items.values()) {
      const { x, w, depth } = item.to;
      if (item.x === null) Object.assign(item, { x, y: depth, w: isCalm ? w : 0 });
      item.x += (x - item.x) * share;
      item.w += (w - item.w) * share;
      item.y += (depth - item.y) * share;
      const far = Math.abs(x - item.x) + Math.abs(w - item.w) > this.width / 2000 || Math.abs(depth - item.y) > 0.01;
      moves ||= far || now - Math.max(item.born, item.grown ?? -FLASH_MS, item.cut ?? -FLASH_MS) < FLASH_MS;
    }
    this.falling = isCalm ? [] : this.falling.filter((item) => now - item.fell < FALL_MS);
    return moves || this.falling.length > 0;
  }

  at(tokens, depth) {
    for (const item of this.items.values()) {
      if (Math.round(item.y) === depth && tokens >= item.x && tokens < item.x + item.w) return item;
    }
    return null;
  }
}
