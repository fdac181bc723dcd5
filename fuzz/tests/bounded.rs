//! The bounded run of every target: seeds, regressions, and a few thousand mutations.

use std::env;
use std::time::{Duration, Instant};

use wharf_fuzz::campaign::{self, Bound, Finding, Tally};
use wharf_fuzz::mutation::Random;
use wharf_fuzz::{TARGETS, Target};

/// The number of mutations for each target.
const INPUTS: u64 = 5_000;

/// The time limit for each target, for machines that are too slow for all mutations.
const TURN: Duration = Duration::from_secs(2);

#[test]
fn seeds_violate_no_property_and_some_are_accepted() {
    for target in &TARGETS {
        let mut accepted = 0;
        for seed in (target.seeds)() {
            accepted += u32::from(campaign::try_input(target, &seed).unwrap_or_else(|finding| fail(target, finding)));
        }
        assert!(accepted > 0, "{} accepts none of its seeds", target.name);
    }
}

#[test]
fn regressions_violate_no_property() {
    for target in &TARGETS {
        for (path, input) in campaign::regressions(target).unwrap() {
            if let Err(finding) = campaign::try_input(target, &input) {
                panic!("{}: {}", path.display(), finding.message);
            }
        }
    }
}

#[test]
fn mutations_violate_no_property() {
    let seed = match env::var("WHARF_FUZZ_SEED") {
        Ok(seed) => seed.parse().expect("WHARF_FUZZ_SEED must be a number"),
        Err(_) => 1,
    };
    println!("WHARF_FUZZ_SEED={seed}");
    for target in &TARGETS {
        let started = Instant::now();
        let bound = Bound { inputs: INPUTS, deadline: started + TURN };
        let tally = campaign::run(target, seed, bound).unwrap_or_else(|finding| fail(target, finding));
        let Tally { accepted, refused } = tally;
        println!("{}: {accepted} accepted, {refused} refused in {:?}", target.name, started.elapsed());
        // A run that refuses all inputs, or none, hardly tests anything.
        assert!(accepted > 0 && refused > 0, "{}: {tally:?}", target.name);
    }
}

#[test]
fn violation_is_found_and_reported() {
    let target = Target {
        name: "none",
        run: |bytes| {
            assert!(!bytes.starts_with(b"ab"), "it starts with ab");
            true
        },
        seeds: || vec![b"aa".to_vec(), b"bb".to_vec()],
        mend: |_| {},
        words: &[b"b"],
    };
    let bound = Bound { inputs: 100_000, deadline: Instant::now() + Duration::from_secs(60) };
    let finding = campaign::run(&target, 1, bound).unwrap_err();
    assert!(finding.input.starts_with(b"ab") && finding.message.contains("it starts with ab"), "{finding:?}");
    assert_eq!(campaign::run(&target, 1, bound), Err(finding), "the same seed finds something else");
}

#[test]
fn random_numbers_follow_from_their_seed() {
    let numbers = |seed| {
        let mut random = Random::new(seed);
        [(); 4].map(|()| random.number())
    };
    assert_eq!(numbers(7), numbers(7));
    assert_ne!(numbers(7), numbers(8));
}

fn fail<T>(target: &Target, Finding { input, message }: Finding) -> T {
    let kept = campaign::keep(target, &input);
    panic!("{}: {message}; the input is {kept:?}: {input:x?}", target.name);
}
