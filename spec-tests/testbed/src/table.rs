//! The results table for the official suites. The tests print it even when they pass.
//!
//! Each test binary prints its own rows, and keeps them in a separate file beside the binaries. The tests of this package
//! run last in `cargo test --workspace`, and print the rows of all test binaries.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A row of the table: the results of a suite's cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row<'r> {
    /// The suite's folder.
    pub suite: &'r str,
    /// The number of files in the suite.
    pub files: usize,
    /// The number of cases in the suite's files.
    pub cases: usize,
    /// Cases that passed.
    pub passed: usize,
    /// Cases that were not run, or that fail for a known reason.
    pub skipped: usize,
    /// Cases that failed.
    pub failed: usize,
}

impl<'r> Row<'r> {
    /// Returns the row of a suite with one case in each file, all of which passed.
    #[must_use]
    pub fn passed(suite: &'r str, files: usize) -> Self {
        Self { suite, files, cases: files, passed: files, skipped: 0, failed: 0 }
    }

    fn to_line(self) -> String {
        let Self { suite, files, cases, passed, skipped, failed } = self;
        format!("{suite}\t{files}\t{cases}\t{passed}\t{skipped}\t{failed}")
    }

    fn from_line(line: &'r str) -> Option<Self> {
        let mut words = line.split('\t');
        let suite = words.next()?;
        let mut number = || words.next()?.parse().ok();
        let [files, cases, passed, skipped, failed] = [number()?, number()?, number()?, number()?, number()?];
        Some(Self { suite, files, cases, passed, skipped, failed })
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

/// Prints rows and the reasons for skipped cases, and keeps both for [`whole`]. Writes to standard output directly,
/// because the test harness captures the output of `print!`.
pub fn show<'r>(rows: impl IntoIterator<Item = Row<'r>>, reasons: &str) {
    let (mut text, mut kept) = (String::from("\n"), String::new());
    for row in rows {
        text.push_str(&format!("{row}\n"));
        kept.push_str(&format!("{}\n", row.to_line()));
    }
    print(&(text + reasons));
    kept.extend(reasons.lines().map(|reason| format!("{REASON}{reason}\n")));
    // A folder that cannot be written to must not make the suite fail.
    let _ = keep(&kept);
}

/// The first character of a line that contains a reason instead of a row.
const REASON: char = '#';

/// Adds lines to this binary's file. A process's first lines replace those from an earlier process.
fn keep(lines: &str) -> io::Result<()> {
    static BEGUN: Mutex<bool> = Mutex::new(false);
    let mut begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
    let (folder, binary) = place()?;
    let path = folder.join(binary);
    if !*begun {
        fs::create_dir_all(folder)?;
        fs::write(&path, format!("{}\n", run()))?;
        *begun = true;
    }
    fs::OpenOptions::new().append(true).open(path)?.write_all(lines.as_bytes())
}

/// Returns the folder for the rows, which is next to the test binaries' folder, and this binary's name without the hash
/// that changes with each build.
fn place() -> io::Result<(PathBuf, String)> {
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    let binary = std::env::current_exe()?;
    let folder = binary.ancestors().nth(2).ok_or_else(missing)?.join("suites");
    let name = binary.file_stem().and_then(|name| name.to_str()).ok_or_else(missing)?;
    Ok((folder, name.rsplit_once('-').map_or(name, |(name, _)| name).to_owned()))
}

/// Returns a string that identifies a `cargo test` run: the parent process of its test binaries, and when that process
/// started.
fn run() -> String {
    #[cfg(unix)]
    let parent = std::os::unix::process::parent_id();
    #[cfg(not(unix))]
    let parent = "";
    let of_linux = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let stat = of_linux(&format!("/proc/{parent}/stat"));
    // The process's name, in parentheses, may contain any characters. The start time is the 20th field after the name.
    let begun = stat.rsplit(')').next().and_then(|fields| fields.split_whitespace().nth(19)).unwrap_or_default();
    format!("{parent} {begun} {}", of_linux("/proc/sys/kernel/random/boot_id").trim())
}

/// Returns the rows that all binaries of this run wrote, with their sum, and the reasons for skipped cases. Returns
/// `None` if there are no rows.
#[must_use]
pub fn whole() -> Option<String> {
    whole_of(&place().ok()?.0, &run())
}

fn whole_of(folder: &Path, run: &str) -> Option<String> {
    let mut paths: Vec<_> = fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    let texts: Vec<_> = paths.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
    // Ignores rows from other runs.
    let present = texts.iter().filter_map(|text| text.split_once('\n')).filter(|(of, _)| *of == run);
    let lines: Vec<_> = present.flat_map(|(_, lines)| lines.lines()).collect();
    let (mut rows, mut sum) = (String::new(), Row::passed("total", 0));
    for row in lines.iter().filter_map(|line| Row::from_line(line)) {
        rows.push_str(&format!("{row}\n"));
        sum.files += row.files;
        sum.cases += row.cases;
        sum.passed += row.passed;
        sum.skipped += row.skipped;
        sum.failed += row.failed;
    }
    let reasons = lines.iter().filter_map(|line| line.strip_prefix(REASON)).map(|reason| format!("{reason}\n"));
    (!rows.is_empty()).then(|| format!("\n{rows}{sum}\n{}", reasons.collect::<String>()))
}

/// Prints text that the test harness does not capture.
pub fn print(text: &str) {
    // A closed standard output must not make the suite fail.
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
    #[test]
    fn whole_table_has_the_rows_of_this_run_their_sum_and_the_reasons() {
        let folder = crate::folder::Folder::create("table").unwrap();
        let write = |binary: &str, text: &str| fs::write(folder.path().join(binary), text).unwrap();
        assert_eq!(whole_of(folder.path(), "7"), None);
        write("unified", "7\ncrud\t2\t9\t5\t3\t1\n#crud: 3 skipped: it needs\tmore\n");
        write("cmap", "7\ncmap\t4\t4\t4\t0\t0\n");
        write("uri", "6\nuri\t8\t8\t8\t0\t0\n");
        let cmap = Row::passed("cmap", 4);
        let crud = Row { suite: "crud", files: 2, cases: 9, passed: 5, skipped: 3, failed: 1 };
        let sum = Row { suite: "total", files: 6, cases: 13, passed: 9, skipped: 3, failed: 1 };
        let expected = format!("\n{cmap}\n{crud}\n{sum}\ncrud: 3 skipped: it needs\tmore\n");
        assert_eq!(whole_of(folder.path(), "7"), Some(expected));
    }

    #[test]
    fn first_rows_of_a_process_replace_those_of_an_earlier_one() {
        let (folder, binary) = place().unwrap();
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(&binary), "6\nuri\t8\t8\t8\t0\t0\n").unwrap();
        // The text is not a row, so this test does not add a row to the whole table.
        for _ in 0..2 {
            keep("").unwrap();
        }
        assert_eq!(fs::read_to_string(folder.join(binary)).unwrap(), format!("{}\n", run()));
    }

    /// Asserts nothing: its output is the summary of the suites at the end of `cargo test --workspace`.
    #[test]
    fn whole_table_is_printed() {
        print(&whole().unwrap_or_default());
    }
}
