//! The text of one output, plain or parsed into content, reasoning and calls.

use std::sync::Arc;

use souffleur_model::text::TextModel;
use souffleur_request::{Delta, OutputParsing};
use souffleur_state::answer::{AnswerForm, AnswerStream};
use souffleur_state::detok::{StopMatch, StopTable, TextStream};
use souffleur_state::output::{Markers, OutputEnding, OutputFormats, OutputStart, ReasoningFormat};
use souffleur_state::sampling::SamplingParams;

/// The formats in which the model writes calls and reasoning, with their markers in its vocabulary.
#[derive(Clone, Debug, Default)]
pub struct AnswerFormats {
    formats: OutputFormats,
    /// The markers if special tokens have text.
    shown: Arc<Markers>,
    /// The markers if special tokens have no text.
    hidden: Arc<Markers>,
    calls_stay_text: bool,
}

impl AnswerFormats {
    pub fn new(formats: OutputFormats, text: &TextModel) -> Self {
        let markers = Markers::new(formats, |marker| text.added_token_id(marker));
        Self {
            formats,
            shown: Arc::new(markers.clone()),
            hidden: Arc::new(markers.hiding(|token| text.is_special(token))),
            calls_stay_text: false,
        }
    }

    /// The same formats in an engine that is configured not to parse calls: requests with tools get calls as text.
    pub fn with_calls_as_text(self) -> Self {
        Self {
            calls_stay_text: true,
            ..self
        }
    }

    /// Whether calls are text by configuration, not because their format is unknown.
    pub(super) fn calls_stay_text(&self) -> bool {
        self.calls_stay_text
    }

    pub fn formats(&self) -> OutputFormats {
        self.formats
    }

    fn form(
        &self,
        parsing: OutputParsing,
        sampling: &SamplingParams,
        start: OutputStart,
    ) -> AnswerForm {
        // Whether the output begins in reasoning is given by `start`, not by the format.
        let reasoning = self.formats.reasoning.map(|format| match format {
            ReasoningFormat::DeepSeekR1 => ReasoningFormat::Think,
            other => other,
        });
        AnswerForm {
            formats: OutputFormats {
                reasoning: reasoning.filter(|_| parsing.separates_reasoning),
                ..self.formats
            },
            markers: if sampling.skip_special_tokens {
                self.hidden.clone()
            } else {
                self.shown.clone()
            },
            tools: parsing.tools,
            start,
            in_format_only: false,
        }
    }
}

pub(super) enum OutputText {
    /// The engine has no tokenizer, so there is no text.
    None,
    Plain(TextStream),
    Answer(Box<AnswerStream>),
}

pub(super) struct OutputSetup<'a> {
    pub(super) sampling: &'a SamplingParams,
    pub(super) stops: Arc<StopTable>,
    pub(super) context: &'a [u32],
    /// How the output is parsed; `None` for plain text.
    pub(super) parsing: Option<OutputParsing>,
    /// The output has a constraint other than that of its tools.
    pub(super) has_constraint: bool,
    pub(super) start: OutputStart,
}

impl OutputText {
    pub(super) fn new(
        setup: OutputSetup<'_>,
        text: Option<&TextModel>,
        formats: &AnswerFormats,
    ) -> Self {
        let OutputSetup {
            sampling,
            stops,
            context,
            parsing,
            has_constraint,
            start,
        } = setup;
        let Some(text) = text else {
            return Self::None;
        };
        let Some(parsing) = parsing else {
            return Self::Plain(TextStream::new(sampling.into(), stops, context, text));
        };
        let form = AnswerForm {
            in_format_only: has_constraint,
            ..formats.form(parsing, sampling, start)
        };
        let answer = AnswerStream::new(sampling.into(), stops, context, text, form);
        Self::Answer(Box::new(answer))
    }

    pub(super) fn push(&mut self, token: u32, text: &TextModel) -> Option<StopMatch> {
        match self {
            Self::None => None,
            Self::Plain(stream) => stream.push(token, text),
            Self::Answer(stream) => stream.push(token, text),
        }
    }

    pub(super) fn push_without_text(&mut self, token: u32) {
        match self {
            Self::None => (),
            Self::Plain(stream) => stream.push_without_text(),
            Self::Answer(stream) => stream.push_without_text(token),
        }
    }

    pub(super) fn take_into(&mut self, delta: &mut Delta) {
        match self {
            Self::None => (),
            Self::Plain(stream) => delta.text = stream.take_text(),
            Self::Answer(stream) => delta.pieces = stream.take(),
        }
    }

    /// Moves all remaining text or pieces into the last delta.
    pub(super) fn finish_into(&mut self, delta: &mut Delta, ending: OutputEnding) {
        match self {
            Self::None => (),
            Self::Plain(stream) => delta.text = stream.finish(),
            Self::Answer(stream) => delta.pieces = stream.finish(ending),
        }
    }

    /// Number of output tokens if the request should end now: its only allowed tool call is complete.
    pub(super) fn wants_end(&self) -> Option<usize> {
        match self {
            Self::Answer(stream) if stream.wants_end() => Some(stream.output_tokens()),
            _ => None,
        }
    }

    pub(super) fn reasoning_tokens(&self) -> u32 {
        match self {
            Self::Answer(stream) => stream.reasoning_tokens(),
            Self::None | Self::Plain(_) => 0,
        }
    }
}
