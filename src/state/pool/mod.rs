//! KV memory: pages and who owns them, the free pages and rows, and the geometry of a page's K/V.

pub mod kv_layout;
pub mod page_pool;
pub mod pages;
pub mod pools;
pub mod row_pool;
