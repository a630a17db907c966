//! KV memory: pages and their owners, and the free lists of pages, rows and states.

pub mod page_pool;
pub mod pages;
pub mod pools;
pub mod row_pool;
pub mod state_pool;
pub mod window_pool;

pub use souffleur_base::kv_layout;
