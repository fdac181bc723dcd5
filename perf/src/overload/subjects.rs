//! The pools and clients.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bson::{doc, rawdoc};
use clap::ValueEnum;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};
use wharf::{Client, Establish, EstablishError, Establishing, Options, Pool, PoolOptions};

use super::Work;
use crate::Failure;
use crate::frugal::Frugal;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Subject {
    /// wharf's pool: first come, first served.
    Wharf,
    /// wharf's pool with `refuse_late`.
    WharfRefusing,
    /// wharf's pool without `refuse_late`, but with limits that leave twice the service time for using the connection.
    WharfShorter,
    Deadpool,
    Bb8,
    /// A sketch of a pool that serves the newest waiter first.
    NewestFirst,
    /// wharf's client with `timeoutMS`, on a server that takes the service time for each command.
    Client,
    /// wharf's client with `refuse_late`.
    ClientRefusing,
    /// The official driver on the same kind of server, with a time limit around each operation.
    Official,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().as_ref().map_or("", |value| value.get_name()))
    }
}

impl Subject {
    pub const ALL: [Self; 9] = [
        Self::Wharf,
        Self::WharfRefusing,
        Self::WharfShorter,
        Self::Deadpool,
        Self::Bb8,
        Self::NewestFirst,
        Self::Client,
        Self::ClientRefusing,
        Self::Official,
    ];

    pub fn refuses_late(self) -> bool {
        matches!(self, Self::WharfRefusing | Self::ClientRefusing)
    }
}

/// A subject that is ready for requests.
pub struct Opened {
    pub work: Work,
    _server: Option<Frugal>,
}

/// Opens a subject. `limit` is `timeoutMS` for wharf's client; the other subjects get the deadline with each request.
pub async fn open(subject: Subject, connections: u32, service: Duration, limit: Duration) -> Result<Opened, Failure> {
    let options = PoolOptions::default().max_pool_size(connections).refuse_late(subject.refuses_late());
    let mut server = None;
    let work: Work = match subject {
        Subject::Wharf | Subject::WharfRefusing | Subject::WharfShorter => {
            let pool = Pool::builder("dummy", Dummies).options(options).build()?;
            pool.ready();
            let for_use = if subject == Subject::WharfShorter { 2 * service } else { Duration::ZERO };
            held(service, move |deadline| {
                let pool = pool.clone();
                async move { pool.check_out_until(deadline - for_use).await.ok() }
            })
        }
        Subject::Deadpool => {
            let pool: deadpool::managed::Pool<Dummies> =
                deadpool::managed::Pool::builder(Dummies).max_size(connections as usize).build()?;
            held(service, move |deadline| {
                let pool = pool.clone();
                async move { timeout_at(deadline, pool.get()).await.ok()?.ok() }
            })
        }
        Subject::Bb8 => {
            let pool = bb8::Pool::builder().max_size(connections).test_on_check_out(false).build(Dummies).await?;
            held(service, move |deadline| {
                let pool = pool.clone();
                async move { timeout_at(deadline, pool.get_owned()).await.ok()?.ok() }
            })
        }
        Subject::NewestFirst => {
            let pool = Newest(Arc::new(Mutex::new((connections, Vec::new()))));
            held(service, move |deadline| {
                let pool = pool.clone();
                async move { pool.place(deadline).await }
            })
        }
        Subject::Client | Subject::ClientRefusing => {
            let frugal = server.insert(Frugal::start_delayed(service)?);
            let options: Options =
                format!("mongodb://{}/?directConnection=true", frugal.address).parse::<Options>()?.pool(options);
            let client = Client::new(options.timeout(limit))?;
            client.connect().await?;
            Arc::new(move |_| {
                let client = client.clone();
                Box::pin(async move { client.run_command("admin", &rawdoc! { "ping": 1 }).await.is_ok() })
            })
        }
        Subject::Official => {
            let frugal = server.insert(Frugal::start_delayed(service)?);
            let uri = format!("mongodb://{}/?directConnection=true&maxPoolSize={connections}", frugal.address);
            let admin = mongodb::Client::with_uri_str(uri).await?.database("admin");
            admin.run_command(doc! { "ping": 1 }).await?;
            Arc::new(move |deadline| {
                let admin = admin.clone();
                Box::pin(async move {
                    matches!(timeout_at(deadline, admin.run_command(doc! { "ping": 1 })).await, Ok(Ok(_)))
                })
            })
        }
    };
    Ok(Opened { work, _server: server })
}

/// Returns the work of a request that holds a connection for the service time. `connection` waits for the connection until
/// the deadline.
fn held<C, F>(service: Duration, connection: impl Fn(Instant) -> F + Send + Sync + 'static) -> Work
where
    C: Send,
    F: Future<Output = Option<C>> + Send + 'static,
{
    Arc::new(move |deadline| {
        let connection = connection(deadline);
        Box::pin(async move {
            let Some(_connection) = connection.await else { return false };
            sleep(service).await;
            true
        })
    })
}

/// Opens connections that cost nothing.
struct Dummies;

impl Establish for Dummies {
    type Connection = ();

    async fn establish(&self, _: Establishing) -> Result<(), EstablishError> {
        Ok(())
    }
}

impl deadpool::managed::Manager for Dummies {
    type Type = ();
    type Error = Infallible;

    async fn create(&self) -> Result<(), Infallible> {
        Ok(())
    }

    async fn recycle(
        &self,
        (): &mut (),
        _: &deadpool::managed::Metrics,
    ) -> deadpool::managed::RecycleResult<Infallible> {
        Ok(())
    }
}

impl bb8::ManageConnection for Dummies {
    type Connection = ();
    type Error = Infallible;

    async fn connect(&self) -> Result<(), Infallible> {
        Ok(())
    }

    async fn is_valid(&self, (): &mut ()) -> Result<(), Infallible> {
        Ok(())
    }

    fn has_broken(&self, (): &mut ()) -> bool {
        false
    }
}

/// The number of free places, and the waiters, oldest first.
type Places = (u32, Vec<oneshot::Sender<Place>>);

/// Places that go to the newest waiter.
#[derive(Clone)]
struct Newest(Arc<Mutex<Places>>);

impl Newest {
    async fn place(&self, deadline: Instant) -> Option<Place> {
        let granted = {
            let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let (free, waiters) = &mut *places;
            if *free > 0 {
                *free -= 1;
                return Some(Place(Some(self.clone())));
            }
            let (grant, granted) = oneshot::channel();
            waiters.push(grant);
            granted
        };
        timeout_at(deadline, granted).await.ok()?.ok()
    }
}

/// The right to work. When it is dropped, it passes to the newest waiter.
struct Place(Option<Newest>);

impl Drop for Place {
    fn drop(&mut self) {
        let Some(pool) = self.0.take() else { return };
        loop {
            let newest = {
                let mut places = pool.0.lock().unwrap_or_else(PoisonError::into_inner);
                let (free, waiters) = &mut *places;
                match waiters.pop() {
                    Some(newest) => newest,
                    None => {
                        *free += 1;
                        return;
                    }
                }
            };
            // This fails if the waiter's deadline has passed, because it has then dropped its receiver.
            match newest.send(Place(Some(pool.clone()))) {
                Ok(()) => return,
                Err(mut unused) => unused.0 = None,
            }
        }
    }
}
