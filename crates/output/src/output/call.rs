//! The trait of call readers. A reader parses one tool call, from its first character to its last.

use super::closers::Closers;
use super::syntax::{Tag, TagSet};

pub(super) trait CallReader: Send + std::fmt::Debug {
    /// Returns the tags that are recognised in the current state.
    fn tags(&self) -> TagSet;

    /// Returns whether characters are literal now, as in a string: tags that `tags` does not return are then text.
    fn is_in_text(&self) -> bool;

    fn read(&mut self, c: char, out: &mut CallOutput) -> Step;

    /// Consumes one of the tags of [`tags`](Self::tags).
    fn read_tag(&mut self, tag: Tag, out: &mut CallOutput) -> Step;

    /// Returns the optional closers that may follow the complete call, and are dropped.
    fn closers(&self) -> Closers {
        Closers::default()
    }

    /// Returns the number of characters since a complete call that is not emitted yet: the next character decides
    /// whether the bracket before the call opens a list.
    fn n_after_call(&self) -> Option<usize> {
        None
    }

    /// Returns the function name before it is emitted, for calls that no tag marks.
    fn pending_name(&self) -> Option<&str> {
        None
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    More,
    Done,
    /// The character is not consumed: the call was complete before it.
    DoneBefore,
    /// The character is not consumed: the reader has changed its state and must read it again.
    Again,
    Broken,
}

#[derive(Debug, Default)]
pub(super) struct CallOutput {
    /// The name, once the call is certain.
    pub(super) name: Option<String>,
    /// The next part of the arguments, never before the name.
    pub(super) arguments: String,
}
