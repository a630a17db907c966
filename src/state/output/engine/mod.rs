//! The engine of one output: tags around reasoning and calls, or messages in channels.

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

/// An opening of a call that is longer than this is text.
pub const MAX_HELD_CHARS: usize = 1 << 18;

/// Reads one output and gives out its pieces. See the [module](super) for the rules.
#[derive(Debug)]
pub struct OutputEngine(Kind);

#[derive(Debug)]
enum Kind {
    Tagged(TaggedEngine),
    Channels(ChannelEngine),
}

impl OutputEngine {
    /// An engine for one output.
    ///
    /// `formats` are those of the request, among those for which `markers` was made. Without `tools`, calls are text.
    /// `start` is the place that the prompt leaves the output at ([`OutputFormats::start_after`]).
    pub fn new(
        formats: OutputFormats,
        tools: Option<Arc<ToolUse>>,
        markers: Arc<Markers>,
        start: OutputStart,
    ) -> Self {
        Self(match formats.is_in_channels() {
            true => Kind::Channels(ChannelEngine::new(formats, tools, markers, start)),
            false => Kind::Tagged(TaggedEngine::new(formats, tools, markers, start)),
        })
    }

    /// Reads text.
    pub fn push_text(&mut self, text: &str, out: &mut Vec<OutputPiece>) {
        match &mut self.0 {
            Kind::Tagged(engine) => engine.push_text(text, out),
            Kind::Channels(engine) => engine.push_text(text, out),
        }
    }

    /// Reads a marker token, one for which [`Markers::is_marker`] is true. Others are nothing.
    pub fn push_marker(&mut self, token: u32, out: &mut Vec<OutputPiece>) {
        match &mut self.0 {
            Kind::Tagged(engine) => engine.push_marker(token, out),
            Kind::Channels(engine) => engine.push_marker(token, out),
        }
    }

    /// Reads the marker token that ends the output and has no text. It may be all that tells that a call is complete.
    pub fn push_end(&mut self, token: u32, out: &mut Vec<OutputPiece>) {
        if let Kind::Channels(engine) = &mut self.0 {
            engine.push_end(token, out);
        }
    }

    /// Ends the output and emits held items as text, except for whitespace that is dropped and for the beginning
    /// of a call, where the output was cut or must call.
    pub fn finish(&mut self, ending: OutputEnding, out: &mut Vec<OutputPiece>) {
        match &mut self.0 {
            Kind::Tagged(engine) => engine.finish(ending, out),
            Kind::Channels(engine) => engine.finish(ending, out),
        }
    }

    /// Looks for calls in the model's format only: a text that must be JSON is no call without its tag.
    #[must_use]
    pub fn with_calls_in_format_only(mut self) -> Self {
        if let Kind::Tagged(engine) = &mut self.0 {
            engine.take_only_format();
        }
        self
    }

    /// Returns the whitespace of the content that has not gone out, because a call may follow that drops it. Whitespace
    /// between calls is none.
    pub fn held_whitespace(&self) -> &str {
        match &self.0 {
            Kind::Tagged(engine) => engine.held_whitespace(),
            Kind::Channels(_) => "",
        }
    }

    /// Gives out that whitespace.
    pub fn release_whitespace(&mut self, out: &mut Vec<OutputPiece>) {
        if let Kind::Tagged(engine) = &mut self.0 {
            engine.release_whitespace(out);
        }
    }

    /// Returns how many calls are complete.
    pub fn complete_calls(&self) -> usize {
        match &self.0 {
            Kind::Tagged(engine) => engine.complete_calls(),
            Kind::Channels(engine) => engine.complete_calls(),
        }
    }

    /// Returns whether reasoning is being read. The opening of a call ends it only when the call has a name.
    pub fn is_in_reasoning(&self) -> bool {
        match &self.0 {
            Kind::Tagged(engine) => engine.is_in_reasoning(),
            Kind::Channels(engine) => engine.is_in_reasoning(),
        }
    }

    /// Returns whether the request should end: one call is complete and there is to be one only.
    /// Everything after that call is dropped.
    pub fn wants_end(&self) -> bool {
        match &self.0 {
            Kind::Tagged(engine) => engine.wants_end(),
            Kind::Channels(engine) => engine.wants_end(),
        }
    }
}
