//! An agent's calls on small models whose layers keep states: the computed tokens of each chat are bounded, and
//! the outputs are bit for bit those of an engine that caches nothing.

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
/// Requests at once.
const ROWS: usize = 4;
/// States at the distance of these models' grid.
const GRID: usize = 64;
const CONTEXT: usize = 1024;
/// A pool size in tokens whose share of states keeps all states of the trace.
const ROOMY_TOKENS: usize = 16_384;
/// Tokens of a reply.
const REPLY: u32 = 10;
/// Tokens of the digits in the fixtures' vocabulary: text made of them is encoded as it was sampled.
const DIGITS: std::ops::Range<u32> = 17..27;

/// Reasoning stays in the turns since the user's last message; the template drops earlier reasoning.
const TEMPLATE: &str = "{%- set ns = namespace(last=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- if tools -%}{{- '[' ~ (tools | tojson) ~ ']' -}}{%- endif -%}
{%- for m in messages -%}
{{- '<' ~ (m.role | upper) ~ '>' -}}
{%- if m.reasoning_content is defined and loop.index0 > ns.last -%}{{- '(' ~ m.reasoning_content ~ ')' -}}{%- endif -%}
{{- m.content ~ '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<ASSISTANT>(' -}}{%- endif -%}";

/// The opening of a reply, one token a letter.
const OPEN: usize = "<ASSISTANT>(".len();

