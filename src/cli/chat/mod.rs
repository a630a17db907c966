//! The command `souffleur chat`: a conversation in the terminal, with a model in this process or with a server.
//!
//! | part | role |
//! |---|---|
//! | [`images`] | files that the first message shows |
//! | [`lines`] | reads the user's input, with a line editor on a terminal |
//! | [`partner`] | gets answers from an engine, or from a server's `/v1/chat/completions` |
//! | [`sampling`] | the sampling flags |
//! | [`screen`] | displays answers |
//! | [`terminal`] | saves and restores the terminal settings that the line editor changes |

mod images;
mod lines;
mod partner;
mod sampling;
mod screen;
mod terminal;

use std::path::PathBuf;
use std::time::Duration;

use actix_web::rt::System;
use clap::Args;
use serde_json::{Value, json};
use souffleur::engine::EngineParts;
use souffleur::request::ImageFile;

use super::failure::Failure;
use super::flags::{AllFlags, LocalFlags, ModelArg};
use super::local;
use super::remote::Remote;
use super::remote::secret::{self, Secret};
use super::signals::{Signals, StopSignal};
use crate::cli::settings::Settings;
use lines::{Line, Lines};
pub use partner::Partner;
use partner::Piece;
use sampling::AnswerFlags;
use screen::Screen;
use terminal::Terminal;

const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// Flags of the command.
#[derive(Args, Debug)]
pub struct ChatArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Talk to the OpenAI-compatible server at this address, such as http://127.0.0.1:30000, in place of a model in
    /// this process; --model-path then names a model of the server, otherwise it is the first one that the server lists
    #[arg(long, value_name = "URL", help_heading = "Chat")]
    url: Option<String>,
    /// API key, sent as `Authorization: Bearer KEY`; set it through the environment variable OPENAI_API_KEY to keep it
    /// out of the process list
    #[arg(long, value_name = "KEY", requires = "url", help_heading = "Chat")]
    api_key: Option<Secret>,
    #[command(flatten)]
    talk: TalkFlags,
    #[command(flatten)]
    flags: LocalFlags,
}

/// The flags of a conversation.
#[derive(Args, Debug)]
pub struct TalkFlags {
    /// System message at the beginning of the conversation
    #[arg(long, value_name = "TEXT", help_heading = "Chat")]
    system: Option<String>,
    /// Image that the first message shows: a PNG, JPEG, WebP or GIF file; may be given several times
    #[arg(long, value_name = "FILE", help_heading = "Chat")]
    image: Vec<PathBuf>,
    #[command(flatten)]
    answer: AnswerFlags,
}

impl ChatArgs {
    pub fn settings_flags(&self) -> AllFlags {
        self.flags.with_model(&self.model)
    }
}

pub fn run(args: &ChatArgs, settings: Settings) -> Result<(), Failure> {
    if let Some(url) = &args.url {
        let bearer = secret::header(args.api_key.as_ref())?;
        return System::new().block_on(async {
            let remote = Remote::new("--url", url, bearer)?;
            let named = args.model.given().map(str::to_owned);
            let model = match named.or_else(|| args.flags.engine.get("model_path")) {
                Some(model) => model,
                None => remote.model(None).await?.0,
            };
            talk(&args.talk, &Partner::Server { remote, model }).await
        });
    }
    let config = local::with_text(settings.engine)?;
    let engine = local::start(config, check_template)?;
    System::new().block_on(async {
        let talked = talk(&args.talk, &Partner::Engine(engine.clone())).await;
        engine.shutdown(STOP_DEADLINE).await;
        talked
    })
}

/// # Errors
/// If the model has no chat template.
pub fn check_template(parts: &EngineParts) -> Result<(), Failure> {
    if local::has_chat_template(parts) {
        return Ok(());
    }
    let reason = "the model has no chat template: choose a model made for conversations, or continue texts with \
                  `souffleur generate --raw`";
    Err(Failure::Usage(reason.to_owned()))
}

