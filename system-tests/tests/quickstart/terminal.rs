//! What the quickstart draws in a terminal.

use std::fs::File;
use std::io::Read;
use std::process::Stdio;

use nix::pty::{Winsize, openpty};

use super::quickstart;

/// Returns what a short run writes to a terminal of this width.
fn shown(columns: u16, environment: &[(&str, &str)]) -> String {
    let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let both = openpty(Some(&size), None).unwrap();
    let mut command = quickstart();
    command.args(["--seconds", "1", "--tasks", "50"]).env("TERM", "xterm").env_remove("NO_COLOR");
    command.envs(environment.iter().copied()).stdout(Stdio::null()).stderr(both.slave);
    let mut child = command.spawn().unwrap();
    // From now on, only the child has a handle to the other side of the terminal, so reading ends when the child exits.
    drop(command);
    let (mut screen, mut text) = (File::from(both.master), Vec::new());
    let mut chunk = [0; 4096];
    while let Ok(length @ 1..) = screen.read(&mut chunk) {
        text.extend(&chunk[..length]);
    }
    assert!(child.wait().unwrap().success());
    String::from_utf8(text).unwrap()
}

/// Returns text without its escape sequences.
fn plain(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |plain, part| plain + part.trim_start_matches(|c: char| c.is_ascii_digit()).get(1..).unwrap())
}

#[test]
fn picture_fits_the_terminal_and_is_drawn_over_itself() {
    for columns in [60, 100] {
        let text = shown(columns, &[]);
        let lines = plain(&text);
        assert!(lines.lines().all(|line| line.chars().count() <= columns.into()), "{lines}");
        for part in ["operations/s", "p99 ", "0 errors", " Standalone", " in use, ", "is Standalone, was Unknown"] {
            assert!(lines.contains(part), "no {part:?} in\n{lines}");
        }
        assert!(lines.contains(['▅', '▆', '▇', '█']), "{lines}");
        // Seven lines: two for the load's numbers, one for the sparkline, one for the errors, two for the server, and
        // one for the only event.
        assert!(text.matches("\x1b[7A\x1b[J").count() >= 2, "{text:?}");
        assert!(text.contains("\x1b[36m"), "{text:?}");
    }
}

#[test]
fn picture_has_no_colours_if_the_user_wants_none() {
    let text = shown(60, &[("NO_COLOR", "1")]);
    assert!(text.contains("operations/s") && text.contains("\x1b[7A"), "{text:?}");
    assert!(
        !text.split("\x1b[").skip(1).any(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with('m'))
    );
}
