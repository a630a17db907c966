//! The pools' part of a plan: frees all returned memory, then grants all demands or none.

use super::{Demand, Grant, Growth, Reservation, ReservePages, StepPlanned};
use crate::pool::pages::WindowPages;
use crate::pool::pools::Pools;
use souffleur_base::ids::SeqId;
use souffleur_base::in_hand;

pub fn reserve_pages(pools: &mut Pools, request: ReservePages) -> StepPlanned {
    pools.pages.free_both(request.returned, request.evicted);
    for row in request.returned_rows {
        pools.rows.free(row);
    }
    let demanded = request.demands.iter().map(|demand| demand.pages as usize);
    let wanted = demanded.sum::<usize>() + request.growing.len();
    for state in request.returned_states {
        pools.states.free(state);
    }
    let states_wanted: usize = request
        .demands
        .iter()
        .map(|demand| demand.states as usize)
        .sum();
    let rows_wanted = request.demands.iter().filter(|demand| demand.row).count();
    pools.windows.free(request.returned_windows);
    let has_windows = pools.windows.is_used();
    let is_short = wanted > pools.pages.free_pages()
        || has_windows && wanted > pools.windows.free_pages()
        || rows_wanted > pools.rows.free_rows()
        || states_wanted > pools.states.free_slots();
    let reservation = if is_short {
        let mut free = pools.pages.free_pages();
        if has_windows {
            free = free.min(pools.windows.free_pages());
        }
        let missing_pages = wanted.saturating_sub(free);
        Reservation::Short { missing_pages }
    } else {
        grant(pools, &request.demands, request.growing)
    };
    StepPlanned {
        step: request.step,
        reservation,
        verdict: request.verdict,
        free_pages: pools.pages.free_pages(),
        free_rows: pools.rows.free_rows(),
        free_states: pools.states.free_slots(),
        free_windows: pools.windows.free_pages(),
    }
}

fn grant(pools: &mut Pools, demands: &[Demand], growing: Vec<SeqId>) -> Reservation {
    let mut alloc = |n: usize| {
        let pages = pools.pages.alloc(n);
        pages.expect("the free pages cover the sum of the demands")
    };
    let has_windows = pools.windows.is_used();
    let windows = &mut pools.windows;
    let mut alloc_windows = |n: usize| {
        if !has_windows {
            WindowPages::empty()
        } else {
            let pages = windows.alloc(n);
            pages.expect("the free window pages cover the sum of the demands")
        }
    };
    let grants = demands.iter().map(|demand| {
        in_hand::hold(demand.intake);
        Grant {
            seq: demand.seq,
            pages: alloc(demand.pages as usize),
            windows: alloc_windows(demand.pages as usize),
            row: demand
                .row
                .then(|| pools.rows.alloc().expect("the free rows cover the demands")),
            states: (0..demand.states)
                .filter_map(|_| pools.states.alloc())
                .collect(),
        }
    });
    let grants = grants.collect();
    in_hand::clear();
    Reservation::Granted {
        grants,
        growth: Growth {
            pages: alloc(growing.len()),
            windows: alloc_windows(growing.len()),
            seqs: growing,
        },
    }
}
