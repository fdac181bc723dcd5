//! The pools, each with its own way of checking, renewing and keeping connections.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{Manager, Metrics, Object, RecycleError, RecycleResult};
use sqlx_core::pool::{PoolConnection, PoolOptions as SqlxOptions};
use wharf::{BackgroundInterval, CheckBeforeUse, CheckResult, Establish, EstablishError, Establishing, PoolOptions};

use crate::server::{Dummy, Server, is_alive};

#[path = "../pool/subjects/sqlx/nothing.rs"]
mod nothing;
use nothing::{Nothing, Options};

/// How to build a pool.
#[derive(Clone, Copy)]
pub struct Settings {
    pub size: u32,
    pub checks: bool,
    /// How many connections the pool keeps, and how long each lives.
    pub lifetime: Option<(usize, Duration)>,
}

impl Settings {
    pub fn of_size(size: u32) -> Self {
        Self { size, checks: true, lifetime: None }
    }

    /// How often a pool's task looks for connections that have exceeded their lifetime.
    const INTERVAL: Duration = Duration::from_millis(200);
}

pub trait Subject: Send + Sync + Sized + 'static {
    const NAME: &'static str;
    /// Whether the pool keeps a minimum number of connections, and closes each after a set time.
    const KEEPS_A_MINIMUM: bool = true;

    /// A checked-out connection.
    type Guard: Send;

    fn open(server: &Arc<Server>, settings: Settings) -> impl Future<Output = Self> + Send;

    /// Checks out a connection, or returns `None` if the pool refuses.
    fn check_out(&self) -> impl Future<Output = Option<Self::Guard>> + Send;

    fn dummy(guard: &Self::Guard) -> &Dummy;

    /// Checks in a connection that its user has found dead.
    fn discard(guard: Self::Guard) -> impl Future<Output = ()> + Send;

    /// Replaces all connections. Returns `false` if the pool does not support this.
    fn renew(&self) -> bool {
        false
    }

    fn available(&self) -> usize;
}

/// Opens dummies for wharf, and checks them.
pub struct Opener(Arc<Server>);

impl Establish for Opener {
    type Connection = Dummy;
    const HAS_CHECK: bool = true;

    async fn establish(&self, _: Establishing) -> Result<Dummy, EstablishError> {
        Ok(self.0.connect().await)
    }

    async fn check(&self, dummy: &mut Dummy) -> CheckResult {
        if is_alive(dummy) { Ok(()) } else { Err("the connection is dead".into()) }
    }
}

/// wharf with the default check policy.
pub struct Wharf(wharf::Pool<Opener>);

impl Subject for Wharf {
    const NAME: &'static str = "wharf";
    type Guard = wharf::Connection<Opener>;

    async fn open(server: &Arc<Server>, settings: Settings) -> Self {
        let mut options = PoolOptions::default().max_pool_size(settings.size);
        if !settings.checks {
            options = options.check_before_use(CheckBeforeUse::Never);
        }
        if let Some((kept, lifetime)) = settings.lifetime {
            let kept = kept.try_into().expect("few connections");
            let interval = BackgroundInterval::Every(Settings::INTERVAL);
            options = options.min_pool_size(kept).max_lifetime(lifetime).background_interval(interval);
        }
        let pool = wharf::Pool::builder("server", Opener(server.clone())).options(options).build();
        let pool = pool.expect("the options are valid");
        pool.ready();
        Self(pool)
    }

    async fn check_out(&self) -> Option<Self::Guard> {
        self.0.check_out().await.ok()
    }

    fn dummy(guard: &Self::Guard) -> &Dummy {
        guard
    }

    async fn discard(guard: Self::Guard) {
        guard.discard();
    }

    fn renew(&self) -> bool {
        self.0.renew();
        true
    }

    fn available(&self) -> usize {
        self.0.status().available as usize
    }
}

/// Opens dummies for deadpool, and checks them unless told otherwise.
pub struct Recycler(Arc<Server>, bool);

impl Manager for Recycler {
    type Type = Dummy;
    type Error = Infallible;

    async fn create(&self) -> Result<Dummy, Infallible> {
        Ok(self.0.connect().await)
    }

