// The actors and their messages as a picture: what ARCHITECTURE.md draws, with the numbers of the live stream.

const ACTORS = {
  server: { label: 'Server', about: 'HTTP, SSE, WebSocket' },
  tokenizer: { label: 'Tokenizer', about: 'text ⇄ tokens' },
  scheduler: { label: 'Scheduler', about: 'who runs next' },
  radix_cache: { label: 'RadixCache', about: 'the tree of prefixes' },
  allocator: { label: 'Allocator', about: 'free pages and rows' },
  executor: { label: 'Executor', about: 'computes the steps' },
  kv_store: { label: 'KvStore', about: 'prefixes on disk' },
};

/// Messages: sender, receiver, name, and the sides of the boxes that they leave and reach.
const MESSAGES = [
  ['server', 'tokenizer', 'Generate'],
  ['tokenizer', 'scheduler', 'Submit'],
  ['scheduler', 'tokenizer', 'TokensReady'],
  ['scheduler', 'radix_cache', 'PlanStep'],
  ['radix_cache', 'allocator', 'ReservePages'],
  ['allocator', 'scheduler', 'StepPlanned'],
  ['scheduler', 'executor', 'RunStep'],
  ['executor', 'scheduler', 'StepDone'],
  ['scheduler', 'kv_store', 'StoreOrders'],
  ['kv_store', 'scheduler', 'StoreNews'],
];

const WIDE_PLACES = {
  box: [640, 258],
  size: [122, 66],
  server: [6, 22], tokenizer: [172, 22], scheduler: [338, 22], executor: [512, 22],
  radix_cache: [172, 168], allocator: [338, 168], kv_store: [512, 168],
};
const TALL_PLACES = {
  box: [360, 470],
  size: [132, 66],
  server: [8, 16], tokenizer: [8, 126], scheduler: [220, 126], executor: [220, 16],
  radix_cache: [8, 256], allocator: [220, 256], kv_store: [220, 386],
};

class ActorsPicture {
  constructor() {
    this.frame = h('div', { class: 'actors' });
    this.table = new DataTable('Actors', ['actor', 'waiting', 'messages/s', 'busy'], () => this.tableRows());
    this.node = card('Actors', 'messages between them, as they flow', this.frame, this.table.node);
    new ResizeObserver(() => this.layOut()).observe(this.frame);
  }

  layOut() {
    const places = this.frame.clientWidth < 480 ? TALL_PLACES : WIDE_PLACES;
    const hasStore = Boolean(live.hello?.actors?.includes('kv_store'));
    if (this.places === places && this.hasStore === hasStore) return;
    Object.assign(this, { places, hasStore, boxes: {}, lines: {} });
    const [width, height] = places.box;
    const isShown = (name) => name !== 'kv_store' || hasStore;
    const bottom = places === TALL_PLACES && !hasStore ? height - 110 : height;
    const arrow = svg('marker', { id: 'arrow', viewBox: '0 0 8 8', refX: '7', refY: '4', markerWidth: '6',
      markerHeight: '6', orient: 'auto' }, svg('path', { d: 'M1 1l6 3-6 3', class: 'arrow' }));
    const lines = MESSAGES.filter(([from, to]) => isShown(from) && isShown(to)).map((message) => this.line(message));
    const boxes = Object.keys(ACTORS).filter(isShown).map((name) => this.boxOf(name));
    this.unit = svg('text', { x: width - 6, y: bottom - 4, class: 'unit', 'text-anchor': 'end' }, '');
    fill(this.frame, svg('svg', { viewBox: `0 0 ${width} ${bottom}`, role: 'img',
      'aria-label': 'Picture of the actors; the table below has its numbers' },
    svg('defs', {}, arrow), lines, boxes, this.unit));
    this.update();
  }

  boxOf(name) {
    const [x, y] = this.places[name];
    const [width, height] = this.places.size;
    const { label, about } = ACTORS[name];
    const rate = svg('text', { x: width - 9, y: 19, class: 'rate', 'text-anchor': 'end' });
    const line = svg('text', { x: 9, y: 36, class: 'about' }, about);
    const busy = svg('rect', { x: 9, y: height - 14, width: 0, height: 5, rx: 2.5, class: 'busy' });
    const depth = svg('text', { x: 9, y: height - 19, class: 'depth' });
    this.boxes[name] = { rate, busy, depth, width: width - 18 };
    const isActor = name !== 'server';
    return svg('g', { transform: `translate(${x} ${y})`, class: `actor ${name}` },
      svg('rect', { width, height, rx: 9, class: 'box' }),
      svg('text', { x: 9, y: 19, class: 'name' }, label), rate, line,
      isActor && svg('rect', { x: 9, y: height - 14, width: width - 18, height: 5, rx: 2.5, class: 'track' }),
      isActor && busy, isActor && depth);
  }

