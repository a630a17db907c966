//! Tests of an agent's calls to small models with recurrent states: each call computes a bounded number of tokens, and
//! the outputs equal those of an engine without a cache, bit for bit.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::{Value, json};
use souffleur_config::EngineConfig;
use souffleur_engine::{Engine, EngineParts, Generation, Progress};
use souffleur_kernels::cpu::ISA_VARIABLE;
use souffleur_model::text;
use souffleur_request::{ChatPrompt, Event, GenerateRequest, Prompt};
use souffleur_state::sampling::LogprobWish;

use crate::requests::Bits;
use crate::world::{World, within};

const MODELS: [&str; 2] = ["qwen3-5", "lfm2"];
/// Maximum running requests.
const ROWS: usize = 4;
/// The distance in tokens between the positions at which these models save states.
const STATE_INTERVAL: usize = 64;
const CONTEXT: usize = 1024;
/// A pool size in tokens for which the memory plan has enough state slots to keep all states of the trace.
const LARGE_POOL_TOKENS: usize = 16_384;
const REPLY_TOKENS: u32 = 10;
/// The token ids of the digits in the fixtures' vocabulary. Encoding a text of digits yields the sampled tokens again.
const DIGITS: std::ops::Range<u32> = 17..27;

/// A chat template that keeps reasoning after the user's last message, and drops earlier reasoning.
const TEMPLATE: &str = "{%- set ns = namespace(last=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- if tools -%}{{- '[' ~ (tools | tojson) ~ ']' -}}{%- endif -%}
{%- for m in messages -%}
{{- '<' ~ (m.role | upper) ~ '>' -}}
{%- if m.reasoning_content is defined and loop.index0 > ns.last -%}{{- '(' ~ m.reasoning_content ~ ')' -}}{%- endif -%}
{{- m.content ~ '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<ASSISTANT>(' -}}{%- endif -%}";

/// The number of tokens of the generation prompt, which has one token per character.
const GENERATION_PROMPT: usize = "<ASSISTANT>(".len();

/// A copy of a fixture with a longer context and the chat template.
fn model(name: &str) -> tempfile::TempDir {
    let fixture =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/fixtures/models");
    let fixture = fixture.join(name);
    let folder = tempfile::tempdir().expect("a folder can be made");
    let read = |file: &str| std::fs::read(fixture.join(file)).expect("the fixture has the file");
    let write = |file: &str, bytes: &[u8]| {
        std::fs::write(folder.path().join(file), bytes).expect("the folder can be written");
    };
    for file in [
        "model.safetensors",
        "tokenizer.json",
        "generation_config.json",
    ] {
        write(file, &read(file));
    }
    let edited = |file: &str, edit: &dyn Fn(&mut Value)| {
        let mut json: Value = serde_json::from_slice(&read(file)).expect("valid JSON");
        edit(&mut json);
        write(file, json.to_string().as_bytes());
    };
    edited("config.json", &|config| {
        let decoder = match config.get("text_config") {
            Some(_) => &mut config["text_config"],
            None => config,
        };
        decoder["max_position_embeddings"] = json!(CONTEXT);
    });
    edited("tokenizer_config.json", &|config| {
        config["chat_template"] = json!(TEMPLATE);
    });
    folder
}

fn digits(seed: usize, n: usize) -> String {
    let digit = |at: usize| char::from(b'0' + ((seed * 7 + at * at + at * seed / 3) % 10) as u8);
    (0..n).map(digit).collect()
}

fn message(role: &str, seed: usize, n: usize) -> Value {
    json!({"role": role, "content": digits(seed, n)})
}

/// A reply that consists of reasoning, which the template later renders or drops.
fn thought(reply: &str) -> Value {
    json!({"role": "assistant", "content": "", "reasoning_content": reply})
}

struct Reply {
    bits: Bits,
    prompt_tokens: usize,
    cached_tokens: usize,
}

impl Reply {
    fn computed(&self) -> usize {
        self.prompt_tokens - self.cached_tokens
    }

    fn text(&self) -> String {
        let digit = |(token, _): &(u32, u32)| char::from(b'0' + (token - DIGITS.start) as u8);
        self.bits.iter().map(digit).collect()
    }
}

/// A call of the trace: the number of tokens that it computed, and the upper bound of that number.
struct Turn {
    name: &'static str,
    computed: usize,
    bound: usize,
}

/// An engine, and the calls and outputs of its trace.
struct Agent {
    world: World,
    text: text::TextModel,
    page_size: usize,
    turns: Vec<Turn>,
    outputs: Vec<Bits>,
}

