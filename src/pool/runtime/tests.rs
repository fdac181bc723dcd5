//! Fixtures that the unit tests of the runtime share.

use std::future::Future;
use std::pin::Pin;

use super::{Connection, Establish, Establishing};
use crate::pool::error::{CheckOutError, EstablishError};

/// An establisher whose connections are consecutive numbers.
pub(super) struct Numbers;

impl Establish for Numbers {
    type Connection = u64;

    async fn establish(&self, connecting: Establishing) -> Result<u64, EstablishError> {
        Ok(connecting.connection_id())
    }
}

pub(super) type CheckOut<'p> = Pin<Box<dyn Future<Output = Result<Connection<Numbers>, CheckOutError>> + 'p>>;