  /// A line between the facing sides of two boxes. Lines of opposite directions run side by side.
  line([from, to, message]) {
    const [ax, ay] = this.places[from];
    const [bx, by] = this.places[to];
    const [width, height] = this.places.size;
    const isAcross = Math.abs(ay - by) < height;
    const isBack = MESSAGES.findIndex((other) => other[0] === to && other[1] === from)
      < MESSAGES.findIndex((other) => other[2] === message);
    const hasTwin = MESSAGES.some((other) => other[0] === to && other[1] === from);
    const shift = hasTwin ? (isBack ? 10 : -10) : 0;
    const [x1, x2] = isAcross ? (ax < bx ? [ax + width, bx] : [ax, bx + width]) : [ax + width / 2, bx + width / 2];
    const [y1, y2] = isAcross ? [ay + height / 2, by + height / 2] : ay < by ? [ay + height, by] : [ay, by + height];
    const points = isAcross ? [x1, y1 + shift, x2, y2 + shift] : [x1 + shift, y1, x2 + shift, y2];
    return this.lineBetween(points, message, isAcross, isBack);
  }

  lineBetween([x1, y1, x2, y2], message, isAcross, isBack) {
    const path = `M${x1} ${y1}L${x2} ${y2}`;
    const flow = svg('path', { d: path, class: 'flow' });
    const isSlanted = !isAcross && Math.abs(x1 - x2) > 30;
    const place = isAcross
      ? { x: (x1 + x2) / 2, y: isBack ? y1 + 13 : y1 - 6, 'text-anchor': 'middle' }
      : { x: (x1 + x2) / 2 + (isSlanted ? -6 : 7), y: (y1 + y2) / 2 + 3, 'text-anchor': isSlanted ? 'end' : 'start' };
    const label = svg('text', { ...place, class: 'message-name' }, message);
    this.lines[message] = { flow, label };
    return svg('g', { class: 'line' }, svg('path', { d: path, class: 'wire', 'marker-end': 'url(#arrow)' }), flow, label);
  }

  update() {
    if (!this.boxes || !live.hello) return;
    for (const [name, box] of Object.entries(this.boxes)) this.updateBox(name, box);
    for (const [from, to, message] of MESSAGES) {
      const line = this.lines[message];
      if (line) this.updateLine(line, live.mailboxRate(to, 'handled', message), from);
    }
    setText(this.unit, `unit of generation ${live.hello.generation}, kept alive by the Watchdog`);
    this.table.update();
  }

  updateBox(name, { rate, busy, depth, width }) {
    if (name === 'server') return;
    const { perSecond, waiting, share } = actorNumbers(name);
    setText(rate, `${brief(perSecond)}/s`);
    setText(depth, waiting > 0 ? `${whole(waiting)} waiting` : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} % busy`);
    busy.setAttribute('width', Math.max(share > 0 ? 2 : 0, width * share));
    busy.parentNode.classList.toggle('has-queue', waiting > 0);
  }

  updateLine({ flow, label }, perSecond) {
    const isLive = perSecond > 0.05;
    flow.classList.toggle('on', isLive);
    label.classList.toggle('on', isLive);
    if (!isLive) return;
    flow.style.strokeWidth = String(1.2 + Math.min(Math.log10(1 + perSecond), 3.5) * 0.7);
    const pace = perSecond > 200 ? 0.35 : perSecond > 30 ? 0.7 : perSecond > 3 ? 1.2 : 2.2;
    if (flow.dataset.pace !== String(pace)) {
      flow.dataset.pace = pace;
      flow.style.animationDuration = `${pace}s`;
    }
  }

  tableRows() {
    return (live.hello?.actors ?? []).map((name) => {
      const { perSecond, waiting, share } = actorNumbers(name);
      return [ACTORS[name]?.label ?? name, whole(waiting), brief(perSecond), `${(100 * share).toFixed(1)} %`];
    });
  }
}

function actorNumbers(name) {
  const rows = (live.mailboxes ?? []).filter((row) => row.actor === name);
  return {
    waiting: rows.reduce((sum, row) => sum + row.depth, 0),
    perSecond: live.mailboxRate(name, 'handled'),
    share: Math.min(live.mailboxRate(name, 'busy_us') / 1e6, 1),
  };
}
