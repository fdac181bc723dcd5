//! Names for the contents of shared memory, by the file that accesses it.

/// The names of the files' accesses. The files are paths from the root of the repository. If several entries match, the
/// first counts.
pub const WORDS: &[(&str, &str)] = &[
    ("src/pool/shard.rs", "shard head"),
    ("src/pool/state.rs", "pool word"),
    ("src/pool/capacity.rs", "capacity word"),
    ("src/pool/slab.rs", "slot"),
    ("src/pool/tally.rs", "slot tally"),
    ("src/pool/attention.rs", "attention"),
    ("src/pool/waitlist/word.rs", "queue word"),
    ("src/pool/waitlist/segments.rs", "segment"),
    ("src/pool/waitlist", "waiter's cell"),
    ("src/sync/brief.rs", "wait list lock"),
    ("src/pool/acquire.rs", "stale count"),
    ("src/pool/core.rs", "registry"),
    ("src/pool/held.rs", "registry"),
    ("src/pool/permit.rs", "registry"),
    ("src/pool/maintenance.rs", "registry"),
    ("src/pool/registry.rs", "registry"),
    ("src/metrics", "metrics"),
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
        assert_eq!(word("/somewhere/src/pool/shard.rs"), "shard head");
        assert_eq!(word("src/pool/waitlist/own.rs"), "waiter's cell");
        assert_eq!(word("src/elsewhere.rs"), "src/elsewhere.rs");
    }
}
