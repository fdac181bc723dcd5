//! The Universal Scalability Law: how throughput depends on the number of cores.
//!
//! X(n) = λn / (1 + σ(n − 1) + κn(n − 1)). λ is the throughput of one core, σ the share of the work that only one core
//! at a time can do, and κ the cost of keeping cores coherent, which grows with the number of pairs of cores.

/// The parameters of the law.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Law {
    /// The operations per second of one core.
    pub lambda: f64,
    /// Contention.
    pub sigma: f64,
    /// Coherence.
    pub kappa: f64,
}

impl Law {
    /// Fits the law to measurements by minimizing the relative errors. Each measurement is a number of cores and the
    /// operations per second on that many cores. Returns `None` if there are fewer than three measurements.
    pub fn fit(measured: &[(usize, f64)]) -> Option<Self> {
        if measured.len() < 3 || measured.iter().any(|&(_, throughput)| throughput <= 0.0) {
            return None;
        }
        // n / X = (1 + σ(n − 1) + κn(n − 1)) / λ is linear in 1/λ, σ/λ and κ/λ. None of the three can be negative; a
        // coefficient that would be negative is left out.
        let subsets = [[true, true, true], [true, true, false], [true, false, true], [true, false, false]];
        let laws = subsets.into_iter().filter_map(|terms| {
            let [a, b, c] = least_squares(measured, terms)?;
            // A negative value this close to zero is a rounding error.
            let is_allowed = a > 0.0 && b > -1e-9 * a && c > -1e-9 * a;
            is_allowed.then(|| Self { lambda: 1.0 / a, sigma: (b / a).max(0.0) + 0.0, kappa: (c / a).max(0.0) + 0.0 })
        });
        laws.min_by(|one, other| one.error(measured).total_cmp(&other.error(measured)))
    }

    /// Returns the throughput of this many cores according to the law.
    pub fn throughput(&self, cores: f64) -> f64 {
        self.lambda * cores / (1.0 + self.sigma * (cores - 1.0) + self.kappa * cores * (cores - 1.0))
    }

    /// Returns the sum of the squared relative errors of n / X.
    fn error(&self, measured: &[(usize, f64)]) -> f64 {
        let of = |&(cores, throughput): &(usize, f64)| throughput / self.throughput(cores as f64) - 1.0;
        measured.iter().map(of).map(|error| error * error).sum()
    }
}

/// Solves the normal equations for the coefficients to fit. The other coefficients are 0.
fn least_squares(measured: &[(usize, f64)], wanted: [bool; 3]) -> Option<[f64; 3]> {
    let mut matrix = [[0.0; 4]; 3];
    for &(cores, throughput) in measured {
        let n = cores as f64;
        // Dividing by n / X makes each measurement's error relative.
        let terms = [1.0, n - 1.0, n * (n - 1.0)].map(|term| term * throughput / n);
        for row in 0..3 {
            for column in 0..3 {
                matrix[row][column] += terms[row] * terms[column];
            }
            matrix[row][3] += terms[row];
        }
    }
    for (index, _) in wanted.into_iter().enumerate().filter(|(_, wanted)| !wanted) {
        matrix.iter_mut().for_each(|row| row[index] = 0.0);
        matrix[index] = [0.0; 4];
        matrix[index][index] = 1.0;
    }
    for pivot in 0..3 {
        let best = (pivot..3).max_by(|&a, &b| matrix[a][pivot].abs().total_cmp(&matrix[b][pivot].abs()))?;
        matrix.swap(pivot, best);
        if matrix[pivot][pivot].abs() < 1e-30 {
            return None;
        }
        for row in (0..3).filter(|&row| row != pivot) {
            let factor = matrix[row][pivot] / matrix[pivot][pivot];
            let from = matrix[pivot];
            matrix[row].iter_mut().zip(from).for_each(|(value, above)| *value -= factor * above);
        }
    }
    Some(std::array::from_fn(|row| matrix[row][3] / matrix[row][row]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn law_is_found_again_in_its_own_figures() {
        let laws = [
            Law { lambda: 5e7, sigma: 0.0, kappa: 0.0 },
            Law { lambda: 2e6, sigma: 0.3, kappa: 0.0 },
            Law { lambda: 1e6, sigma: 0.05, kappa: 0.002 },
        ];
        for law in laws {
            let figures: Vec<_> = (0..9).map(|power| 1 << power).map(|n| (n, law.throughput(n as f64))).collect();
            let found = Law::fit(&figures).unwrap();
            for n in [1.0, 16.0, 256.0] {
                let ratio = found.throughput(n) / law.throughput(n);
                assert!((ratio - 1.0).abs() < 1e-6, "{law:?} at {n}: {found:?}");
            }
            assert!((found.sigma - law.sigma).abs() < 1e-6 && (found.kappa - law.kappa).abs() < 1e-8, "{found:?}");
        }
    }

    #[test]
    fn more_than_linear_throughput_is_fitted_without_negative_parameters() {
        let found = Law::fit(&[(1, 1.0), (2, 2.2), (4, 4.8), (8, 10.0)]).unwrap();
        assert!(found.sigma >= 0.0 && found.kappa >= 0.0 && found.lambda > 1.0, "{found:?}");
    }

    #[test]
    fn two_figures_are_too_few() {
        assert_eq!(Law::fit(&[(1, 1.0), (2, 2.0)]), None);
    }
}
