//! The cores on which the server and the clients run.
//!
//! On shared cores, the server and the clients disturb each other, and the scheduler decides which of them runs. This
//! costs more than the measured operations. So each side gets its own cores.

use std::io;

use crate::arguments::Machine;

/// The cores for the server and for the clients. The two sides share either no cores or all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    pub server: Vec<usize>,
    pub client: Vec<usize>,
}

/// The reason why the server and the clients cannot have separate cores.
#[derive(Debug, thiserror::Error)]
pub enum CannotPlace {
    /// There is only one core, or the clients were given all of them.
    #[error(
        "server and clients need cores of their own, {client} for the clients and at least one for the server, but this \
         process may use {available}; --no-pin runs on shared cores and measures the scheduler as well"
    )]
    TooFewCores {
        /// The number of cores that this process may run on.
        available: usize,
        /// The number of cores that the clients would get.
        client: usize,
    },
    /// The operating system does not list the cores.
    #[error("cannot choose cores: {0}; --no-pin runs without")]
    System(#[from] io::Error),
}

impl Placement {
    /// Returns the placement that the command line asks for, or `None` with `--no-pin`.
    pub fn choose(machine: &Machine) -> Result<Option<Self>, CannotPlace> {
        if machine.no_pin {
            return Ok(None);
        }
        Self::split(&system::own_cores()?, machine.client_cores.map(|cores| cores as usize)).map(Some)
    }

    /// Splits the cores. The clients get the last cores, because the first core usually handles the interrupts.
    fn split(cores: &[usize], client: Option<usize>) -> Result<Self, CannotPlace> {
        let client = client.unwrap_or((cores.len() / 2).max(1));
        match cores.len().checked_sub(client) {
            None | Some(0) => Err(CannotPlace::TooFewCores { available: cores.len(), client }),
            Some(server) => {
                let (server, client) = cores.split_at(server);
                Ok(Self { server: server.to_vec(), client: client.to_vec() })
            }
        }
    }

    /// Returns the placement with all cores for both sides.
    pub fn shared(&self) -> Self {
        let all = [&self.server[..], &self.client[..]].concat();
        Self { server: all.clone(), client: all }
    }

    /// Moves a server to its cores, with all its current and future threads.
    pub fn place_server(&self, process: u32) -> io::Result<()> {
        system::move_process(process, &self.server)
    }

    /// Moves the calling thread to the clients' cores, and with it the threads and processes that it starts later.
    pub fn place_client(&self) -> io::Result<()> {
        system::move_this_thread(&self.client)
    }
}

/// Returns the number of workers in the clients' runtime: one for each core.
pub fn workers(placement: Option<&Placement>) -> usize {
    placement
        .map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), |placement| placement.client.len())
}

#[cfg(target_os = "linux")]
mod system {
    use std::collections::HashSet;
    use std::{fs, io};

    use nix::errno::Errno;
    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::Pid;

    /// The id by which system calls refer to the calling thread.
    const THIS_THREAD: Pid = Pid::from_raw(0);

    pub fn own_cores() -> io::Result<Vec<usize>> {
        let mask = sched_getaffinity(THIS_THREAD)?;
        Ok((0..CpuSet::count()).filter(|&core| mask.is_set(core).unwrap_or(false)).collect())
    }

    pub fn move_this_thread(cores: &[usize]) -> io::Result<()> {
        Ok(sched_setaffinity(THIS_THREAD, &mask(cores)?)?)
    }

    /// Moves all threads of a process. A new thread inherits the cores of the thread that starts it. So once a pass
    /// finds that all threads have been moved, no unmoved thread can appear.
    pub fn move_process(process: u32, cores: &[usize]) -> io::Result<()> {
        let mask = mask(cores)?;
        let mut moved = HashSet::new();
        loop {
            let mut found_another = false;
            for entry in fs::read_dir(format!("/proc/{process}/task"))? {
                let name = entry?.file_name();
                let thread: i32 = name.to_string_lossy().parse().map_err(io::Error::other)?;
                if moved.insert(thread) {
                    found_another = true;
                    match sched_setaffinity(Pid::from_raw(thread), &mask) {
                        // The thread may have exited since it was listed.
                        Ok(()) | Err(Errno::ESRCH) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            if !found_another {
                return Ok(());
            }
        }
    }

    fn mask(cores: &[usize]) -> io::Result<CpuSet> {
        let mut mask = CpuSet::new();
        cores.iter().try_for_each(|&core| mask.set(core))?;
        Ok(mask)
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::io;

    fn unsupported() -> io::Error {
        io::Error::new(io::ErrorKind::Unsupported, "core affinity is not supported on this operating system")
    }

    pub fn own_cores() -> io::Result<Vec<usize>> {
        Err(unsupported())
    }

    pub fn move_this_thread(_cores: &[usize]) -> io::Result<()> {
        Err(unsupported())
    }

    pub fn move_process(_process: u32, _cores: &[usize]) -> io::Result<()> {
        Err(unsupported())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_half_of_the_cores_or_the_given_number() {
        let split = |cores: &[usize], client| Placement::split(cores, client).map(|it| (it.server, it.client)).unwrap();
        assert_eq!(split(&[0, 1], None), (vec![0], vec![1]));
        assert_eq!(split(&[2, 5, 7], None), (vec![2, 5], vec![7]));
        assert_eq!(split(&[0, 1, 2, 3], Some(3)), (vec![0], vec![1, 2, 3]));
    }

    #[test]
    fn shared_cores_are_those_of_both_sides() {
        let shared = Placement { server: vec![2, 5], client: vec![7] }.shared();
        assert_eq!((shared.server, shared.client), (vec![2, 5, 7], vec![2, 5, 7]));
    }

    #[test]
    fn too_few_cores_are_refused() {
        for (cores, client) in [(&[0][..], None), (&[], None), (&[0, 1], Some(2)), (&[0, 1], Some(3))] {
            let refusal = Placement::split(cores, client).unwrap_err().to_string();
            assert!(refusal.contains("--no-pin"), "{refusal}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn all_threads_of_a_process_are_moved_and_new_ones_inherit() {
        use std::process::{Command, Stdio};

        let cores = system::own_cores().unwrap();
        let last = vec![*cores.last().unwrap()];
        let placement = Placement { server: last.clone(), client: last.clone() };
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        placement.place_server(child.id()).unwrap();
        let process = nix::unistd::Pid::from_raw(child.id() as i32);
        let mask = nix::sched::sched_getaffinity(process).unwrap();
        assert!(cores.iter().all(|&core| mask.is_set(core).unwrap() == (core == last[0])));
        drop(child.stdin.take());
        child.wait().unwrap();

        std::thread::spawn(move || {
            placement.place_client().unwrap();
            assert_eq!(std::thread::spawn(system::own_cores).join().unwrap().unwrap(), last);
        })
        .join()
        .unwrap();
        assert_eq!(system::own_cores().unwrap(), cores, "the calling thread was moved, too");
    }
}
