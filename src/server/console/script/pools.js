// The pools of each tier as bars. Every page has one owner, so the parts of a pool must sum to the whole: the picture
// says so, and says it if they do not.

const POOLS = {
  kv: "KV pool",
  rows: "Rows of the page table",
  states: "States",
  windows: "Window pages",
  store_buffers: "Buffers of the KV store",
  store_disk: "KV store on disk",
};
const PARTS = {
  private: ["output", "requests' own"],
  used: ["output", "in use"],
  protected: ["computed", "cached, in use"],
  stored: ["cached", "stored"],
  cached: ["cached", "cached"],
  evictable: ["cached", "cached, evictable"],
  saving: ["output", "being written"],
  fetching: ["computed", "being read"],
  ready: ["cached", "read, waiting for their step"],
  free: ["free", "free"],
};

class PoolsPicture {
  constructor() {
    this.bars = new Map();
    this.list = h("div", { class: "pools" });
    this.table = new DataTable("Pools", ["pool", "tier", "part", "amount"], () => this.tableRows());
    this.node = card("Memory", "every page has one owner: the parts sum to the whole", this.table, this.list);
  }

  update() {
    if (!live.frame) return;
    const pools = live.frame.pools ?? [];
    for (const pool of pools) this.barOf(pool).update(pool);
    for (const [name, bar] of this.bars) {
      if (pools.some((pool) => pool.pool === name)) continue;
      bar.node.remove();
      this.bars.delete(name);
    }
    this.table.update();
  }

  barOf(pool) {
    if (!this.bars.has(pool.pool)) {
      const bar = new PoolBar(pool);
      this.bars.set(pool.pool, bar);
      this.list.append(bar.node);
    }
    return this.bars.get(pool.pool);
  }

  tableRows() {
    return (live.frame?.pools ?? []).flatMap((pool) => [
      ...Object.entries(pool.parts).map(([part, size]) => [
        POOLS[pool.pool] ?? pool.pool,
        pool.tier,
        PARTS[part]?.[1] ?? part,
        amount(size, pool.unit),
      ]),
      [POOLS[pool.pool] ?? pool.pool, pool.tier, "whole", amount(pool.total, pool.unit)],
    ]);
  }
}

function amount(size, unit) {
  return unit === "bytes" ? bytes(size) : `${whole(size)} ${unit}`;
}

class PoolBar {
  constructor(pool) {
    this.parts = Object.entries(PARTS)
      .filter(([name]) => name in pool.parts)
      .map(([name, [look, words]]) => ({
        name,
        words,
        bar: h("span", { class: `part ${look}` }),
        number: h("b"),
        look,
      }));
    this.total = h("span", { class: "total" });
    this.bar = h(
      "div",
      { class: "bar", role: "img" },
      this.parts.map(({ bar }) => bar),
    );
    this.node = h(
      "div",
      { class: "pool" },
      h("header", {}, h("h4", {}, POOLS[pool.pool] ?? pool.pool), this.total),
      this.bar,
      h(
        "p",
        { class: "legend", "aria-hidden": "true" },
        this.parts.map(({ look, words, number }) =>
          h("span", {}, h("i", { class: `key ${look}` }), words, " ", number),
        ),
      ),
    );
  }

  update({ total, parts, unit }) {
    for (const part of this.parts) {
      part.bar.style.flexGrow = String(parts[part.name] ?? 0);
      setText(part.number, unit === "bytes" ? bytes(parts[part.name]) : whole(parts[part.name] ?? 0));
    }
    const sum = Object.values(parts).reduce((all, size) => all + size, 0);
    const isWhole = sum === total;
    setText(
      this.total,
      isWhole ? `= ${amount(total, unit)} ✓` : `parts sum to ${whole(sum)}, not to ${amount(total, unit)}`,
    );
    this.node.classList.toggle("broken", !isWhole);
    const words = this.parts.map(({ name, words: text }) => `${text} ${whole(parts[name] ?? 0)}`);
    this.bar.setAttribute("aria-label", `${amount(total, unit)}: ${words.join(", ")}`);
  }
}
