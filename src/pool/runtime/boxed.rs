//! Boxes the futures of rare cases to keep the futures of common cases small.

use std::pin::Pin;

/// Boxes the future that `make` returns. This future is rarely needed. Stored inline, it would enlarge the future that
/// awaits it.
///
/// A box alone would shrink only the awaiting future. The code for the rare case would still be compiled into the
/// function that polls the common case. The rare future would also be built on the stack before it moves into its box.
/// Each call would then need a stack frame with room for it, and would touch every page of that frame. For a command,
/// that frame took 17 KiB, because it had room for reauthentication. So a separate function creates the future and
/// erases its type.
#[cold]
#[inline(never)]
pub(crate) fn boxed<'f, F>(make: impl FnOnce() -> F) -> Pin<Box<dyn Future<Output = F::Output> + Send + 'f>>
where
    F: Future + Send + 'f,
{
    Box::pin(make())
}