/// A fixture with room for a long chat, and a template.
fn model(name: &str) -> tempfile::TempDir {
    let fixture =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/fixtures/models");
    let fixture = fixture.join(name);
    let folder = tempfile::tempdir().expect("a folder can be made");
    let read = |file: &str| std::fs::read(fixture.join(file)).expect("the fixture has it");
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
        let mut json: Value = serde_json::from_slice(&read(file)).expect("it is JSON");
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

fn said(role: &str, seed: usize, n: usize) -> Value {
    json!({"role": role, "content": digits(seed, n)})
}

/// A reply that consists of reasoning, which the template later renders or drops.
fn thought(reply: &str) -> Value {
    json!({"role": "assistant", "content": "", "reasoning_content": reply})
}

struct Done {
    bits: Bits,
    prompt_tokens: usize,
    cached_tokens: usize,
}

impl Done {
    fn computed(&self) -> usize {
        self.prompt_tokens - self.cached_tokens
    }

    fn text(&self) -> String {
        let digit = |(token, _): &(u32, u32)| char::from(b'0' + (token - DIGITS.start) as u8);
        self.bits.iter().map(digit).collect()
    }
}

/// A turn: the number of computed tokens, and its bound.
struct Turn {
    name: &'static str,
    computed: usize,
    most: usize,
}

/// An engine and its chats.
struct Agent {
    world: World,
    text: text::TextModel,
    page_size: usize,
    turns: Vec<Turn>,
    said: Vec<Bits>,
}

impl Agent {
    /// With `n_states` states, or the number in the memory plan.
    fn start(config: &EngineConfig, n_states: Option<usize>) -> Self {
        let text = text::TextModel::load(&config.model_path).expect("it has a tokenizer");
        let mut parts = EngineParts::from_model(config, Progress::silent()).expect("it is a model");
        let memory = parts.info.memory.as_mut().expect("the model has a plan");
        if let Some(n_states) = n_states {
            assert!(memory.state_slots > n_states as u64);
            // The executor has more than are granted; one of the plan's is the dummy.
            memory.state_slots = n_states as u64 + 1;
        }
        let engine = Engine::start_with(config.clone(), parts).expect("the model loads");
        Self {
            world: World { engine },
            text,
            page_size: config.page_size as usize,
            turns: Vec::new(),
            said: Vec::new(),
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
        let rendered = rendered.expect("the template takes it");
        self.text.encode_chat(&rendered).expect("it is encoded")
    }

    fn request(messages: &[Value], seed: Option<u64>) -> GenerateRequest {
        let mut request = GenerateRequest::new(Prompt::Chat(Arc::new(ChatPrompt {
            messages: Value::from(messages),
            tools: Some(raw(&Self::tools())),
            template_kwargs: serde_json::Map::new(),
            add_generation_prompt: true,
            continue_final_message: false,
            known: None,
        })));
        request.logprobs = Some(LogprobWish::default());
        let sampling = &mut request.sampling;
        sampling.max_new_tokens = REPLY;
        sampling.ignore_eos = true;
        sampling.sampling_seed = Some(seed.unwrap_or(0));
        sampling.temperature = if seed.is_some() { 1.0 } else { 0.0 };
        sampling.logit_bias = DIGITS.map(|digit| (digit, 100.0)).collect();
        request
    }

    async fn done(mut generation: Generation) -> Done {
        let mut bits = Bits::new();
        loop {
            let event = within(generation.next()).await;
            let (delta, ends) = match event.expect("a terminal event comes first") {
                Event::Delta(delta) => (delta, false),
                Event::Finished(end) => (end.delta, true),
                other => panic!("ended with {other:?}"),
            };
            bits.extend(delta.output_logprobs.iter().map(|entry| {
                let logprob = entry.logprob.expect("sampled tokens have one");
                (entry.token, logprob.to_bits())
            }));
            if ends {
                return Done {
                    bits,
                    prompt_tokens: delta.usage.prompt_tokens as usize,
                    cached_tokens: delta.usage.cached_tokens as usize,
                };
            }
        }
    }

    /// One call. `state_at` is the position of the state that it must resume from.
    async fn call(&mut self, name: &'static str, messages: &[Value], state_at: usize) -> String {
        let done = Self::done(self.world.generate(Self::request(messages, None))).await;
        assert_eq!(done.prompt_tokens, self.tokens(messages).len());
        let state_at = state_at - state_at % self.page_size;
        self.turns.push(Turn {
            name,
            computed: done.computed(),
            most: done.prompt_tokens - state_at,
        });
        let text = done.text();
        self.said.push(done.bits);
        text
    }

    /// The length of two prompts' common prefix.
    fn common(&self, a: &[Value], b: &[Value]) -> usize {
        let (a, b) = (self.tokens(a), self.tokens(b));
        a.iter().zip(&b).take_while(|(a, b)| a == b).count()
    }

    /// System and tools, a loop of eight tool calls whose thinking stays, a user's turn that drops it, a fork at the
    /// second turn, an edit of the last message, the same prompt twice, two more conversations, four samples.
    async fn trace(&mut self) {
        let system = said("system", 1, 120);
        let mut first = vec![system.clone(), said("user", 2, 30)];
        let query_end = self.tokens(&first).len() - OPEN;
        let system_end = self.common(&first, std::slice::from_ref(&system)) - 1;
        let mut reply = self.call("first", &first, 0).await;
        let mut fed = self.tokens(&first).len() + reply.len() - 1;
        first.push(thought(&reply));
        for call in 0..8 {
            first.push(said("tool", 10 + call, 24));
            reply = self.call("tool call", &first, fed).await;
            fed = self.tokens(&first).len() + reply.len() - 1;
            first.push(thought(&reply));
        }
        let answered = &first[..2];
        let turn = |answer: usize, seed: usize, n: usize| {
            let answer = [said("assistant", answer, 100), said("user", seed, n)];
            [answered, &answer].concat()
        };
        let second = turn(30, 31, 40);
        self.call("stripped", &second, query_end).await;
        let fork = {
            let answer = digits(30, 60) + &digits(32, 30);
            let answer = json!({"role": "assistant", "content": answer});
            [answered, &[answer, said("user", 33, 20)]].concat()
        };
        let parts_at = self.common(&fork, &second);
        self.call("fork", &fork, parts_at - GRID - 64).await;
        let edit = turn(30, 34, 35);
        self.call("edit", &edit, query_end).await;
        let same_at = self.tokens(&edit).len() - OPEN;
        self.call("same again", &edit, same_at).await;
        for seed in [40, 41] {
            let other = [system.clone(), said("user", seed, 50)];
            self.call("other conversation", &other, system_end).await;
        }
        self.four_samples(&[system, said("user", 50, 90)], system_end)
            .await;
    }

    async fn four_samples(&mut self, messages: &[Value], system_end: usize) {
        let first = Self::request(messages, Some(0));
        let four = (0..4).map(|seed| GenerateRequest {
            prompt: first.prompt.clone(),
            ..Self::request(messages, Some(seed))
        });
        let sent = self.world.engine.generate_all(four.collect());
        let sent = sent.expect("the door is open").into_iter();
        let done = join_all(sent.map(Self::done)).await;
        let own = self.tokens(messages).len() - (system_end - system_end % self.page_size);
        self.turns.push(Turn {
            name: "four samples",
            computed: done.iter().map(Done::computed).sum(),
            // The first one leaves a state for the others, which wait for it.
            most: own + 3 * self.page_size,
        });
        self.said.extend(done.into_iter().map(|done| done.bits));
    }
}

fn config(model: PathBuf) -> EngineConfig {
    EngineConfig {
        model_path: model,
        max_total_tokens: Some(ROOMY_TOKENS),
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
    agent.world.assert_whole().await;
    agent.world.stop().await;
    (agent.turns, agent.said)
}

fn assert_bounds(turns: &[Turn], about: &str) {
    for Turn {
        name,
        computed,
        most,
    } in turns
    {
        assert!(
            computed <= most,
            "{about}: {name} computed {computed}, at most {most}"
        );
    }
}

async fn check(name: &str) {
    let folder = model(name);
    let config = config(folder.path().to_owned());
    let cold = EngineConfig {
        disable_radix_cache: true,
        ..config.clone()
    };
    let (turns, expected) = run(cold, None).await;
    assert!(turns.iter().all(|turn| turn.computed > 2 * GRID));
    for page_size in [1, 16] {
        let paged = EngineConfig {
            page_size,
            ..config.clone()
        };
        let (turns, said) = run(paged.clone(), None).await;
        assert!(said == expected, "{name}, pages of {page_size}");
        assert_bounds(&turns, &format!("{name}, pages of {page_size}"));
        if std::env::var_os(ISA_VARIABLE).is_some() {
            eprintln!("few states and few pages: on the best kernel path only");
            continue;
        }
        for (slots, max_total_tokens) in [
            (ROWS + 1, ROOMY_TOKENS),
            (ROWS + 4, ROOMY_TOKENS),
            (2 * ROWS, 800),
        ] {
            let tight = EngineConfig {
                max_total_tokens: Some(max_total_tokens),
                ..paged.clone()
            };
            let (turns, said) = run(tight, Some(slots)).await;
            let about =
                format!("{name}, pages of {page_size}, {slots} states, {max_total_tokens} tokens");
            assert!(said == expected, "{about}");
            // With few pages, the pages that a turn would resume from may be evicted.
            if max_total_tokens == ROOMY_TOKENS {
                assert_bounds(&turns, &about);
            }
        }
    }
}

#[tokio::test]
async fn an_agent_computes_what_is_new_and_hears_the_same_words() {
    for name in MODELS {
        check(name).await;
    }
}

fn raw(json: &Value) -> Box<serde_json::value::RawValue> {
    serde_json::value::to_raw_value(json).expect("it is JSON")
}
