//! A client under load, with a report: the quickstart example.

mod arguments;
mod events;
mod live;
mod load;
mod picture;
mod report;
mod server;

use std::env;
use std::fs::File;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use wharf::telemetry::EventCounts;
use wharf::{Client, PoolOptions};

use arguments::{Arguments, HELP, Mistake, Place};
use events::EventFile;
use live::{Happenings, Live};
use load::Load;
use server::Server;

/// How long tasks may take to finish their last operations after the run ends.
const GRACE: Duration = Duration::from_secs(10);

/// Runs the load that the command line asks for, and prints the report.
///
/// `tokio::main` makes this function synchronous. Otherwise the compiler would compile all of it again for the example
/// that awaits it.
#[tokio::main]
pub async fn main() -> ExitCode {
    let done = match Arguments::read(env::args_os().skip(1)) {
        Ok(Some(arguments)) => run(&arguments).await,
        Ok(None) => {
            print!("{HELP}");
            Ok(())
        }
        Err(mistake) => Err(mistake.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            if error.is::<Mistake>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

async fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let place = arguments.place()?;
    let of_uri = if let Place::Given(options) = &place { options.pool.clone() } else { PoolOptions::default() };
    let pool_options = arguments.pool_options(of_uri)?;
    if let Place::Given(options) = &place {
        // Building a client reads the files that the options name, so errors in them appear before anything is
        // connected or printed.
        Client::new((**options).clone()).map(drop).map_err(|invalid| Mistake(format!("MONGODB_URI: {invalid}")))?;
    }
    let server = Server::start(place).await?;
    // With --json, standard output contains only JSON.
    let tell = |text: String| if arguments.json { eprintln!("{text}") } else { println!("{text}") };
    tell(format!("Server: {server}"));
    let options = server.options()?.pool(pool_options);
    let most = options.pool.max_pool_size;
    let ready = match server.prepare(&Client::new(options.clone())?).await {
        Ok(()) => Ok(()),
        Err(error) => Err(format!("the deployment cannot be used: {error}")),
    };
    if let Err(error) = ready {
        server.stop().await?;
        return Err(error.into());
    }

    // The file may already hold the result of an earlier run, so it is not overwritten until the server has answered.
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
    let (counts, happenings) = (EventCounts::new(), Happenings::default());
    let mut builder = Client::builder(options).subscriber(counts.clone());
    builder = builder.subscriber(happenings.of_pools()).topology_subscriber(happenings.of_servers());
    if let Some(events) = &events {
        builder = builder.subscriber(events.subscriber());
    }
    let client = builder.build()?;

    let started = Instant::now();
    let mut load = Load::start(&client, arguments.tasks);
    let live = Live::new(arguments.json, Duration::from_secs(arguments.seconds), most);
    let interrupted = watch_the_clock(&load, &client, &happenings, live).await;
    load.stop();
    tokio::select! {
        () = load.finished() => {}
        _ = tokio::time::sleep(GRACE) => eprintln!("Cancelling operations that did not end within {GRACE:?}."),
        _ = tokio::signal::ctrl_c() => eprintln!("Cancelling the operations in progress."),
    }
    load.cancel().await;
    let took = started.elapsed();

    // Ending the client's sessions is not part of the load.
    let (status, metrics) = (client.status(), client.metrics());
    if !client.shutdown(GRACE).await {
        eprintln!("Connections in use did not come back within {GRACE:?}.");
    }
    let left: u32 = client.metrics().iter().map(|pool| pool.status.total).sum();
    drop(client);
    let written = events.map(EventFile::finish).transpose();
    let stopped = server.stop().await;

    if interrupted {
        tell("Ended early by Ctrl-C.".to_owned());
    }
    let (results, tasks, happened) = (load.results(), arguments.tasks, happenings.since(load.begun()));
    let table = report::Table {
        results: &results,
        status: &status,
        pools: &metrics,
        counts: counts.snapshot(),
        happened: &happened,
        took,
        tasks,
        most,
    };
    match arguments.json {
        // An error means that nothing is reading the output any more.
        true => _ = writeln!(io::stdout(), "{}", table.json()),
        false => print!("{table}"),
    }
    if let (Some(path), Ok(Some(written))) = (&arguments.events, &written) {
        tell(report::Events { written, path }.to_string().trim_end().to_owned());
    }
    written.map_err(|error| format!("--events: cannot write: {error}"))?;
    tell(format!("The client is closed, with {left} connections left.\n{}", stopped?));
    if results.operations == 0 {
        return Err("not one operation succeeded".into());
    }
    Ok(())
}

/// Shows the load until the time is up or Ctrl-C is pressed. Returns whether Ctrl-C was pressed.
async fn watch_the_clock(load: &Load, client: &Client, happenings: &Happenings, mut live: Live) -> bool {
    // All iterations poll the same future. A new future in each iteration would miss a Ctrl-C between iterations.
    let (end, interrupt) = (tokio::time::sleep(live.whole()), tokio::signal::ctrl_c());
    tokio::pin!(end, interrupt);
    let mut ticks = tokio::time::interval(live.pace());
    ticks.tick().await;
    let interrupted = loop {
        tokio::select! {
            () = &mut end => break false,
            _ = &mut interrupt => break true,
            _ = ticks.tick() => live.show(load, &client.status(), happenings),
        }
    };
    live.end();
    interrupted
}
