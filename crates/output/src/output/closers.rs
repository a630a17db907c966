//! Optional closers after a call (brackets, tags, fences), which are dropped with it.

pub(super) const FENCE: &str = "```";
/// Markdown's delimiter of a code span.
pub(super) const TICK: &str = "`";

/// The closers that may follow a call, one for each opening before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Closers {
    /// The bracket of a list, in which more calls may follow.
    pub(super) list: bool,
    pub(super) tag: Option<&'static str>,
    pub(super) fence: bool,
    pub(super) tick: bool,
    /// More calls may follow without a list.
    pub(super) more: bool,
}

impl Closers {
    pub(super) const OF_FENCE: Self = Self {
        list: false,
        tag: None,
        fence: true,
        tick: false,
        more: false,
    };

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

    pub(super) fn is_fence_alone(self) -> bool {
        self.fence && !self.list && self.tag.is_none()
    }

    /// Returns whether another call may follow, optionally after a comma.
    pub(super) fn allows_more(self) -> bool {
        self.list || self.more
    }
}
