//! The targets under libFuzzer; see the crate's documentation.
#![no_main]

use std::env;
use std::sync::LazyLock;

use wharf_fuzz::Target;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = env::var("WHARF_FUZZ_TARGET").expect("WHARF_FUZZ_TARGET is not set: it must name a target");
    Target::named(&name).unwrap_or_else(|| panic!("WHARF_FUZZ_TARGET must name a target, got {name}"))
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    (TARGET.run)(input);
});
