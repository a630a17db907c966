//! Explains a memory plan's decisions as text, one line each.

use super::budget::{MemoryBudget, Place, VisionBytes};
use super::bytes::Bytes;
use super::pool_size::{DEFAULT_CONTEXTS, MAX_PAGES};
use super::{DEFAULT_GPU_FRACTION, DEFAULT_SHARE_PERCENT, MemoryPlan, PoolLimit};

impl MemoryPlan {
    pub fn explain(&self) -> Vec<String> {
        let Self { budget, wish, .. } = self;
        let free_before = budget.free_before_bytes;
        let left = free_before
            - budget
                .weights_bytes
                .saturating_add(self.kv_bytes)
                .min(free_before);
        let mut lines = vec![
            match budget.place {
                Place::Host => format!("memory available      {}", Bytes(free_before)),
                Place::Gpu(n) => format!("free on GPU {n:<9} {}", Bytes(free_before)),
            },
            format!("weights               {}", Bytes(budget.weights_bytes)),
        ];
        let VisionBytes { tower, images } = budget.vision_here();
        if tower > 0 {
            let tower = Bytes(tower);
            lines.push(format!(
                "  of that             {tower} for the vision tower"
            ));
        }
        lines.extend([
            format!(
                "KV bytes per token    {} ({})",
                wish.kv_bytes_per_token,
                Bytes(wish.kv_bytes_per_token)
            ),
            format!(
                "KV pool               {}: {} tokens in {} pages of {}, and one dummy page",
                Bytes(self.kv_bytes),
                self.max_total_tokens,
                self.n_pages,
                wish.page_size
            ),
        ]);
        lines.extend(self.parts_of_pool());
        lines.extend([
            format!("  because             {}", self.why()),
            format!("left over             {}", Bytes(left)),
            format!(
                "largest safe --mem-fraction-static is {:.3}: it leaves {} for activations and headroom",
                self.largest_safe_fraction,
                Bytes(budget.reserve_bytes)
            ),
        ]);
        if budget.page_table_bytes > 0 {
            let table = Bytes(budget.page_table_bytes);
            lines.push(format!("  of that             {table} for the page table"));
        }
        if budget.store_bytes > 0 {
            let buffers = Bytes(budget.store_bytes);
            lines.push(format!(
                "  of that             {buffers} for buffers of the KV store"
            ));
        }
        if images > 0 {
            let images = Bytes(images);
            lines.push(format!(
                "  of that             {images} for an image that is encoded, and for vectors of images"
            ));
        }
        lines.extend(budget.vision_on_host());
        lines.push(format!(
            "requests at once      {}",
            self.max_running_requests
        ));
        lines.extend(self.warnings());
        lines
    }

    fn parts_of_pool(&self) -> impl Iterator<Item = String> {
        let wish = &self.wish;
        let states = (self.state_slots > 0).then(|| {
            let bytes = self.state_slots.saturating_mul(wish.state_bytes);
            format!(
                "  of that             {} for {} recurrent states of {} each (of sequences and cached prefixes)",
                Bytes(bytes),
                self.state_slots,
                Bytes(wish.state_bytes)
            )
        });
        let windows = wish.windows.map(|windows| {
            format!(
                "  of that             {} for sliding-window layers (window of {} tokens): {} pages, {} bytes a token",
                Bytes(wish.window_bytes(self.max_total_tokens)),
                windows.tokens,
                self.window_pages,
                windows.kv_bytes_per_token
            )
        });
        states.into_iter().chain(windows)
    }

    fn warnings(&self) -> impl Iterator<Item = String> {
        let wish = &self.wish;
        let clamped = self.clamped_request().map(|asked| {
            format!(
                "warning: --max-total-tokens {asked} would take {}, more than --mem-fraction-static allows: using the limit",
                Bytes(wish.pool_bytes(wish.whole_pages(asked)))
            )
        });
        let fraction = wish
            .mem_fraction_static
            .filter(|f| *f > self.largest_safe_fraction);
        let unsafe_fraction = fraction.map(|fraction| {
            format!(
                "warning: --mem-fraction-static {fraction} is above the largest safe one: a large step may run out of memory"
            )
        });
        clamped.into_iter().chain(unsafe_fraction)
    }

    fn why(&self) -> String {
        let wish = &self.wish;
        match self.limit {
            PoolLimit::Fraction => format!(
                "--mem-fraction-static {} of {} less the weights",
                wish.mem_fraction_static.unwrap_or_default(),
                Bytes(self.budget.free_before_bytes)
            ),
            PoolLimit::DefaultFraction => format!(
                "--mem-fraction-static {DEFAULT_GPU_FRACTION} (the default on a GPU) of {} less the weights",
                Bytes(self.budget.free_before_bytes)
            ),
            PoolLimit::MaxTotalTokens => "--max-total-tokens".to_owned(),
            PoolLimit::DefaultShare => format!(
                "{DEFAULT_SHARE_PERCENT} % of the available memory (the default on a CPU; {DEFAULT_CONTEXTS} \
                 contexts of {} tokens would take more)",
                wish.context_tokens
            ),
            PoolLimit::DefaultContexts => format!(
                "{DEFAULT_CONTEXTS} contexts of {} tokens (the default on a CPU; {DEFAULT_SHARE_PERCENT} % of the \
                 available memory would be more)",
                wish.context_tokens
            ),
            PoolLimit::FreeMemory => {
                format!(
                    "all memory left after the weights and a reserve of {}",
                    Bytes(self.budget.reserve_bytes)
                )
            }
            PoolLimit::PageIds => format!("at most {MAX_PAGES} pages (32-bit ids) are supported"),
        }
    }
}

impl MemoryBudget {
    /// The parts of the weights and of the reserve.
    fn vision_here(&self) -> VisionBytes {
        match self.place {
            Place::Host => self.vision,
            Place::Gpu(_) => VisionBytes::default(),
        }
    }

    /// A line about the memory of the host, if the text model is on a GPU.
    fn vision_on_host(&self) -> Option<String> {
        let VisionBytes { tower, images } = self.vision;
        let is_apart = self.place != Place::Host && tower > 0;
        is_apart.then(|| {
            let (tower, images) = (Bytes(tower), Bytes(images));
            format!(
                "host memory           {tower} for the vision tower, and {images} for an image that is encoded, and \
                 for vectors of images"
            )
        })
    }
}
