//! The service: orders in a collection, metrics, and an orderly end.

use std::error::Error;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bson::oid::ObjectId;
use bson::{RawDocument, rawdoc};
use clap::Parser;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use wharf::{Endpoint, OperationError, Options, Pool};

use crate::exposition;
use crate::pools::PoolRow;

const DATABASE: &str = "shop";
/// How long requests and connections may take to end.
const GRACE: Duration = Duration::from_secs(10);
/// A check-out that waits for this long is logged.
const SLOW: Duration = Duration::from_millis(100);

/// A service that keeps orders in MongoDB.
///
/// POST /orders takes {"item": "..."} and returns the order with its id; GET /orders/ID returns it. GET /metrics is for
/// Prometheus, GET /pools for the example `top`. MONGODB_URI names the server (mongodb://localhost by default).
///
/// SIGTERM and Ctrl-C end it: it takes no new requests, ends those in progress, and closes its pool.
#[derive(Debug, Parser)]
#[command(name = "service")]
pub struct Arguments {
    /// The address to listen on; with port 0 the operating system chooses one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
}

/// Runs the service until a signal ends it.
///
/// # Errors
///
/// An invalid `MONGODB_URI`, an address that cannot be listened on, or connections that do not end in time.
pub async fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let uri = std::env::var("MONGODB_URI").unwrap_or_else(|_| "mongodb://localhost".to_owned());
    let options = Options::from_uri(&uri).await?;
    let pool = options.endpoint()?.pool().slow_check_out(Some(SLOW)).build()?;
    // This service has no monitor: the pool stays ready, and check-outs fail while the server is away.
    pool.ready();

    let listener = TcpListener::bind(arguments.listen).await?;
    println!("Listening on {}", listener.local_addr()?);
    let (ending, mut ended) = tokio::sync::watch::channel(false);
    let serving = axum::serve(listener, router(pool.clone())).with_graceful_shutdown(async move {
        end_signal().await;
        let _ = ending.send(true);
    });
    tokio::select! {
        served = serving.into_future() => served?,
        () = async {
            // An error means that the service has ended already.
            let _ = ended.wait_for(|ended| *ended).await;
            tokio::time::sleep(GRACE).await;
        } => eprintln!("Requests did not end within {GRACE:?}."),
    }

    pool.close();
    tokio::time::timeout(GRACE, pool.closed()).await.map_err(|_| "connections did not close in time")?;
    println!("Ended, with {} connections left", pool.status().total);
    Ok(())
}

/// Completes at SIGTERM or Ctrl-C.
async fn end_signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate()).expect("the handler of SIGTERM cannot be installed");
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    }
    #[cfg(not(unix))]
    let _ = tokio::signal::ctrl_c().await;
}

#[derive(Clone)]
struct Service {
    pool: Pool<Endpoint>,
    registry: Arc<Registry>,
}

/// Returns the service's routes.
pub fn router(pool: Pool<Endpoint>) -> Router {
    let registry = Arc::new(exposition::registry(vec![pool.clone()]));
    Router::new()
        .route("/orders", post(create_order))
        .route("/orders/{id}", get(order))
        .route("/metrics", get(metrics))
        .route("/pools", get(pools))
        .with_state(Service { pool, registry })
}

#[derive(Debug, Deserialize)]
struct NewOrder {
    item: String,
}

#[derive(Debug, Serialize)]
struct Order {
    id: String,
    item: String,
}

async fn create_order(State(service): State<Service>, Json(new): Json<NewOrder>) -> Result<Response, Failure> {
    let id = ObjectId::new();
    let insert = rawdoc! { "insert": "orders", "documents": [{ "_id": id, "item": new.item.as_str() }] };
    let reply = service.pool.run_command(DATABASE, &insert).await?;
    // A reply to a write may be a success for the command and a failure for the document.
    if reply.get("writeErrors")?.is_some() || reply.get("writeConcernError")?.is_some() {
        return Err(Failure(StatusCode::BAD_GATEWAY, "the order was not written".to_owned()));
    }
    Ok((StatusCode::CREATED, Json(Order { id: id.to_hex(), item: new.item })).into_response())
}

async fn order(State(service): State<Service>, Path(id): Path<String>) -> Result<Json<Order>, Failure> {
    let none = || Failure(StatusCode::NOT_FOUND, "there is no such order".to_owned());
    let oid = ObjectId::from_str(&id).map_err(|_| none())?;
    let find = rawdoc! { "find": "orders", "filter": { "_id": oid }, "limit": 1, "singleBatch": true };
    let reply = service.pool.run_command(DATABASE, &find).await?;
    let batch = reply.get_document("cursor")?.get_array("firstBatch")?;
    let found: &RawDocument = match batch.into_iter().next() {
        Some(found) => found?.as_document().ok_or_else(none)?,
        None => return Err(none()),
    };
    Ok(Json(Order { id, item: found.get_str("item")?.to_owned() }))
}

async fn metrics(State(service): State<Service>) -> Response {
    let mut body = String::new();
    text::encode(&mut body, &service.registry).expect("writing into a string does not fail");
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}

async fn pools(State(service): State<Service>) -> Json<Vec<PoolRow>> {
    Json(vec![PoolRow::of(&service.pool)])
}

/// The response to a request that failed.
struct Failure(StatusCode, String);

impl From<OperationError> for Failure {
    fn from(error: OperationError) -> Self {
        // Without a connection, another attempt later may succeed. The text of other errors is for the log only.
        let status = match &error {
            OperationError::CheckOut(_) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_GATEWAY,
        };
        eprintln!("{error}");
        Self(status, "the database cannot serve the request".to_owned())
    }
}

impl From<bson::error::Error> for Failure {
    fn from(error: bson::error::Error) -> Self {
        eprintln!("the reply cannot be read: {error}");
        Self(StatusCode::BAD_GATEWAY, "the database sent an unexpected reply".to_owned())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, self.1).into_response()
    }
}
