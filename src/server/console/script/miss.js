// Why no more of a prompt was cached: the report of `/debug/prefix/{rid}` as a sentence. Every number and the cause are
// the report's own.

const MISS = {
  match_limit: () => "Everything that can be cached was: only tokens that must be computed were left.",
  page_floor: () => "Less than one page was missing, and only whole pages are cached.",
  too_short: () => "The prompt is too short to share a page.",
  evicted: ({ evicted }) =>
    evicted
      ? `The next tokens were cached up to token ${whole(evicted.cached_until)}, and were evicted ` +
        `${count(evicted.steps_before, "step")} (${seconds(1000 * evicted.seconds_before)}) earlier for other prompts.`
      : "The next tokens were cached, and have been evicted for other prompts.",
  different_namespace: ({ elsewhere }) =>
    "The next tokens are cached in another namespace" +
    (elsewhere
      ? ` (extra_key ${JSON.stringify(elsewhere.extra_key)}, ${count(elsewhere.cached_tokens, "token")}).`
      : "."),
  divergence: ({ branch }) =>
    "There the cache continues with other tokens" +
    (branch && branch.n_branches > 1 ? `, in ${whole(branch.n_branches)} branches.` : "."),
  flushed: () => "The next tokens were cached until the cache was flushed.",
  never_cached: () => "No request had the next tokens before.",
  cache_disabled: () => "The server runs without a prefix cache.",
  no_state: ({ missing_state: state }) =>
    "The K/V is cached further on, but there is no state to resume from" +
    ({
      never_saved: ": none was saved.",
      thinned: ": it was dropped for another.",
      past_limit: ": it lies after tokens that must be computed.",
    }[state] ?? "."),
  no_window: () => "The K/V is cached further on, but that of the sliding window was evicted.",
  stored_too_slow: () => "The KV store has the next tokens, and computing them is faster than loading them.",
  stored_late: () => "The KV store has the next tokens, and did not bring them in time.",
  stored_damaged: () => "The KV store had the next tokens, and the data it read was damaged.",
  stored_evicted: () => "The KV store had the next tokens, and has dropped them for others.",
};

function missInWords(report) {
  const why = (MISS[report.cause] ?? (() => `Cause: ${report.cause}.`))(report);
  const place =
    report.prompt_tokens === undefined
      ? `token ${whole(report.position)}`
      : `token ${whole(report.position)} of ${whole(report.prompt_tokens)}`;
  return `Matched up to ${place}. ${why}`;
}

// The sentence, and for admins the texts at the miss: the shared one, then both continuations.
function missNode(report) {
  if (!report) return null;
  if (!report.cause) return h("p", { class: "miss muted" }, `No diagnosis: ${report.message}`);
  return h(
    "div",
    { class: "miss", "data-cause": report.cause, "data-position": report.position },
    h("p", {}, h("code", {}, report.cause), " ", missInWords(report)),
    report.text && report.cause !== "match_limit" ? missTexts(report) : null,
    report.hint && h("p", { class: "hint" }, `Hint: ${report.hint}`),
  );
}

function missTexts({ text, cause }) {
  const has = (part) => part !== null && part !== "";
  const row = (label, mark, part) => has(part) && [h("dt", {}, label), h("dd", { class: mark }, quoted(part))];
  return h(
    "dl",
    { class: "texts" },
    row("cached", "shared", text.before && `…${text.before}`),
    row("this prompt", "mine", text.after && `${text.after}…`),
    cause === "divergence" && row("the cache", "theirs", text.branch && `${text.branch}…`),
  );
}

// A text on one line, with its line breaks visible.
function quoted(text) {
  return safeText(text.replace(/\n/g, "⏎"));
}

// The prompt as a bar: cached and computed tokens.
function promptBar(details) {
  const { prompt_tokens: all, cached_tokens: cached } = details;
  if (!all) return null;
  const part = (name, size) => {
    const node = h("span", { class: `part ${name}` });
    node.style.flexGrow = size;
    return node;
  };
  const label = `Prompt: ${count(all, "token")}, ${whole(cached)} cached, ${whole(all - cached)} computed`;
  return h(
    "div",
    { class: "prompt-bar" },
    h(
      "div",
      { class: "bar thin", role: "img", "aria-label": label },
      cached > 0 && part("cached", cached),
      all - cached > 0 && part("computed", all - cached),
    ),
    h(
      "p",
      { class: "legend", "aria-hidden": "true" },
      h("span", {}, "prompt ", h("b", {}, whole(all))),
      h("span", {}, h("i", { class: "key cached" }), "cached ", h("b", {}, whole(cached))),
      h("span", {}, h("i", { class: "key computed" }), "computed ", h("b", {}, whole(all - cached))),
    ),
  );
}
