// A chat as the body of `/v1/chat/completions`, and the run of one request.

// The parameters that the page shows; defaults come from `/openapi.json`.
const PARAMS = [
  { name: "temperature", label: "Temperature", step: 0.05, min: 0, hint: "0 always takes the most likely token" },
  { name: "top_p", label: "Top p", step: 0.01, min: 0, max: 1, hint: "keeps the likeliest tokens of this total" },
  { name: "top_k", label: "Top k", step: 1, min: -1, hint: "keeps this many tokens; −1 keeps all" },
  { name: "min_p", label: "Min p", step: 0.01, min: 0, max: 1, hint: "least share of the best token’s probability" },
  { name: "repetition_penalty", label: "Repetition penalty", step: 0.05, min: 0.05, max: 2, hint: "1 is none" },
  { name: "frequency_penalty", label: "Frequency penalty", step: 0.1, min: -2, max: 2, hint: "for each repetition" },
  { name: "presence_penalty", label: "Presence penalty", step: 0.1, min: -2, max: 2, hint: "once for each token" },
  { name: "max_tokens", label: "Max tokens", step: 1, min: 0, hint: "at most so many in an answer" },
  { name: "seed", label: "Seed", step: 1, hint: "empty: a new one for each answer, kept with it" },
];
const TOP_LOGPROBS = 8;
const EFFORTS = ["", "none", "low", "medium", "high"];

// The known parameters among the fields of an object: an imported chat may have others.
function paramsOf(fields) {
  const names = [...PARAMS.map(({ name }) => name), "reasoning_effort"].filter((name) => name in fields);
  return Object.fromEntries(names.map((name) => [name, fields[name]]));
}

function messageOf(node) {
  if (node.role === "tool") return { role: "tool", tool_call_id: node.callId, content: node.content };
  const message = { role: node.role, content: node.content };
  if (node.role !== "assistant") return message;
  if (node.reasoning) message.reasoning_content = node.reasoning;
  if (node.calls?.length) {
    message.tool_calls = node.calls.map(({ id, name, arguments: text }) => ({
      id,
      type: "function",
      function: { name, arguments: text },
    }));
  }
  return message;
}

// The body of the request that answers the last message of `path`. Without a `seed` the server chooses one.
function bodyOf(chat, path, params = chat.params) {
  const messages = path.map(messageOf);
  if (chat.system.trim()) messages.unshift({ role: "system", content: chat.system });
  const body = { model: server.model || "default", messages, ...paramsOf(params) };
  if (chat.tools.trim()) body.tools = parsed(chat.tools, "Tools", Array.isArray);
  if (chat.schema.trim()) {
    const schema = parsed(chat.schema, "The schema", isObject);
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  if (chat.logprobs) Object.assign(body, { logprobs: true, top_logprobs: TOP_LOGPROBS });
  return body;
}

function parsed(text, name, isRight) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`${name}: ${error.message}`);
  }
  if (!isRight(value)) throw new Error(`${name}: another kind of JSON value is expected`);
  return value;
}

// The answers under way, by their node's id.
const running = new Map();

// Runs a request whose answer goes to `node`. `show` is called after each change.
async function run(chat, node, body, show) {
  const stopper = new AbortController();
  const started = performance.now();
  const keepSoon = throttle(2000, () => chats.keep(chat));
  node.run = { rid: `console-${randomId()}`, seed: body.seed, params: paramsOf(body), prefix: node.content.length };
  running.set(node.id, stopper);
  const request = { ...body, rid: node.run.rid, stream: true, stream_options: { include_usage: true } };
  try {
    const response = await send("v1/chat/completions", { method: "POST", body: request, signal: stopper.signal });
    for await (const { data } of eventsOf(response)) {
      if (data === "[DONE]") break;
      takeChunk(node, JSON.parse(data), performance.now() - started);
      show();
      keepSoon();
    }
    if (!node.run.finish && !node.run.error) node.run.error = "the stream ended early";
  } catch (error) {
    if (stopper.signal.aborted) node.run.finish = "stopped";
    else node.run.error = error instanceof TypeError ? `No connection: ${error.message}` : error.message;
  } finally {
    running.delete(node.id);
  }
  node.run.total_ms = Math.round(performance.now() - started);
  await chats.keep(chat);
  show();
  await explainMiss(chat, node, show);
}

