//! The SCRAM keys that connections share, so that each key is derived only once (Authentication specification, "Caching
//! credentials in SCRAM").

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use zeroize::Zeroizing;

use super::Cause;
use crate::endpoint::wire::auth::scram::{Challenge, Hash, Keys, prepare_password};
use crate::pool::runtime::{PerProcess, start_blocking};

/// How many keys are cached. A user's salt for a mechanism is the same on all members of a replica set. More than two
/// keys are needed only if the servers have separate users, or after a password change.
const KEPT: usize = 16;

/// The keys of one user.
///
/// Deriving a key takes milliseconds of CPU time, so it is done on a blocking thread, and only once for all connections
/// that are waiting for it. Cancelling one caller does not stop the derivation for the other callers.
pub(super) struct KeyCache {
    username: String,
    password: crate::endpoint::options::Secret,
    /// Oldest first. A forked child has a separate list, because it lacks the threads that derive the parent's keys.
    entries: PerProcess<Mutex<Vec<Entry>>>,
}

struct Entry {
    hash: Hash,
    salt: Vec<u8>,
    iterations: u32,
    keys: Derived,
}

/// Keys that have been derived, or are being derived.
type Derived = watch::Receiver<Option<Arc<Keys>>>;

impl KeyCache {
    pub fn new(username: String, password: crate::endpoint::options::Secret) -> Self {
        Self { username, password, entries: PerProcess::default() }
    }

    /// Returns the keys for answering `challenge`. Derives them if they are not cached.
    ///
    /// # Errors
    ///
    /// [`Cause::Scram`] if the password cannot be prepared; [`Cause::Interrupted`] if the runtime is shutting down.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: a derivation that has begun is finished and cached.
    pub async fn keys(&self, hash: Hash, challenge: &Challenge) -> Result<Arc<Keys>, Cause> {
        // A derivation on another runtime stops without a result if that runtime shuts down. The second attempt uses
        // this runtime. If that also fails, this runtime is shutting down.
        for _ in 0..2 {
            let mut derived = self.derived(hash, challenge)?;
            if let Ok(keys) = derived.wait_for(Option::is_some).await {
                return Ok(keys.clone().expect("BUG: no keys after waiting for them"));
            }
        }
        Err(Cause::Interrupted)
    }

    /// Returns the keys of the entry for `challenge`, and creates the entry if there is none.
    fn derived(&self, hash: Hash, challenge: &Challenge) -> Result<Derived, Cause> {
        let entries = self.entries.get();
        // A poisoned lock is fine: entries are only ever pushed and removed whole.
        let mut entries = entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|entry| entry.keys.borrow().is_some() || entry.keys.has_changed().is_ok());
        let wanted = |entry: &&Entry| {
            (entry.hash, &*entry.salt, entry.iterations) == (hash, challenge.salt(), challenge.iterations())
        };
        if let Some(entry) = entries.iter().find(wanted) {
            return Ok(entry.keys.clone());
        }
        let keys = self.derive(hash, challenge)?;
        if entries.len() == KEPT {
            entries.remove(0);
        }
        let (salt, iterations) = (challenge.salt().to_vec(), challenge.iterations());
        entries.push(Entry { hash, salt, iterations, keys: keys.clone() });
        Ok(keys)
    }

    fn derive(&self, hash: Hash, challenge: &Challenge) -> Result<Derived, Cause> {
        let password: Zeroizing<String> = prepare_password(hash, &self.username, self.password.reveal())?;
        let (salt, iterations) = (challenge.salt().to_vec(), challenge.iterations());
        let (done, derived) = watch::channel(None);
        start_blocking(move || {
            done.send_replace(Some(Arc::new(Keys::derive(hash, &password, &salt, iterations))));
        });
        Ok(derived)
    }
}

