//! Errors that the body of a transaction returns.

use std::error::Error as StdError;
use std::ops::Deref;

use super::ClientError;
use super::answers::client_error_in;

/// An error that the body of a transaction returns: any type that a [`ClientError`] converts into and that is an
/// [`Error`](StdError), or that dereferences to one, such as `Box<dyn Error + Send + Sync>` and `anyhow::Error`.
///
/// Its sources must lead to the `ClientError` that it was made from, or the transaction is not repeated. The `#[from]` of
/// `thiserror` does that, even with `#[error(transparent)]`. The compiler finds `Kind`.
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
pub trait BodyError<Kind>: From<ClientError> {
    /// Returns the client's error: this error itself, or the first one among its sources.
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
