//! The pure core: tree, pools, page ownership.