impl Agent {
    /// Starts an engine with `n_states` usable state slots, or with as many as the memory plan has.
    fn start(config: &EngineConfig, n_states: Option<usize>) -> Self {
        let text = text::TextModel::load(&config.model_path).expect("the model has a tokenizer");
        let mut parts = EngineParts::from_model(config, Progress::silent()).expect("a model");
        let memory = parts.info.memory.as_mut().expect("the model has a plan");
        if let Some(n_states) = n_states {
            assert!(memory.state_slots > n_states as u64);
            // The executor has more slots than the scheduler may use. One slot is the dummy slot.
            memory.state_slots = n_states as u64 + 1;
        }
        let engine = Engine::start_with(config.clone(), parts).expect("the model loads");
        Self {
            world: World { engine },
            text,
            page_size: config.page_size as usize,
            turns: Vec::new(),
            outputs: Vec::new(),
        }
    }

    fn tools() -> Value {
        json!([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}])
    }

    /// The tokens of a chat, as the engine encodes it.
    fn tokens(&self, messages: &[Value]) -> Vec<u32> {
        let (messages, tools) = (Value::from(messages), Self::tools());
        let rendered = self.text.render_chat(&text::ChatPrompt {
            tools: Some(&raw(&tools)),
            ..text::ChatPrompt::new(&messages)
        });
        let rendered = rendered.expect("the template renders the chat");
        self.text.encode_chat(&rendered).expect("a tokenized chat")
    }

    fn request(messages: &[Value], seed: Option<u64>) -> GenerateRequest {
        let mut request = GenerateRequest::new(Prompt::Chat(Arc::new(ChatPrompt {
            messages: Value::from(messages),
            tools: Some(raw(&Self::tools())),
            template_kwargs: serde_json::Map::new(),
            add_generation_prompt: true,
            continue_final_message: false,
            known: None,
            images: Vec::new(),
        })));
        request.logprobs = Some(LogprobWish::default());
        let sampling = &mut request.sampling;
        sampling.max_new_tokens = REPLY_TOKENS;
        sampling.ignore_eos = true;
        sampling.sampling_seed = Some(seed.unwrap_or(0));
        sampling.temperature = if seed.is_some() { 1.0 } else { 0.0 };
        sampling.logit_bias = DIGITS.map(|digit| (digit, 100.0)).collect();
        request
    }

    async fn finished(mut generation: Generation) -> Reply {
        let mut bits = Bits::new();
        loop {
            let event = within(generation.next()).await;
            let (delta, ends) = match event.expect("the stream ends with a terminal event") {
                Event::Delta(delta) => (delta, false),
                Event::Finished(end) => (end.delta, true),
                other => panic!("ended with {other:?}"),
            };
            bits.extend(delta.output_logprobs.iter().map(|entry| {
                let logprob = entry.logprob.expect("a log probability");
                (entry.token, logprob.to_bits())
            }));
            if ends {
                return Reply {
                    bits,
                    prompt_tokens: delta.usage.prompt_tokens as usize,
                    cached_tokens: delta.usage.cached_tokens as usize,
                };
            }
        }
    }

    /// Runs one call, which must resume from a state at `state_at` or later if the engine has a cache.
    async fn call(&mut self, name: &'static str, messages: &[Value], state_at: usize) -> String {
        let finished = Self::finished(self.world.generate(Self::request(messages, None))).await;
        assert_eq!(finished.prompt_tokens, self.tokens(messages).len());
        let state_at = state_at - state_at % self.page_size;
        self.turns.push(Turn {
            name,
            computed: finished.computed(),
            bound: finished.prompt_tokens - state_at,
        });
        let text = finished.text();
        self.outputs.push(finished.bits);
        text
    }

    /// The length of two prompts' common prefix.
    fn common(&self, a: &[Value], b: &[Value]) -> usize {
        let (a, b) = (self.tokens(a), self.tokens(b));
        a.iter().zip(&b).take_while(|(a, b)| a == b).count()
    }

    /// Runs the calls of an agent: a question, eight tool calls that keep the reasoning, a second question that drops
    /// the reasoning, a fork within the first answer, an edit of the second question, the edited prompt again, two
    /// other conversations, and four samples.
    async fn trace(&mut self) {
        let system = message("system", 1, 120);
        let mut first = vec![system.clone(), message("user", 2, 30)];
        let query_end = self.tokens(&first).len() - GENERATION_PROMPT;
        let system_end = self.common(&first, std::slice::from_ref(&system)) - 1;
        let mut reply = self.call("first", &first, 0).await;
        let mut state_end = self.tokens(&first).len() + reply.len() - 1;
        first.push(thought(&reply));
        for call in 0..8 {
            first.push(message("tool", 10 + call, 24));
            reply = self.call("tool call", &first, state_end).await;
            state_end = self.tokens(&first).len() + reply.len() - 1;
            first.push(thought(&reply));
        }
        let question = &first[..2];
        let conversation = |answer: usize, seed: usize, n: usize| {
            let answer = [message("assistant", answer, 100), message("user", seed, n)];
            [question, &answer].concat()
        };
        let second = conversation(30, 31, 40);
        self.call("second question", &second, query_end).await;
        let fork = {
            let answer = digits(30, 60) + &digits(32, 30);
            let answer = json!({"role": "assistant", "content": answer});
            [question, &[answer, message("user", 33, 20)]].concat()
        };
        let fork_at = self.common(&fork, &second);
        self.call("fork", &fork, fork_at - STATE_INTERVAL - 64)
            .await;
        let edit = conversation(30, 34, 35);
        self.call("edit", &edit, query_end).await;
        let same_at = self.tokens(&edit).len() - GENERATION_PROMPT;
        self.call("same again", &edit, same_at).await;
        for seed in [40, 41] {
            let other = [system.clone(), message("user", seed, 50)];
            self.call("other conversation", &other, system_end).await;
        }
        self.four_samples(&[system, message("user", 50, 90)], system_end)
            .await;
    }

    async fn four_samples(&mut self, messages: &[Value], system_end: usize) {
        let first = Self::request(messages, Some(0));
        let four = (0..4).map(|seed| GenerateRequest {
            prompt: first.prompt.clone(),
            ..Self::request(messages, Some(seed))
        });
        let sent = self.world.engine.generate_all(four.collect());
        let sent = sent.expect("the engine accepts requests").into_iter();
        let finished = join_all(sent.map(Self::finished)).await;
        let uncached = self.tokens(messages).len() - (system_end - system_end % self.page_size);
        self.turns.push(Turn {
            name: "four samples",
            computed: finished.iter().map(Reply::computed).sum(),
            // The first sample saves a state. The other samples wait for the state and resume from it.
            bound: uncached + 3 * self.page_size,
        });
        self.outputs
            .extend(finished.into_iter().map(|finished| finished.bits));
    }
}

