//! Errors that the body of a transaction returns.

use std::error::Error as StdError;
use std::ops::Deref;

use super::ClientError;
use super::answers::client_error_in;

/// An error that the body of a transaction returns. A [`ClientError`] must convert into this type. The type must
/// implement [`Error`](StdError), or dereference to a type that does, as `Box<dyn Error + Send + Sync>` and
/// `anyhow::Error` do.
///
/// The original `ClientError` must be among the error's sources, or the transaction is not repeated. `thiserror`'s
/// `#[from]` attribute ensures this, even with `#[error(transparent)]`. The compiler infers `Kind`.
///
/// ```no_run
/// use bson::doc;
/// use thiserror::Error;
/// use wharf::ClientError;
///
/// #[derive(Debug, Error)]
/// enum OrderError {
///     #[error("nothing is left of it")]
///     SoldOut,
///     #[error(transparent)]
///     Database(#[from] ClientError),
/// }
///
/// # async fn example(client: wharf::Client, mut session: wharf::client::Session) -> Result<(), OrderError> {
/// let left = doc! { "q": { "_id": 7, "left": { "$gt": 0 } }, "u": { "$inc": { "left": -1 } } };
/// session
///     .with_transaction_as::<OrderError, _, _>(Default::default(), async |mut session| {
///         match client.update("shop", "things", [&left]).session(&mut session).await?.matched {
///             0 => Err(OrderError::SoldOut),
///             _ => Ok(()),
///         }
///     })
///     .await
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the error of a transaction's body",
    note = "implement `From<wharf::ClientError>` and `std::error::Error`, whose `source` returns the client's error"
)]
pub trait BodyError<Kind>: From<ClientError> {
    /// Returns the client's error: this error itself, or the first client error among its sources.
    fn client_error(&self) -> Option<ClientError>;
}

/// The kind of a type that is an error.
#[derive(Debug)]
pub enum Itself {}

/// The kind of a type that dereferences to an error.
#[derive(Debug)]
pub enum Pointer {}

impl<E: StdError + From<ClientError> + 'static> BodyError<Itself> for E {
    fn client_error(&self) -> Option<ClientError> {
        client_error_in(self)
    }
}

impl<P: Deref<Target: AsError> + From<ClientError>> BodyError<Pointer> for P {
    fn client_error(&self) -> Option<ClientError> {
        client_error_in((**self).as_error())
    }
}

/// An error of an unknown type.
pub trait AsError {
    /// Returns the error without its auto traits.
    fn as_error(&self) -> &(dyn StdError + 'static);
}

impl AsError for dyn StdError + 'static {
    fn as_error(&self) -> &(dyn StdError + 'static) {
        self
    }
}

impl AsError for dyn StdError + Send + Sync + 'static {
    fn as_error(&self) -> &(dyn StdError + 'static) {
        self
    }
}
