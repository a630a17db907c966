//! KV memory: pages and who owns them, the free pages, rows and states, and the geometry of a page's K/V.

pub mod kv_layout;
pub mod page_pool;
pub mod pages;
pub mod pools;
pub mod row_pool;
pub mod state_pool;
pub mod window_pool;
