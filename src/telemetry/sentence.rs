//! Events as sentences.

use std::fmt;

use super::log::{check_out_error, described, milliseconds, why_closed, why_failed};
use crate::pool::event::PoolEvent;

/// An event in the unstructured form of the CMAP specification ("Connection Pool Logging"). Absent values are left out.
pub(super) struct Sentence<'e>(pub(super) &'e PoolEvent);

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let event = self.0;
        // Host and port in the specification's notation, with an IPv6 address in brackets.
        let address = event.address();
        match event {
            PoolEvent::PoolCreated { options, .. } => {
                write!(f, "Connection pool created for {address}")?;
                for (index, (name, value)) in options.specified().into_iter().enumerate() {
                    let before = if index == 0 { " using options " } else { ", " };
                    write!(f, "{before}{name}={value}")?;
                }
                Ok(())
            }
            PoolEvent::PoolReady { .. } => write!(f, "Connection pool ready for {address}"),
            PoolEvent::PoolCleared { service_id, error, .. } => {
                write!(f, "Connection pool for {address} cleared")?;
                if let Some(service_id) = service_id {
                    write!(f, " for serviceId {service_id}")?;
                }
                error.as_ref().map_or(Ok(()), |error| write!(f, ". Error: {}", described(error)))
            }
            PoolEvent::PoolClosed { .. } => write!(f, "Connection pool closed for {address}"),
            PoolEvent::ConnectionCreated { connection_id, .. } => {
                write!(f, "Connection created: address={address}, driver-generated ID={connection_id}")
            }
            PoolEvent::ConnectionReady { connection_id, duration, stages, .. } => {
                let duration = milliseconds(*duration);
                write!(f, "Connection ready: address={address}, driver-generated ID={connection_id}, ")?;
                write!(f, "established in={duration} ms")?;
                let reported = stages.named().filter_map(|(name, took)| Some((name, (*took)?)));
                let mut count = 0;
                for (name, took) in reported {
                    write!(f, "{}{name}={} ms", if count == 0 { " (" } else { ", " }, milliseconds(took))?;
                    count += 1;
                }
                if count == 0 { Ok(()) } else { f.write_str(")") }
            }
            PoolEvent::ConnectionClosed { connection_id, reason, error, .. } => {
                let reason = why_closed(*reason);
                write!(
                    f,
                    "Connection closed: address={address}, driver-generated ID={connection_id}. Reason: {reason}"
                )?;
                error.as_ref().map_or(Ok(()), |error| write!(f, ". Error: {}", described(error)))
            }
            PoolEvent::ConnectionCheckOutStarted { .. } => {
                write!(f, "Checkout started for connection to {address}")
            }
            PoolEvent::ConnectionCheckOutFailed { reason, duration, .. } => {
                write!(f, "Checkout failed for connection to {address}. Reason: {}", why_failed(*reason))?;
                if let Some(error) = check_out_error(event) {
                    write!(f, ". Error: {}", described(error))?;
                }
                write!(f, ". Duration: {} ms", milliseconds(*duration))
            }
            PoolEvent::ConnectionCheckedOut { connection_id, duration, .. } => {
                let duration = milliseconds(*duration);
                write!(f, "Connection checked out: address={address}, driver-generated ID={connection_id}, ")?;
                write!(f, "duration={duration} ms")
            }
            PoolEvent::ConnectionCheckedIn { connection_id, duration, .. } => {
                let duration = milliseconds(*duration);
                write!(f, "Connection checked in: address={address}, driver-generated ID={connection_id}, ")?;
                write!(f, "used for={duration} ms")
            }
        }
    }
}
