use std::collections::HashSet;
use std::sync::{Barrier, Mutex};

use proptest::prelude::*;

use super::*;
#[cfg(unix)]
use crate::pool::runtime::in_child;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(30 * 60));

/// A pool with a clock that the test advances.
struct Fixture {
    pool: ServerSessionPool,
    now: Moment,
}

impl Fixture {
    fn new(shards: usize) -> Self {
        let now = Moment::now();
        Self { pool: ServerSessionPool::with_shards(now, shards), now }
    }

    fn take(&self, hint: usize) -> Option<ServerSession> {
        self.pool.take(hint, self.now, TIMEOUT)
    }

    fn put(&self, hint: usize, session: ServerSession) {
        self.pool.put(hint, session, self.now, TIMEOUT);
    }

    fn fresh(&self) -> ServerSession {
        ServerSession::new(self.now)
    }

    fn drain(&self) -> Vec<SessionId> {
        self.pool.drain(self.now, TIMEOUT)
    }
}

#[test]
fn session_comes_back_as_it_was_given() {
    let mut fixture = Fixture::new(1);
    fixture.now = fixture.now + Duration::from_secs(5);
    let mut session = fixture.fresh();
    let number = [(); 3].map(|()| session.next_transaction_number())[2];
    let (id, last_use) = (session.id(), session.last_use);
    fixture.put(0, session);
    fixture.now = fixture.now + Duration::from_secs(7);
    let session = fixture.take(0).unwrap();
    assert_eq!(
        (session.id(), session.last_use, session.transaction_number(), session.is_dirty),
        (id, last_use, number, false)
    );
    assert!(fixture.take(0).is_none());
}

#[test]
fn pool_is_last_in_first_out() {
    let pool = ServerSessionPool::new(Moment::now());
    let now = Moment::now();
    let [a, b] = [(); 2].map(|()| pool.acquire(now, TIMEOUT));
    let (a_id, b_id) = (a.id(), b.id());
    assert_ne!(a_id, b_id);
    pool.release(a, now, TIMEOUT);
    pool.release(b, now, TIMEOUT);
    assert_eq!([pool.acquire(now, TIMEOUT).id(), pool.acquire(now, TIMEOUT).id()], [b_id, a_id]);
}

#[test]
fn session_that_is_given_back_last_lies_in_front_and_pushes_the_one_before_onto_the_stack() {
    let fixture = Fixture::new(1);
    let ids = [(); 3].map(|()| {
        let session = fixture.fresh();
        let id = session.id();
        fixture.put(0, session);
        id
    });
    assert_eq!(fixture.pool.shard(0).slots.grow(), Some(2), "the stack has two");
    assert_eq!([(); 3].map(|()| fixture.take(0).unwrap().id()), [ids[2], ids[1], ids[0]]);
    let [first, second] = [(); 2].map(|()| fixture.fresh());
    fixture.put(0, first);
    assert!(fixture.take(0).is_some());
    let id = second.id();
    fixture.put(0, second);
    assert_eq!(fixture.take(0).unwrap().id(), id, "the front is used again");
    assert!(fixture.take(0).is_none());
}

#[test]
fn empty_shard_takes_from_the_others_before_a_session_is_made() {
    let fixture = Fixture::new(4);
    let ids: HashSet<_> = (0..4)
        .map(|hint| {
            let session = fixture.fresh();
            let id = session.id();
            fixture.put(hint, session);
            id
        })
        .collect();
    let taken: HashSet<_> = (0..4).map(|_| fixture.take(7).unwrap().id()).collect();
    assert_eq!(taken, ids);
    assert!(fixture.take(7).is_none());
}

#[test]
fn sessions_with_less_than_a_minute_left_are_discarded_on_the_way_out() {
    let mut fixture = Fixture::new(1);
    fixture.put(0, fixture.fresh());
    fixture.now = fixture.now + Duration::from_secs(60);
    let newer = fixture.fresh();
    let id = newer.id();
    fixture.put(0, newer);
    fixture.now = fixture.now + Duration::from_secs(29 * 60);
    assert_eq!(fixture.take(0).unwrap().id(), id, "it has exactly a minute left");
    assert!(fixture.take(0).is_none(), "the older one has none");
}

