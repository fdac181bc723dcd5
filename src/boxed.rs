//! Futures of rare cases, out of the way of frequent ones.

use std::pin::Pin;

/// Boxes what `make` returns: a future that is seldom needed, and would make the one that awaits it larger.
///
/// A box alone keeps only the waiting future small. What the rare one does would still be compiled into the function
/// that polls the frequent case, and so would its making, on the stack before it is moved into its box: each call has a
/// frame with room for it then, and writes to every page of that. For a command that was 17 KiB, because authenticating
/// again would fit in. So it is made in a function of its own, and its type is erased.
#[cold]
#[inline(never)]
pub(crate) fn boxed<'f, F>(make: impl FnOnce() -> F) -> Pin<Box<dyn Future<Output = F::Output> + Send + 'f>>
where
    F: Future + Send + 'f,
{
    Box::pin(make())
}
