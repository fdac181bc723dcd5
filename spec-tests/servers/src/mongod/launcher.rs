//! The thread that starts all of this process's servers.

use std::io;
use std::process::{Child, Command};
use std::sync::{OnceLock, mpsc};
use std::thread;

struct Order {
    command: Command,
    reply: mpsc::SyncSender<io::Result<Child>>,
}

/// Starts a process. On Linux, the kernel kills it when this process dies.
///
/// # Errors
///
/// Returns the operating system's error from starting a process or a thread.
pub(super) fn spawn(mut command: Command) -> io::Result<Child> {
    // The sender is never dropped, so the thread waits for requests until the process exits.
    static ORDERS: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    die_with_this_process(&mut command);
    let orders = match ORDERS.get() {
        Some(orders) => orders,
        None => {
            // Two concurrent first callers may each start a thread. Dropping the sender that is not stored stops its
            // thread, which has not started anything.
            let orders = start_thread()?;
            ORDERS.get_or_init(|| orders)
        }
    };
    let (reply, answer) = mpsc::sync_channel(1);
    orders.send(Order { command, reply }).expect("BUG: the launcher thread has ended");
    answer.recv().expect("BUG: the launcher thread has ended")
}

fn start_thread() -> io::Result<mpsc::Sender<Order>> {
    let (orders, inbox) = mpsc::channel::<Order>();
    thread::Builder::new().name("testbed-launcher".to_owned()).spawn(move || {
        for Order { mut command, reply } in inbox {
            // The caller waits for the answer without a timeout, so the send cannot fail.
            let _ = reply.send(command.spawn());
        }
    })?;
    Ok(orders)
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the standard library has no safe way to run code between fork and exec")]
fn die_with_this_process(command: &mut Command) {
    use nix::sys::prctl::set_pdeathsig;
    use nix::sys::signal::Signal;
    use nix::unistd::{getpid, getppid};
    use std::os::unix::process::CommandExt;

    // Ctrl-C would reach all processes in the terminal's process group, but this process decides when its servers exit.
    command.process_group(0);
    let parent = getpid();
    let prepare = move || {
        // The signal is `SIGKILL`, because no process would be left to follow up if `SIGTERM` had no effect.
        set_pdeathsig(Signal::SIGKILL)?;
        // If the parent died before the call above, the kernel no longer sends the signal.
        if getppid() != parent {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe));
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed, and no allocation. `prctl` and `getppid`
    // are system calls that keep no state of their own. An error made from an `Errno` or an `ErrorKind` allocates
    // nothing.
    unsafe {
        command.pre_exec(prepare);
    }
}

#[cfg(not(target_os = "linux"))]
fn die_with_this_process(_command: &mut Command) {}
