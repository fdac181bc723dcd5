//! Sleeping cores, which wait for a mutex or for another core to wake them.

use std::cmp::Reverse;

use super::{Access, Machine, Mutex, Picos, Site, access, compute_alone, is_over, leave, on_machine, spin, turn};

/// Sleeps until another core wakes this one, unless that has already happened.
fn sleep_until_woken() {
    let sleeps = on_machine(|machine, core| {
        let core = &mut machine.cores[core];
        core.sleeps = !std::mem::take(&mut core.is_woken);
        core.sleeps
    });
    if sleeps == Some(true) {
        leave();
    }
}

/// How many times a core checks a mutex before it sleeps.
const LOOKS: u32 = 100;

/// Locks the mutex at `address` as std does: spins for a while, and then sleeps.
pub fn lock(address: usize, site: Site) {
    let mut looks = 0;
    loop {
        access(address, 4, Access::Update, site);
        let taken = on_machine(|machine, _| !std::mem::replace(&mut machine.mutex(address).is_locked, true));
        if taken != Some(false) {
            return;
        }
        while looks < LOOKS {
            looks += 1;
            spin();
            access(address, 4, Access::Load, site);
            if on_machine(|machine, _| !machine.mutex(address).is_locked) == Some(true) {
                break;
            }
        }
        if looks == LOOKS {
            compute_alone(|costs| costs.call);
            turn();
            let sleeps = on_machine(|machine, core| {
                let mutex = machine.mutex(address);
                if mutex.is_locked {
                    mutex.sleepers.push_back(core);
                }
                mutex.is_locked
            });
            if sleeps == Some(true) {
                sleep_until_woken();
            }
        }
    }
}

/// Unlocks the mutex at `address`, and wakes a core that is sleeping until the mutex is unlocked.
pub fn unlock(address: usize, site: Site) {
    access(address, 4, Access::Update, site);
    let woken = on_machine(|machine, _| {
        let mutex = machine.mutex(address);
        mutex.is_locked = false;
        mutex.sleepers.pop_front()
    });
    if let Some(core) = woken.flatten() {
        wake(core);
    }
}

impl Machine {
    fn mutex(&mut self, address: usize) -> &mut Mutex {
        self.mutexes.entry(address).or_default()
    }
}

/// Puts the running core to sleep until [`wake`] is called for it or the simulation ends.
pub fn sleep() {
    compute_alone(|costs| costs.call);
    if is_over() {
        return;
    }
    sleep_until_woken();
}

/// Wakes a sleeping core with a system call on the running core.
pub fn wake(sleeper: usize) {
    compute_alone(|costs| costs.call);
    on_machine(|machine, core| {
        let at = machine.cores[core].now + machine.plan.costs.awake;
        let state = &mut machine.cores[sleeper];
        if std::mem::take(&mut state.sleeps) {
            state.now = state.now.max(at);
            state.ahead = state.now;
            machine.turns.push(Reverse((state.now, sleeper)));
        } else {
            state.is_woken = true;
        }
    });
}

/// Lets time pass for the running core.
pub fn pass(time: Picos) {
    on_machine(|machine, core| {
        let core = &mut machine.cores[core];
        core.now += time;
        core.ahead = core.now;
    });
}
