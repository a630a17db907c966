//! What may stand after a call, and is dropped with it.

/// The fence of Markdown.
pub(super) const FENCE: &str = "```";
/// The delimiter of a code span of Markdown.
pub(super) const TICK: &str = "`";

/// The texts that close what was opened before a call, as far as they have not come. Each may be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Closers {
    /// The bracket of a list, in which more calls may follow.
    pub(super) list: bool,
    /// A tag.
    pub(super) tag: Option<&'static str>,
    /// The fence.
    pub(super) fence: bool,
    /// The tick of a code span.
    pub(super) tick: bool,
    /// More calls may follow without a list.
    pub(super) more: bool,
}

impl Closers {
    /// A fence around one call.
    pub(super) const OF_FENCE: Self = Self {
        list: false,
        tag: None,
        fence: true,
        tick: false,
        more: false,
    };

    /// Returns whether there is nothing to be closed.
    pub(super) fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Returns the closer that begins with this character, and the closers that remain after it.
    pub(super) fn begun_by(self, c: char) -> Option<(&'static str, Self)> {
        match (c, self.tag) {
            (']', _) if self.list => {
                let list = false;
                Some(("]", Self { list, ..self }))
            }
            ('<', Some(tag)) => Some((
                tag,
                Self {
                    list: false,
                    tag: None,
                    ..self
                },
            )),
            ('`', _) if self.fence => Some((FENCE, Self::default())),
            ('`', _) if self.tick => Some((TICK, Self::default())),
            _ => None,
        }
    }

    /// Returns whether a fence is all that is open.
    pub(super) fn is_fence_alone(self) -> bool {
        self.fence && !self.list && self.tag.is_none()
    }

    /// Returns whether another call may follow, which a comma may part from the one before.
    pub(super) fn takes_more(self) -> bool {
        self.list || self.more
    }
}
