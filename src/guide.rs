// The guide's own links name files, for readers of the repository. If a link is defined twice, the first definition
// wins. So `links.txt` comes first: its links are for readers of the documentation.
#![doc = include_str!("guide/links.txt")]
#![doc = include_str!("guide.md")]

/// Declares the chapters, each with the text of the file of the same name in `guide/`, and with a picture below it.
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

// The examples of these pages need other crates: `perf/src/shop.rs` compiles them.
#[cfg_attr(not(doctest), doc = include_str!("../docs/from-mongodb.md"))]
pub mod from_mongodb {}

#[cfg_attr(not(doctest), doc = include_str!("../docs/from-other-pools.md"))]
pub mod from_other_pools {}
