// The links that the guide's pages define point to files, for readers of the repository. `links.txt` defines the same
// links for readers of the documentation. It comes first, because the first definition of a link wins.
#![doc = include_str!("guide/links.txt")]
#![doc = include_str!("guide.md")]

/// Declares a module for each chapter. The module's documentation is the file of the same name in `guide/`, followed by
/// a picture if one is given.
macro_rules! chapters {
    ($($chapter:ident $(=> $heading:literal $picture:literal)?)*) => {$(
        #[doc = include_str!("guide/links.txt")]
        #[doc = include_str!(concat!("guide/", stringify!($chapter), ".md"))]
        $(#[doc = concat!("\n## ", $heading, "\n\n", include_str!($picture))])?
        pub mod $chapter {}
    )*};
}

chapters! {
    first_steps documents transactions read_preferences change_streams files failures time_limits options sizes pools
    operating_pools
    metrics_and_traces => "The dashboard" "../docs/pictures/dashboard.svg"
    tls_and_credentials blocking testing coming_from_elsewhere
}

/// The monitor from the example, ready to copy.
///
#[doc = concat!("```rust,no_run\n", include_str!("../examples/monitor/monitor.rs"), "\n# fn main() {}\n```")]
pub mod monitor {}

// The examples on these pages need other crates, so they are compiled in `perf/src/shop.rs` rather than as doctests.
#[cfg_attr(not(doctest), doc = include_str!("../docs/from-mongodb.md"))]
pub mod from_mongodb {}

#[cfg_attr(not(doctest), doc = include_str!("../docs/from-other-pools.md"))]
pub mod from_other_pools {}