    async fn recycle(&self, dummy: &mut Dummy, _: &Metrics) -> RecycleResult<Infallible> {
        if !self.1 || is_alive(dummy) { Ok(()) } else { Err(RecycleError::message("the connection is dead")) }
    }
}

/// deadpool. Its method for replacing connections removes only the idle ones. It has no minimum and no lifetime.
pub struct Deadpool(deadpool::managed::Pool<Recycler>);

impl Subject for Deadpool {
    const NAME: &'static str = "deadpool";
    const KEEPS_A_MINIMUM: bool = false;
    type Guard = Object<Recycler>;

    async fn open(server: &Arc<Server>, settings: Settings) -> Self {
        let pool = deadpool::managed::Pool::builder(Recycler(server.clone(), settings.checks));
        Self(pool.max_size(settings.size as usize).build().expect("a pool without timeouts needs no runtime"))
    }

    async fn check_out(&self) -> Option<Self::Guard> {
        self.0.get().await.ok()
    }

    fn dummy(guard: &Self::Guard) -> &Dummy {
        guard
    }

    async fn discard(guard: Self::Guard) {
        drop(Object::take(guard));
    }

    fn renew(&self) -> bool {
        drop(self.0.retain(|_, _| false));
        true
    }

    fn available(&self) -> usize {
        self.0.status().available
    }
}

/// Opens dummies for bb8, and checks them.
pub struct Validator(Arc<Server>);

impl bb8::ManageConnection for Validator {
    type Connection = Dummy;
    type Error = std::io::Error;

    async fn connect(&self) -> Result<Dummy, Self::Error> {
        Ok(self.0.connect().await)
    }

    async fn is_valid(&self, dummy: &mut Dummy) -> Result<(), Self::Error> {
        if is_alive(dummy) { Ok(()) } else { Err(std::io::ErrorKind::ConnectionReset.into()) }
    }

    fn has_broken(&self, dummy: &mut Dummy) -> bool {
        dummy.broken
    }
}

/// bb8. It has no method for replacing connections.
pub struct Bb8(bb8::Pool<Validator>);

impl Subject for Bb8 {
    const NAME: &'static str = "bb8";
    type Guard = bb8::PooledConnection<'static, Validator>;

    async fn open(server: &Arc<Server>, settings: Settings) -> Self {
        let mut pool = bb8::Pool::builder().max_size(settings.size).test_on_check_out(settings.checks);
        if let Some((kept, lifetime)) = settings.lifetime {
            let kept: u32 = kept.try_into().expect("few connections");
            pool = pool.min_idle(kept).max_lifetime(lifetime).reaper_rate(Settings::INTERVAL);
        }
        Self(pool.build(Validator(server.clone())).await.expect("opening failed"))
    }

    async fn check_out(&self) -> Option<Self::Guard> {
        self.0.get_owned().await.ok()
    }

    fn dummy(guard: &Self::Guard) -> &Dummy {
        guard
    }

    async fn discard(mut guard: Self::Guard) {
        guard.broken = true;
    }

    fn available(&self) -> usize {
        self.0.state().idle_connections as usize
    }
}

/// Opens the dummies of sqlx's database.
#[derive(Debug, Clone)]
pub struct Source(Arc<Server>);

impl Source {
    async fn open(&self) -> Dummy {
        self.0.connect().await
    }
}

/// sqlx. It has no method for replacing connections.
pub struct Sqlx(sqlx_core::pool::Pool<Nothing>);

impl Subject for Sqlx {
    const NAME: &'static str = "sqlx";
    type Guard = PoolConnection<Nothing>;

    async fn open(server: &Arc<Server>, settings: Settings) -> Self {
        let mut options = SqlxOptions::new().max_connections(settings.size).test_before_acquire(settings.checks);
        if let Some((kept, lifetime)) = settings.lifetime {
            options = options.min_connections(kept.try_into().expect("few connections")).max_lifetime(lifetime);
        }
        Self(options.connect_lazy_with(Options(Source(server.clone()))))
    }

    async fn check_out(&self) -> Option<Self::Guard> {
        self.0.acquire().await.ok()
    }

    fn dummy(guard: &Self::Guard) -> &Dummy {
        &guard.0
    }

    async fn discard(guard: Self::Guard) {
        guard.close().await.expect("closing failed");
    }

    fn available(&self) -> usize {
        self.0.num_idle()
    }
}
