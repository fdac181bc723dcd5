//! The machine's cores, and runtimes whose workers are pinned to them.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

/// The machine on which the series runs.
pub struct Machine {
    /// The processor's name, if the system reports it.
    processor: Option<String>,
    /// The logical cores on which this process may run: first one per physical core, then their siblings.
    cores: Vec<usize>,
    /// How many of `cores` are on different physical cores.
    physical: usize,
}

impl Machine {
    /// Returns a description of this machine.
    pub fn this() -> Self {
        let mut seen = Vec::new();
        // The rank of each logical core among the siblings on its physical core.
        let mut ranked: Vec<(usize, usize)> = system::cores()
            .into_iter()
            .map(|core| {
                let siblings = system::siblings(core);
                let rank = seen.iter().filter(|&other| *other == siblings).count();
                seen.push(siblings);
                (rank, core)
            })
            .collect();
        ranked.sort_unstable();
        Self {
            processor: system::processor(),
            physical: ranked.iter().filter(|&&(rank, _)| rank == 0).count(),
            cores: ranked.into_iter().map(|(_, core)| core).collect(),
        }
    }

    /// Returns 1, 2, 4 … up to the number of cores, which comes last even if it is not a power of two.
    pub fn steps(&self) -> Vec<usize> {
        let all = self.cores.len();
        (0..).map(|power| 1 << power).take_while(|&step| step < all).chain([all]).collect()
    }

    /// Returns a runtime with `workers` workers, each pinned to a separate core.
    pub fn runtime(&self, workers: usize) -> Runtime {
        let (cores, started) = (self.cores[..workers].to_vec(), AtomicUsize::new(0));
        Builder::new_multi_thread()
            .worker_threads(workers)
            .enable_all()
            .on_thread_start(move || {
                // ORD: Relaxed; the numbers only have to differ.
                system::pin(cores[started.fetch_add(1, Ordering::Relaxed) % cores.len()]);
            })
            .build()
            .expect("the runtime cannot be built")
    }

    pub fn as_json(&self) -> Value {
        json!({ "processor": self.processor, "physical cores": self.physical, "cores": self.cores })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, physical) = (self.cores.len(), self.physical);
        let processor = self.processor.as_deref().unwrap_or("an unknown processor");
        let pinning = if system::PINS { "used in this order" } else { "not pinned on this system" };
        write!(f, "{processor}: {all} logical cores of {physical} physical ones, {pinning}: {:?}", self.cores)
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs;

    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::Pid;

    pub const PINS: bool = true;
    const THIS_THREAD: Pid = Pid::from_raw(0);

    pub fn cores() -> Vec<usize> {
        let mask = sched_getaffinity(THIS_THREAD).expect("the system does not tell the cores of this process");
        (0..CpuSet::count()).filter(|&core| mask.is_set(core) == Ok(true)).collect()
    }

    /// Returns the logical cores that share a physical core with this one, as the system lists them. If the system has
    /// no list for the core, it counts as having no siblings.
    pub fn siblings(core: usize) -> String {
        fs::read_to_string(format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"))
            .map_or_else(|_| core.to_string(), |list| list.trim().to_owned())
    }

    pub fn processor() -> Option<String> {
        let described = fs::read_to_string("/proc/cpuinfo").ok()?;
        let name = described.lines().find(|line| line.starts_with("model name"))?.split_once(':')?.1;
        Some(name.trim().to_owned())
    }

    /// Pins the calling thread to a core.
    pub fn pin(core: usize) {
        let mut mask = CpuSet::new();
        mask.set(core).and_then(|()| sched_setaffinity(THIS_THREAD, &mask)).expect("the core was this process's");
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::thread;

    pub const PINS: bool = false;

    pub fn cores() -> Vec<usize> {
        (0..thread::available_parallelism().map_or(1, usize::from)).collect()
    }

    pub fn siblings(core: usize) -> String {
        core.to_string()
    }

    pub fn processor() -> Option<String> {
        None
    }

    pub fn pin(_core: usize) {}
}