/// Reads lines and shows the answers until the input ends.
pub async fn talk(flags: &TalkFlags, partner: &Partner) -> Result<(), Failure> {
    let refused = Failure::to("install signal handlers");
    let mut signals = Signals::install().map_err(&refused)?;
    let terminal = Terminal::now();
    let mut lines = Lines::start()?;
    if lines.has_editor() {
        signals = signals.with_hang_up().map_err(refused)?;
    }
    let mut screen = Screen::new();
    let mut conversation = Conversation::new(flags.system.as_deref(), images::read(&flags.image)?);
    if lines.has_editor() {
        screen.note(&format!(
            "{}: Ctrl-C stops an answer, Ctrl-D ends the chat, \\ at the end of a line continues it on the next",
            partner.name()
        ));
    }
    while !screen.is_closed() {
        let line = tokio::select! {
            line = lines.next() => line,
            signal = signals.next() => {
                if lines.has_editor() {
                    terminal.restore();
                }
                signal.exit()
            }
        };
        let text = match line {
            Line::Text(text) if text.trim().is_empty() => continue,
            Line::Text(text) => text,
            Line::Interrupted => {
                screen.note("Ctrl-D ends the chat");
                continue;
            }
            Line::End => break,
            Line::Failed(reason) => return Err(Failure::Failed(reason)),
        };
        conversation.push_question(text);
        let mut shown = String::new();
        let showing = show_answer(flags, partner, &conversation, &mut screen, &mut shown);
        let ended = tokio::select! {
            ended = showing => ended,
            signal = signals.next() => match signal {
                StopSignal::Interrupt => Ok(Ending::Stopped),
                signal => signal.exit(),
            },
        };
        screen.end_answer();
        conversation.push_answer(shown);
        match ended {
            Ok(ending) => ending.explain(&mut screen),
            // An interactive chat continues: the next request may succeed.
            Err(reason) if lines.has_editor() => screen.note(&reason),
            Err(reason) => return Err(Failure::Failed(reason)),
        }
    }
    Ok(())
}

enum Ending {
    Whole,
    /// The answer reached the token limit.
    Cut,
    /// The user pressed Ctrl-C.
    Stopped,
}

impl Ending {
    fn explain(&self, screen: &mut Screen) {
        match self {
            Self::Whole => (),
            Self::Cut => screen.note(
                "the answer was cut off: raise --max-new-tokens, or start a new chat if the context is full",
            ),
            Self::Stopped => screen.note("stopped"),
        }
    }
}

/// Shows an answer as it is streamed. `shown` has the text so far, even if this future is dropped.
async fn show_answer(
    flags: &TalkFlags,
    partner: &Partner,
    conversation: &Conversation,
    screen: &mut Screen,
    shown: &mut String,
) -> Result<Ending, String> {
    let Conversation { messages, images } = conversation;
    let mut answer = partner.ask(messages, images, &flags.answer).await?;
    while let Some(piece) = answer.next().await? {
        match piece {
            Piece::Text(text) => {
                screen.text(&text);
                shown.push_str(&text);
            }
            Piece::Thought(text) => screen.thought(&text),
            Piece::End { is_cut: true } => return Ok(Ending::Cut),
            Piece::End { is_cut: false } => return Ok(Ending::Whole),
        }
        if screen.is_closed() {
            break;
        }
    }
    Ok(Ending::Whole)
}

/// The messages so far, in OpenAI's format.
struct Conversation {
    messages: Vec<Value>,
    /// The images of the first question.
    images: Vec<ImageFile>,
}

impl Conversation {
    fn new(system: Option<&str>, images: Vec<ImageFile>) -> Self {
        let system = system.map(|text| json!({"role": "system", "content": text}));
        Self {
            messages: system.into_iter().collect(),
            images,
        }
    }

    fn push_question(&mut self, text: String) {
        let is_first = !self
            .messages
            .iter()
            .any(|message| message["role"] == "user");
        let n_images = if is_first { self.images.len() } else { 0 };
        self.messages.push(match n_images {
            0 => json!({"role": "user", "content": text}),
            _ => images::question(text, n_images),
        });
    }

    /// Appends an answer, or the received part of it. If it is empty, removes the question: many templates require
    /// alternating roles.
    fn push_answer(&mut self, text: String) {
        if text.is_empty() {
            drop(self.messages.pop())
        } else {
            self.messages
                .push(json!({"role": "assistant", "content": text}))
        }
    }
}
