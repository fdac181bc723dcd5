//! Shows pools live in a terminal, as `top` shows processes.

use std::error::Error;
use std::fmt::Display;
use std::future::Future;
use std::io::{self, IsTerminal, Write};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bson::rawdoc;
use clap::Parser;
use crossterm::event::{Event, KeyCode, KeyModifiers};
use crossterm::{cursor, event, execute, queue, style, terminal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use wharf::{Endpoint, Options, Pool, PoolOptions};
use wharf_servers::embedded::{EmbeddedOptions, EmbeddedServer};

use crate::http;
use crate::pools::PoolRow;
use crate::table::{json, lines, render};

/// Shows pools live: connections, check-outs a second, hits, waits, timeouts.
///
/// Without --service it shows two pools under load, with the load and the servers in this process. q, Ctrl-C or a
/// signal stops it. If the output is not a terminal, it prints one table after the first interval. It uses no colours.
#[derive(Debug, Parser)]
#[command(name = "top")]
pub struct Arguments {
    /// Show the pools of this service, which must serve /pools (see the example `service`)
    #[arg(long, value_name = "HOST:PORT")]
    service: Option<String>,
    /// Time between two tables, in milliseconds (at least 10)
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(10..))]
    interval: u64,
    /// Width of the table if the output is not a terminal
    #[arg(long, value_name = "COLUMNS", default_value_t = 80)]
    width: u16,
    /// Print a line of JSON at each interval instead of tables, until a signal arrives or the output is closed
    #[arg(long)]
    json: bool,
}

/// Shows the pools until the user quits.
///
/// # Errors
///
/// Returns an error if the terminal, the service or the demo load's server fails.
pub async fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let interval = Duration::from_millis(arguments.interval);
    let source = match &arguments.service {
        Some(service) => Source::Service(service.clone()),
        None => Source::Demo(Demo::start().await?),
    };
    let shown = match io::stdout().is_terminal() {
        _ if arguments.json => print_json(&source, interval).await,
        true => live(&source, interval).await,
        false => print_once(&source, interval, arguments.width.into()).await,
    };
    if let Source::Demo(demo) = source {
        demo.stop().await;
    }
    shown
}

async fn print_once(source: &Source, interval: Duration, width: usize) -> Result<(), Box<dyn Error>> {
    let (before, since) = (source.read().await?, Instant::now());
    tokio::time::sleep(interval).await;
    let now = source.read().await?;
    render(&lines(&before, &now, since.elapsed()), width).iter().try_for_each(|line| print_line(line).map(drop))?;
    Ok(())
}

async fn print_json(source: &Source, interval: Duration) -> Result<(), Box<dyn Error>> {
    let (begun, mut before, mut since) = (Instant::now(), source.read().await?, Instant::now());
    let mut ended = pin!(end_signal()?);
    loop {
        let now = tokio::select! {
            now = async {
                tokio::time::sleep(interval).await;
                source.read().await
            } => now?,
            () = &mut ended => return Ok(()),
        };
        let line = json(&lines(&before, &now, since.elapsed()), begun.elapsed());
        (before, since) = (now, Instant::now());
        if !print_line(&line)? {
            return Ok(());
        }
    }
}

/// Prints a line. Returns whether the output still has a reader.
fn print_line(line: &impl Display) -> io::Result<bool> {
    match writeln!(io::stdout(), "{line}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        printed => printed.map(|()| true),
    }
}

async fn live(source: &Source, interval: Duration) -> Result<(), Box<dyn Error>> {
    let (mut before, mut since) = (source.read().await?, Instant::now());
    // The terminal's state must also be restored after a signal.
    let mut ended = pin!(end_signal()?);
    let mut shown = lines(&before, &before, interval);
    // The first tick of a plain `interval` would complete at once. The table would then compare two readings with no
    // time between them.
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + interval, interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let screen = Screen::open()?;
    let mut keys = keys();
    loop {
        screen.draw(|width| render(&shown, width))?;
        tokio::select! {
            now = async {
                ticks.tick().await;
                source.read().await
            } => {
                let now = now?;
                shown = lines(&before, &now, since.elapsed());
                (before, since) = (now, Instant::now());
            }
            key = keys.recv() => if key != Some(Key::Redraw) { return Ok(()) },
            () = &mut ended => return Ok(()),
        }
    }
}

