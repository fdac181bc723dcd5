//! A bank: `MONGODB_URI='mongodb://host1,host2,host3/?replicaSet=rs0' cargo run --release --example service`, and `-- --help`.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::Parser;
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::LevelFilter;
use wharf::client::{Session, TransactionOptions};
use wharf::telemetry::prometheus_text;
use wharf::{Client, ClientError, Collection, Options, WriteConcern, bson::doc};
use wharf_service::pools::PoolRow;

/// How long a shutdown waits for requests, and then for connections.
const GRACE: Duration = Duration::from_secs(10);
type Accounts = State<Collection<Account>>;

/// A service that keeps accounts in MongoDB, and survives the loss of a primary.
///
/// POST /accounts opens one: {"_id": "a1", "owner": "Ann", "balance": 10}; GET /accounts/Ann lists Ann's, and GET
/// /totals sums up the balances by owner. POST /transfers moves money: {"from": "a1", "to": "b1", "amount": 5}. GET
/// /metrics is for Prometheus, GET /pools for the example `top`. SIGTERM and Ctrl-C shut it down: it finishes the
/// requests in progress, and closes its client.
#[derive(Debug, Parser)]
#[command(name = "service")]
struct Arguments {
    /// The address to listen on; with port 0 the operating system chooses one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    listen: std::net::SocketAddr,
    /// The connection string of the deployment
    #[arg(long, env = "MONGODB_URI", default_value = "mongodb://localhost")]
    uri: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(LevelFilter::WARN).init();
    let Arguments { listen, uri } = Arguments::parse();
    let mut options = Options::parse(&uri)?.write_concern(WriteConcern::majority());
    options.timeout.get_or_insert(Duration::from_secs(30)); // longer than an election
    let (end, client) = (end_signal()?.shared(), Client::new(options)?);
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("Listening on {}", listener.local_addr()?);
    let serving = axum::serve(listener, router(client.database("bank").collection("accounts")))
        .with_graceful_shutdown(end.clone());
    tokio::select! {
        served = serving.into_future() => served?,
        () = end.then(|()| tokio::time::sleep(GRACE)) => eprintln!("Requests did not end within {GRACE:?}."),
    }
    println!("Stopped{}", if client.shutdown(GRACE).await { "" } else { ", but connections are open" });
    Ok(())
}

/// Returns a future that completes at SIGTERM or Ctrl-C. Signals are caught from this call on.
fn end_signal() -> std::io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move { tokio::select!(_ = terminate.recv() => {}, _ = interrupt.recv() => {}) })
}

fn router(accounts: Collection<Account>) -> Router {
    Router::new()
        .route("/accounts", post(open_account))
        .route("/accounts/{owner}", get(accounts_of))
        .route("/totals", get(totals))
        .route("/transfers", post(transfer))
        .route("/metrics", get(metrics))
        .route("/pools", get(pools))
        .with_state(accounts)
}

#[derive(Serialize, Deserialize)]
struct Account {
    #[serde(rename = "_id")]
    id: String,
    owner: String,
    balance: i64,
}

#[derive(Serialize, Deserialize)]
struct Total {
    #[serde(rename = "_id")]
    owner: String,
    accounts: i64,
    balance: i64,
}

#[derive(Deserialize)]
struct Transfer {
    from: String,
    to: String,
    amount: i64,
}

async fn open_account(State(accounts): Accounts, Json(account): Json<Account>) -> Result<Response, Failure> {
    accounts.insert_one(&account).await?;
    Ok((StatusCode::CREATED, Json(account)).into_response())
}

/// Reads all batches in one transaction, as of one point in time. Starts over if the cursor's server is lost.
async fn accounts_of(State(accounts): Accounts, Path(owner): Path<String>) -> Result<Json<Vec<Account>>, Failure> {
    let query = || accounts.find(doc! { "owner": &owner }).sort(doc! { "_id": 1 }).batch_size(100);
    let read = async |mut session: Session| query().session(&mut session).await?.try_collect().await;
    let mut session = accounts.client().start_session().await?;
    Ok(Json(session.with_transaction_in_task(TransactionOptions::default(), read).await?))
}

async fn totals(State(accounts): Accounts) -> Result<Json<Vec<Total>>, Failure> {
    let group = doc! { "_id": "$owner", "accounts": { "$sum": 1 }, "balance": { "$sum": "$balance" } };
    let pipeline = [doc! { "$group": group }, doc! { "$sort": { "_id": 1 } }];
    let query = || accounts.aggregate(&pipeline).typed().batch_size(100);
    let read = async |mut session: Session| query().session(&mut session).await?.try_collect().await;
    let mut session = accounts.client().start_session().await?;
    Ok(Json(session.with_transaction_in_task(TransactionOptions::default(), read).await?))
}

async fn transfer(State(accounts): Accounts, Json(transfer): Json<Transfer>) -> Result<StatusCode, Failure> {
    if transfer.amount <= 0 {
        return Err(Failure::Refused("the amount must be positive"));
    }
    let enough = doc! { "_id": &transfer.from, "balance": { "$gte": transfer.amount } };
    let by = |sign: i64| doc! { "$inc": { "balance": sign * transfer.amount } };
    let move_money = async |mut session: Session| {
        let taken = accounts.update_one(&enough, by(-1)).session(&mut session).await?;
        let given = accounts.update_one(doc! { "_id": &transfer.to }, by(1)).session(&mut session).await?;
        // An error aborts the transaction, so neither account changes.
        let changed = taken.matched_count + given.matched_count;
        (changed == 2).then_some(()).ok_or(Failure::Refused("there is no such account, or not enough money in it"))
    };
    let mut session = accounts.client().start_session().await?;
    session.with_transaction_in_task_as(TransactionOptions::default(), move_money).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn metrics(State(accounts): Accounts) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], prometheus_text(&accounts.client().metrics()))
}

async fn pools(State(accounts): Accounts) -> Json<Vec<PoolRow>> {
    Json(accounts.client().metrics().iter().map(PoolRow::of).collect())
}

/// Why a request failed. The text of most errors goes only to the log.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Refused(&'static str),
    #[error(transparent)]
    Database(#[from] ClientError),
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let error = match self {
            Self::Refused(reason) => return (StatusCode::UNPROCESSABLE_ENTITY, reason).into_response(),
            Self::Database(error) => error,
        };
        if error.is_duplicate_key() {
            return (StatusCode::CONFLICT, "the account already exists").into_response();
        }
        eprintln!("a request failed: {error}");
        let status = if error.is_timeout() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::BAD_GATEWAY };
        (status, "the database cannot serve the request").into_response()
    }
}
