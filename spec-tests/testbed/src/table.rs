//! The table of the official suites. The tests print it although they pass.

use std::fmt;
use std::io::{self, Write};

/// How the cases of a suite ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row<'r> {
    /// The suite's folder.
    pub suite: &'r str,
    /// The number of its files.
    pub files: usize,
    /// The number of cases in them.
    pub cases: usize,
    /// Cases that have passed.
    pub passed: usize,
    /// Cases that were not run, or that fail for a known reason.
    pub skipped: usize,
    /// Cases that have failed.
    pub failed: usize,
}

impl<'r> Row<'r> {
    /// Returns the row of a suite with one case in each file, all of which have passed.
    #[must_use]
    pub fn passed(suite: &'r str, files: usize) -> Self {
        Self { suite, files, cases: files, passed: files, skipped: 0, failed: 0 }
    }
}

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { suite, files, cases, passed, skipped, failed } = self;
        write!(
            f,
            "suite {suite:<45} {files:>4} files {cases:>4} cases {passed:>4} passed {skipped:>4} skipped {failed:>3} failed"
        )
    }
}

/// Prints rows, and the reasons of skipped cases. The harness would keep back what `print!` writes.
pub fn show<'r>(rows: impl IntoIterator<Item = Row<'r>>, reasons: &str) {
    let mut text = String::from("\n");
    for row in rows {
        text.push_str(&format!("{row}\n"));
    }
    print(&(text + reasons));
}

/// Prints a text past the harness.
pub fn print(text: &str) {
    // A closed output is no failure of the suite.
    let _ = io::stdout().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_has_all_numbers() {
        let row = Row { suite: "crud", files: 1, cases: 9, passed: 5, skipped: 3, failed: 1 };
        let words = row.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words, "suite crud 1 files 9 cases 5 passed 3 skipped 1 failed");
        assert_eq!(Row::passed("crud", 2), Row { files: 2, cases: 2, passed: 2, skipped: 0, failed: 0, ..row });
    }
}
