//! Engines that use the tokenizer of a tiny checkpoint, and reply to prompts with texts that a test gives.

use std::path::PathBuf;
use std::sync::Arc;

use souffleur_base::error::LoadError;
use souffleur_config::EngineConfig;
use souffleur_engine::{EngineParts, Progress};
use souffleur_executor::Executor;
use souffleur_executor::fake::FakeOptions;
use souffleur_executor::scripted::{Script, ScriptedExecutor};
use souffleur_state::detok::TokenText;

/// The reply to prompts that match no cue.
pub const NO_LINE: &str = "I have no line for this.";

/// A cue, and the reply to prompts that contain the cue; tool and think tokens are written as text. If several cues
/// match, the cue that ends last in the prompt wins, and the longest of cues with the same end. An empty cue matches
/// all other prompts.
pub type Line<'a> = (&'a str, &'a str);

/// The folder of the tiny checkpoint with tool tokens.
pub fn checkpoint() -> PathBuf {
    crate::repository::repository().join("tests/fixtures/qwen3-agents")
}

/// The parts of an engine with these lines; `config` names the [`checkpoint`].
pub fn parts(config: &EngineConfig, lines: &[Line<'_>]) -> EngineParts {
    let owned = |(cue, line): &Line<'_>| ((*cue).to_owned(), (*line).to_owned());
    let lines: Vec<(String, String)> = lines.iter().map(owned).collect();
    parts_replying(config, move |prompt| line_for(prompt, &lines).to_owned())
}

/// Like [`parts`], with a function from the rendered prompt to the reply.
pub fn parts_replying(
    config: &EngineConfig,
    reply: impl Fn(&str) -> String + Send + Sync + 'static,
) -> EngineParts {
    let mut parts = EngineParts::from_model(config, Progress::silent())
        .unwrap_or_else(|error| panic!("{error}"));
    let text = parts.text.clone().expect("the checkpoint has a tokenizer");
    let eos = text.eos_id().expect("the checkpoint has an EOS token");
    let script = Script::new(eos, move |prompt| {
        let line = reply(&text.decode(prompt, false, true));
        text.encode_chat(&line).expect("tokens of the reply")
    });
    let options = FakeOptions {
        page_size: parts.info.page_size,
        n_pages: parts.info.max_total_tokens / parts.info.page_size,
        vocab_size: parts.info.vocab_size as u32,
        verify: true,
        n_states: 0,
        hidden_size: parts.info.hidden_size.unwrap_or(0),
        faults: Vec::new(),
    };
    parts.executor = Arc::new(move || -> Result<Box<dyn Executor>, LoadError> {
        let executor = ScriptedExecutor::new(options.clone(), script.clone());
        Ok(Box::new(executor))
    });
    parts
}

fn line_for<'a>(prompt: &str, lines: &'a [(String, String)]) -> &'a str {
    let place = |cue: &str| match cue {
        "" => Some((0, 0)),
        cue => Some((prompt.rfind(cue)? + cue.len(), cue.len())),
    };
    let found = lines
        .iter()
        .filter_map(|(cue, line)| Some((place(cue)?, line)));
    found
        .max_by_key(|(place, _)| *place)
        .map_or(NO_LINE, |(_, line)| line)
}
