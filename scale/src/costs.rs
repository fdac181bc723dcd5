//! What each step of a simulated core takes.

use std::fmt;

/// A time in picoseconds, which keeps simulations exact and repeatable.
pub type Picos = u64;

/// Declares the costs: name, default in nanoseconds, meaning.
macro_rules! costs {
    ($($(#[$meaning:meta])* $name:ident = $nanos:literal;)*) => {
        /// The costs of a machine, in picoseconds.
        ///
        /// By default those of the machine with 16 cores in BENCHMARKS.md, as far as its benchmark shows them: `update`,
        /// `step` and `poll` are chosen so that one core's hits and yields take as long as there, `transfer` so that two
        /// cores' connections that return elsewhere do. The others are usual values.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Costs {
            $($(#[$meaning])* pub $name: Picos,)*
        }

        impl Default for Costs {
            fn default() -> Self {
                Self { $($name: picos($nanos),)* }
            }
        }

        impl Costs {
            /// The names of all costs.
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// Sets a cost by its name.
            ///
            /// # Errors
            ///
            /// A text that says what is wrong.
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
    load = 0.5;
    /// A store, which the core does not wait for.
    store = 0.5;
    /// A read-modify-write of a line that the core has for itself.
    update = 7.5;
    /// What a line costs in addition that the core has not used for long, because it is in the second level of its cache.
    second = 7.0;
    /// Fetching a line from another core of the same socket, or taking it away from there.
    transfer = 75.0;
    /// The same from another socket.
    across = 150.0;
    /// Fetching a line that no core has.
    memory = 80.0;
    /// The computation between two accesses.
    step = 1.1;
    /// A pause in a loop that spins.
    spin = 15.0;
    /// A reading of the clock.
    clock = 25.0;
    /// The runtime's computation for a poll of a task, beside its accesses to shared memory.
    poll = 60.0;
    /// A system call that does not sleep.
    call = 300.0;
    /// From a system call that wakes a sleeping thread until the thread runs.
    awake = 5000.0;
}

fn picos(nanos: f64) -> Picos {
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
