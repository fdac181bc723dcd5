//! Names the contents of shared memory after the source files that access them.

/// The files, as paths relative to the root of the repository, and the names for their accesses. If several entries
/// match, the first match applies.
pub const WORDS: &[(&str, &str)] = &[
    ("src/pool/core/shard.rs", "shard head"),
    ("src/pool/core/state.rs", "pool word"),
    ("src/pool/core/capacity.rs", "capacity word"),
    ("src/pool/core/slab.rs", "slot"),
    ("src/pool/core/tally.rs", "slot tally"),
    ("src/pool/core/attention.rs", "attention"),
    ("src/pool/core/waitlist/word.rs", "queue word"),
    ("src/pool/core/waitlist/segments.rs", "segment"),
    ("src/pool/core/waitlist", "waiter's cell"),
    ("src/pool/sync/brief.rs", "wait list lock"),
    ("src/pool/core/acquire.rs", "stale count"),
    ("src/pool/core/core.rs", "registry"),
    ("src/pool/core/held.rs", "registry"),
    ("src/pool/core/permit.rs", "registry"),
    ("src/pool/core/maintenance.rs", "registry"),
    ("src/pool/core/registry.rs", "registry"),
    ("src/pool/metrics", "metrics"),
    ("scale/src/runtime.rs", "runtime"),
    ("scale/src/cases", "case"),
    ("scale/src/designs/mutex.rs", "mutex and deque"),
    ("scale/src/designs/semaphore.rs", "semaphore and mutex"),
    ("scale/src/designs/channel.rs", "channel"),
    ("scale/src/designs/stack.rs", "stack"),
];

/// Returns the name for a file's accesses, or the file's path.
pub fn word(file: &str) -> &str {
    WORDS.iter().find(|(path, _)| file.contains(path)).map_or(file, |(_, word)| word)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_with_a_name_exists() {
        for (path, word) in WORDS {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
            assert!(root.join(path).exists() || root.join(format!("{path}.rs")).exists(), "{path} ({word})");
        }
    }

    #[test]
    fn files_are_named_by_their_end() {
        assert_eq!(word("/somewhere/src/pool/core/shard.rs"), "shard head");
        assert_eq!(word("src/pool/core/waitlist/own.rs"), "waiter's cell");
        assert_eq!(word("src/elsewhere.rs"), "src/elsewhere.rs");
    }
}
