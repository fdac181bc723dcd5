//! Claims about the pool that ships, tested in the simulator. The simulations are exactly repeatable: only a change to
//! the pool changes their results.
//!
//! ```text
//! RUSTFLAGS="--cfg simulated" CARGO_TARGET_DIR=target/simulated cargo test --release -p wharf-scale
//! ```
#![cfg(simulated)]

use wharf_scale::cases::Case;
use wharf_scale::check::{compare, table};
use wharf_scale::costs::Costs;
use wharf_scale::designs::wharf::Wharf;
use wharf_scale::machine::Plan;
use wharf_scale::profiles::PROFILES;
use wharf_scale::report::Figure;

fn simulated(case: Case, cores: usize, sockets: usize) -> Figure {
    let plan = Plan { cores, sockets, costs: Costs::default(), seed: 1, steals: true, warm_up: 0, measured: 1 };
    let plan = case.timed(&plan, 1.0);
    let outcome = case.simulate::<Wharf>(&plan).expect("wharf takes part in all cases");
    Figure::of("wharf", &plan, &outcome)
}

#[test]
fn hit_and_its_check_in_move_no_cache_line() {
    for (cores, sockets) in [(2, 1), (16, 2), (64, 4), (256, 4)] {
        let figure = simulated(Case::Hit, cores, sockets);
        assert!(figure.operations > 1_500, "{cores} cores: {} operations", figure.operations);
        assert_eq!(figure.transfers(None), 0.0, "{cores} cores on {sockets} sockets: {:?}", figure.words);
    }
}

#[test]
fn tasks_that_stay_on_their_cores_scale_over_a_yield() {
    let [one, many, most] = [1, 64, 256].map(|cores| simulated(Case::YieldInPlace, cores, 1).throughput);
    assert!(many / one > 0.9 * 64.0, "{one} and {many}");
    assert!(most / one > 0.9 * 256.0, "{one} and {most}");
}

#[test]
fn two_cores_do_twice_the_hits_of_one() {
    let [one, two] = [1, 2].map(|cores| simulated(Case::Hit, cores, 1).throughput);
    assert!(two / one > 1.98, "{one} and {two}");
}

/// A hand-over changes one word of the wait list and does not take a lock. So more cores do more work, until the word's
/// cache line is always busy.
#[test]
fn many_cores_serve_a_saturated_pool_faster_than_two() {
    // When a simulation ends, each dropped task hands its connection to the next task, which is dropped inside that
    // call. These nested calls need a large stack.
    let thread = std::thread::Builder::new().stack_size(64 << 20).spawn(|| {
        for case in [Case::Saturated10, Case::Saturated100, Case::Edge] {
            let [two, many] = [2, 64].map(|cores| simulated(case, cores, 1).throughput);
            assert!(many > 1.7 * two, "{case:?}: {two} and {many}");
        }
    });
    thread.unwrap().join().unwrap();
}

/// If this test fails, the simulated machines do not represent the real machines.
#[test]
fn figures_of_one_and_two_cores_are_within_a_quarter_of_the_measured_ones() {
    let thread = std::thread::Builder::new().stack_size(64 << 20).spawn(|| {
        for profile in PROFILES {
            let few = profile
                .measured()
                .into_iter()
                .map(|(case, figures)| (case, figures.into_iter().filter(|(cores, _)| *cores <= 2).collect()));
            let compared = compare(profile.costs, 1, &few.collect());
            assert_eq!(compared.len(), 2 * profile.measured().len(), "each case on one and two cores");
            assert!(compared.iter().all(|row| row.holds()), "{}:\n{}", profile.name, table(&compared));
        }
    });
    thread.unwrap().join().unwrap();
}

#[test]
fn same_seed_gives_the_same_figures() {
    let [first, second] = [(), ()].map(|()| simulated(Case::Saturated10, 4, 2));
    for (site, tally) in &first.sites {
        assert_eq!(Some(tally), second.sites.get(site), "{site}");
    }
    assert_eq!(first.operations, second.operations);
}