#[test]
fn sessions_are_kept_without_a_timeout() {
    let mut fixture = Fixture::new(1);
    let session = fixture.fresh();
    let id = session.id();
    fixture.put(0, session);
    fixture.now = fixture.now + Duration::from_secs(100 * 60);
    // A release would prune expired sessions.
    fixture.pool.put(0, fixture.fresh(), fixture.now, None);
    assert!(fixture.pool.take(0, fixture.now, None).is_some());
    assert_eq!(fixture.pool.take(0, fixture.now, None).unwrap().id(), id);
}

#[test]
fn dirty_and_expiring_sessions_are_not_taken_back() {
    let mut fixture = Fixture::new(1);
    let (mut dirty, expiring) = (fixture.fresh(), fixture.fresh());
    dirty.mark_dirty();
    fixture.put(0, dirty);
    assert!(fixture.take(0).is_none());
    fixture.now = fixture.now + Duration::from_secs(29 * 60 + 1);
    fixture.put(0, expiring);
    assert!(fixture.take(0).is_none());
}

/// Returns how many sessions a shard holds, whether usable or not.
fn held(shard: &Shard) -> usize {
    let top = shard.idle.detach();
    let slots: Vec<_> = std::iter::successors(top, |&slot| SlotStack::below(&shard.slots, slot)).collect();
    if let (Some(&first), Some(&last)) = (slots.first(), slots.last()) {
        shard.idle.push_chain(&shard.slots, first, last);
    }
    let front = shard.front.take(Record::load);
    if let Some(session) = &front {
        assert!(matches!(shard.front.put(|front| front.store(session), Record::load), Placed::Alone));
    }
    slots.len() + usize::from(front.is_some())
}

#[test]
fn release_discards_what_expires_at_the_bottom_and_keeps_the_order() {
    let mut fixture = Fixture::new(1);
    for _ in 0..50 {
        fixture.put(0, fixture.fresh());
    }
    fixture.now = fixture.now + Duration::from_secs(20 * 60);
    let kept: Vec<_> = (0..3)
        .map(|_| {
            let session = fixture.fresh();
            let id = session.id();
            fixture.put(0, session);
            id
        })
        .collect();
    assert_eq!(held(fixture.pool.shard(0)), 53);
    fixture.now = fixture.now + Duration::from_secs(10 * 60);
    let mut dirty = fixture.fresh();
    dirty.mark_dirty();
    fixture.put(0, dirty);
    assert_eq!(held(fixture.pool.shard(0)), 3);
    assert_eq!([(); 3].map(|()| fixture.take(0).unwrap().id()), [kept[2], kept[1], kept[0]]);
    // The slots of the discarded sessions are used again. The session in the front needs no slot.
    for _ in 0..53 {
        fixture.put(0, fixture.fresh());
    }
    assert_eq!(fixture.pool.shard(0).slots.grow(), Some(52));
}

#[test]
fn drain_returns_all_and_they_are_ended_ten_thousand_at_a_time() {
    let fixture = Fixture::new(4);
    let ids: HashSet<_> = (0..20_001)
        .map(|number| {
            let session = fixture.fresh();
            let id = session.id();
            fixture.put(number, session);
            id
        })
        .collect();
    let drained = fixture.drain();
    assert_eq!((drained.len(), drained.iter().copied().collect::<HashSet<_>>()), (20_001, ids));
    assert!(fixture.drain().is_empty());
    let commands: Vec<_> = ServerSessionPool::end_sessions(&drained).collect();
    let ended: Vec<_> =
        commands.iter().map(|command| command.get_array("endSessions").unwrap().into_iter().count()).collect();
    assert_eq!(ended, [10_000, 10_000, 1]);
    let last = commands[2].get_array("endSessions").unwrap().get_document(0).unwrap();
    assert_eq!(last, &*drained[20_000].document());
    assert_eq!(ServerSessionPool::end_sessions(&[]).count(), 0);
}

#[cfg(unix)]
#[test]
fn child_process_uses_none_of_its_parents_sessions() {
    let fixture = Fixture::new(1);
    let (idle, in_use) = (fixture.fresh(), fixture.fresh());
    let id = idle.id();
    fixture.put(0, idle);
    let code = in_child(|| {
        fixture.put(0, in_use);
        assert!(fixture.take(0).is_none() && fixture.drain().is_empty());
        let own = fixture.fresh();
        let id = own.id();
        fixture.put(0, own);
        assert_eq!(fixture.take(0).unwrap().id(), id);
        Ok(())
    });
    assert_eq!(code, 0);
    assert_eq!(fixture.take(0).unwrap().id(), id, "the parent still has it");
}

