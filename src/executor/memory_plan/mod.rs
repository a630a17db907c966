//! Plans how many tokens of K/V fit in a device's memory, like SGLang's `profile_max_num_token`.
//!
//! Only [`available_bytes`] depends on the machine; all other functions compute from their arguments.

mod budget;
mod bytes;
mod explain;
mod pool_size;
mod reserve;
mod rows;
mod slots;
mod windows;
mod wish;

pub use self::budget::{MemoryBudget, Place, VisionBytes};
pub use self::bytes::Bytes;
use self::pool_size::MAX_PAGES;
pub use self::reserve::reserve_bytes;
use self::slots::StateSlots;
pub use self::windows::WindowRequest;
pub use self::wish::MemoryWish;
use souffleur_base::error::LoadError;
use souffleur_state::pool::state_pool::StateLimits;
use souffleur_state::pool::window_pool::WindowLimits;

/// Share of the available memory that the KV pool takes by default on a CPU, in percent.
const DEFAULT_SHARE_PERCENT: u64 = 25;
/// Share of a GPU's free memory that weights and KV pool take together by default.
const DEFAULT_GPU_FRACTION: f64 = 0.9;
/// Suggested values of `mem_fraction_static` are rounded to thousandths.
const FRACTION_STEPS: f64 = 1000.0;

/// The limit that decided the size of the KV pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolLimit {
    /// `mem_fraction_static`.
    Fraction,
    /// The default fraction of a GPU's memory.
    DefaultFraction,
    MaxTotalTokens,
    /// The default share of the host's available memory.
    DefaultShare,
    /// The default number of full-length sequences.
    DefaultContexts,
    /// The memory that weights and reserve leave.
    FreeMemory,
    /// The number of page ids.
    PageIds,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MemoryPlan {
    pub budget: MemoryBudget,
    pub wish: MemoryWish,
    /// Capacity of the KV pool in tokens: whole pages.
    pub max_total_tokens: u64,
    /// Pages of the KV pool, without the dummy page.
    pub n_pages: u32,
    /// Window pages without the dummy page; 0 if no layer has a window, or layers with windows keep all tokens.
    pub window_pages: u32,
    /// States of sequences that the KV pool holds, including a dummy; 0 where no layer has a state.
    pub state_slots: u64,
    /// Size of the KV pool with its dummy page, window pages and states, in bytes.
    pub kv_bytes: u64,
    pub limit: PoolLimit,
    /// Largest `mem_fraction_static` that leaves the reserve free.
    pub largest_safe_fraction: f64,
    pub max_running_requests: u32,
}

impl MemoryPlan {
    /// Divides the memory among weights, KV pool and reserve.
    ///
    /// # Errors
    /// [`LoadError::Memory`] when not even one page fits, naming options that help.
    pub fn new(budget: MemoryBudget, wish: MemoryWish) -> Result<Self, LoadError> {
        if wish.page_size == 0 {
            return Err(LoadError::Memory(
                "page_size is 0, expected at least 1".to_owned(),
            ));
        }
        if let Some(states) = StateSlots::of(&wish) {
            states.check().map_err(LoadError::Memory)?;
        }
        let Some(free_after) = budget
            .free_before_bytes
            .checked_sub(budget.weights_bytes)
            .filter(|free| *free > 0)
        else {
            return Err(LoadError::Memory(format!(
                "the weights take {}, but {} are available: use a smaller model (`souffleur plan --table` lists some), or a \
                 dtype of fewer bytes",
                Bytes(budget.weights_bytes),
                Bytes(budget.free_before_bytes),
            )));
        };
        let mut candidates = match wish.mem_fraction_static {
            Some(fraction) => vec![(
                fraction_tokens(&budget, &wish, free_after, fraction)?,
                PoolLimit::Fraction,
            )],
            None => default_limits(&budget, &wish, free_after)?,
        };
        if let Some(tokens) = wish.max_total_tokens {
            candidates.push((requested_tokens(&wish, tokens)?, PoolLimit::MaxTotalTokens));
        }
        let takes_memory = wish.kv_bytes_per_token > 0 || wish.windows.is_some();
        if !takes_memory && wish.max_total_tokens.is_none() {
            // Tokens take no KV memory if no layer keeps keys, but the bookkeeping of their pages takes host memory.
            candidates.push((wish.default_contexts(), PoolLimit::DefaultContexts));
        }
        candidates.push((MAX_PAGES * u64::from(wish.page_size), PoolLimit::PageIds));
        let (tokens, limit) = candidates
            .into_iter()
            .min_by_key(|(tokens, _)| *tokens)
            .expect("a candidate was just pushed");
        Ok(Self {
            budget,
            wish,
            max_total_tokens: tokens,
            n_pages: (tokens / u64::from(wish.page_size)) as u32,
            state_slots: wish.state_slots(tokens),
            window_pages: wish.window_pages(tokens) as u32,
            kv_bytes: wish.pool_bytes(tokens),
            limit,
            largest_safe_fraction: largest_safe_fraction(&budget),
            max_running_requests: running_requests(&budget, &wish, tokens),
        })
    }

