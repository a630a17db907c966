//! Tests of actors that a host connects by itself, without an engine.

use std::sync::Arc;

use actix::Actor;
use souffleur::actors::allocator::{Allocator, GrantReceiver};
use souffleur::actors::death::DeathNote;
use souffleur::actors::mailbox::Mailbox;
use souffleur::actors::messages::{ActorDied, PeekPrefix, PlanStep, StepPlanned};
use souffleur::actors::prefix_index::{IndexCapacity, PrefixIndex};
use souffleur::actors::radix_cache::RadixCache;
use souffleur::ids::{StepId, UnitId};
use souffleur::state::cache::eviction::EvictionPolicy;
use souffleur::state::cache::namespace::Namespace;
use souffleur::state::cache::radix_tree::{Insert, RadixTree};
use souffleur::state::plan::{Reservation, Settle};
use souffleur::state::pool::pages::{NodeLock, PageSize, PoolLedger};
use souffleur::state::pool::pools::Pools;
use souffleur::state::supervision::Incarnation;

use super::doubles::Probe;
use super::world::within;

#[actix::test]
async fn an_index_answers_plans_one_for_one() {
    let (planned, mut answers) = Probe::<Box<StepPlanned>>::spawn();
    let capacity = IndexCapacity {
        pages: 8,
        rows: 2,
        page_size: PageSize::ONE,
    };
    let policy = EvictionPolicy::from_name("lru").expect("it exists");
    let index = PrefixIndex::start(capacity, policy, planned);
    for step in 1..=3 {
        index.plan(PlanStep::empty(StepId::new(step), 8, 2));
        let answer = within(answers.recv()).await.expect("an answer");
        assert_eq!(
            (answer.step, answer.free_pages, answer.free_rows),
            (StepId::new(step), 8, 2)
        );
        assert!(
            matches!(answer.reservation, Reservation::Granted { grants, .. } if grants.is_empty())
        );
    }
    let peek = index.peek();
    let query = || PeekPrefix {
        namespace: Namespace::default(),
        tokens: [1, 2].into(),
    };
    assert_eq!(
        within(peek.send(query())).await.expect("the cache lives"),
        0
    );
    drop(index);
    assert!(
        within(peek.send(query())).await.is_err(),
        "the cache outlived the index"
    );
}

#[actix::test]
async fn a_panic_of_the_cache_is_reported_and_the_allocator_survives() {
    let (died, mut deaths) = Probe::<ActorDied>::spawn();
    let (planned, mut answers) = Probe::<Box<StepPlanned>>::spawn();
    let ledger = Arc::new(PoolLedger::new(PageSize::ONE));
    let mut pools = Pools::new(8, 2, PageSize::ONE, ledger.clone());
    let tree = || RadixTree::new(PageSize::ONE, EvictionPolicy::default(), ledger.clone());
    let foreign = lock_in(&mut tree(), &mut pools);
    let at = Incarnation {
        unit: UnitId::new(3),
        generation: 7,
    };
    let note = |actor| DeathNote::new(actor, at, died.clone(), ledger.clone());
    let allocator = Allocator::new(pools, GrantReceiver::Host(planned), note("allocator")).start();
    let reserve = Mailbox::of(&allocator, "allocator", "ReservePages");
    let cache = RadixCache::new(tree(), reserve, note("radix_cache")).start();
    let plan = Mailbox::of(&cache, "radix_cache", "PlanStep");
    let mut request = PlanStep::empty(StepId::new(1), 8, 2);
    request.settle.push(Settle::Unlock(foreign));
    plan.post(Box::new(request));
    let death = within(deaths.recv()).await.expect("a death is reported");
    assert_eq!(
        (death.actor, death.unit, death.generation, death.panicked),
        ("radix_cache", Some(at.unit), 7, true)
    );
    assert!(allocator.connected());
    drop((plan, allocator));
    let death = within(deaths.recv()).await.expect("a death is reported");
    assert_eq!((death.actor, death.panicked), ("allocator", false));
    assert!(answers.try_recv().is_err(), "nothing was planned");
}

/// Caches one page in `tree` and locks it. A different tree panics if it has to release this lock.
fn lock_in(tree: &mut RadixTree, pools: &mut Pools) -> NodeLock {
    let namespace = &Namespace::default();
    let inserted = tree.insert(Insert {
        namespace,
        tokens: &[1],
        owner: None,
        pages: pools.pages.alloc(1).expect("the pool has eight pages"),
        priority: 0,
        inserted_tokens: 0,
    });
    assert!(inserted.rest.is_empty());
    tree.lock_prefix(namespace, &[1]).lock
}
