//! The output engine: parses reasoning and tool calls, marked by tags or by the headers of messages.

mod channels;
mod tagged;

use std::sync::Arc;

use channels::ChannelEngine;
use tagged::TaggedEngine;

use super::ending::OutputEnding;
use super::format::OutputFormats;
use super::markers::Markers;
use super::piece::OutputPiece;
use super::start::OutputStart;
use super::tools::ToolUse;

/// If the opening of a call is longer, it is text.
pub const MAX_HELD_CHARS: usize = 1 << 18;

/// Parses one output into pieces. See the [module](super) for the rules.
#[derive(Debug)]
pub struct OutputEngine(Kind);

#[derive(Debug)]
enum Kind {
    Tagged(TaggedEngine),
    Channels(ChannelEngine),
}

impl OutputEngine {
    /// `formats` are the request's, a subset of the formats of `markers`. Without `tools`, calls are text. `start` is
    /// the parser state after the prompt ([`OutputFormats::start_after`]).
    pub fn new(
        formats: OutputFormats,
        tools: Option<Arc<ToolUse>>,
        markers: Arc<Markers>,
        start: OutputStart,
    ) -> Self {
        Self(if formats.is_harmony() {
            Kind::Channels(ChannelEngine::new(formats, tools, markers, start))
        } else {
            Kind::Tagged(TaggedEngine::new(formats, tools, markers, start))
        })
    }

    pub fn push_text(&mut self, text: &str, out: &mut Vec<OutputPiece>) {
        match &mut self.0 {
            Kind::Tagged(engine) => engine.push_text(text, out),
            Kind::Channels(engine) => engine.push_text(text, out),
        }
    }

    /// Parses a marker token, for which [`Markers::is_marker`] is true. Other tokens are ignored.
    pub fn push_marker(&mut self, token: u32, out: &mut Vec<OutputPiece>) {
        match &mut self.0 {
            Kind::Tagged(engine) => engine.push_marker(token, out),
            Kind::Channels(engine) => engine.push_marker(token, out),
        }
    }

    /// Parses the marker token that ended the output. It completes a call without arguments of gpt-oss.
    pub fn push_end(&mut self, token: u32, out: &mut Vec<OutputPiece>) {
        if let Kind::Channels(engine) = &mut self.0 {
            engine.push_end(token, out);
        }
    }

    /// Ends the output and emits held items as text, except dropped whitespace and, if the output was truncated or must
    /// call a tool, the beginning of a call.
    pub fn finish(&mut self, ending: OutputEnding, out: &mut Vec<OutputPiece>) {
        match &mut self.0 {
            Kind::Tagged(engine) => engine.finish(ending, out),
            Kind::Channels(engine) => engine.finish(ending, out),
        }
    }

    /// Parses calls only in the model's format: then an answer that is constrained to JSON is not taken for a call.
    #[must_use]
    pub fn with_calls_in_format_only(mut self) -> Self {
        if let Kind::Tagged(engine) = &mut self.0 {
            engine.disable_loose_calls();
        }
        self
    }

    /// Returns the content's whitespace that is held because it is dropped if a call follows. Empty between calls.
    pub fn held_whitespace(&self) -> &str {
        match &self.0 {
            Kind::Tagged(engine) => engine.held_whitespace(),
            Kind::Channels(_) => "",
        }
    }

    pub fn release_whitespace(&mut self, out: &mut Vec<OutputPiece>) {
        if let Kind::Tagged(engine) = &mut self.0 {
            engine.release_whitespace(out);
        }
    }

    pub fn complete_calls(&self) -> usize {
        match &self.0 {
            Kind::Tagged(engine) => engine.complete_calls(),
            Kind::Channels(engine) => engine.complete_calls(),
        }
    }

    /// Returns whether the output is in reasoning. The opening of a call ends reasoning only once the call has a name.
    pub fn is_in_reasoning(&self) -> bool {
        match &self.0 {
            Kind::Tagged(engine) => engine.is_in_reasoning(),
            Kind::Channels(engine) => engine.is_in_reasoning(),
        }
    }

    /// Returns whether the request should end: one call is complete, and only one is allowed. Everything after it is
    /// dropped.
    pub fn wants_end(&self) -> bool {
        match &self.0 {
            Kind::Tagged(engine) => engine.wants_end(),
            Kind::Channels(engine) => engine.wants_end(),
        }
    }
}
