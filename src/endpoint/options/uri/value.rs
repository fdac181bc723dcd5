//! One value of a connection string, and the types that it can be read as.

use std::path::PathBuf;
use std::time::Duration;

use zeroize::Zeroizing;

use super::super::{Acknowledgement, InvalidOption, Mechanism, UriWarning};
use super::Reader;
use super::draft::Rejection;
use crate::text::given::number;

/// The value of an option that is being read.
pub(super) struct Value<'r> {
    /// The option's name, in the form that messages show.
    pub option: &'static str,
    /// The value, percent-decoded unless the option does that itself. It may be a secret.
    pub text: Zeroizing<String>,
    pub reader: &'r mut Reader,
}

impl Value<'_> {
    /// Returns the value unchanged.
    pub fn into_text(mut self) -> String {
        std::mem::take(&mut *self.text)
    }

    /// Reads non-empty text.
    pub fn name(self) -> Result<String, Rejection> {
        if self.text.is_empty() { Err(Rejection::NotAllowed) } else { Ok(self.into_text()) }
    }

    /// Reads the path of a file.
    pub fn path(self) -> Result<Option<PathBuf>, Rejection> {
        self.name().map(|name| Some(name.into()))
    }

    /// Reads the name of a database. An empty name is an error: if it were ignored, authentication would use a
    /// different database.
    pub fn source(self) -> Result<String, Rejection> {
        if self.text.is_empty() {
            return Err(Rejection::Fatal(InvalidOption::because(self.option, "must not be empty")));
        }
        Ok(self.into_text())
    }

    /// Reads a number, which must consist only of digits.
    pub fn number<N: TryFrom<u64>>(&self, least: u64, most: u64) -> Result<N, Rejection> {
        let number = number(&self.text, least, most);
        number.and_then(|number| N::try_from(number).ok()).ok_or(Rejection::NotAllowed)
    }

    /// Reads a number of milliseconds.
    pub fn millis(&self, most: u64) -> Result<Duration, Rejection> {
        self.millis_from(0, most)
    }

    /// Reads a number of milliseconds, which must be at least `least`.
    pub fn millis_from(&self, least: u64, most: u64) -> Result<Duration, Rejection> {
        self.number(least, most).map(Duration::from_millis)
    }

    /// Reads zlib's compression level.
    pub fn level(&self) -> Result<i32, Rejection> {
        match self.text.as_str() {
            "-1" => Ok(-1),
            _ => self.number(0, 9),
        }
    }

    /// Reads `true` or `false`. Also accepts the deprecated words for these values, with a warning.
    pub fn flag(self) -> Result<bool, Rejection> {
        let meaning = match self.text.as_str() {
            "true" => return Ok(true),
            "false" => return Ok(false),
            "1" | "yes" | "y" | "t" => true,
            "0" | "-1" | "no" | "n" | "f" => false,
            _ => return Err(Rejection::NotAllowed),
        };
        self.reader.warn(UriWarning::DeprecatedBoolean { option: self.option, value: self.text.to_string(), meaning });
        Ok(meaning)
    }

    /// Reads one of `words`, by its name.
    pub fn word<W: Copy>(&self, words: &[W], name: fn(W) -> &'static str) -> Result<W, Rejection> {
        words.iter().copied().find(|word| name(*word) == self.text.as_str()).ok_or(Rejection::NotAllowed)
    }

    /// Reads a mechanism. An unknown mechanism is an error: if it were ignored, the client would authenticate in a
    /// different way.
    pub fn mechanism(&self) -> Result<Mechanism, Rejection> {
        Mechanism::named(&self.text).ok_or_else(|| {
            let must = format!("one of {}", Mechanism::supported());
            Rejection::Fatal(InvalidOption::new(self.option, must, format!("{:?}", self.text.as_str())))
        })
    }

    /// Reads a number of servers, or the name of a mode.
    pub fn acknowledgement(self) -> Result<Acknowledgement, Rejection> {
        match self.text.parse::<i64>() {
            Ok(_) => self.number(0, i32::MAX.unsigned_abs().into()).map(Acknowledgement::Servers),
            Err(_) => Ok(Acknowledgement::Mode(self.into_text())),
        }
    }
}
