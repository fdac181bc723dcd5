//! Tests `top` in a terminal: its output, and the state in which it leaves the terminal. Without a terminal, `top`
//! prints a table or JSON.
#![cfg(unix)]

use std::env;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};
use nix::sys::termios::{LocalFlags, tcgetattr};

/// The time after which a hung test fails.
const AGES: Duration = Duration::from_secs(60);

/// Returns the path to an example. `cargo test` builds the examples before it runs any test.
fn example(name: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    let example = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(example.is_file(), "{} does not exist: build it with `cargo build --examples`", example.display());
    example
}

/// `top` with its demo, in a separate terminal. Dropping this value kills `top`.
struct Shown {
    top: Child,
    keyboard: File,
    terminal: OwnedFd,
    printed: mpsc::Receiver<Vec<u8>>,
    seen: Vec<u8>,
}

impl Shown {
    fn start(columns: u16, rows: u16) -> Self {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let both = openpty(Some(&size), None).unwrap();
        let end = || Stdio::from(both.slave.try_clone().unwrap());
        let mut command = Command::new(example("top"));
        command.args(["--interval", "50"]).stdin(end()).stdout(end()).stderr(end());
        let top = command.spawn().unwrap();
        let keyboard = File::from(both.master);
        let mut screen = keyboard.try_clone().unwrap();
        let (sender, printed) = mpsc::channel();
        // The thread exits when the terminal is closed.
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(length @ 1..) = screen.read(&mut chunk) {
                if sender.send(chunk[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { top, keyboard, terminal: both.slave, printed, seen: Vec::new() }
    }

    /// Waits until `top` has printed `text` after the position `from`. Returns the position after the text.
    fn wait_for(&mut self, text: &str, from: usize) -> usize {
        loop {
            let found = self.seen[from..].windows(text.len()).position(|printed| printed == text.as_bytes());
            if let Some(at) = found {
                return from + at + text.len();
            }
            let more = self.printed.recv_timeout(AGES);
            self.seen
                .extend(more.unwrap_or_else(|_| panic!("no {text:?} in {:?}", String::from_utf8_lossy(&self.seen))));
        }
    }

    /// Waits until `top` has exited. Returns whether it reports success.
    fn ends(&mut self) -> bool {
        let begun = Instant::now();
        loop {
            match self.top.try_wait().unwrap() {
                Some(status) => return status.success(),
                None => assert!(begun.elapsed() < AGES, "top does not end"),
            }
            // `top` would block if its output were not read.
            self.seen.extend(self.printed.recv_timeout(Duration::from_millis(10)).unwrap_or_default());
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        // `top` has already exited if the test succeeded.
        let _ = self.top.kill();
        let _ = self.top.wait();
    }
}

#[test]
fn table_fits_the_terminal_and_is_no_wider() {
    for (columns, rows) in [(40, 12), (60, 24), (80, 24), (200, 60), (9, 2)] {
        let mut shown = Shown::start(columns, rows);
        // Waits for three tables. The last two contain the numbers for an interval.
        let mut at = 0;
        for _ in 0..3 {
            at = shown.wait_for("POO", at);
        }
        shown.keyboard.write_all(b"q").unwrap();
        assert!(shown.ends());
        let text = String::from_utf8(shown.seen.clone()).unwrap();
        let mut drawn = 0;
        // The text that follows each movement of the cursor to a row: `ESC [ row ; 1 H`.
        for part in text.split("\x1b[").collect::<Vec<_>>().windows(2) {
            let Some(row) = part[0].strip_suffix(";1H") else { continue };
            assert!(row.parse::<u16>().unwrap() <= rows, "{row}");
            let line = part[1].strip_prefix("2K").expect("a line is drawn over an older one");
            assert!(line.len() <= columns.into(), "{line:?} in {columns} columns");
            assert!(!line.contains(char::is_control), "{line:?}");
            drawn += usize::from(!line.is_empty());
        }
        assert!(drawn >= 3 * usize::from(rows.min(3)), "only {drawn} lines: {text:?}");
    }
}

#[test]
fn terminal_is_restored_however_top_ends() {
    for way in ["q", "\u{3}", "INT", "TERM", "HUP"] {
        let mut shown = Shown::start(80, 24);
        let before = tcgetattr(&shown.terminal).unwrap();
        let at = shown.wait_for("\x1b[?1049h", 0);
        shown.wait_for("OUT/S", at);
        let raw = tcgetattr(&shown.terminal).unwrap();
        assert!(!raw.local_flags.contains(LocalFlags::ICANON), "keys would have to be entered with Return");
        match way {
            "q" | "\u{3}" => shown.keyboard.write_all(way.as_bytes()).unwrap(),
            signal => {
                let id = shown.top.id().to_string();
                assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
            }
        }
        assert!(shown.ends(), "{way:?}");
        assert_eq!(tcgetattr(&shown.terminal).unwrap(), before, "{way:?}");
        // At the end, `top` restores the main screen and its cursor, and prints nothing more.
        let left = shown.wait_for("\x1b[?1049l\x1b[?25h", at);
        assert_eq!(left, shown.seen.len(), "{way:?}");
    }
}

#[test]
fn output_that_is_no_terminal_is_plain_text() {
    let output = Command::new(example("top")).args(["--interval", "50", "--width", "60"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.starts_with("POOL"), "{text}");
    assert!(text.lines().all(|line| line.len() <= 60 && !line.contains(char::is_control)), "{text:?}");
}

#[test]
fn json_is_a_line_for_each_interval_until_the_reader_ends() {
    let mut command = Command::new(example("top"));
    let mut top = command.args(["--interval", "50", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(top.stdout.take().unwrap()).lines().take(3);
    let moments: Vec<serde_json::Value> = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert_eq!(moments.len(), 3);
    for moment in &moments {
        let pools = moment["pools"].as_array().unwrap();
        assert_eq!(pools.iter().map(|pool| pool["max"].as_u64().unwrap()).collect::<Vec<_>>(), [10, 50], "{moment}");
    }
    assert!(moments.iter().any(|moment| moment["pools"][0]["check_outs_per_second"].as_u64() > Some(0)), "{moments:?}");
    assert!(top.wait().unwrap().success());
}