impl fmt::Debug for KeyCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyCache").field("username", &self.username).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;
    use crate::endpoint::wire::auth::scram::{ClientFirst, ScramError};
    #[cfg(unix)]
    use crate::pool::runtime::{Inline, in_child};

    fn cache(password: &str) -> Arc<KeyCache> {
        Arc::new(KeyCache::new("user".into(), password.into()))
    }

    fn challenge(salt: &str, iterations: u32) -> Challenge {
        let message = format!("r=abcd,s={salt},i={iterations}");
        ClientFirst::new("user", "abc").read(message.as_bytes()).unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn hundred_connections_derive_one_key() {
        let cache = cache("pencil");
        let connections: Vec<_> = (0..100)
            .map(|_| {
                let cache = Arc::clone(&cache);
                tokio::spawn(async move { cache.keys(Hash::Sha256, &challenge("AAAA", 4096)).await.unwrap() })
            })
            .collect();
        let mut keys = Vec::new();
        for connection in connections {
            keys.push(connection.await.unwrap());
        }
        // Deriving the keys again would yield a different allocation.
        assert!(keys.iter().all(|one| Arc::ptr_eq(one, &keys[0])));
        assert_eq!(cache.entries.get().lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn each_hash_salt_and_iteration_count_has_its_own_keys() {
        let cache = cache("pencil");
        let wanted = [
            (Hash::Sha256, "AAAA", 4096),
            (Hash::Sha1, "AAAA", 4096),
            (Hash::Sha1, "BBBB", 4096),
            (Hash::Sha1, "BBBB", 4097),
        ];
        let mut all = Vec::new();
        for (hash, salt, iterations) in wanted {
            let keys = cache.keys(hash, &challenge(salt, iterations)).await.unwrap();
            assert!(Arc::ptr_eq(&keys, &cache.keys(hash, &challenge(salt, iterations)).await.unwrap()));
            all.push(keys);
        }
        for (index, keys) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| !Arc::ptr_eq(keys, other)));
        }
    }

    #[tokio::test]
    async fn server_with_ever_new_salts_does_not_exhaust_memory() {
        let cache = cache("pencil");
        for salt in 0..KEPT + 3 {
            cache.keys(Hash::Sha256, &challenge(&format!("AAA{}", char::from(b'A' + salt as u8)), 4096)).await.unwrap();
        }
        assert_eq!(cache.entries.get().lock().unwrap().len(), KEPT);
        assert_eq!(cache.entries.get().lock().unwrap()[0].salt, challenge("AAAD", 4096).salt());
    }

    #[tokio::test]
    async fn cancelled_connection_does_not_stop_the_derivation_for_others() {
        let cache = cache("pencil");
        let challenge = challenge("AAAA", 4096);
        {
            let mut given_up = pin!(cache.keys(Hash::Sha256, &challenge));
            assert!(given_up.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        let begun = cache.entries.get().lock().unwrap()[0].keys.clone();
        let keys = cache.keys(Hash::Sha256, &challenge).await.unwrap();
        assert!(Arc::ptr_eq(begun.borrow().as_ref().unwrap(), &keys));
    }

    #[test]
    fn end_of_a_runtime_leaves_no_unfinished_keys_to_wait_for() {
        let cache = cache("pencil");
        // The result of a derivation that has not run when its runtime shuts down.
        let (_, keys) = watch::channel(None);
        let entry = Entry { hash: Hash::Sha256, salt: challenge("AAAA", 4096).salt().to_vec(), iterations: 4096, keys };
        cache.entries.get().lock().unwrap().push(entry);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert!(runtime.block_on(cache.keys(Hash::Sha256, &challenge("AAAA", 4096))).is_ok());
    }

    #[tokio::test]
    async fn password_that_cannot_be_prepared_fails_with_sha_256_only() {
        let cache = cache("a\u{7}b");
        let error = cache.keys(Hash::Sha256, &challenge("AAAA", 4096)).await.unwrap_err();
        assert!(matches!(error, Cause::Scram(ScramError::Password)));
        assert!(cache.keys(Hash::Sha1, &challenge("AAAA", 4096)).await.is_ok());
        assert!(!format!("{cache:?}").contains("a\u{7}b"));
    }

    /// Derives keys in a forked child, on a new runtime. Returns the child's exit code.
    ///
    /// The child does not start threads. Each std thread takes a global lock when it starts and when it exits. If
    /// another thread of the parent holds that lock at the time of the fork, the first thread that the child starts
    /// waits for it forever.
    #[cfg(unix)]
    fn derive_in_child(cache: &KeyCache, challenge: &Challenge) -> i32 {
        in_child(|| {
            let _inline = Inline::enter();
            let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|_| 1)?;
            runtime.block_on(cache.keys(Hash::Sha256, challenge)).map(drop).map_err(|_| 2)
        })
    }

    #[cfg(unix)]
    #[test]
    fn child_forked_while_a_key_is_derived_derives_its_own() {
        let cache = cache("pencil");
        let challenge = challenge("AAAA", 4096);
        // The thread that derives the key belongs to the parent. In the child, the sender is never dropped.
        let (sender, keys) = watch::channel(None);
        let entry = Entry { hash: Hash::Sha256, salt: challenge.salt().to_vec(), iterations: 4096, keys };
        cache.entries.get().lock().unwrap().push(entry);
        assert_eq!(derive_in_child(&cache, &challenge), 0);
        drop(sender);
    }

    #[cfg(unix)]
    #[test]
    fn child_takes_no_lock_on_keys_that_a_thread_held_at_the_fork() {
        let cache = cache("pencil");
        let held = cache.entries.get();
        let held = held.lock().unwrap();
        assert_eq!(derive_in_child(&cache, &challenge("AAAA", 4096)), 0);
        drop(held);
    }
}
