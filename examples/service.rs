//! A bank: `MONGODB_URI='mongodb://host1,host2,host3/?replicaSet=rs0' cargo run --release --example service`, and `-- --help`.

use std::fmt::Write;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bson::doc;
use clap::Parser;
use futures_util::FutureExt;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::LevelFilter;
use wharf::client::{Query, Session, SessionOptions, TransactionOptions};
use wharf::metrics::PoolMetrics;
use wharf::telemetry::{METRICS, ReadingValue, readings};
use wharf::{Client, ClientError, Options, WriteConcern};
use wharf_service::pools::PoolRow;

const DATABASE: &str = "bank";
/// How long a request may use the database, unless the connection string has `timeoutMS`: longer than the election of a primary.
const LIMIT: Duration = Duration::from_secs(30);
/// How long requests and connections may take to end.
const GRACE: Duration = Duration::from_secs(10);

/// A service that keeps accounts in MongoDB, and survives the loss of a primary.
///
/// POST /accounts opens one: {"_id": "a1", "owner": "Ann", "balance": 10}; GET /accounts/Ann lists Ann's, and GET /totals
/// sums them up by owner. POST /transfers moves money: {"from": "a1", "to": "b1", "amount": 5}. GET /metrics is for
/// Prometheus, GET /pools for the example `top`. SIGTERM and Ctrl-C shut it down: it finishes the requests in progress, and
/// closes its client.
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
    options.timeout.get_or_insert(LIMIT);
    let (end, client) = (end_signal()?.shared(), Client::new(options)?);
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("Listening on {}", listener.local_addr()?);
    let serving = axum::serve(listener, router(client.clone())).with_graceful_shutdown(end.clone());
    tokio::select! {
        served = serving.into_future() => served?,
        () = end.then(|()| tokio::time::sleep(GRACE)) => eprintln!("Requests did not end within {GRACE:?}."),
    }
    println!("Ended{}", if client.shutdown(GRACE).await { "" } else { ", but connections are left" });
    Ok(())
}

/// Returns a future that completes at SIGTERM or Ctrl-C. It notices signals from this call on.
fn end_signal() -> std::io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move { tokio::select!(_ = terminate.recv() => {}, _ = interrupt.recv() => {}) })
}

fn router(client: Client) -> Router {
    Router::new()
        .route("/accounts", post(open_account))
        .route("/accounts/{owner}", get(accounts))
        .route("/totals", get(totals))
        .route("/transfers", post(transfer))
        .route("/metrics", get(metrics))
        .route("/pools", get(pools))
        .with_state(client)
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

async fn open_account(State(client): State<Client>, Json(account): Json<Account>) -> Result<Response, Failure> {
    client.insert(DATABASE, "accounts", [&account]).await?;
    Ok((StatusCode::CREATED, Json(account)).into_response())
}

async fn accounts(State(client): State<Client>, Path(owner): Path<String>) -> Result<Json<Vec<Account>>, Failure> {
    let (filter, options) = (doc! { "owner": owner }, doc! { "sort": { "_id": 1 } });
    Ok(Json(all(&client, || client.find(DATABASE, "accounts", &filter).options(&options)).await?))
}

async fn totals(State(client): State<Client>) -> Result<Json<Vec<Total>>, Failure> {
    let group = doc! { "_id": "$owner", "accounts": { "$sum": 1 }, "balance": { "$sum": "$balance" } };
    let pipeline = [doc! { "$group": group }, doc! { "$sort": { "_id": 1 } }];
    Ok(Json(all(&client, || client.aggregate(DATABASE, "accounts", &pipeline)).await?))
}

/// Reads all batches in a transaction: at one point in time, and again from the first one if the cursor is lost with its
/// server.
async fn all<T: DeserializeOwned>(client: &Client, query: impl Fn() -> Query<'static>) -> Result<Vec<T>, ClientError> {
    let read =
        async |mut session: Session| query().batch_size(100).session(&mut session).await?.typed().try_collect().await;
    let mut session = client.start_session(&SessionOptions::default())?;
    session.with_transaction_in_task(TransactionOptions::default(), read).await
}

async fn transfer(State(client): State<Client>, Json(transfer): Json<Transfer>) -> Result<StatusCode, Failure> {
    if transfer.amount <= 0 {
        return Err(Failure::Refused("the amount must be positive"));
    }
    let enough = doc! { "_id": transfer.from, "balance": { "$gte": transfer.amount } };
    let take = doc! { "q": enough, "u": { "$inc": { "balance": -transfer.amount } } };
    let give = doc! { "q": { "_id": transfer.to }, "u": { "$inc": { "balance": transfer.amount } } };
    let move_money = async |mut session: Session| {
        let taken = client.update(DATABASE, "accounts", [&take]).session(&mut session).await?;
        let given = client.update(DATABASE, "accounts", [&give]).session(&mut session).await?;
        let both = taken.matched + given.matched == 2;
        // An error ends the transaction: neither account changes.
        both.then_some(()).ok_or(Failure::Refused("there is no such account, or not enough money in it"))
    };
    let mut session = client.start_session(&SessionOptions::default()).map_err(ClientError::from)?;
    session.with_transaction_in_task_as(TransactionOptions::default(), move_money).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the metrics of all pools in the text format of Prometheus.
async fn metrics(State(client): State<Client>) -> Response {
    let mut text = String::new();
    write_metrics(&client.metrics(), &mut text).expect("writing into a string does not fail");
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// The upper bounds of the buckets, in seconds.
const BOUNDS: [f64; 11] = [5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 0.1, 0.5, 1.0];

fn write_metrics(pools: &[PoolMetrics], text: &mut String) -> std::fmt::Result {
    for metric in METRICS {
        let (name, kind) = (metric.name, format!("{:?}", metric.kind).to_lowercase());
        writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", metric.help)?;
        let all = pools.iter().flat_map(|pool| readings(pool).map(move |reading| (pool, reading)));
        for (pool, reading) in all.filter(|(_, reading)| reading.metric == metric) {
            let label = reading.label.map(|(name, value)| format!(",{name}={value:?}")).unwrap_or_default();
            let labels = format!("pool={:?}{label}", &*pool.address);
            if let ReadingValue::Number(number) = reading.value {
                writeln!(text, "{name}{{{labels}}} {number}")?;
            }
            let ReadingValue::Times(times) = reading.value else { continue };
            for bound in BOUNDS {
                let count: u64 = times.buckets().filter(|(most, _)| most.as_secs_f64() <= bound).map(|(_, n)| n).sum();
                writeln!(text, "{name}_bucket{{{labels},le=\"{bound:?}\"}} {count}")?;
            }
            let (count, sum) = (times.count(), times.sum().as_secs_f64());
            writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}\n{name}_sum{{{labels}}} {sum}")?;
            writeln!(text, "{name}_count{{{labels}}} {count}")?;
        }
    }
    Ok(())
}

async fn pools(State(client): State<Client>) -> Json<Vec<PoolRow>> {
    Json(client.metrics().iter().map(PoolRow::of).collect())
}

/// Why a request failed. The text of most errors is only for the log.
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
            return (StatusCode::CONFLICT, "the account exists already").into_response();
        }
        eprintln!("a request failed: {error}");
        let status = if error.is_timeout() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::BAD_GATEWAY };
        (status, "the database cannot serve the request").into_response()
    }
}
