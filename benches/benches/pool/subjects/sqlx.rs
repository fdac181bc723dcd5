//! sqlx: a crossbeam `ArrayQueue` of connections behind a fair semaphore, with a database that does nothing.
//!
//! sqlx's pool is generic over a `Database`. Connections to this database open, ping and close at once. It does not
//! have rows, columns, values or statements: [`Never`] stands for all of them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use log::LevelFilter;
use sqlx_core::Either;
use sqlx_core::arguments::{Arguments, IntoArguments};
use sqlx_core::column::{Column, ColumnIndex};
use sqlx_core::connection::{ConnectOptions, Connection};
use sqlx_core::database::Database;
use sqlx_core::encode::Encode;
use sqlx_core::error::{BoxDynError, Error};
use sqlx_core::from_row::FromRow;
use sqlx_core::pool::{Pool, PoolConnection, PoolOptions};
use sqlx_core::query::Query;
use sqlx_core::query_as::QueryAs;
use sqlx_core::query_scalar::QueryScalar;
use sqlx_core::row::Row;
use sqlx_core::sql_str::SqlStr;
use sqlx_core::statement::Statement;
use sqlx_core::transaction::{Transaction, TransactionManager};
use sqlx_core::type_info::TypeInfo;
use sqlx_core::types::Type;
use sqlx_core::url::Url;
use sqlx_core::value::{Value, ValueRef};

use super::{Create, Dummy, Queue, Subject};

/// sqlx's pool without tests at check-out, lifetimes or idle timeouts, and therefore without its maintenance task.
///
/// The timeout around every check-out, its two clock readings, and the task that a check-in spawns cannot be turned
/// off. Closing a pool is final, and no other call drops idle connections, so it does not take part in `clear`.
pub struct Sqlx(Pool<Nothing>);

impl Subject for Sqlx {
    const NAME: &'static str = "sqlx";
    type Guard<'a> = PoolConnection<Nothing>;

    async fn open(size: usize) -> Self {
        let pool = PoolOptions::new()
            .max_connections(u32::try_from(size).expect("the size exceeds sqlx's limit"))
            .test_before_acquire(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_time_level(LevelFilter::Off)
            .acquire_slow_level(LevelFilter::Off)
            .connect_lazy_with(Options);
        Self(pool)
    }

    #[inline]
    async fn check_out(&self) -> PoolConnection<Nothing> {
        self.0.acquire().await.expect("no connection within sqlx's default timeout")
    }

    /// Also waits for the check-ins, which are tasks.
    async fn warm(&self, size: usize) {
        let mut held = Vec::with_capacity(size);
        for _ in 0..size {
            held.push(self.check_out().await);
        }
        drop(held);
        while self.0.num_idle() < size {
            tokio::task::yield_now().await;
        }
    }
}

impl Queue for Sqlx {}

/// Closes with `PoolConnection::close`, which closes the connection and then releases its permit.
impl Create for Sqlx {
    async fn create_and_close(&self) {
        self.check_out().await.close().await.expect("closing failed");
    }
}

/// A database that does nothing.
#[derive(Debug)]
pub struct Nothing;

impl Database for Nothing {
    type Connection = Idler;
    type TransactionManager = NoTransactions;
    type Row = Never;
    type QueryResult = ();
    type Column = Never;
    type TypeInfo = Never;
    type Value = Never;
    type ValueRef<'r> = Never;
    type Arguments = NoArguments;
    type ArgumentBuffer = ();
    type Statement = Never;
    const NAME: &'static str = "nothing";
    const URL_SCHEMES: &'static [&'static str] = &["nothing"];
}

/// The dummy as an sqlx connection.
pub struct Idler(Dummy);

impl Connection for Idler {
    type Database = Nothing;
    type Options = Options;

    async fn close(self) -> Result<(), Error> {
        drop(self.0);
        Ok(())
    }

    async fn close_hard(self) -> Result<(), Error> {
        self.close().await
    }

    async fn ping(&mut self) -> Result<(), Error> {
        Ok(())
    }

    async fn begin(&mut self) -> Result<Transaction<'_, Nothing>, Error> {
        Err(no_transactions())
    }

    fn shrink_buffers(&mut self) {}

    async fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn should_flush(&self) -> bool {
        false
    }
}

/// The options for opening an [`Idler`], which has no options.
#[derive(Debug, Clone)]
pub struct Options;

impl ConnectOptions for Options {
    type Connection = Idler;

    fn from_url(_url: &Url) -> Result<Self, Error> {
        Ok(Self)
    }

