// The timeline of steps. A bar is one forward pass, and a gap is time in which nothing was computed.

const SPANS = [
  [250, "¼ s"],
  [2000, "2 s"],
  [10_000, "10 s"],
];
const KINDS = ["prefill", "mixed", "decode"];
const TIMELINE_HEIGHT = 104;
// The picture runs this far after the engine, so that steps have arrived when they are drawn.
const DELAY_MS = 400;

class StepsPicture {
  constructor() {
    this.span = 2000;
    this.canvas = new Canvas(
      "Timeline of the last steps; the table below lists them",
      TIMELINE_HEIGHT,
      (context, width, height) => this.draw(context, width, height),
    );
    this.facts = h("p", { class: "legend", id: "step-facts" });
    const spans = h(
      "div",
      { class: "choice", role: "group", "aria-label": "Time span", onkeydown: moveFocus },
      SPANS.map(([ms, label]) =>
        button(label, { "aria-pressed": String(ms === this.span), "data-span": ms }, (event) =>
          this.choose(ms, event.currentTarget),
        ),
      ),
    );
    this.table = new DataTable("Steps", ["step", "kind", "duration", "rows", "prefill", "decode"], () =>
      live.steps
        .slice(-40)
        .reverse()
        .map((step) => [
          whole(step.id),
          step.kind,
          seconds(step.duration_us / 1000),
          whole(step.rows),
          whole(step.prefill_tokens),
          whole(step.decode_tokens),
        ]),
    );
    const key = h(
      "p",
      { class: "legend" },
      KINDS.map((kind) => h("span", {}, h("i", { class: `key ${kind}` }), kind)),
      h("span", {}, h("i", { class: "key gap" }), "gap"),
    );
    this.node = card(
      "Steps",
      "forward passes, as tall as their tokens",
      this.table,
      spans,
      this.canvas.node,
      h("div", { class: "row spread" }, key, this.facts),
    );
  }

  choose(ms, chosen) {
    this.span = ms;
    for (const other of chosen.parentNode.children) other.setAttribute("aria-pressed", String(other === chosen));
    this.canvas.redraw();
  }

  update() {
    this.table.update();
    if (calmMotion.matches) this.canvas.redraw();
    else this.animate();
    setText(this.facts, this.inWords());
  }

  // Moves the picture on, fifteen times a second, as long as it has steps.
  animate() {
    if (this.ticket) return;
    const tick = (time) => {
      this.ticket = null;
      if (document.hidden || !this.node.offsetParent) return;
      if (!live.frame) {
        this.canvas.redraw();
        return;
      }
      if (!this.drawn || time - this.drawn > 60) {
        this.drawn = time;
        this.canvas.redraw();
      }
      if (this.hasSteps) this.ticket = requestAnimationFrame(tick);
    };
    this.ticket = requestAnimationFrame(tick);
  }

  shown() {
    const end = live.now() - DELAY_MS;
    const start = end - this.span;
    let first = live.steps.length;
    while (first > 0 && endOf(live.steps[first - 1]) > start) first -= 1;
    const steps = live.steps.slice(first).filter((step) => step.start_us < 1000 * end);
    return { start, end, steps };
  }

  draw(context, width, height) {
    const { start, steps } = this.shown();
    const base = height - 18;
    this.hasSteps = steps.length > 0;
    if (live.frame) this.drawAxis(context, width, base, start);
    const most = Math.max(...steps.map((step) => step.prefill_tokens + step.decode_tokens), 4);
    const scale = width / this.span;
    for (const step of steps) {
      const x = (step.start_us / 1000 - start) * scale;
      const size = Math.max((step.duration_us / 1000) * scale, 0.8);
      this.drawStep(context, step, { x, size, base, most, room: base - 8 });
    }
    if (!steps.length) this.drawRest(context, width, base);
  }

  drawStep(context, step, { x, size, base, most, room }) {
    const tall = (tokens) => (tokens ? Math.max(3, (room * Math.log1p(tokens)) / Math.log1p(most)) : 0);
    const tokens = step.prefill_tokens + step.decode_tokens;
    const top = tall(tokens);
    const gap = size > 5 ? 1 : 0;
    context.fillStyle = step.kind === "decode" ? palette.get("ink-soft") : palette.get("accent");
    context.fillRect(x, base - top, size - gap, top);
    if (step.kind === "mixed") {
      const low = (top * step.decode_tokens) / Math.max(tokens, 1);
      context.fillStyle = palette.get("ink-soft");
      context.fillRect(x, base - Math.max(low, 4), size - gap, Math.max(low, 4));
    }
    if (size < 34) return;
    context.fillStyle = palette.get(step.kind === "decode" ? "panel" : "on-accent");
    context.font = canvasFont(10);
    if (top > 16) context.fillText(fitted(context, whole(tokens), size - 8), x + 4, base - top + 12);
  }

  drawAxis(context, width, base, start) {
    context.strokeStyle = palette.get("line");
    context.fillStyle = palette.get("muted");
    context.font = canvasFont(10.5);
    context.lineWidth = 1;
    const every = this.span / 5;
    context.beginPath();
    for (let time = Math.ceil(start / every) * every; time < start + this.span; time += every) {
      const x = Math.round(((time - start) * width) / this.span) + 0.5;
      context.moveTo(x, 4);
      context.lineTo(x, base);
      const label = `${(time / 1000).toFixed(every < 100 ? 2 : 1)} s`;
      if (x + 3 + context.measureText(label).width < width) context.fillText(label, x + 3, base + 14);
    }
    context.moveTo(0, base + 0.5);
    context.lineTo(width, base + 0.5);
    context.stroke();
  }

  drawRest(context, width, base) {
    context.fillStyle = palette.get("muted");
    context.font = canvasFont(12.5);
    const text = live.frame ? "at rest: no steps" : "no connection";
    const size = context.measureText(text).width;
    const x = (width - size) / 2;
    // Clears the lines of the axis under the text.
    context.clearRect(x - 6, base / 2 - 12, size + 12, 22);
    context.fillText(text, x, base / 2 + 4);
  }

  inWords() {
    const { start, end, steps } = this.shown();
    if (!steps.length) return "";
    const inside = (step) => Math.min(endOf(step), end) - Math.max(step.start_us / 1000, start);
    const share = Math.min(steps.reduce((sum, step) => sum + inside(step), 0) / this.span, 1);
    const mean = steps.reduce((sum, step) => sum + step.duration_us, 0) / 1000 / steps.length;
    const left = live.frame?.steps_left_out ?? 0;
    const missing = left > 0 ? `; ${whole(left)} of the last not drawn` : "";
    const size = `${count(steps.length, "step")}, ${seconds(mean)} on average`;
    return `${size}, computing ${percent(share, 1)} of the time${missing}`;
  }
}

function endOf(step) {
  return (step.start_us + step.duration_us) / 1000;
}
