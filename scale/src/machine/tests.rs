//! Tests of the machine: the costs of accesses, their order, and the repeatability of simulations.

use std::sync::{Mutex as Shared, MutexGuard, PoisonError};

use super::*;
use crate::shared::{Lock, Word, touch};

/// A machine without noise, on which only accesses take time.
fn plan(cores: usize, sockets: usize) -> Plan {
    let mut costs = Costs::default();
    costs.set("step", 0.0).unwrap();
    costs.set("spin", 0.0).unwrap();
    Plan { cores, sockets, costs, seed: 0, steals: true, warm_up: 0, measured: 1_000_000 }
}

/// Locks the values that the cores report to the test.
fn seen<T>(shared: &Shared<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sum(outcome: &Outcome) -> Tally {
    let mut sum = Tally::default();
    outcome.sites.values().for_each(|tally| sum.add(tally));
    sum
}

#[test]
fn a_line_costs_memory_first_and_then_a_hit() {
    let (word, times) = (Word::default(), Shared::new(Vec::new()));
    let plan = plan(1, 1);
    let outcome = simulate(plan.clone(), |_| {
        for _ in 0..2 {
            word.add(1);
            seen(&times).push(now());
        }
    });
    let Costs { memory, update, .. } = plan.costs;
    assert_eq!(*seen(&times), [memory + update, memory + 2 * update]);
    assert_eq!(sum(&outcome), Tally { hits: 1, memory: 1, time: memory + 2 * update, ..Tally::default() });
}

#[test]
fn walk_through_memory_has_its_lines_in_time() {
    #[repr(align(64))]
    struct OfALine([u8; LINE]);
    let (lines, times) = ([0; 12].map(|_| OfALine([0; LINE])), Shared::new(Vec::new()));
    let plan = Plan { measured: 1_000_000_000, ..plan(1, 1) };
    simulate(plan.clone(), |_| {
        for line in [0, 1, 2, 3, 5, 8, 7, 6, 9, 10] {
            let begin = now();
            touch(&lines[line].0, Access::Load);
            seen(&times).push(now() - begin);
        }
    });
    let Costs { load: near, memory: far, .. } = plan.costs;
    // Line 9 continues the walk that began at line 8, although lines 7 and 6 were used in between. Line 7 begins a
    // walk, and lines 6 and 9 are each only the second line of a walk, so these three come from memory.
    assert_eq!(*seen(&times), [far, far, near, near, far, far, far, far, far, near]);
}

#[test]
fn line_that_was_not_used_for_long_costs_more() {
    let (word, other, times) = (Word::default(), Word::default(), Shared::new(Vec::new()));
    let plan = Plan { measured: 1_000_000_000, ..plan(1, 1) };
    simulate(plan.clone(), |_| {
        word.load();
        for others in [FIRST_LEVEL - 1, FIRST_LEVEL, SECOND_LEVEL] {
            (0..others).for_each(|_| {
                other.load();
            });
            let begin = now();
            word.load();
            seen(&times).push(now() - begin);
        }
    });
    let Costs { load, second, third, .. } = plan.costs;
    assert_eq!(*seen(&times), [load, second, third]);
}

/// Each core waits for the other core's number, and then writes its own. A hand-over takes two transfers: the reader
/// fetches the line, and then invalidates the other copy.
#[test]
fn ping_pong_costs_two_transfers_a_hand_over() {
    for (sockets, name) in [(1, "transfer"), (2, "across")] {
        const ROUNDS: u64 = 100;
        let (word, end) = (Word::default(), Shared::new(0));
        let plan = plan(2, sockets);
        simulate(plan.clone(), |core| {
            for round in 0..ROUNDS {
                while word.load() != 2 * round + core as u64 {
                    compute(|costs| costs.load);
                }
                word.add(1);
            }
            *seen(&end) = now();
        });
        let transfer = plan.costs.named().iter().find(|(of, _)| *of == name).unwrap().1;
        let each = *seen(&end) as f64 / 1e3 / (2 * ROUNDS) as f64;
        let expected = 2.0 * transfer + plan.costs.update as f64 / 1e3;
        assert!((each / expected - 1.0).abs() < 0.03, "{sockets} sockets: {each} ns a hand-over, expected {expected}");
    }
}

#[test]
fn a_line_serves_one_writer_at_a_time_and_readers_side_by_side() {
    const CORES: usize = 8;
    let (word, times) = (Word::default(), Shared::new(Vec::new()));
    let plan = plan(CORES, 1);
    let costs = plan.costs;
    simulate(plan.clone(), |_| {
        word.add(1);
        seen(&times).push(now());
    });
    let last = seen(&times).iter().copied().max().unwrap();
    assert_eq!(
        last,
        costs.memory + (CORES as u64 - 1) * costs.transfer + CORES as u64 * costs.update,
        "one after another"
    );
    let last = Shared::new(0);
    let word = Word::default();
    simulate(plan, |core| {
        // Core 0 writes the line, and core 1 reads it, which makes it shared. Then all other cores read it at the same
        // time.
        pass([0, 1_000, 2_000][core.min(2)] * 1_000);
        match core {
            0 => word.store(1),
            _ => drop(word.load()),
        }
        let mut last = seen(&last);
        *last = now().max(*last);
    });
    assert_eq!(*seen(&last), 2_000_000 + costs.transfer, "at the same time");
}

/// Two cores update a word as fast as they can. Each core keeps the line for half of a transfer, during which the line
/// serves only that core.
#[test]
fn core_keeps_a_line_for_half_of_the_next_transfer() {
    let word = Word::default();
    let plan = plan(2, 1);
    let outcome = simulate(plan.clone(), |_| {
        while !is_over() {
            word.add(1);
            count();
        }
    });
    let Costs { transfer, update, .. } = plan.costs;
    let hits = transfer / 2 / update;
    let expected = plan.measured * (hits + 1) / (transfer + update);
    let ratio = outcome.operations as f64 / expected as f64;
    assert!((0.85..1.15).contains(&ratio), "{} operations, expected {expected}", outcome.operations);
}

#[test]
fn store_does_not_wait_but_the_next_update_does() {
    let words = [Word::default(), Word::default()];
    let times = Shared::new(Vec::new());
    let plan = plan(1, 1);
    simulate(plan.clone(), |_| {
        words[1].add(1);
        let begin = now();
        words[0].store(1);
        seen(&times).push(now() - begin);
        words[1].add(1);
        seen(&times).push(now() - begin);
    });
    let Costs { store, memory, update, .. } = plan.costs;
    assert_eq!(*seen(&times), [store, memory + update]);
}

#[test]
fn fence_waits_for_stores() {
    let (word, waited) = (Word::default(), Shared::new(0));
    let plan = plan(1, 1);
    simulate(plan.clone(), |_| {
        word.store(1);
        fence();
        *seen(&waited) = now();
    });
    assert_eq!(*seen(&waited), plan.costs.memory + plan.costs.update);
}

#[test]
fn lines_of_one_access_come_side_by_side() {
    let (lines, took) = ([Word::default(), Word::default()], Shared::new(0));
    let plan = plan(1, 1);
    let outcome = simulate(plan.clone(), |_| {
        touch(&lines, Access::Load);
        *seen(&took) = now();
    });
    assert_eq!(*seen(&took), plan.costs.memory);
    assert_eq!(sum(&outcome).memory, 4, "two words of two lines each");
}

#[test]
fn accesses_take_place_in_the_order_of_time() {
    let (word, order) = (Word::default(), Shared::new(Vec::new()));
    simulate(plan(4, 1), |core| {
        pass((10 - core as u64) * 1_000_000);
        let _ = word.load();
        seen(&order).push(core);
    });
    assert_eq!(*seen(&order), [3, 2, 1, 0]);
}

#[test]
fn mutex_excludes_and_wakes_its_sleepers() {
    const CORES: usize = 8;
    let (lock, inside) = (Lock::new(0_u64), Shared::new(0));
    simulate(plan(CORES, 2), |_| {
        for _ in 0..50 {
            let mut value = lock.lock();
            assert_eq!(std::mem::replace(&mut *seen(&inside), 1), 0, "two cores hold the lock");
            // The other cores do not spin for this long.
            pass(20_000_000);
            touch(&lock, Access::Load);
            *value += 1;
            *seen(&inside) = 0;
        }
    });
    assert_eq!(*lock.lock(), 50 * CORES as u64);
}

#[test]
fn sleeper_runs_after_it_was_woken_or_when_the_time_is_over() {
    let times = Shared::new(vec![0; 3]);
    let plan = Plan { measured: 100_000_000, ..plan(3, 1) };
    let word = Word::default();
    simulate(plan.clone(), |core| {
        if core == 0 {
            pass(1_000_000);
            word.store(1);
            wake(1);
        } else {
            sleep();
        }
        seen(&times)[core] = now();
    });
    let times = seen(&times);
    assert!(times[1] >= 1_000_000 + plan.costs.awake && times[1] < 2 * plan.costs.awake, "{times:?}");
    assert_eq!(times[2], plan.warm_up + plan.measured);
}

#[test]
fn same_seed_gives_the_same_simulation_and_another_one_does_not() {
    let outcome = |seed| {
        let (words, end) = ([Word::default(), Word::default()], Shared::new(0));
        let plan = Plan { seed, costs: Costs::default(), ..plan(16, 2) };
        let outcome = simulate(plan, |core| {
            while !is_over() {
                words[(random() % 2) as usize].add(1);
                words[core % 2].load();
                count();
            }
            *seen(&end) += now();
        });
        (outcome, end.into_inner().unwrap())
    };
    assert_eq!(outcome(1), outcome(1));
    assert_ne!(outcome(1), outcome(2));
}

#[test]
fn warm_up_is_not_measured() {
    let word = Word::default();
    let plan = Plan { warm_up: 500_000, ..plan(1, 1) };
    let outcome = simulate(plan.clone(), |_| {
        while !is_over() {
            word.add(1);
            count();
        }
    });
    assert_eq!(sum(&outcome).memory, 0, "the first access");
    let expected = plan.measured / plan.costs.update;
    assert!(outcome.operations.abs_diff(expected) <= 1, "{} operations, expected {expected}", outcome.operations);
}