    /// Compares the memory that is free after loading the weights with the plan.
    ///
    /// # Errors
    /// [`LoadError::Memory`] when pool and reserve do not fit in `free_bytes`, with the fraction that fits.
    pub fn check_loaded(&self, free_bytes: u64) -> Result<(), LoadError> {
        let Self { budget, .. } = self;
        let reserve = match self.limit {
            // A fraction that the user set may use part of the reserve.
            PoolLimit::Fraction => 0,
            _ => budget.reserve_bytes,
        };
        if free_bytes >= self.kv_bytes.saturating_add(reserve) {
            return Ok(());
        }
        let left = free_bytes.saturating_sub(budget.reserve_bytes);
        let used = budget.weights_bytes.saturating_add(left);
        let safe = used as f64 / budget.free_before_bytes.max(1) as f64;
        let safe = (safe * FRACTION_STEPS).floor() / FRACTION_STEPS;
        let advice = if left >= self.wish.smallest_pool_bytes() {
            format!("--mem-fraction-static {safe:.3} is the largest safe value now")
        } else {
            "no fraction works: use a smaller model, page_size or dtype, or end other processes"
                .to_owned()
        };
        Err(LoadError::Memory(format!(
            "not enough memory is left for the KV pool: {} are free after loading the weights instead of the planned \
             {} (another process may have taken memory); the KV pool needs {}, activations and headroom {}: {advice}",
            Bytes(free_bytes),
            Bytes(
                budget
                    .free_before_bytes
                    .saturating_sub(budget.weights_bytes)
            ),
            Bytes(self.kv_bytes),
            Bytes(budget.reserve_bytes),
        )))
    }

    /// The states that sequences and the cache share; `None` where no layer keeps any.
    pub fn state_limits(&self) -> Option<StateLimits> {
        let granted = self.state_slots.checked_sub(1)?;
        let page_tokens = self.wish.page_size as usize;
        let limits = StateLimits::new(
            usize::try_from(granted).unwrap_or(usize::MAX),
            self.wish.state_bytes,
            self.wish.kv_bytes_per_token,
            page_tokens,
        );
        Some(match self.wish.state_interval_tokens {
            Some(tokens) => limits.with_grid(tokens, page_tokens),
            None => limits,
        })
    }

    /// The window pages of sliding-window layers; `None` where no layer has them.
    pub fn window_limits(&self) -> Option<WindowLimits> {
        let windows = self.wish.windows.filter(|_| self.window_pages > 0)?;
        Some(WindowLimits {
            tokens: usize::try_from(windows.tokens).unwrap_or(usize::MAX),
            total_pages: self.window_pages as usize,
        })
    }

    /// The `max_total_tokens` that the user set, if `mem_fraction_static` leaves memory for fewer.
    pub fn clamped_request(&self) -> Option<u64> {
        let asked = self.wish.max_total_tokens?;
        (self.wish.whole_pages(asked) > self.max_total_tokens).then_some(asked)
    }
}

