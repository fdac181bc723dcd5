//! A pool under load, with a report: the quickstart example.

mod arguments;
mod events;
mod load;
mod report;
mod server;

use std::fs::File;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use wharf::telemetry::EventCounts;
use wharf::{Endpoint, Pool, PoolOptions};

use arguments::{Arguments, Mistake, Place};
use events::EventFile;
use load::Load;
use report::Progress;
use server::Server;

/// How long tasks may take to finish their last operations after the end.
const GRACE: Duration = Duration::from_secs(10);

/// Runs the load that the command line asks for, and prints the report.
///
/// It is not `async`, because the compiler would then translate all of it once more for the example that awaits it.
#[tokio::main]
pub async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            if error.is::<Mistake>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

async fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let place = arguments.place().await?;
    let of_uri = if let Place::Given(options) = &place { options.pool.clone() } else { PoolOptions::default() };
    let pool_options = arguments.pool_options(of_uri)?;
    if let Place::Given(options) = &place {
        // Read the files that it names now, before anything is connected or printed.
        options.endpoint().map(drop).map_err(|invalid| Mistake(format!("MONGODB_URI: {invalid}")))?;
    }
    let server = Server::start(place).await?;
    println!("Server: {server}");
    let endpoint = server.options()?.endpoint()?;
    // This example has no monitor that would check the server and mark the pool ready.
    if let Err(error) = server::ping(&endpoint).await {
        server.stop().await?;
        return Err(format!("the server at {} cannot be used: {error}", endpoint.address()).into());
    }

    // Created only once the server has answered: the file may be the result of an earlier run.
    let events = match &arguments.events {
        None => None,
        Some(path) => match File::create(path).and_then(|file| EventFile::start(file, events::ROOM)) {
            Ok(file) => Some(file),
            Err(error) => {
                server.stop().await?;
                return Err(Mistake(format!("--events: cannot create {}: {error}", path.display())).into());
            }
        },
    };
    let counts = EventCounts::new();
    let mut builder = endpoint.pool().options(pool_options);
    if let Some(events) = &events {
        builder = builder.subscriber(events.subscriber());
    }
    let pool = builder.subscriber(counts.clone()).build()?;
    pool.ready();

    let started = Instant::now();
    let mut load = Load::start(&pool, arguments.tasks);
    let interrupted = watch_the_clock(&load, &pool, Duration::from_secs(arguments.seconds)).await;
    load.stop();
    tokio::select! {
        () = load.finished() => {}
        _ = tokio::time::sleep(GRACE) => eprintln!("Cancelling operations that did not end within {GRACE:?}."),
        _ = tokio::signal::ctrl_c() => eprintln!("Cancelling the operations in progress."),
    }
    load.cancel().await;
    let took = started.elapsed();

    pool.close();
    pool.closed().await;
    let (status, most) = (pool.status(), pool.options().max_pool_size);
    drop(pool);
    let written = events.map(EventFile::finish).transpose();
    let stopped = server.stop().await;

    if interrupted {
        println!("Ended early by Ctrl-C.");
    }
    let results = load.results();
    print!("{}", report::Table { results: &results, counts: counts.snapshot(), took, tasks: arguments.tasks, most });
    if let (Some(path), Ok(Some(written))) = (&arguments.events, &written) {
        print!("{}", report::Events { written, path });
    }
    written.map_err(|error| format!("--events: cannot write: {error}"))?;
    println!("The pool is closed, with {} connections left.\n{}", status.total, stopped?);
    if results.commands.is_empty() {
        return Err("not one operation succeeded".into());
    }
    Ok(())
}

/// Shows the progress until the time is over or Ctrl-C is pressed. Returns whether Ctrl-C was pressed.
async fn watch_the_clock(load: &Load, pool: &Pool<Endpoint>, time: Duration) -> bool {
    let mut progress = Progress::new(time);
    // One future for the whole time: a new one in each iteration would miss a Ctrl-C between two.
    let (end, interrupt, started) = (tokio::time::sleep(time), tokio::signal::ctrl_c(), Instant::now());
    tokio::pin!(end, interrupt);
    let mut ticks = tokio::time::interval(progress.pace());
    ticks.tick().await;
    let interrupted = loop {
        tokio::select! {
            () = &mut end => break false,
            _ = &mut interrupt => break true,
            _ = ticks.tick() => progress.show(started.elapsed(), load.operations(), &pool.status()),
        }
    };
    progress.end();
    interrupted
}
