//! Converts a stream of tokens to the pieces of an answer: text, reasoning and tool calls.
//!
//! Marker tokens of the model's formats go to the [`OutputEngine`] by id; all others are detokenized first. Stop
//! strings apply to the answer's text, not to its reasoning or calls.

mod content;

use std::sync::Arc;

use crate::detok::{StopMatch, StopTable, TextOptions, TextStream, TokenText};
use crate::output::{
    Markers, OutputEnding, OutputEngine, OutputFormats, OutputPiece, OutputStart, ToolUse,
    push_piece,
};
use content::ContentStops;

#[derive(Clone, Debug)]
pub struct AnswerForm {
    /// The model's output formats. A format that the request does not parse is `None`.
    pub formats: OutputFormats,
    /// The formats' marker tokens, hidden if the request skips special tokens.
    pub markers: Arc<Markers>,
    pub tools: Option<Arc<ToolUse>>,
    pub start: OutputStart,
    /// True if only the model's own markup makes a call, and bare JSON is text: for answers constrained to JSON.
    pub in_format_only: bool,
}

/// Converts the tokens of one output to pieces, up to a stop string.
#[derive(Debug)]
pub struct AnswerStream {
    text: TextStream,
    engine: OutputEngine,
    markers: Arc<Markers>,
    stops: ContentStops,
    parsed: Vec<OutputPiece>,
    pieces: Vec<OutputPiece>,
    reasoning_tokens: u32,
    output_tokens: usize,
    has_stopped: bool,
}

impl AnswerStream {
    /// Starts an answer. `stops` is the table of the request's stop strings. `context` are the last few tokens of the
    /// prompt: they add no text, but the first output token may keep its leading space because of them.
    pub fn new(
        options: TextOptions,
        stops: Arc<StopTable>,
        context: &[u32],
        tokenizer: &dyn TokenText,
        form: AnswerForm,
    ) -> Self {
        let AnswerForm {
            formats,
            markers,
            tools,
            start,
            in_format_only,
        } = form;
        let engine = OutputEngine::new(formats, tools, markers.clone(), start);
        Self {
            text: TextStream::new(options, Arc::default(), context, tokenizer),
            engine: if in_format_only {
                engine.with_calls_in_format_only()
            } else {
                engine
            },
            markers,
            stops: ContentStops::new(stops, options.no_stop_trim),
            parsed: Vec::new(),
            pieces: Vec::new(),
            reasoning_tokens: 0,
            output_tokens: 0,
            has_stopped: false,
        }
    }

    /// Adds the next output token. Returns the stop string that it completes, if any; later tokens are ignored.
    pub fn push(&mut self, token: u32, tokenizer: &dyn TokenText) -> Option<StopMatch> {
        if self.has_stopped {
            return None;
        }
        self.output_tokens += 1;
        let was_reasoning = self.engine.is_in_reasoning();
        let matched = if self.markers.is_marker(token) {
            let text = self.text.cut();
            self.push_text(&text).or_else(|| {
                self.engine.push_marker(token, &mut self.parsed);
                self.emit_pieces()
            })
        } else {
            self.text.push(token, tokenizer);
            let text = self.text.take_text();
            self.push_text(&text)
        };
        let is_reasoning = was_reasoning || self.engine.is_in_reasoning();
        self.reasoning_tokens += u32::from(is_reasoning);
        let matched = matched?;
        Some(StopMatch {
            output_tokens_kept: self.output_tokens,
            matched,
        })
    }

    /// Counts the EOS or stop token that ended the output, without adding its text. A marker token may also end a call.
    pub fn push_without_text(&mut self, token: u32) {
        if self.has_stopped {
            return;
        }
        self.output_tokens += 1;
        if self.markers.is_marker(token) {
            let text = self.text.cut();
            if self.push_text(&text).is_none() {
                self.engine.push_end(token, &mut self.parsed);
                self.emit_pieces();
            }
        }
    }

    pub fn take(&mut self) -> Vec<OutputPiece> {
        std::mem::take(&mut self.pieces)
    }

    /// Takes all remaining pieces, including held text. Call it once, after the last token.
    pub fn finish(&mut self, ending: OutputEnding) -> Vec<OutputPiece> {
        if !self.has_stopped {
            let text = self.text.finish();
            let mut stop = self.push_text(&text);
            if stop.is_none() {
                self.engine.finish(ending, &mut self.parsed);
                stop = self.emit_pieces();
            }
            if stop.is_none() {
                self.flush_content();
            }
        }
        self.has_stopped = true;
        self.take()
    }

    /// Returns whether the request should end: it may call only one tool, and has called one.
    pub fn wants_end(&self) -> bool {
        self.engine.wants_end()
    }

    pub fn reasoning_tokens(&self) -> u32 {
        self.reasoning_tokens
    }

    /// Returns the number of output tokens, up to a stop string.
    pub fn output_tokens(&self) -> usize {
        self.output_tokens
    }

    /// Parses text up to a stop string, and returns that string.
    fn push_text(&mut self, text: &str) -> Option<String> {
        if self.stops.is_empty() {
            self.engine.push_text(text, &mut self.parsed);
            return self.emit_pieces();
        }
        // One character at a time, because whitespace that the engine holds may complete a stop string (`emit_held`).
        let mut bytes = [0; 4];
        text.chars().find_map(|c| {
            (self.engine).push_text(c.encode_utf8(&mut bytes), &mut self.parsed);
            self.emit_pieces().or_else(|| self.emit_held())
        })
    }

    /// Emits the engine's held whitespace if this completes a stop string, and returns that string.
    fn emit_held(&mut self) -> Option<String> {
        if !self.stops.end_in(self.engine.held_whitespace()) {
            return None;
        }
        self.engine.release_whitespace(&mut self.parsed);
        self.emit_pieces()
    }

    /// Emits the engine's pieces up to a stop string, and returns that string.
    fn emit_pieces(&mut self) -> Option<String> {
        let mut parsed = std::mem::take(&mut self.parsed);
        let mut stop = None;
        for piece in parsed.drain(..) {
            let OutputPiece::Text(text) = piece else {
                self.flush_content();
                push_piece(&mut self.pieces, piece);
                continue;
            };
            let (ready, matched) = self.stops.push(&text);
            self.push_content(ready);
            if matched.is_some() {
                stop = matched;
                self.has_stopped = true;
                break;
            }
        }
        self.parsed = parsed;
        stop
    }

    /// Emits text that was held as the possible beginning of a stop string: a call or reasoning follows, or the end.
    fn flush_content(&mut self) {
        let held = self.stops.flush();
        self.push_content(held);
    }

    fn push_content(&mut self, text: String) {
        if !text.is_empty() {
            push_piece(&mut self.pieces, OutputPiece::Text(text));
        }
    }
}

#[cfg(test)]
mod tests;
