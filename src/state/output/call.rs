//! The trait that the readers of calls share. A reader reads one call, from its first character to its last.

use super::closers::Closers;
use super::syntax::{Tag, TagSet};

/// Reads one call in one notation.
pub(super) trait CallReader: Send + std::fmt::Debug {
    /// Returns the tags that mean something here, and are therefore recognised in the text.
    fn tags(&self) -> TagSet;

    /// Returns whether every character would be taken as it is here, as in a string; then so is a tag that means
    /// nothing.
    fn is_in_text(&self) -> bool;

    /// Reads a character.
    fn read(&mut self, c: char, out: &mut CallOutput) -> Step;

    /// Reads one of the tags of [`tags`](Self::tags).
    fn read_tag(&mut self, tag: Tag, out: &mut CallOutput) -> Step;

    /// Returns what closes the complete call, and is dropped if it is there.
    fn closers(&self) -> Closers {
        Closers::default()
    }

    /// Returns how many characters were read since a call that is complete and has not gone out: what follows it tells
    /// whether what stands before it belongs to it.
    fn n_after_call(&self) -> Option<usize> {
        None
    }

    /// Returns the name that was read and has not gone out, where no tag tells that it is that of a call.
    fn called(&self) -> Option<&str> {
        None
    }
}

/// The place of a character or tag in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It belongs to the call, which goes on.
    More,
    /// It completes the call.
    Done,
    /// The call was complete before it.
    DoneBefore,
    /// It was not read: the reader is in another state now, in which it is to be looked at again.
    Again,
    /// It belongs to no call.
    Broken,
}

/// The name and the arguments that a reader gives out.
#[derive(Debug, Default)]
pub(super) struct CallOutput {
    /// The name, when the call is certain.
    pub(super) name: Option<String>,
    /// The next part of the arguments, not before the name.
    pub(super) arguments: String,
}
