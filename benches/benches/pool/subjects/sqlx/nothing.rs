//! A database for sqlx that does nothing. Its connections are dummies.
//!
//! It has no rows, columns, values or statements: [`Never`] stands for all of them. The parent module defines how a
//! dummy is opened and whether it is alive.

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

use super::{Dummy, Source, is_alive};

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

/// A dummy, wrapped as an sqlx connection.
pub struct Idler(pub Dummy);

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
        if is_alive(&self.0) { Ok(()) } else { Err(Error::Protocol("this dummy is dead".into())) }
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

/// The options for opening an [`Idler`]: the source of its dummy.
#[derive(Debug, Clone)]
pub struct Options(pub Source);

impl ConnectOptions for Options {
    type Connection = Idler;

    fn from_url(_url: &Url) -> Result<Self, Error> {
        Err(no_address())
    }

    async fn connect(&self) -> Result<Idler, Error> {
        Ok(Idler(self.0.open().await))
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
        Err(no_address())
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

fn no_address() -> Error {
    Error::Protocol("this database has no address".into())
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

/// Stands for rows, columns, types, values and statements, none of which ever exist.
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
