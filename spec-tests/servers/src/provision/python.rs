//! Python, for `pip download` and for unpacking.

use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::ProvisionError;
use super::artifact::Artifact;

/// The names of the interpreter. The first interpreter that exists and has pip is used.
const PYTHONS: [&str; 2] = ["python3", "python"];

/// How much of Python's output an error includes, in bytes.
const OUTPUT_TAIL: usize = 4_000;

/// Downloads one file into `folder`. The caller must verify its sha256.
pub(super) fn download(artifact: &Artifact, folder: &Path) -> Result<(), ProvisionError> {
    run(artifact, |command| {
        command.args(["-m", "pip", "download", "--no-deps"]).args(artifact.pip_flags);
        command.arg("-d").arg(folder).arg(artifact.requirement);
        // pip must not prompt, because no user can answer. The check for newer versions of pip would send another
        // request.
        command.env("PIP_NO_INPUT", "1").env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    })
}

/// Runs Python with the arguments that `prepare` adds.
pub(super) fn run(artifact: &Artifact, prepare: impl Fn(&mut Command) -> &mut Command) -> Result<(), ProvisionError> {
    let mut reasons = Vec::new();
    for python in PYTHONS {
        let mut command = Command::new(python);
        match prepare(&mut command).stdin(Stdio::null()).output() {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(Output { status, stdout, stderr }) => {
                let printed = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
                if !printed.contains("No module named pip") {
                    let (command, output) = (format!("{command:?}"), tail(&printed, OUTPUT_TAIL).to_owned());
                    return Err(ProvisionError::Python { command, status, output });
                }
                reasons.push(printed.trim().to_owned());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => reasons.push(format!("{python}: {error}")),
            Err(error) => return Err(ProvisionError::io("start", Path::new(python))(error)),
        }
    }
    Err(ProvisionError::NoPip { package: artifact.requirement, reason: reasons.join("; ") })
}

/// Returns the last `length` bytes of `text`, or fewer so as not to split a character.
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
    fn tail_does_not_split_a_character() {
        assert_eq!(tail("abc", 10), "abc");
        assert_eq!(tail("abc", 2), "bc");
        assert_eq!(tail("a\u{e4}b", 2), "b");
    }
}
