//! Names and numbers that a person has written.

/// Returns the name that is closest to a misspelt name, with at most two letters wrong, extra or missing.
pub(crate) fn nearest(misspelt: &str, names: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    // Longer text cannot be a misspelt name, and comparing it would only cost time.
    let all = names.filter(|_| misspelt.len() <= 64).map(|name| (distance(misspelt, name), name));
    all.filter(|(distance, known)| *distance <= 2 && known.len() > 4).min().map(|(_, known)| known)
}

/// Returns how many letters must be changed, added or removed to turn one name into the other, ignoring case.
fn distance(ours: &str, theirs: &str) -> usize {
    let mut row: Vec<usize> = (0..=theirs.len()).collect();
    for (at, our) in ours.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, their) in theirs.bytes().enumerate() {
            let changed = diagonal + usize::from(!our.eq_ignore_ascii_case(&their));
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[theirs.len()]
}

/// Parses a number that consists only of digits and lies within the bounds.
pub(crate) fn number(text: &str, least: u64, most: u64) -> Option<u64> {
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse().ok().filter(|number| (least..=most).contains(number)),
        false => None,
    }
}
