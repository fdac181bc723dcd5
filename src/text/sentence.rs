//! Writes errors as sentences.

use std::error::Error as StdError;
use std::fmt;

use crate::text::printable::PrintableError;

/// Writes an error as a sentence: its message, followed by the message of each source that the sentence does not
/// already contain.
///
/// The public errors use this for `Debug`, which is how an error that `main` returns is printed.
pub(crate) fn write_sentence(error: &dyn StdError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut sentence = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let message = PrintableError(source).to_string();
        if !sentence.contains(&message) {
            sentence.push_str(": ");
            sentence.push_str(&message);
        }
        next = source.source();
    }
    f.write_str(&sentence)
}

/// Implements `Debug` for errors through [`write_sentence`].
///
/// For an enum, `{:#?}` prints the names of the variants before the sentence, outermost first. A call to the macro
/// lists the variants that hold another error first, and then all other variants.
macro_rules! debug_as_sentence {
    (enum $error:ident { $($whole:ident(_)),* ; $($variant:ident),* $(,)? }) => {
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                if !f.alternate() {
                    return $crate::text::sentence::write_sentence(self, f);
                }
                match self {
                    $(Self::$whole(error) => {
                        write!(f, concat!(stringify!($error), "::", stringify!($whole), "({:#?})"), error)
                    })*
                    $(Self::$variant { .. } => {
                        f.write_str(concat!(stringify!($error), "::", stringify!($variant), ": "))?;
                        $crate::text::sentence::write_sentence(self, f)
                    })*
                }
            }
        }
    };
    ($($error:ty),+ $(,)?) => {$(
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $crate::text::sentence::write_sentence(self, f)
            }
        }
    )+};
}

pub(crate) use debug_as_sentence;
