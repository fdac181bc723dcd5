//! The catalogue of mutants: faults in the pool, each of which a model must catch.
//!
//! A mutant that weakens an ordering is in `src`, at the access: `unless_mutant("name", Ordering::…)`. All other
//! mutants are here, so that the shipping code contains no faults. A [`Mutant`] names fragments of a file in `src` and
//! their replacements.
//!
//! [`instrument`] makes the replacements in a copy of the file, each as
//! `if crate::pool::sync::mutant("name") { wrong } else { right }`. A single build, made by
//! [`instrumented`](crate::instrumented), therefore contains all mutants. The environment variable `WHARF_MUTANT`
//! selects one of them. The `proof` test does not need that build to check that each fragment is where the catalogue
//! says it is.
//!
//! # Fragments
//!
//! A fragment is an expression, or statements that end with `;` or `}`. It must occur exactly once in the item that
//! [`Edit::within`] names. White space and comments are ignored, so a fragment's line breaks may differ from the line
//! breaks in the source. Fragments may be nested or equal, but must not otherwise overlap.

mod clearing;
mod delivery;
mod holders;
mod opening;
mod shards;
mod sharing;
mod sync;
mod tickets;
mod waiting;

use std::cmp::Reverse;
use std::iter::Peekable;
use std::ops::Range;
use std::path::Path;

/// A fault in the pool.
pub struct Mutant {
    /// The name in `WHARF_MUTANT` and in the list of negative controls.
    pub name: &'static str,
    /// A sentence that says what the pool does wrong.
    pub does: &'static str,
    /// The file, relative to `src`.
    pub file: &'static str,
    /// The replacements. The mutant makes all of them.
    pub edits: &'static [Edit],
}

/// A fragment of a file, and its replacement.
pub struct Edit {
    /// The beginning of the item that contains the fragment: `fn name`, `Drop for Type`, `impl Type`.
    pub within: &'static str,
    /// The fragment, as it is in the source.
    pub right: &'static str,
    /// The replacement. Empty if the mutant leaves statements out.
    pub wrong: &'static str,
}

/// Returns all mutants, grouped by subject.
pub fn catalogue() -> impl Iterator<Item = &'static Mutant> {
    [
        shards::MUTANTS,
        waiting::MUTANTS,
        tickets::MUTANTS,
        opening::MUTANTS,
        sharing::MUTANTS,
        clearing::MUTANTS,
        delivery::MUTANTS,
        holders::MUTANTS,
        sync::MUTANTS,
    ]
    .into_iter()
    .flatten()
}

/// Returns whether the pool in this build contains a mutant. Each build has only one of the two ways to park, and
/// therefore only the mutants for that way. A mutant that is not in the catalogue is assumed to be present.
pub fn is_present(mutant: &str) -> bool {
    let absent = match cfg!(feature = "event-listener-queue") {
        true => "pool/core/waitlist/own.rs",
        false => "pool/core/waitlist/event.rs",
    };
    catalogue().find(|entry| entry.name == mutant).is_none_or(|entry| entry.file != absent)
}

/// Returns the text of a file with its mutants inserted, each behind its guard. `file` is relative to `src`.
///
/// # Errors
///
/// Returns an error that names each edit whose fragment does not occur exactly once, with its mutant and file. If every
/// fragment occurs exactly once, the error names the first edit whose fragment overlaps another fragment.
pub fn instrument(file: &Path, source: &str) -> Result<String, String> {
    apply(catalogue().filter(|mutant| Path::new(mutant.file) == file), source)
}

fn apply(mutants: impl Iterator<Item = &'static Mutant>, source: &str) -> Result<String, String> {
    let code = code(source);
    let (mut found, mut complaints) = (Vec::new(), Vec::new());
    for mutant in mutants {
        for edit in mutant.edits {
            match find(source, &code, edit) {
                Ok(range) => found.push(Found { range, mutant, edit }),
                Err(why) => complaints.push(complaint(mutant, edit, &why)),
            }
        }
    }
    if !complaints.is_empty() {
        return Err(complaints.join("\n"));
    }
    // An outer fragment comes before the fragments inside it.
    found.sort_by_key(|next| (next.range.start, Reverse(next.range.end)));
    render(source, 0..source.len(), &mut found.iter().peekable())
}