fn fraction_tokens(
    budget: &MemoryBudget,
    wish: &MemoryWish,
    free_after: u64,
    fraction: f64,
) -> Result<u64, LoadError> {
    if !(fraction > 0.0 && fraction < 1.0) {
        return Err(LoadError::Memory(format!(
            "mem_fraction_static is {fraction}, expected more than 0 and less than 1"
        )));
    }
    let free_before = budget.free_before_bytes as f64;
    let kv_bytes = free_after as f64 - free_before * (1.0 - fraction);
    if kv_bytes >= wish.smallest_pool_bytes() as f64 {
        return Ok(wish.tokens_in(kv_bytes as u64));
    }
    let needed = budget.weights_bytes as f64 + wish.smallest_pool_bytes() as f64;
    let smallest = (needed / free_before * FRACTION_STEPS).ceil() / FRACTION_STEPS;
    let advice = if smallest < 1.0 {
        format!("raise it, the smallest that works is {smallest:.3}")
    } else {
        "no fraction works: use a smaller model, page_size or dtype".to_owned()
    };
    Err(LoadError::Memory(format!(
        "mem_fraction_static is {fraction}, which allows {} of {}, but the weights take {} and the smallest KV pool \
         {}: {advice}",
        Bytes((free_before * fraction) as u64),
        Bytes(budget.free_before_bytes),
        Bytes(budget.weights_bytes),
        wish.smallest_pool(),
    )))
}

/// Limits of the pool without `mem_fraction_static`: the tokens that fit, and the defaults.
fn default_limits(
    budget: &MemoryBudget,
    wish: &MemoryWish,
    free_after: u64,
) -> Result<Vec<(u64, PoolLimit)>, LoadError> {
    let pool_bytes = free_after.saturating_sub(budget.reserve_bytes);
    if pool_bytes < wish.smallest_pool_bytes() {
        let advice = match budget.page_table_bytes {
            _ if budget.store_bytes > 0 => format!(
                "use a smaller model, page_size, chunked_prefill_size or kv_host_bytes: the KV store's buffers take {} \
                 of the headroom",
                Bytes(budget.store_bytes)
            ),
            0 => "use a smaller model, page_size or chunked_prefill_size".to_owned(),
            bytes => format!(
                "use a smaller model, chunked_prefill_size, context_length or max_running_requests, or a larger \
                 page_size: the page table takes {} of the headroom",
                Bytes(bytes)
            ),
        };
        return Err(LoadError::Memory(format!(
            "not enough memory: {} are available, but the weights take {}, activations and headroom {}, and the \
             smallest KV pool {}: {advice}",
            Bytes(budget.free_before_bytes),
            Bytes(budget.weights_bytes),
            Bytes(budget.reserve_bytes),
            wish.smallest_pool(),
        )));
    }
    let fitting = wish.tokens_in(pool_bytes);
    let mut candidates = vec![(fitting, PoolLimit::FreeMemory)];
    if let Some(asked) = wish.max_total_tokens {
        let (wanted, limit) = (
            wish.whole_pages(asked),
            MAX_PAGES.saturating_mul(u64::from(wish.page_size)),
        );
        return if wanted <= fitting.min(limit) {
            Ok(candidates)
        } else {
            Err(does_not_fit(budget, wish, (asked, fitting.min(limit))))
        };
    }
    if let Place::Gpu(_) = budget.place {
        // If the default fraction leaves no memory for a pool, the pool gets all that weights and reserve leave.
        let tokens = fraction_tokens(budget, wish, free_after, DEFAULT_GPU_FRACTION);
        candidates.extend(tokens.map(|tokens| (tokens, PoolLimit::DefaultFraction)));
        return Ok(candidates);
    }
    // By default, most of the host's memory is left to other programs: a larger pool may never be used.
    let share =
        (u128::from(budget.free_before_bytes) * u128::from(DEFAULT_SHARE_PERCENT) / 100) as u64;
    let at_least_one_page = u64::from(wish.page_size);
    candidates.push((
        wish.tokens_in(share).max(at_least_one_page),
        PoolLimit::DefaultShare,
    ));
    candidates.push((wish.default_contexts(), PoolLimit::DefaultContexts));
    Ok(candidates)
}

