use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bson::{Document, doc};

use super::*;

/// The environment variable that tells a test's child process that it is the child.
const CHILD: &str = "WHARF_TESTBED_TEST_CHILD";

/// Sends one command as an `OP_MSG` with one section of kind 0 and returns the reply's document.
fn run_command(stream: &mut TcpStream, command: &Document) -> Document {
    const OP_MSG: u32 = 2013;
    let body = command.to_vec().unwrap();
    let length = u32::try_from(16 + 4 + 1 + body.len()).unwrap();
    let mut message = Vec::new();
    // Length, request id, response to, opcode, flags.
    for field in [length, 1, 0, OP_MSG, 0] {
        message.extend_from_slice(&field.to_le_bytes());
    }
    message.push(0);
    message.extend_from_slice(&body);
    stream.write_all(&message).unwrap();

    let mut header = [0; 21];
    stream.read_exact(&mut header).unwrap();
    let length = u32::from_le_bytes(header[..4].try_into().unwrap());
    assert_eq!(header[20], 0, "the section's kind");
    let mut body = vec![0; length as usize - header.len()];
    stream.read_exact(&mut body).unwrap();
    Document::from_reader(&body[..]).unwrap()
}

fn connect(mongod: &Mongod) -> TcpStream {
    let stream = TcpStream::connect(mongod.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

fn is_ok(reply: &Document) -> bool {
    matches!(reply.get_f64("ok"), Ok(1.0))
}

/// Returns whether the process exists and is not a zombie child of another parent.
#[cfg(target_os = "linux")]
pub(crate) fn is_running(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

/// Returns whether the process exists.
#[cfg(all(unix, not(target_os = "linux")))]
pub(crate) fn is_running(pid: u32) -> bool {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.try_into().unwrap()), None).is_ok()
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        thread::sleep(POLL);
    }
}

#[test]
fn server_starts_answers_stops_and_leaves_nothing() {
    let began = Instant::now();
    let mongod = Mongod::start(MongodOptions::default()).unwrap();
    println!("started in {:?}", began.elapsed());
    let (pid, folder) = (mongod.pid(), mongod.log_path().parent().unwrap().to_path_buf());
    assert_eq!(mongod.address().port(), mongod.port());
    let mut stream = connect(&mongod);
    assert!(is_ok(&run_command(&mut stream, &doc! { "ping": 1, "$db": "admin" })));
    let fail_point = doc! {
        "configureFailPoint": "failCommand", "mode": { "times": 1 },
        "data": { "failCommands": ["ping"], "errorCode": 91 }, "$db": "admin",
    };
    assert!(is_ok(&run_command(&mut stream, &fail_point)), "test commands are enabled");
    let failed = run_command(&mut stream, &doc! { "ping": 1, "$db": "admin" });
    assert_eq!(failed.get_i32("code").unwrap(), 91);
    assert!(is_running(pid) && folder.is_dir());

    let began = Instant::now();
    let status = mongod.stop().unwrap();
    println!("stopped in {:?}", began.elapsed());
    assert!(status.success(), "{status}");
    assert!(!is_running(pid) && !folder.exists());
}

#[test]
fn drop_leaves_nothing() {
    let mongod = Mongod::start(MongodOptions::default()).unwrap();
    let (pid, folder) = (mongod.pid(), mongod.log_path().parent().unwrap().to_path_buf());
    drop(mongod);
    assert!(!is_running(pid) && !folder.exists());
}

#[test]
fn server_outlives_the_thread_that_started_it() {
    let mongod = thread::spawn(|| Mongod::start(MongodOptions::default()).unwrap()).join().unwrap();
    assert!(is_ok(&run_command(&mut connect(&mongod), &doc! { "ping": 1, "$db": "admin" })));
    assert!(is_running(mongod.pid()));
}

#[test]
fn killed_server_restarts_with_its_port_and_data() {
    let mut mongod = Mongod::start(MongodOptions::default()).unwrap();
    let (address, killed) = (mongod.address(), mongod.pid());
    let insert = doc! { "insert": "c", "documents": [{ "_id": 1 }], "writeConcern": { "j": true }, "$db": "test" };
    assert!(is_ok(&run_command(&mut connect(&mongod), &insert)));
    mongod.pause().unwrap();
    mongod.kill().unwrap();
    mongod.kill().unwrap();
    assert!(!is_running(killed));
    mongod.resume().unwrap();

    mongod.restart().unwrap();
    assert_eq!(mongod.address(), address);
    // Without a query, the server takes the count from metadata, which is out of date after a kill.
    let count = doc! { "count": "c", "query": { "_id": 1 }, "$db": "test" };
    let found = run_command(&mut connect(&mongod), &count);
    assert_eq!(found.get_i32("n").unwrap(), 1);
    let running = mongod.pid();
    mongod.restart().unwrap();
    assert!(is_running(mongod.pid()) && !is_running(running));
}

