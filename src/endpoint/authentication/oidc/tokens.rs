//! The access token that all connections share, and the calls that obtain it ("Credential Caching").

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::source::NoToken;
use crate::endpoint::deadline::ConnectTimeoutError;
use crate::endpoint::options::{CallbackFuture, IdpInfo, OidcToken, Secret};

/// The minimum time between the starts of two calls.
const BETWEEN_CALLS: Duration = Duration::from_millis(100);

/// An access token. Clones share the text.
#[derive(Debug, Clone)]
pub(in crate::endpoint::authentication) struct Token(Arc<Secret>);

impl Token {
    /// Returns the token's text, which must be neither printed nor kept.
    pub fn reveal(&self) -> &str {
        self.0.reveal()
    }
}

/// The time limit for obtaining a token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub time: ConnectTimeoutError,
    /// Whether the wait for other calls and the call itself share the limit. If not, the limit applies to each
    /// separately.
    pub together: bool,
}

/// The tokens from the last call, and the lock that admits one call at a time.
///
/// The value belongs to one process. In a forked child, each lock may be held by a thread that exists only in the
/// parent, or by a future that the child leaks.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// The lock is held only to read or write the state.
    known: Mutex<Known>,
    /// When the last call began. The lock is held during a call, but never during an exchange with a MongoDB server.
    calling: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Known {
    access: Option<Token>,
    refresh: Option<Secret>,
    /// The issuer of the tokens.
    idp_info: Option<IdpInfo>,
}

impl Tokens {
    /// Returns the shared access token.
    pub fn current(&self) -> Option<Token> {
        self.known().access.clone()
    }

    /// Returns the refresh token and its issuer.
    pub fn refresh(&self) -> Option<(Secret, IdpInfo)> {
        let known = self.known();
        known.refresh.clone().zip(known.idp_info.clone())
    }

    /// Drops an access token, unless another token has replaced it.
    pub fn invalidate(&self, token: &Token) {
        let mut known = self.known();
        known.access = known.access.take().filter(|current| current.0 != token.0);
    }

    /// Drops an access token and the refresh token that came with it, unless newer tokens have replaced them.
    pub fn invalidate_with_refresh(&self, token: &Token) {
        let mut known = self.known();
        if known.access.as_ref().is_some_and(|current| current.0 == token.0) {
            known.access = None;
            known.refresh = None;
        }
    }