fn does_not_fit(
    budget: &MemoryBudget,
    wish: &MemoryWish,
    (asked, fitting): (u64, u64),
) -> LoadError {
    let store = match budget.store_bytes {
        0 => String::new(),
        bytes => format!(
            " ({} of it for the KV store's buffers: kv_host_bytes)",
            Bytes(bytes)
        ),
    };
    LoadError::Memory(format!(
        "max_total_tokens is {asked}, whose K/V takes {}, but only {fitting} tokens fit: {} are available, of which \
         the weights take {}, activations and headroom {}{store}; lower or omit max_total_tokens, or also set \
         mem_fraction_static, which then makes max_total_tokens only an upper limit",
        Bytes(wish.pool_bytes(wish.whole_pages(asked))),
        Bytes(budget.free_before_bytes),
        Bytes(budget.weights_bytes),
        Bytes(budget.reserve_bytes),
    ))
}

fn requested_tokens(wish: &MemoryWish, requested: u64) -> Result<u64, LoadError> {
    match wish.whole_pages(requested) {
        0 => Err(LoadError::Memory(format!(
            "max_total_tokens is {requested}, expected at least one page of {} tokens",
            wish.page_size
        ))),
        tokens => Ok(tokens),
    }
}

fn largest_safe_fraction(budget: &MemoryBudget) -> f64 {
    let free_before = budget.free_before_bytes as f64;
    let safe = 1.0 - budget.reserve_bytes as f64 / free_before;
    ((safe * FRACTION_STEPS).floor() / FRACTION_STEPS).max(0.0)
}

/// Limit of running requests. The default is SGLang's: 2,048 to 4,096, depending on how many contexts fit in the pool;
/// fewer if requests have states.
fn running_requests(budget: &MemoryBudget, wish: &MemoryWish, tokens: u64) -> u32 {
    let by_contexts = tokens.saturating_mul(512) / wish.context_tokens.max(1);
    let limit = match wish.state_bytes {
        0 => by_contexts.clamp(2048, 4096),
        // A step reads and writes the state of each of its rows.
        _ => u64::from(slots::rows(None, wish.max_states)),
    };
    let default = limit.min(tokens / 2).max(1) as u32;
    match wish.max_running_requests {
        Some(asked) => asked.clamp(1, u32::try_from(tokens).unwrap_or(u32::MAX)),
        None => default.min(budget.max_rows),
    }
}

/// Memory that this process can still allocate, in bytes: the machine's available memory, within the cgroup's limit.
///
/// # Errors
/// [`LoadError::Memory`] when the system does not report it.
pub fn available_bytes() -> Result<u64, LoadError> {
    let mut system = sysinfo::System::new().map_err(|error| {
        LoadError::Memory(format!("failed to read the available memory: {error:?}"))
    })?;
    system.refresh_memory();
    if system.total_memory() == 0 {
        let reason = "failed to read the available memory: the system does not report it; on Linux, mount /proc";
        return Err(LoadError::Memory(reason.to_owned()));
    }
    let own_group = sysinfo::get_current_pid().ok().and_then(|pid| {
        system.refresh_processes(sysinfo::ProcessesToUpdate::Some(&[pid]), false);
        system.process(pid)?.cgroup_limits()
    });
    let groups = [system.cgroup_limits(), own_group].into_iter().flatten();
    // The cgroup's `free_memory` counts the page cache as used, but the kernel drops this cache before it refuses
    // memory. Reading the weights once can fill the whole limit with page cache.
    let left_in_groups = groups.map(|group| group.total_memory.saturating_sub(group.rss));
    Ok(left_in_groups.fold(system.available_memory(), u64::min))
}

#[cfg(test)]
mod tests;
