//! The process of one server.

use std::io;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use super::POLL;

/// How long a server may take to exit after `SIGTERM` before it gets `SIGKILL`.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// A child process that is terminated on drop.
#[derive(Debug)]
pub(super) struct Process(pub(super) Child);

impl Process {
    /// Sends `SIGTERM`, and `SIGKILL` after ten seconds, and waits for the process. A paused process is resumed after
    /// `SIGTERM`, so that it can exit.
    pub(super) fn end(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.0.try_wait()? {
            return Ok(status);
        }
        self.signal(Signal::Terminate)?;
        self.signal(Signal::Continue)?;
        let deadline = Instant::now() + STOP_DEADLINE;
        while Instant::now() < deadline {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            thread::sleep(POLL);
        }
        self.kill()
    }

    /// Sends `SIGKILL` and waits for the process, even if it is paused. Returns the exit status if it had already
    /// exited.
    pub(super) fn kill(&mut self) -> io::Result<ExitStatus> {
        self.0.kill()?;
        self.0.wait()
    }

    /// Sends a signal, unless the process has exited.
    pub(super) fn signal(&mut self, signal: Signal) -> io::Result<()> {
        // Until a child has been waited for, no other process gets its identifier.
        if self.0.try_wait()?.is_some() {
            return Ok(());
        }
        signal.send(&mut self.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A test that is unwinding has a more important error to report. The next start removes whatever is left.
        let _ = self.end();
    }
}

/// A signal to a server.
#[derive(Clone, Copy, Debug)]
pub(super) enum Signal {
    /// Terminates it gracefully.
    Terminate,
    /// Stops all its threads where they are.
    Pause,
    /// Resumes them.
    Continue,
}

impl Signal {
    /// Sends this signal to a child that has not been waited for.
    #[cfg(unix)]
    fn send(self, child: &mut Child) -> io::Result<()> {
        use nix::sys::signal::{self, kill};
        use nix::unistd::Pid;
        let pid = i32::try_from(child.id()).expect("a process identifier is a positive i32");
        let signal = match self {
            Self::Terminate => signal::Signal::SIGTERM,
            Self::Pause => signal::Signal::SIGSTOP,
            Self::Continue => signal::Signal::SIGCONT,
        };
        Ok(kill(Pid::from_raw(pid), signal)?)
    }

    /// Sends this signal to a child. Systems other than Unix can kill a process but cannot pause it.
    #[cfg(not(unix))]
    fn send(self, child: &mut Child) -> io::Result<()> {
        match self {
            Self::Terminate => child.kill(),
            Self::Pause => Err(io::Error::from(io::ErrorKind::Unsupported)),
            Self::Continue => Ok(()),
        }
    }
}
