//! Boxed futures: the client's calls, and rare cases, which would enlarge the futures of common cases.

use std::pin::Pin;

/// A boxed future.
///
/// The compiler generates the code for an `async fn` in each crate that polls its future, along with the code for
/// everything that the future polls. If a function that is not generic boxes its future, that code is generated only in
/// this crate. The client's methods do so, except `check_out` and `run_on`: an application then compiles neither the
/// client's engine nor its pools. This removed two fifths of the quickstart's own code.
pub(crate) type Boxed<'f, T> = Pin<Box<dyn Future<Output = T> + Send + 'f>>;

/// Boxes the future that `make` returns. This future is rarely needed. Stored inline, it would enlarge the future that
/// awaits it.
///
/// Boxing by itself would shrink only the awaiting future. The code for the rare case would still be compiled into the
/// function that polls the common case. The rare future would also be built on the stack before being moved into its
/// box. Each call would then need a stack frame with room for it, and would touch every page of that frame. For a
/// command, that frame took 17 KiB, because it had room for reauthentication. So a separate function creates the future
/// and erases its type.
#[cold]
#[inline(never)]
pub(crate) fn boxed<'f, F>(make: impl FnOnce() -> F) -> Boxed<'f, F::Output>
where
    F: Future + Send + 'f,
{
    Box::pin(make())
}
