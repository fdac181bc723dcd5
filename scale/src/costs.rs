//! The costs of a simulated core's steps. [`profiles`](crate::profiles) explains how they were determined.

use std::fmt;

use crate::profiles::PROFILES;

/// A time in whole picoseconds, so that simulations are exact and repeatable.
pub type Picos = u64;

/// Declares the costs. Each has a name, a meaning, and its nanoseconds on each of the
/// [`PROFILES`](crate::profiles::PROFILES).
macro_rules! costs {
    ($($(#[$meaning:meta])* $name:ident = $xeon:literal, $epyc:literal;)*) => {
        /// The costs of a machine, in picoseconds. The default costs come from the first of the
        /// [`PROFILES`](crate::profiles::PROFILES).
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Costs {
            $($(#[$meaning])* pub $name: Picos,)*
        }

        impl Costs {
            pub(crate) const XEON: Self = Self { $($name: picos($xeon),)* };
            pub(crate) const EPYC: Self = Self { $($name: picos($epyc),)* };

            /// The names of all costs.
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// Sets a cost by its name.
            ///
            /// # Errors
            ///
            /// Returns a description of the error.
            pub fn set(&mut self, name: &str, nanos: f64) -> Result<(), String> {
                if !(0.0..=1e9).contains(&nanos) {
                    return Err(format!("{name} must be 0 to 1e9 nanoseconds, got {nanos}"));
                }
                match name {
                    $(stringify!($name) => self.$name = picos(nanos),)*
                    _ => return Err(format!("there is no cost {name:?}; the costs are {}", Self::NAMES.join(", "))),
                }
                Ok(())
            }

            /// Returns all costs with their names, in nanoseconds.
            pub fn named(&self) -> Vec<(&'static str, f64)> {
                vec![$((stringify!($name), self.$name as f64 / 1e3),)*]
            }
        }
    };
}

costs! {
    /// A load of a line that the core has.
    load = 0.5, 0.5;
    /// A store, which the core does not wait for.
    store = 0.5, 0.5;
    /// A read-modify-write of a line that the core has exclusively.
    update = 7.5, 5.0;
    /// The additional cost of a line that is in the core's second-level cache, because the core has not used it for a
    /// while.
    second = 7.0, 4.0;
    /// The same for a line that is only in the third-level cache.
    third = 25.0, 12.0;
    /// Fetching a line from another core on the same socket, or invalidating the copy there.
    transfer = 65.0, 25.0;
    /// The same for a core on another socket.
    across = 150.0, 150.0;
    /// Fetching a line that no core has.
    memory = 80.0, 80.0;
    /// The computation between two accesses.
    step = 1.0, 0.3;
    /// How far the core can run ahead: it reaches an access at most this long before all earlier accesses have taken
    /// effect.
    window = 0.0, 25.0;
    /// A pause in a spin loop.
    spin = 15.0, 34.0;
    /// A reading of the clock.
    clock = 45.0, 10.0;
    /// The runtime's computation for a poll of a task, apart from its accesses to shared memory.
    poll = 40.0, 32.0;
    /// A poll of the runtime's events and timers, which keeps other workers from polling them. It does not sleep.
    driver = 250.0, 180.0;
    /// A worker's additional work each time it runs out of tasks: its statistics and the clock.
    batch = 250.0, 190.0;
    /// A system call that does not sleep.
    call = 300.0, 130.0;
    /// The time from a system call that wakes a sleeping thread until the thread runs.
    awake = 5000.0, 13000.0;
}

impl Default for Costs {
    fn default() -> Self {
        PROFILES[0].costs
    }
}

const fn picos(nanos: f64) -> Picos {
    (nanos * 1e3).round() as Picos
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named: Vec<String> = self.named().into_iter().map(|(name, nanos)| format!("{name} {nanos}")).collect();
        f.write_str(&named.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cost_is_set_by_its_name_and_no_other() {
        for name in Costs::NAMES {
            let mut costs = Costs::default();
            costs.set(name, 1_234.0).unwrap();
            let changed: Vec<_> =
                costs.named().into_iter().zip(Costs::default().named()).filter(|(new, old)| new != old).collect();
            assert_eq!(changed.len(), 1);
            assert_eq!(changed[0].0, (*name, 1_234.0));
        }
        assert!(Costs::default().set("transfers", 1.0).unwrap_err().contains("transfer, across"));
        assert!(Costs::default().set("transfer", -1.0).is_err());
        assert!(Costs::default().set("transfer", f64::NAN).is_err());
    }
}
