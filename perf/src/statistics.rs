//! Medians and percentiles.

/// Sorts the values and returns a percentile: the smallest value such that at least a fraction `share` of all values
/// are no larger.
pub fn percentile(values: &mut [u64], share: f64) -> Option<u64> {
    values.sort_unstable();
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.max(1) - 1).copied()
}

/// Returns the middle value, or the mean of the two middle values.
pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// Returns the lower and the upper quartile: a quarter of all values lie below the first, and three quarters below the
/// second.
pub fn quartiles(values: &[f64]) -> Option<(f64, f64)> {
    let sorted = sorted(values);
    let last = sorted.len().checked_sub(1)?;
    Some((sorted[last / 4], sorted[last - last / 4]))
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_one_of_the_values() {
        let mut hundred: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(percentile(&mut hundred, 0.5), Some(50));
        assert_eq!(percentile(&mut hundred, 0.99), Some(99));
        assert_eq!(percentile(&mut hundred, 1.0), Some(100));
        assert_eq!(percentile(&mut [7], 0.01), Some(7));
        assert_eq!(percentile(&mut [], 0.5), None);
    }

    #[test]
    fn median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn half_of_the_values_are_between_the_quartiles() {
        assert_eq!(quartiles(&[5.0, 4.0, 3.0, 2.0, 1.0]), Some((2.0, 4.0)));
        assert_eq!(quartiles(&[7.0]), Some((7.0, 7.0)));
        assert_eq!(quartiles(&[]), None);
    }
}
