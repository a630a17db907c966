//! Defines paths to places in a schema, for errors.

use std::fmt;

/// A place in a schema, as a linked list up to the root. It is formatted only for errors.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    step: Option<(&'a Place<'a>, &'a str)>,
    depth: usize,
}

impl<'a> Place<'a> {
    pub(super) fn root() -> Self {
        Self {
            step: None,
            depth: 0,
        }
    }

    pub(super) fn under(&'a self, name: &'a str) -> Self {
        Self {
            step: Some((self, name)),
            depth: self.depth + 1,
        }
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// Whether this place is an entry of the list of `keyword`.
    pub(super) fn is_inside(&self, keyword: &str) -> bool {
        let list = self.step.and_then(|(list, _)| list.step);
        list.is_some_and(|(_, name)| name == keyword)
    }
}

/// Writes a JSON pointer as a URI fragment, such as `#/properties/a`.
impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            None => f.write_str("#"),
            Some((above, name)) => {
                let name = name.replace('~', "~0").replace('/', "~1");
                write!(f, "{above}/{name}")
            }
        }
    }
}
