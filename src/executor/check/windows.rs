//! Checks a row's sliding-window pages: every token that a step writes or attends to needs a page.

use super::limits::Limits;
use souffleur_base::ids::PageId;
use souffleur_state::pool::pages::PageRun;
use souffleur_state::pool::window_pool::WindowLimits;

#[derive(Clone, Copy)]
pub(super) struct RowWindows {
    pub(super) n_pages: usize,
    /// Index of the first mapped page: earlier entries are the dummy page or freed pages.
    pub(super) first: usize,
}

impl RowWindows {
    pub(super) fn after_prefix(n_prefix_pages: usize, limits: &Limits) -> Self {
        let n_pages = match limits.windows {
            Some(_) => n_prefix_pages,
            None => 0,
        };
        Self {
            n_pages,
            first: n_prefix_pages,
        }
    }

    pub(super) fn append(&mut self, pages: &[PageId], limits: &Limits) -> Result<(), String> {
        check_pages(pages.iter().copied(), limits)?;
        self.n_pages += pages.len();
        match limits.row_pages {
            max if self.n_pages > max => Err(format!(
                "{} window pages are too many: a row has at most {max}",
                self.n_pages
            )),
            _ => Ok(()),
        }
    }

    /// Replaces pages from index `from` on. The error completes a sentence that begins with "row N".
    pub(super) fn remap(
        &mut self,
        from: usize,
        pages: &PageRun,
        limits: &Limits,
    ) -> Result<(), String> {
        check_pages(pages.iter(), limits)
            .map_err(|reason| format!("cannot be remapped: {reason}"))?;
        let end = from + pages.len();
        if end > self.n_pages || end < self.first {
            return Err(format!(
                "has window pages {} to {}, so {from} to {end} cannot be remapped",
                self.first, self.n_pages
            ));
        }
        self.first = self.first.min(from);
        Ok(())
    }

    pub(super) fn check(&self, first: usize, end: usize, limits: &Limits) -> Result<(), String> {
        let Some(WindowLimits { tokens, .. }) = limits.windows else {
            return Ok(());
        };
        let slots = self.n_pages * limits.page_size;
        if end > slots {
            return Err(format!(
                "the positions up to {end} need window pages, but the row's {} hold {slots} tokens",
                self.n_pages
            ));
        }
        let seen = (first + 1).saturating_sub(tokens);
        if seen < first && seen / limits.page_size < self.first {
            return Err(format!(
                "position {first} sees the tokens from {seen} on, but the row's window pages begin with page {}",
                self.first
            ));
        }
        Ok(())
    }
}

fn check_pages(mut pages: impl Iterator<Item = PageId>, limits: &Limits) -> Result<(), String> {
    let Some(WindowLimits { total_pages, .. }) = limits.windows else {
        return Err("the plan has window pages, but no layer of the model has a window".to_owned());
    };
    match pages.find(|page| !(1..=total_pages).contains(&page.index())) {
        None => Ok(()),
        Some(page) => Err(format!(
            "window page {page} does not exist, window pages are 1 to {total_pages}"
        )),
    }
}