#[derive(Clone, Debug)]
enum Step {
    /// Takes a session, or creates a new session.
    Acquire,
    /// Gives back one of the sessions in use, dirty or clean.
    Release { which: prop::sample::Index, dirty: bool },
    /// Advances the clock.
    Wait { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Acquire),
        4 => (any::<prop::sample::Index>(), prop::bool::weighted(0.1))
            .prop_map(|(which, dirty)| Step::Release { which, dirty }),
        1 => (0_u64..1_200).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

proptest! {
    /// On one thread, the pool behaves like the specification's deque.
    #[test]
    fn pool_gives_each_session_once_and_the_newest_first(steps in prop::collection::vec(step(), 0..200)) {
        let mut fixture = Fixture::new(1);
        let mut in_use: Vec<ServerSession> = Vec::new();
        // Identifier, last use and transaction number, newest last.
        let mut model: Vec<(SessionId, Moment, i64)> = Vec::new();
        for step in steps {
            let is_kept = |last_use: Moment| last_use + Duration::from_secs(29 * 60) >= fixture.now;
            match step {
                Step::Acquire => {
                    while model.last().is_some_and(|&(_, last_use, _)| !is_kept(last_use)) {
                        model.pop();
                    }
                    let expected = model.pop();
                    let mut session = fixture.take(0).unwrap_or_else(|| fixture.fresh());
                    match expected {
                        Some((id, _, number)) => prop_assert_eq!((session.id(), session.transaction_number()), (id, number)),
                        None => prop_assert_eq!(session.transaction_number(), 0, "a new one"),
                    }
                    prop_assert!(in_use.iter().all(|other| other.id() != session.id()));
                    session.next_transaction_number();
                    session.append_to(&mut Vec::new(), fixture.now);
                    in_use.push(session);
                }
                Step::Release { which, dirty } if !in_use.is_empty() => {
                    let mut session = in_use.swap_remove(which.index(in_use.len()));
                    if dirty {
                        session.mark_dirty();
                    } else if is_kept(session.last_use) {
                        model.push((session.id(), session.last_use, session.transaction_number()));
                    }
                    fixture.put(0, session);
                }
                Step::Release { .. } => {}
                Step::Wait { seconds } => fixture.now = fixture.now + Duration::from_secs(seconds),
            }
        }
        let is_kept = |&&(_, last_use, _): &&(SessionId, Moment, i64)| last_use + Duration::from_secs(29 * 60) >= fixture.now;
        let left: Vec<_> = model.iter().rev().filter(is_kept).map(|&(id, ..)| id).collect();
        prop_assert_eq!(fixture.drain(), left);
    }
}

/// Threads take, steal and give back sessions concurrently, while the shards are pruned repeatedly: no session is lost
/// or used twice.
#[test]
fn threads_lose_no_session_and_use_none_twice() {
    const THREADS: usize = 4;
    const SESSIONS: usize = 6;
    const ROUNDS: usize = 30_000;
    let fixture = Fixture::new(2);
    let ids: HashSet<_> = (0..SESSIONS)
        .map(|hint| {
            let session = fixture.fresh();
            let id = session.id();
            fixture.put(hint, session);
            id
        })
        .collect();
    let in_use = Mutex::new(HashSet::new());
    let numbers = Mutex::new(0);
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (fixture, ids, in_use, numbers, start) = (&fixture, &ids, &in_use, &numbers, &start);
            scope.spawn(move || {
                start.wait();
                let mut given_out = 0;
                for round in 0..ROUNDS {
                    let Some(mut session) = fixture.take(thread + round / 1_000) else { continue };
                    if round % 64 == 0 {
                        assert!(ids.contains(&session.id()));
                        assert!(in_use.lock().unwrap().insert(session.id()), "used twice");
                        assert!(in_use.lock().unwrap().remove(&session.id()));
                    }
                    session.next_transaction_number();
                    given_out += 1;
                    if round % 100 == thread {
                        fixture.pool.shard(thread).prune(fixture.now, TIMEOUT);
                    }
                    fixture.put(thread, session);
                }
                *numbers.lock().unwrap() += given_out;
            });
        }
    });
    let mut left = Vec::new();
    let mut total = 0;
    while let Some(session) = fixture.take(0) {
        total += session.transaction_number();
        left.push(session.id());
    }
    assert_eq!(left.len(), SESSIONS, "one was lost, or is there twice");
    assert_eq!(left.into_iter().collect::<HashSet<_>>(), ids);
    assert_eq!(total, numbers.into_inner().unwrap(), "a session was used by two threads at once, and lost a number");
}