function takeChunk(node, chunk, ms) {
  const details = node.run;
  if (chunk.error) details.error = chunk.error.message ?? "the request failed";
  if (chunk.model) details.model = chunk.model;
  if (chunk.usage) takeUsage(details, chunk.usage);
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { content, reasoning_content: thought, reasoning, tool_calls: calls } = choice.delta ?? {};
  if (content || thought || reasoning || calls) {
    details.ttft_ms ??= Math.round(ms * 10) / 10;
    details.last_ms = Math.round(ms * 10) / 10;
    details.chunks = (details.chunks ?? 0) + 1;
  }
  if (content) node.content += plainLines(content);
  if (thought || reasoning) node.reasoning = (node.reasoning ?? "") + plainLines(thought || reasoning);
  for (const call of calls ?? []) takeCall(node, call);
  if (choice.logprobs?.content) takeLogprobs(details, choice.logprobs.content);
  if (choice.finish_reason) details.finish = choice.finish_reason;
}

function plainLines(text) {
  return text.includes("\r") ? text.replace(/\r\n?/g, "\n") : text;
}

function takeUsage(details, usage) {
  details.prompt_tokens = usage.prompt_tokens;
  details.completion_tokens = usage.completion_tokens;
  details.cached_tokens = usage.prompt_tokens_details?.cached_tokens ?? 0;
  details.reasoning_tokens = usage.completion_tokens_details?.reasoning_tokens ?? 0;
}

function takeCall(node, delta) {
  node.calls ??= [];
  const call = (node.calls[delta.index ?? 0] ??= { id: "", name: "", arguments: "" });
  if (delta.id) call.id = delta.id;
  if (delta.function?.name) call.name += delta.function.name;
  if (delta.function?.arguments) call.arguments += delta.function.arguments;
}

// Keeps tokens as `{t, p, b, alternatives}`: text, log probability, bytes.
function takeLogprobs(details, entries) {
  const kept = ({ token, logprob, bytes: octets }) => ({ t: token, p: logprob, b: octets ?? undefined });
  details.tokens ??= [];
  for (const entry of entries) details.tokens.push({ ...kept(entry), top: entry.top_logprobs.map(kept) });
}

// How often there was no diagnosis. A server without diagnostics is not asked for ever.
let missesUnknown = 0;

// Asks why no more of the prompt was cached. The diagnosis exists once the request was admitted.
async function explainMiss(chat, node, show) {
  if ((node.run.prompt_tokens === undefined && !node.run.ttft_ms) || missesUnknown > 2) return;
  try {
    node.run.miss = await getJson(`debug/prefix/${encodeURIComponent(node.run.rid)}`, { asAdmin: true });
  } catch (error) {
    if (!(error instanceof Refusal)) return;
    missesUnknown += 1;
    node.run.miss = { cause: null, message: error.message };
  }
  await chats.keep(chat, false);
  show();
}

// Shorter answers may arrive at once: their times are those of the page.
const MIN_SPAN_MS = 50;

// Tokens per second after the first token; null for a single one.
function speedOf(details) {
  const span = details.last_ms - details.ttft_ms;
  const made = (details.completion_tokens ?? details.chunks ?? 0) - 1;
  return span > MIN_SPAN_MS && made > 0 ? (1000 * made) / span : null;
}

// A run as one line of text, for exports.
function runInWords(details) {
  const speed = speedOf(details);
  return [
    details.model,
    details.seed !== undefined && `seed ${details.seed}`,
    details.ttft_ms !== undefined && `first token after ${seconds(details.ttft_ms)}`,
    speed && `${fixed(speed)} tokens/s`,
    details.prompt_tokens !== undefined && `${details.prompt_tokens} prompt tokens, ${details.cached_tokens} cached`,
    details.completion_tokens !== undefined && `${details.completion_tokens} output tokens`,
    details.finish && `finish reason ${details.finish}`,
    details.miss?.cause && missInWords(details.miss),
    details.error && `failed: ${details.error}`,
  ]
    .filter(Boolean)
    .join("; ");
}
