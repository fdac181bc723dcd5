//! Server selection: pure functions over topology descriptions (Server Selection specification).
//!
//! Selection has three steps. [`suitable`] finds the servers that can serve an operation, [`in_window`] keeps the
//! servers with a low latency, and [`choose`] takes the less busy of two random servers. This layer does no I/O, reads
//! no clock and generates no random numbers: the caller passes the values as arguments. If no server is suitable, a
//! client waits for the topology to change.

use std::time::Duration;

use crate::client::topology::{ServerDescription, ServerType, TopologyDescription, TopologyType, TopologyView};
use crate::endpoint::options::{InvalidOption, PRIMARY, ReadPreference, ReadPreferenceMode, ServerAddress};

/// How often an idle primary writes, so that its secondaries' write dates advance (`idleWritePeriodMS`).
const IDLE_WRITE_PERIOD: Duration = Duration::from_secs(10);

/// The wire version of MongoDB 5.0, the first in which secondaries execute aggregations that write their results.
const OUTPUT_ON_SECONDARIES: i32 = 13;

/// The kind of operation to select a server for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access<'a> {
    /// A write.
    Write,
    /// A read, from the servers that the read preference allows.
    Read(&'a ReadPreference),
    /// A read that writes its result: an aggregation with `$out` or `$merge`.
    Output(&'a ReadPreference),
}

/// Finds the servers that can serve an operation, in the topology's order.
///
/// Servers at the `deprioritized` addresses are only considered if no other server is suitable. `heartbeat_frequency`
/// is the interval between checks of the servers, which limits how precisely their staleness is known.
///
/// # Errors
///
/// Returns [`InvalidOption`] if the read preference's `maxStalenessSeconds` cannot be guaranteed in a replica set that
/// is checked at this interval.
pub fn suitable<'t>(
    topology: &'t TopologyDescription,
    access: Access<'_>,
    deprioritized: &[ServerAddress],
    heartbeat_frequency: Duration,
) -> Result<Vec<&'t ServerDescription>, InvalidOption> {
    let access = match access {
        Access::Output(preference) => Access::Read(topology.for_output(preference)),
        other => other,
    };
    if let Access::Read(preference) = access {
        check_preference(topology, preference, heartbeat_frequency)?;
    }
    let find = |candidates: Vec<&'t ServerDescription>| match topology.topology_type() {
        TopologyType::Unknown => Vec::new(),
        TopologyType::Single | TopologyType::LoadBalanced | TopologyType::Sharded => {
            only(candidates, |server| !server.server_type.is_unknown())
        }
        TopologyType::ReplicaSetNoPrimary | TopologyType::ReplicaSetWithPrimary => match access {
            Access::Write => only(candidates, is_primary),
            Access::Read(preference) | Access::Output(preference) => {
                Members { topology, candidates, preference, heartbeat_frequency }.readable()
            }
        },
    };
    let preferred = topology.servers().filter(|server| !deprioritized.contains(&server.address)).collect();
    let found = find(preferred);
    Ok(if found.is_empty() && !deprioritized.is_empty() { find(topology.servers().collect()) } else { found })
}

impl TopologyDescription {
    /// Returns the read preference for an aggregation that writes its result. This is the primary if any known server
    /// is too old to execute such an aggregation as a secondary (CRUD, "Read preferences and server selection").
    pub(crate) fn for_output<'p>(&self, preference: &'p ReadPreference) -> &'p ReadPreference {
        let is_too_old = |server: &ServerDescription| {
            !server.server_type.is_unknown() && server.max_wire_version < OUTPUT_ON_SECONDARIES
        };
        let has_older = self.topology_type() != TopologyType::LoadBalanced && self.servers().any(is_too_old);
        if has_older { &PRIMARY } else { preference }
    }
}

impl TopologyView {
    /// Returns whether a server can be read from with this read preference (SDAM Logging and Monitoring, "Determining
    /// If A Topology Has Readable/Writable Servers"). Staleness is calculated with the default `heartbeatFrequencyMS`.
    /// A read preference that is invalid with this topology allows no server.
    #[must_use]
    pub fn has_readable_server(&self, preference: &ReadPreference) -> bool {
        let found = suitable(&self.0, Access::Read(preference), &[], Duration::from_secs(10));
        found.is_ok_and(|found| !found.is_empty())
    }

    /// Returns whether a server accepts writes.
    #[must_use]
    pub fn has_writable_server(&self) -> bool {
        suitable(&self.0, Access::Write, &[], Duration::from_secs(10)).is_ok_and(|found| !found.is_empty())
    }
}

/// Keeps the servers within the latency window: their average round-trip time is at most `local_threshold`
/// (`localThresholdMS`) above the smallest average.
///
/// If no server has a round-trip time, as in a load-balanced topology, all servers are in the window. Otherwise,
/// servers without a round-trip time are outside the window.
#[must_use]
pub fn in_window<'t>(suitable: &[&'t ServerDescription], local_threshold: Duration) -> Vec<&'t ServerDescription> {
    let Some(least) = suitable.iter().filter_map(|server| server.average_round_trip_time).min() else {
        return suitable.to_vec();
    };
    let most = least.saturating_add(local_threshold);
    only(suitable.to_vec(), |server| server.average_round_trip_time.is_some_and(|time| time <= most))
}