#[cfg(unix)]
#[test]
fn paused_server_answers_when_it_is_resumed_and_stops_in_good_order() {
    let mut mongod = Mongod::start(MongodOptions::default()).unwrap();
    let mut stream = connect(&mongod);
    mongod.pause().unwrap();
    thread::scope(|scope| {
        let answer = scope.spawn(|| run_command(&mut stream, &doc! { "ping": 1, "$db": "admin" }));
        let state = || std::fs::read_to_string(format!("/proc/{}/status", mongod.pid())).unwrap();
        if cfg!(target_os = "linux") {
            eventually("the process is stopped", || state().contains("State:\tT"));
        }
        assert!(!answer.is_finished());
        mongod.resume().unwrap();
        assert!(is_ok(&answer.join().unwrap()));
    });
    mongod.pause().unwrap();
    assert!(mongod.stop().unwrap().success());
}

#[test]
fn refused_arguments_are_reported_with_the_log() {
    let options = MongodOptions { extra_args: vec!["--noSuchOption".into()], ..MongodOptions::default() };
    let error = Mongod::start(options).unwrap_err();
    assert!(matches!(&error, StartError::Ended { log, .. } if log.contains("noSuchOption")), "{error}");
}

#[test]
fn taken_port_is_reported_as_lost() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let binary = provision::mongod().unwrap();
    let error = Mongod::start_once(&binary, &MongodOptions::default(), port).unwrap_err();
    assert!(matches!(&error, StartError::Ended { lost_port: true, .. }), "{error}");
}

#[test]
fn port_lost_before_a_long_stack_trace_is_reported_as_lost() {
    let log = format!("{ADDRESS_IN_USE}\n{}", "frame\n".repeat(LOG_TAIL));
    let error = StartError::ended(ExitStatus::from_raw(6), &log);
    assert!(matches!(&error, StartError::Ended { log, lost_port: true, .. } if log.len() <= LOG_TAIL), "{error}");
}

#[test]
fn replica_set_with_authentication_starts_and_stops_within_the_deadline() {
    let options = MongodOptions { auth: true, repl_set: Some("rs".to_owned()), ..MongodOptions::default() };
    let mongod = Mongod::start(options).unwrap();
    let mut stream = connect(&mongod);
    let reading = doc! { "find": "c", "$db": "test" };
    let initiate = doc! {
        "replSetInitiate": { "_id": "rs", "members": [{ "_id": 0, "host": mongod.address().to_string() }] },
        "$db": "admin",
    };
    let reply = run_command(&mut stream, &initiate);
    assert!(is_ok(&reply), "{reply}");
    eventually("primary", || {
        let hello = run_command(&mut connect(&mongod), &doc! { "hello": 1, "$db": "admin" });
        hello.get_bool("isWritablePrimary").unwrap()
    });
    assert_eq!(run_command(&mut stream, &reading).get_i32("code").unwrap(), 13, "not authenticated");

    let began = Instant::now();
    assert!(mongod.stop().unwrap().success());
    println!("stopped a primary in {:?}", began.elapsed());
}

#[test]
fn shared_server_stops_with_its_last_user() {
    let users: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(|| shared().unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(Arc::ptr_eq(&users[0], &users[1]));
    let pid = users[0].pid();
    drop(users);
    assert!(!is_running(pid));
}

#[cfg(target_os = "linux")]
#[test]
fn killed_parent_leaves_no_process_and_the_next_start_removes_its_folder() {
    let mut parent = Command::new(std::env::current_exe().unwrap());
    parent.args(["--exact", "mongod::tests::child_process_starts_a_server", "--nocapture"]);
    let mut parent = parent.env(CHILD, "1").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(parent.stdout.take().unwrap()));
    let (pid, folder): (u32, PathBuf) = loop {
        let line = lines.next().expect("the child ended").unwrap();
        if let Some((_, server)) = line.split_once("server: ") {
            let (pid, folder) = server.split_once(' ').unwrap();
            break (pid.parse().unwrap(), folder.into());
        }
    };
    assert!(is_running(pid) && folder.is_dir());
    parent.kill().unwrap();
    parent.wait().unwrap();
    eventually("mongod is killed with its parent", || !is_running(pid));
    eventually("the folder is removed", || {
        drop(Scratch::create().unwrap());
        !Path::new(&folder).exists()
    });
}

/// Not a test in itself: the child process of the test above runs this until it is killed.
#[test]
fn child_process_starts_a_server() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let mongod = Mongod::start(MongodOptions::default()).unwrap();
    println!("server: {} {}", mongod.pid(), mongod.log_path().parent().unwrap().display());
    // The read returns when the parent dies and the pipe closes, so this child is not left behind either.
    let _ = std::io::stdin().read(&mut [0]);
}