/// Returns a future that completes when a signal asks the process to terminate. After this call, these signals have no
/// other effect.
fn end_signal() -> io::Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        Ok(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
        })
    }
    #[cfg(not(unix))]
    Ok(async {
        let _ = tokio::signal::ctrl_c().await;
    })
}

#[derive(Debug, PartialEq)]
enum Key {
    Redraw,
    End,
}

/// Reads keys on a separate thread, which exits with the process.
fn keys() -> mpsc::UnboundedReceiver<Key> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let key = match event {
                Event::Key(key) if key.code == KeyCode::Char('q') => Key::End,
                Event::Key(key) if key.code == KeyCode::Char('c') && key.modifiers == KeyModifiers::CONTROL => Key::End,
                Event::Resize(..) => Key::Redraw,
                _ => continue,
            };
            if sender.send(key).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The terminal's alternate screen. Dropping it restores the main screen.
struct Screen;

impl Screen {
    fn open() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        let screen = Self;
        execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }

    /// Draws as many lines as the terminal has rows. Each is cleared just before it is drawn, so that the table does not
    /// flicker.
    fn draw(&self, lines: impl FnOnce(usize) -> Vec<String>) -> io::Result<()> {
        let (width, height) = terminal::size()?;
        let mut out = io::stdout();
        let mut lines = lines(width.into()).into_iter();
        for row in 0..height {
            queue!(out, cursor::MoveTo(0, row), terminal::Clear(terminal::ClearType::CurrentLine))?;
            if let Some(line) = lines.next() {
                queue!(out, style::Print(line))?;
            }
        }
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // There is no terminal left on which to report an error.
        let _ = execute!(io::stdout(), terminal::LeaveAlternateScreen, cursor::Show);
        let _ = terminal::disable_raw_mode();
    }
}

enum Source {
    Service(String),
    Demo(Demo),
}

impl Source {
    async fn read(&self) -> Result<Vec<PoolRow>, Box<dyn Error>> {
        match self {
            Self::Demo(demo) => Ok(demo.pools.iter().map(PoolRow::with_holders).collect()),
            Self::Service(service) => {
                let failed = |error| format!("the service at {service}: {error}");
                let (status, body) =
                    http::request(service, "GET", "/pools", "").await.map_err(|e| failed(e.to_string()))?;
                match status {
                    200 => Ok(serde_json::from_str(&body).map_err(|error| failed(error.to_string()))?),
                    _ => Err(failed(format!("status {status}")).into()),
                }
            }
        }
    }
}

/// Two pools under load, one with more tasks than connections.
struct Demo {
    servers: Vec<EmbeddedServer>,
    pools: Vec<Pool<Endpoint>>,
    tasks: JoinSet<()>,
    stop: Arc<AtomicBool>,
}

impl Demo {
    async fn start() -> Result<Self, Box<dyn Error>> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut demo = Self { servers: Vec::new(), pools: Vec::new(), tasks: JoinSet::new(), stop };
        for (most, tasks) in [(10, 200), (50, 20)] {
            let server = EmbeddedServer::start(EmbeddedOptions::default()).await?;
            let endpoint = Options::new([&*server.address()])?.endpoint()?;
            let options = PoolOptions::default().max_pool_size(most);
            let pool = endpoint.pool().options(options).account_for_holders(true).build()?;
            pool.ready();
            for _ in 0..tasks {
                demo.tasks.spawn(work(pool.clone(), demo.stop.clone()));
            }
            demo.servers.push(server);
            demo.pools.push(pool);
        }
        Ok(demo)
    }

    async fn stop(mut self) {
        // Relaxed: the store publishes nothing.
        self.stop.store(true, Ordering::Relaxed);
        while self.tasks.join_next().await.is_some() {}
        for pool in self.pools {
            pool.close();
            pool.closed().await;
        }
        for server in self.servers {
            server.stop().await;
        }
    }
}

async fn work(pool: Pool<Endpoint>, stop: Arc<AtomicBool>) {
    let ping = rawdoc! { "ping": 1 };
    // Relaxed: the flag publishes nothing.
    while !stop.load(Ordering::Relaxed) {
        if pool.run_command("admin", &ping).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