fn config(model: PathBuf) -> EngineConfig {
    EngineConfig {
        model_path: model,
        max_total_tokens: Some(LARGE_POOL_TOKENS),
        max_running_requests: Some(ROWS),
        chunked_prefill_size: 256,
        threads: 2,
        ..EngineConfig::default()
    }
}

/// Runs the trace on a separate engine.
async fn run(config: EngineConfig, n_states: Option<usize>) -> (Vec<Turn>, Vec<Bits>) {
    let mut agent = Agent::start(&config, n_states);
    agent.trace().await;
    agent.world.assert_no_leaks().await;
    agent.world.stop().await;
    (agent.turns, agent.outputs)
}

fn assert_bounds(turns: &[Turn], about: &str) {
    for Turn {
        name,
        computed,
        bound,
    } in turns
    {
        assert!(
            computed <= bound,
            "{about}: {name} computed {computed} tokens, the bound is {bound}"
        );
    }
}

async fn check(name: &str) {
    let folder = model(name);
    let config = config(folder.path().to_owned());
    let uncached = EngineConfig {
        disable_radix_cache: true,
        ..config.clone()
    };
    let (turns, expected) = run(uncached, None).await;
    assert!(turns.iter().all(|turn| turn.computed > 2 * STATE_INTERVAL));
    for page_size in [1, 16] {
        let paged = EngineConfig {
            page_size,
            ..config.clone()
        };
        let (turns, outputs) = run(paged.clone(), None).await;
        assert!(outputs == expected, "{name}, pages of {page_size}");
        assert_bounds(&turns, &format!("{name}, pages of {page_size}"));
        if std::env::var_os(ISA_VARIABLE).is_some() {
            eprintln!("skipped: few states and few pages are tested on the best kernel path only");
            continue;
        }
        for (slots, max_total_tokens) in [
            (ROWS + 1, LARGE_POOL_TOKENS),
            (ROWS + 4, LARGE_POOL_TOKENS),
            (2 * ROWS, 800),
        ] {
            let tight = EngineConfig {
                max_total_tokens: Some(max_total_tokens),
                ..paged.clone()
            };
            let (turns, outputs) = run(tight, Some(slots)).await;
            let about =
                format!("{name}, pages of {page_size}, {slots} states, {max_total_tokens} tokens");
            assert!(outputs == expected, "{about}");
            // With few pages, the pages that a turn would resume from may be evicted.
            if max_total_tokens == LARGE_POOL_TOKENS {
                assert_bounds(&turns, &about);
            }
        }
    }
}

#[tokio::test]
async fn calls_of_an_agent_compute_few_tokens_and_give_the_uncached_outputs() {
    for name in MODELS {
        check(name).await;
    }
}

fn raw(json: &Value) -> Box<serde_json::value::RawValue> {
    serde_json::value::to_raw_value(json).expect("it is JSON")
}
