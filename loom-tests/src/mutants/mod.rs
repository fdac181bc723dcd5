//! The mutants: ways to make the pool wrong, each of which a model must notice.
//!
//! Two kinds there are. An ordering is weakened where it stands: `unless_mutant("name", Ordering::…)`, in `src`. What
//! bends the course of the code stands in this catalogue, so that the shipping code reads as what it does: a [`Mutant`]
//! names a fragment of a file below `src` and what stands there instead. [`instrument`] puts all mutants of a file into a
//! copy of it, each behind `if crate::sync::mutant("name") { wrong } else { right }`; `instrumented.rs` builds the copy,
//! and the environment variable `WHARF_MUTANT` says which mutant is awake. `system-tests/tests/proof.rs` checks without a build
//! that each fragment is where the catalogue says.
//!
//! # Fragments
//!
//! A fragment is an expression, or statements that end with `;` or `}`. Between a fragment and the source, spaces and
//! line breaks do not count, and neither do comments: a fragment may be written on one line and stand on three. It must
//! occur exactly once in the item that [`Edit::within`] names. A fragment may lie inside another one, or be the same.

mod clearing;
mod delivery;
mod opening;
mod shards;
mod sync;
mod waiting;

use std::cmp::Reverse;
use std::iter::Peekable;
use std::ops::Range;

/// A way to make the pool wrong.
pub struct Mutant {
    /// Names it in `WHARF_MUTANT` and in the list of negative controls.
    pub name: &'static str,
    /// What the pool does wrong.
    pub does: &'static str,
    /// The file, below `src`.
    pub file: &'static str,
    /// All of them are made at once.
    pub edits: &'static [Edit],
}

/// A fragment of the source, and what stands there in the mutant.
pub struct Edit {
    /// What the item begins with that holds the fragment: `fn name`, or `Drop for Type`.
    pub within: &'static str,
    /// The fragment.
    pub right: &'static str,
    /// What the mutant has instead. Statements may have nothing instead.
    pub wrong: &'static str,
}

/// All mutants, by subject.
pub fn catalogue() -> impl Iterator<Item = &'static Mutant> {
    [shards::MUTANTS, waiting::MUTANTS, opening::MUTANTS, clearing::MUTANTS, delivery::MUTANTS, sync::MUTANTS]
        .into_iter()
        .flatten()
}

/// The text of a file with all its mutants in it, each asleep until it is named.
///
/// # Errors
///
/// Names the mutant, the file and the fragment of each edit whose fragment does not occur exactly once, or of the first
/// whose fragment overlaps with another.
pub fn instrument(file: &str, source: &str) -> Result<String, String> {
    let code = code(source);
    let (mut found, mut complaints) = (Vec::new(), Vec::new());
    for mutant in catalogue().filter(|mutant| mutant.file == file) {
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
    // What lies inside of another fragment comes after it.
    found.sort_by_key(|next| (next.range.start, Reverse(next.range.end)));
    render(source, 0..source.len(), &mut found.iter().peekable())
}

/// Where an edit is made.
struct Found {
    range: Range<usize>,
    mutant: &'static Mutant,
    edit: &'static Edit,
}

fn complaint(mutant: &Mutant, edit: &Edit, why: &str) -> String {
    format!("mutant {}, src/{}, {}: {why}: {}", mutant.name, mutant.file, edit.within, edit.right)
}

/// The text of a range, with the edits in it.
fn render<'p>(
    source: &str,
    range: Range<usize>,
    found: &mut Peekable<impl Iterator<Item = &'p Found>>,
) -> Result<String, String> {
    let (mut text, mut at) = (String::new(), range.start);
    while let Some(next) = found.next_if(|next| next.range.start < range.end) {
        if next.range.end > range.end {
            return Err(complaint(next.mutant, next.edit, "overlaps with the fragment of another mutant"));
        }
        text += &source[at..next.range.start];
        let right = render(source, next.range.clone(), found)?;
        text += &guarded(next.mutant.name, next.edit.wrong, &right);
        at = next.range.end;
    }
    text += &source[at..range.end];
    Ok(text)
}

fn guarded(name: &str, wrong: &str, right: &str) -> String {
    let choice = format!("if crate::sync::mutant(\"{name}\") {{ {wrong} }} else {{ {right} }}");
    if right.ends_with([';', '}']) { choice } else { format!("({choice})") }
}

/// The characters that are neither white space nor in a comment, each with its position.
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

/// Finds the fragment, or says why it cannot be told where it is.
fn find(source: &str, code: &[(usize, char)], edit: &Edit) -> Result<Range<usize>, String> {
    let [(start, _)] = occurrences(source, code, edit.within)[..] else {
        return Err("not exactly one item of the file begins so".into());
    };
    let item = item(&code[start..]).ok_or("the item has no end")?;
    match occurrences(source, item, edit.right)[..] {
        [(start, end)] => Ok(item[start].0..item[end - 1].0 + item[end - 1].1.len_utf8()),
        ref all => Err(format!("the fragment occurs {} times in the item, not once", all.len())),
    }
}

/// Up to the brace that closes the first one.
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

/// Where the fragment begins and ends in the code. A word of the source that only begins or ends with it is another one.
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