/// An edit and its position in the source.
struct Found {
    range: Range<usize>,
    mutant: &'static Mutant,
    edit: &'static Edit,
}

fn complaint(mutant: &Mutant, edit: &Edit, why: &str) -> String {
    let fragment = edit.right.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("mutant {} in src/{}, `{}`: {why}: {fragment}", mutant.name, mutant.file, edit.within)
}

/// Returns the text of a range, with its edits applied.
fn render<'p>(
    source: &str,
    range: Range<usize>,
    found: &mut Peekable<impl Iterator<Item = &'p Found>>,
) -> Result<String, String> {
    let (mut text, mut at) = (String::new(), range.start);
    while let Some(next) = found.next_if(|next| next.range.start < range.end) {
        if next.range.end > range.end {
            return Err(complaint(next.mutant, next.edit, "the fragment overlaps with another one"));
        }
        text += &source[at..next.range.start];
        let right = render(source, next.range.clone(), found)?;
        text += &guarded(next.mutant.name, next.edit.wrong, &right);
        at = next.range.end;
    }
    text += &source[at..range.end];
    Ok(text)
}

/// Returns the code that chooses between the right and the wrong code. An expression is put in parentheses, because it
/// may be part of a larger expression.
fn guarded(name: &str, wrong: &str, right: &str) -> String {
    let choice = format!("if crate::pool::sync::mutant(\"{name}\") {{ {wrong} }} else {{ {right} }}");
    if right.ends_with([';', '}']) { choice } else { format!("({choice})") }
}

/// Returns the characters that are neither white space nor part of a comment, each with its position.
fn code(text: &str) -> Vec<(usize, char)> {
    let mut code = Vec::new();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let comment = line.find("//").unwrap_or(line.len());
        let characters = line[..comment].char_indices().filter(|(_, character)| !character.is_whitespace());
        code.extend(characters.map(|(at, character)| (start + at, character)));
        start += line.len();
    }
    code
}

/// Finds a fragment. The error says why its position is missing or ambiguous.
fn find(source: &str, code: &[(usize, char)], edit: &Edit) -> Result<Range<usize>, String> {
    let [(start, _)] = occurrences(source, code, edit.within)[..] else {
        return Err("the item must occur once in the file".into());
    };
    let item = item(&code[start..]).ok_or("the item has no end")?;
    match occurrences(source, item, edit.right)[..] {
        [(start, end)] => Ok(item[start].0..item[end - 1].0 + item[end - 1].1.len_utf8()),
        ref all => Err(format!("the fragment must occur once in the item, but occurs {} times", all.len())),
    }
}

/// Returns the code up to the brace that matches its first brace.
fn item(code: &[(usize, char)]) -> Option<&[(usize, char)]> {
    let mut depth = 0;
    for (index, (_, character)) in code.iter().enumerate() {
        match character {
            '{' => depth += 1,
            '}' if depth == 1 => return Some(&code[..=index]),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Returns the ranges of the code that are equal to the fragment and do not begin or end within a word.
fn occurrences(source: &str, code: &[(usize, char)], fragment: &str) -> Vec<(usize, usize)> {
    let fragment: Vec<char> = self::code(fragment).into_iter().map(|(_, character)| character).collect();
    let (Some(first), Some(last)) = (fragment.first(), fragment.last()) else { return Vec::new() };
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    let mut found = Vec::new();
    for (start, window) in code.windows(fragment.len()).enumerate() {
        if !window.iter().map(|(_, character)| character).eq(&fragment) {
            continue;
        }
        let end = window[window.len() - 1].0 + last.len_utf8();
        let before = source[..window[0].0].chars().next_back();
        let after = source[end..].chars().next();
        let goes_on = is_word(*first) && before.is_some_and(is_word) || is_word(*last) && after.is_some_and(is_word);
        if !goes_on {
            found.push((start, start + fragment.len()));
        }
    }
    found
}

#[cfg(test)]
mod tests;
