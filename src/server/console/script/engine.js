// The pane of the engine: numbers, then the pictures.

const NUMBERS = [
  ["Running", () => whole(live.frame.counters.running_requests), "in the batch"],
  ["Waiting", () => whole(live.frame.counters.waiting_requests), "queued"],
  ["Output", () => `${brief(live.rate("output_tokens"))}`, "tokens/s"],
  ["Prompts", () => `${brief(live.rate("prompt_tokens"))}`, "tokens/s"],
  ["Cache hits", () => percent(live.rate("cached_tokens"), live.rate("prompt_tokens")), "of prompts"],
  ["Evicted", () => `${brief(live.rate("evicted_tokens"))}`, "tokens/s"],
];

const engine = {
  make() {
    this.pictures = {
      actors: new ActorsPicture(),
      tree: new TreePicture(),
      steps: new StepsPicture(),
      pools: new PoolsPicture(),
      lanes: new LanesPicture(),
    };
    this.values = NUMBERS.map(([label, , unit]) => ({ label, unit, value: h("dd", { class: "value" }, "–") }));
    const numbers = h(
      "dl",
      { class: "numbers-row" },
      this.values.map(({ label, unit, value }) =>
        h("div", {}, h("dt", {}, label), value, h("dd", { class: "unit" }, unit)),
      ),
    );
    this.state = h("div", { class: "state", hidden: true });
    const { actors, tree, steps, pools, lanes } = this.pictures;
    fill(
      byId("engine"),
      h("header", { class: "pane-head" }, h("h2", {}, "Engine"), h("p", { class: "muted", id: "engine-facts" })),
      this.state,
      numbers,
      h("div", { class: "cards" }, actors.node, tree.node, steps.node, lanes.node, pools.node),
    );
    live.on((kind, value) => this.take(kind, value));
    this.showState();
  },

  take(kind, value) {
    const { actors, tree, steps, pools, lanes } = this.pictures;
    if (kind === "hello") {
      actors.layOut();
      setText(byId("engine-facts"), this.inWords());
    }
    if (kind === "tree") tree.takeTree(value);
    if (kind === "frame") {
      for (const picture of [actors, steps, pools, lanes]) picture.update();
      this.showNumbers();
      for (const view of views.values()) if (view.isRunning && !view.message.run?.ttft_ms) view.schedule();
    }
    this.showState();
  },

  inWords() {
    const { version, limits, device } = live.hello;
    return [
      `Souffleur ${version}`,
      device,
      limits && `${whole(limits.context_length)} tokens of context`,
      limits && `pages of ${whole(limits.page_size)}`,
    ]
      .filter(Boolean)
      .join(" · ");
  },

  showNumbers() {
    NUMBERS.forEach(([, read], index) => {
      setText(this.values[index].value, live.frame?.counters?.running_requests === undefined ? "–" : read());
    });
  },

  // Shows the load, or the lost connection, above the pictures.
  showState() {
    const { phase } = server;
    byId("engine").toggleAttribute("data-idle", !["ready", "paused", "stopping"].includes(phase) || !live.frame);
    const isLoading = phase === "loading";
    const isLost = !live.frame && !isLoading;
    this.state.hidden = !isLoading && !(isLost && live.problem);
    if (isLoading) this.showLoading(live.frame?.loading);
    else if (isLost && live.problem) this.showLost();
  },

  showLoading(loading) {
    if (!this.progress?.isConnected) {
      this.progress = h("progress", { "aria-label": "Loaded weights" });
      this.progressText = h("p", { class: "muted" });
      fill(this.state, h("h3", {}, "The model is loading"), this.progress, this.progressText);
    }
    const { done_bytes: done, total_bytes: all } = loading ?? {};
    if (all > 0) {
      this.progress.max = all;
      this.progress.value = done;
    }
    setText(
      this.progressText,
      all > 0
        ? `${percent(done, all)}: ${bytes(done)} of ${bytes(all)}. Requests get 503 until it is loaded.`
        : "Requests get 503 until it is loaded.",
    );
  },

  showLost() {
    fill(
      this.state,
      h("h3", {}, "No live data"),
      h("p", { class: "muted" }, live.isRefused ? live.problem : `${live.problem}. The page tries again.`),
      live.needsKey
        ? button("Enter the key", { class: "quiet" }, () => keyDialog.open(live.problem))
        : button("Try now", { class: "quiet" }, restart),
    );
  },
};