/// Picks two servers at random and returns the less busy server. Returns `None` if there is no candidate.
///
/// `random` is a random number, which both picks use. `operation_count` returns the number of operations that a server
/// is executing for this client.
#[must_use]
pub fn choose<'t>(
    candidates: &[&'t ServerDescription],
    random: u64,
    operation_count: impl Fn(&ServerDescription) -> u64,
) -> Option<&'t ServerDescription> {
    // Each pick uses half the bits. Scaling them instead of taking a remainder spreads the bias evenly.
    let below = |bits: u64, most: usize| ((bits * most as u64) >> 32) as usize;
    let first_place = below(random >> 32, candidates.len());
    let first = *candidates.get(first_place)?;
    let others = candidates.len() - 1;
    if others == 0 {
        return Some(first);
    }
    let place = below(random & u64::from(u32::MAX), others);
    // Skips the position of the first server.
    let second = candidates[if place < first_place { place } else { place + 1 }];
    Some(if operation_count(second) < operation_count(first) { second } else { first })
}

/// Refuses a read preference that contradicts itself. In a replica set, also refuses a `maxStalenessSeconds` that is
/// too small, given how precisely staleness is known.
fn check_preference(
    topology: &TopologyDescription,
    preference: &ReadPreference,
    heartbeat_frequency: Duration,
) -> Result<(), InvalidOption> {
    preference.check_together()?;
    if !matches!(topology.topology_type(), TopologyType::ReplicaSetNoPrimary | TopologyType::ReplicaSetWithPrimary) {
        return Ok(());
    }
    preference.check()?;
    match preference.max_staleness {
        Some(limit) if limit < heartbeat_frequency.saturating_add(IDLE_WRITE_PERIOD) => Err(InvalidOption::new(
            "maxStalenessSeconds",
            "at least 90, and at least heartbeatFrequencyMS and 10 seconds together",
            limit.as_secs().to_string(),
        )),
        _ => Ok(()),
    }
}

fn only(servers: Vec<&ServerDescription>, is_wanted: impl Fn(&ServerDescription) -> bool) -> Vec<&ServerDescription> {
    servers.into_iter().filter(|server| is_wanted(server)).collect()
}

fn is_primary(server: &ServerDescription) -> bool {
    server.server_type == ServerType::RsPrimary
}

fn is_secondary(server: &ServerDescription) -> bool {
    server.server_type == ServerType::RsSecondary
}

/// Selects the members of a replica set that may be read from.
struct Members<'t, 'p> {
    topology: &'t TopologyDescription,
    candidates: Vec<&'t ServerDescription>,
    preference: &'p ReadPreference,
    heartbeat_frequency: Duration,
}

impl<'t> Members<'t, '_> {
    fn readable(&self) -> Vec<&'t ServerDescription> {
        let primary = || only(self.candidates.clone(), is_primary);
        let secondaries = || self.eligible(only(self.candidates.clone(), is_secondary));
        let first_of = |first: Vec<_>, second: &dyn Fn() -> Vec<_>| if first.is_empty() { second() } else { first };
        match self.preference.mode {
            ReadPreferenceMode::Primary => primary(),
            ReadPreferenceMode::PrimaryPreferred => first_of(primary(), &secondaries),
            ReadPreferenceMode::Secondary => secondaries(),
            ReadPreferenceMode::SecondaryPreferred => first_of(secondaries(), &primary),
            ReadPreferenceMode::Nearest => {
                self.eligible(only(self.candidates.clone(), |server| is_primary(server) || is_secondary(server)))
            }
        }
    }

    /// Returns the members that are not too stale and match the first tag set that any of them matches.
    fn eligible(&self, members: Vec<&'t ServerDescription>) -> Vec<&'t ServerDescription> {
        let fresh = match self.preference.max_staleness {
            None => members,
            Some(limit) => only(members, |server| self.is_fresh(server, limit)),
        };
        if self.preference.tag_sets.is_empty() {
            return fresh;
        }
        let of_set = |tags: &std::collections::BTreeMap<String, String>| {
            only(fresh.clone(), |server| tags.iter().all(|(name, value)| server.tags.get(name) == Some(value)))
        };
        self.preference.tag_sets.iter().map(of_set).find(|matching| !matching.is_empty()).unwrap_or_default()
    }

    /// Returns whether a member lags by at most `limit` (Max Staleness, "Client"). Returns `false` if the lag is
    /// unknown.
    fn is_fresh(&self, server: &ServerDescription, limit: Duration) -> bool {
        if !is_secondary(server) {
            return true;
        }
        self.lag(server)
            .is_some_and(|milliseconds| milliseconds.saturating_add(millis(self.heartbeat_frequency)) <= millis(limit))
    }

    /// Returns how far, in milliseconds, a secondary lags behind the primary, or behind the most up-to-date secondary
    /// if there is no primary.
    fn lag(&self, secondary: &ServerDescription) -> Option<i64> {
        let written = |server: &ServerDescription| server.last_write_date.map(bson::DateTime::timestamp_millis);
        let own = written(secondary)?;
        match self.topology.primary() {
            Some(primary) => {
                let (ours, theirs) = (secondary.last_update_time?, primary.last_update_time?);
                let later = match ours.checked_duration_since(theirs) {
                    Some(later) => millis(later),
                    None => -millis(theirs.duration_since(ours)),
                };
                Some(written(primary)?.saturating_sub(own).saturating_add(later))
            }
            None => {
                let latest = self.topology.servers().filter(|server| is_secondary(server)).filter_map(written).max()?;
                Some(latest.saturating_sub(own))
            }
        }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