    async fn connect(&self) -> Result<Idler, Error> {
        Ok(Idler(Dummy::open()))
    }

    fn log_statements(self, _level: LevelFilter) -> Self {
        self
    }

    fn log_slow_statements(self, _level: LevelFilter, _duration: Duration) -> Self {
        self
    }
}

impl FromStr for Options {
    type Err = Error;

    fn from_str(_url: &str) -> Result<Self, Error> {
        Ok(Self)
    }
}

/// Refuses transactions.
pub struct NoTransactions;

impl TransactionManager for NoTransactions {
    type Database = Nothing;

    async fn begin(_connection: &mut Idler, _statement: Option<SqlStr>) -> Result<(), Error> {
        Err(no_transactions())
    }

    async fn commit(_connection: &mut Idler) -> Result<(), Error> {
        Err(no_transactions())
    }

    async fn rollback(_connection: &mut Idler) -> Result<(), Error> {
        Err(no_transactions())
    }

    fn start_rollback(_connection: &mut Idler) {}

    fn get_transaction_depth(_connection: &Idler) -> usize {
        0
    }
}

fn no_transactions() -> Error {
    Error::Protocol("this database does nothing".into())
}

/// An argument list that discards its arguments.
#[derive(Default)]
pub struct NoArguments;

impl Arguments for NoArguments {
    type Database = Nothing;

    fn reserve(&mut self, _additional: usize, _size: usize) {}

    fn add<'t, T>(&mut self, _value: T) -> Result<(), BoxDynError>
    where
        T: Encode<'t, Nothing> + Type<Nothing>,
    {
        Ok(())
    }

    fn len(&self) -> usize {
        0
    }
}

/// Stands for rows, columns, types, values and statements, none of which ever exists.
#[derive(Debug, Clone, PartialEq)]
pub enum Never {}

impl fmt::Display for Never {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl Row for Never {
    type Database = Nothing;

    fn columns(&self) -> &[Never] {
        match *self {}
    }

    fn try_get_raw<I: ColumnIndex<Self>>(&self, _index: I) -> Result<Never, Error> {
        match *self {}
    }
}

impl Column for Never {
    type Database = Nothing;

    fn ordinal(&self) -> usize {
        match *self {}
    }

    fn name(&self) -> &str {
        match *self {}
    }

    fn type_info(&self) -> &Never {
        match *self {}
    }
}

impl TypeInfo for Never {
    fn is_null(&self) -> bool {
        match *self {}
    }

    fn name(&self) -> &str {
        match *self {}
    }
}

impl Value for Never {
    type Database = Nothing;

    fn as_ref(&self) -> Never {
        match *self {}
    }

    fn type_info(&self) -> Cow<'_, Never> {
        match *self {}
    }

    fn is_null(&self) -> bool {
        match *self {}
    }
}

impl<'r> ValueRef<'r> for Never {
    type Database = Nothing;

    fn to_owned(&self) -> Never {
        match *self {}
    }

    fn type_info(&self) -> Cow<'_, Never> {
        match *self {}
    }

    fn is_null(&self) -> bool {
        match *self {}
    }
}

impl Statement for Never {
    type Database = Nothing;

    fn into_sql(self) -> SqlStr {
        match self {}
    }

    fn sql(&self) -> &SqlStr {
        match *self {}
    }

    fn parameters(&self) -> Option<Either<&[Never], usize>> {
        match *self {}
    }

    fn columns(&self) -> &[Never] {
        match *self {}
    }

    fn query(&self) -> Query<'_, Nothing, NoArguments> {
        match *self {}
    }

    fn query_with<A: IntoArguments<Nothing>>(&self, _arguments: A) -> Query<'_, Nothing, A> {
        match *self {}
    }

    fn query_as<O: for<'r> FromRow<'r, Never>>(&self) -> QueryAs<'_, Nothing, O, NoArguments> {
        match *self {}
    }

    fn query_as_with<'s, O, A>(&'s self, _arguments: A) -> QueryAs<'s, Nothing, O, A>
    where
        O: for<'r> FromRow<'r, Never>,
        A: IntoArguments<Nothing>,
    {
        match *self {}
    }

    fn query_scalar<O>(&self) -> QueryScalar<'_, Nothing, O, NoArguments>
    where
        (O,): for<'r> FromRow<'r, Never>,
    {
        match *self {}
    }

    fn query_scalar_with<'s, O, A>(&'s self, _arguments: A) -> QueryScalar<'s, Nothing, O, A>
    where
        (O,): for<'r> FromRow<'r, Never>,
        A: IntoArguments<Nothing>,
    {
        match *self {}
    }
}
