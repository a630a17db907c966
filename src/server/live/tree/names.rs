//! Numbers for the namespaces of a tree. A number is kept as long as the tree has nodes of its namespace.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use souffleur_state::cache::namespace::Namespace;

/// The number of requests without a name.
pub(crate) const DEFAULT: i64 = 0;
/// The number of all salted namespaces, so that salts cannot be told apart.
pub(crate) const SALTED: i64 = -1;

#[derive(Default)]
pub(crate) struct Names {
    numbers: FxHashMap<Arc<str>, i64>,
    /// By number: the name, and the number of its nodes without a parent.
    uses: BTreeMap<i64, (Arc<str>, usize)>,
    last: i64,
}

impl Names {
    /// The number of a namespace, for one more node.
    pub(super) fn enter(&mut self, namespace: &Namespace) -> i64 {
        if namespace.is_salted() {
            return SALTED;
        }
        let Some(name) = namespace.extra_key() else {
            return DEFAULT;
        };
        if let Some(&number) = self.numbers.get(name) {
            if let Some((_, n_nodes)) = self.uses.get_mut(&number) {
                *n_nodes += 1;
            }
            return number;
        }
        self.last += 1;
        let name: Arc<str> = name.into();
        self.numbers.insert(name.clone(), self.last);
        self.uses.insert(self.last, (name, 1));
        self.last
    }

    /// Takes back the number of one node.
    pub(super) fn leave(&mut self, number: i64) {
        let Some((name, n_nodes)) = self.uses.get_mut(&number) else {
            return;
        };
        *n_nodes -= 1;
        if *n_nodes == 0 {
            self.numbers.remove(&**name);
            self.uses.remove(&number);
        }
    }

    pub(crate) fn get(&self, number: i64) -> Option<&Arc<str>> {
        self.uses.get(&number).map(|(name, _)| name)
    }
}