    /// Returns the shared access token, and whether it is new. If there is none, `call` obtains a token, which is
    /// shared from then on.
    ///
    /// Only one call runs at a time. `call` receives the time that it may take. `idp_info` is the issuer of the token,
    /// if a later refresh needs it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the call, and the next waiter makes a new call.
    pub async fn current_or<'a>(
        &self,
        Limit { time: limit, together }: Limit,
        idp_info: Option<IdpInfo>,
        call: impl FnOnce(Duration) -> CallbackFuture<'a, OidcToken>,
    ) -> Result<(Token, bool), NoToken> {
        let begun = Instant::now();
        if let Some(token) = self.current() {
            return Ok((token, false));
        }
        let exceeded = |_| NoToken::Timeout(limit);
        let mut last_call = timeout(limit.limit, self.calling.lock()).await.map_err(exceeded)?;
        // While this caller waited, the earlier call obtained a token.
        if let Some(token) = self.current() {
            return Ok((token, false));
        }
        if let Some(last_call) = *last_call {
            sleep_until(last_call + BETWEEN_CALLS).await;
        }
        let left = if together { limit.limit.saturating_sub(begun.elapsed()) } else { limit.limit };
        if left.is_zero() {
            return Err(NoToken::Timeout(limit));
        }
        let called = Instant::now();
        *last_call = Some(called);
        let obtained =
            timeout(left, call(left)).await.map_err(exceeded)?.map_err(|error| match called.elapsed() < left {
                true => NoToken::of_callback(error),
                // The time has run out, and the callback reports this with its own error.
                false => NoToken::Timeout(limit),
            })?;
        let OidcToken { access_token, refresh_token, expires_in: _ } = obtained;
        if access_token.reveal().is_empty() {
            return Err(NoToken::Empty);
        }
        let token = Token(Arc::new(access_token));
        *self.known() = Known { access: Some(token.clone()), refresh: refresh_token, idp_info };
        Ok((token, true))
    }

    #[cfg(test)]
    pub fn while_known_is_locked<T>(&self, act: impl FnOnce() -> T) -> T {
        let _held = self.known();
        act()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // No invariant spans two of the fields, so a panic at any point breaks nothing.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::sleep;

    use super::*;

    const LIMIT: ConnectTimeoutError = ConnectTimeoutError::new("timeoutMS", Duration::from_secs(60));
    const APART: Limit = Limit { time: LIMIT, together: false };

    fn obtained(text: &str) -> CallbackFuture<'static, OidcToken> {
        let token = OidcToken::new(text);
        Box::pin(async { Ok(token) })
    }

    async fn obtain(tokens: &Tokens, text: &str) -> (String, bool) {
        let (token, is_new) = tokens.current_or(APART, None, |_| obtained(text)).await.unwrap();
        (token.reveal().to_owned(), is_new)
    }

    #[tokio::test(start_paused = true)]
    async fn one_call_answers_all_its_waiters() {
        let (tokens, calls) = (Tokens::default(), AtomicUsize::new(0));
        let call = |_| -> CallbackFuture<'_, OidcToken> {
            Box::pin(async {
                calls.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_secs(1)).await;
                Ok(OidcToken::new("a"))
            })
        };
        let one = || tokens.current_or(APART, None, call);
        let (first, second, third) = tokio::join!(one(), one(), one());
        let is_new = [first, second, third].map(|token| token.unwrap().1);
        assert_eq!((is_new, calls.into_inner()), ([true, false, false], 1));
    }

    #[tokio::test(start_paused = true)]
    async fn calls_begin_a_tenth_of_a_second_apart() {
        let tokens = Tokens::default();
        let begun = Instant::now();
        assert_eq!(obtain(&tokens, "a").await, ("a".to_owned(), true));
        assert_eq!(begun.elapsed(), Duration::ZERO);
        tokens.invalidate(&tokens.current().unwrap());
        assert_eq!(obtain(&tokens, "b").await, ("b".to_owned(), true));
        // The virtual clock ticks in milliseconds.
        assert!((100..=101).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());

        // A failed call also delays the next call. A call from long ago does not.
        tokens.invalidate(&tokens.current().unwrap());
        sleep(Duration::from_millis(70)).await;
        let begun = Instant::now();
        let failed = tokens.current_or(APART, None, |_| Box::pin(async { Err("no".into()) })).await;
        assert_eq!(failed.unwrap_err().to_string(), "the OIDC callback failed: no");
        assert!((30..=31).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
        obtain(&tokens, "c").await;
        assert!((130..=132).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn call_and_wait_are_limited_separately() {
        let tokens = Tokens::default();
        let begun = Instant::now();
        let stuck = tokens.current_or(APART, None, |_| Box::pin(pending()));
        let short = ConnectTimeoutError::new("timeoutMS", Duration::from_secs(10));
        let waiting = tokens.current_or(Limit { time: short, together: false }, None, |_| obtained("b"));
        let (stuck, waiting) = tokio::join!(stuck, waiting);
        assert!(matches!(stuck, Err(NoToken::Timeout(LIMIT))));
        assert!(matches!(waiting, Err(NoToken::Timeout(_))));
        assert!((60_000..=60_001).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
        assert_eq!(obtain(&tokens, "c").await.0, "c");
    }

    #[tokio::test(start_paused = true)]
    async fn call_and_wait_can_share_one_limit() {
        let tokens = Tokens::default();
        let begun = Instant::now();
        let stuck =
            async { timeout(Duration::from_secs(40), tokens.current_or(APART, None, |_| Box::pin(pending()))).await };
        let together = Limit { time: LIMIT, together: true };
        let mut told = Duration::ZERO;
        let waiting = tokens.current_or(together, None, |left| {
            told = left;
            Box::pin(pending())
        });
        let (stuck, waiting) = tokio::join!(stuck, waiting);
        assert!(stuck.is_err());
        assert!(matches!(waiting, Err(NoToken::Timeout(LIMIT))));
        assert!((60_000..=60_002).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
        assert_eq!(told.as_secs_f64().round(), 20.0);
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_caller_leaves_the_call_to_the_next_waiter() {
        let tokens = Tokens::default();
        let stuck = tokens.current_or(APART, None, |_| Box::pin(pending()));
        assert!(timeout(Duration::from_secs(1), stuck).await.is_err());
        assert_eq!(obtain(&tokens, "b").await, ("b".to_owned(), true));
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_refused_token_is_dropped() {
        let tokens = Tokens::default();
        obtain(&tokens, "a").await;
        let old = tokens.current().unwrap();
        tokens.invalidate(&old);
        obtain(&tokens, "b").await;
        tokens.invalidate(&old);
        tokens.invalidate_with_refresh(&old);
        assert_eq!(obtain(&tokens, "c").await, ("b".to_owned(), false));
        // A token with the same text is the same token, regardless of its source.
        tokens.invalidate(&Token(Arc::new(Secret::new("b"))));
        assert!(tokens.current().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn refresh_token_stays_until_the_token_that_it_obtained_is_refused() {
        let tokens = Tokens::default();
        let idp_info = IdpInfo { issuer: "i".to_owned(), client_id: None, request_scopes: Vec::new() };
        let call =
            |_| -> CallbackFuture<'_, OidcToken> { Box::pin(async { Ok(OidcToken::new("a").refresh_token("r")) }) };
        let (token, _) = tokens.current_or(APART, Some(idp_info.clone()), call).await.unwrap();
        assert_eq!(tokens.refresh(), Some((Secret::new("r"), idp_info)));
        tokens.invalidate(&token);
        assert!(tokens.refresh().is_some());
        let (token, _) = tokens.current_or(APART, None, call).await.unwrap();
        tokens.invalidate_with_refresh(&token);
        assert!(tokens.refresh().is_none() && tokens.current().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn empty_token_is_refused_and_no_token_is_printed() {
        let tokens = Tokens::default();
        let empty = tokens.current_or(APART, None, |_| obtained("")).await;
        assert!(matches!(empty, Err(NoToken::Empty)));
        obtain(&tokens, "hidden").await;
        assert!(!format!("{tokens:?} {:?}", tokens.current()).contains("hidden"));
    }
}
