//! The backend of `--cfg simulated`: std's primitives, with accesses that a simulated machine observes and orders.
//!
//! The simulator is in `scale/`. It runs each core of its machine as a coroutine, all on one thread, and tracks the
//! state of each cache line in each core. Each access first calls [`Machine::access`]. The machine then runs other
//! cores until this access is due, and adds the cost of the access to the core's clock. So the pool runs exactly the
//! code that ships, with the same memory layout and values. Only time is simulated.
//!
//! Each access names its location in the source, so that the simulator can name the words in its reports. Without a
//! machine, every operation simply calls std.

use std::panic::Location;
use std::sync::OnceLock;
use std::time::Duration;

/// How an access uses a cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads the line.
    Load,
    /// Writes the line. The core does not wait for it.
    Store,
    /// Reads and writes the line in one step. The core waits for the line, and for its own earlier stores.
    Update,
}

/// A location in the source.
pub type Site = &'static Location<'static>;

/// The simulator's functions. Each function is called on the core that it concerns, and may run other cores before it
/// returns.
pub trait Machine: Sync {
    /// Accesses `bytes` bytes at `address`. The access itself follows immediately, before any other core's next access.
    fn access(&self, address: usize, bytes: usize, access: Access, site: Site);

    /// Waits until no core holds the mutex at `address`, and locks it for this core.
    fn lock(&self, address: usize, site: Site);

    /// Releases the mutex at `address`.
    fn unlock(&self, address: usize, site: Site);

    /// Announces that the last access loaded the address of the next access.
    fn follow(&self);

    /// Orders the core's earlier stores before its later accesses.
    fn fence(&self);

    /// Pauses for a moment, as in a spin loop.
    fn spin(&self);

    /// Lets the system run other threads. There are none on this core.
    fn yield_now(&self);

    /// Sleeps.
    fn sleep(&self, time: Duration);
}

static MACHINE: OnceLock<&'static dyn Machine> = OnceLock::new();

/// Makes `machine` observe all later accesses. Only the first call has an effect.
pub fn observe(machine: &'static dyn Machine) {
    MACHINE.get_or_init(|| machine);
}

#[inline]
fn machine() -> Option<&'static dyn Machine> {
    MACHINE.get().copied()
}

#[track_caller]
fn access<T>(at: *const T, access: Access) {
    access_bytes(at, size_of::<T>(), access);
}

#[track_caller]
fn access_bytes<T>(at: *const T, bytes: usize, access: Access) {
    if let Some(machine) = machine() {
        machine.access(at.addr(), bytes, access, Location::caller());
    }
}

pub(crate) mod atomic {
    use super::Access::{Load, Store, Update};
    pub(crate) use std::sync::atomic::Ordering;

    pub(crate) fn fence(order: Ordering) {
        std::sync::atomic::fence(order);
        if let Some(machine) = super::machine() {
            machine.fence();
        }
    }

    macro_rules! simulated {
        ($($atomic:ident $(<$of:ident>)? ($value:ty))*) => {$(
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub(crate) struct $atomic $(<$of>)? (std::sync::atomic::$atomic $(<$of>)?);

            #[allow(dead_code, reason = "not every type needs every access")]
            impl $(<$of>)? $atomic $(<$of>)? {
                pub(crate) const fn new(value: $value) -> Self {
                    Self(std::sync::atomic::$atomic::new(value))
                }

                #[track_caller]
                fn accessed(&self, access: super::Access) -> &std::sync::atomic::$atomic $(<$of>)? {
                    super::access(self, access);
                    &self.0
                }

                #[track_caller]
                pub(crate) fn load(&self, order: Ordering) -> $value {
                    self.accessed(Load).load(order)
                }

                #[track_caller]
                pub(crate) fn store(&self, value: $value, order: Ordering) {
                    self.accessed(Store).store(value, order);
                }

                #[track_caller]
                pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                    self.accessed(Update).swap(value, order)
                }

                #[track_caller]
                pub(crate) fn compare_exchange(
                    &self,
                    seen: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    let outcome = self.accessed(Update).compare_exchange(seen, new, success, failure);
                    if outcome.is_err() {
                        // The core had speculated that the exchange would succeed, so the next access depends on the
                        // value that was loaded.
                        super::follow();
                    }
                    outcome
                }

                /// Never fails spuriously, so that a simulation can be repeated.
                #[track_caller]
                pub(crate) fn compare_exchange_weak(
                    &self,
                    seen: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.compare_exchange(seen, new, success, failure)
                }

                /// Works like std's: a load, followed by compare-and-swaps until one succeeds.
                #[track_caller]
                pub(crate) fn fetch_update(
                    &self,
                    success: Ordering,
                    failure: Ordering,
                    mut change: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    let mut seen = self.load(failure);
                    while let Some(new) = change(seen) {
                        match self.compare_exchange(seen, new, success, failure) {
                            Ok(seen) => return Ok(seen),
                            Err(now) => seen = now,
                        }
                    }
                    Err(seen)
                }
            }
        )*};
    }

    macro_rules! counting {
        ($($atomic:ident($value:ty): $($operation:ident)*;)*) => {$(
            #[allow(dead_code, reason = "not every type needs every access")]
            impl $atomic {
                $(
                    #[track_caller]
                    pub(crate) fn $operation(&self, value: $value, order: Ordering) -> $value {
                        self.accessed(Update).$operation(value, order)
                    }
                )*
            }
        )*};
    }

    simulated! { AtomicBool(bool) AtomicU32(u32) AtomicU64(u64) AtomicUsize(usize) AtomicPtr<T>(*mut T) }
    counting! {
        AtomicU32(u32): fetch_add fetch_sub fetch_or fetch_and fetch_max fetch_min;
        AtomicU64(u64): fetch_add fetch_sub fetch_or fetch_and fetch_max fetch_min;
        AtomicUsize(usize): fetch_add fetch_sub fetch_or fetch_and fetch_max fetch_min;
    }
}

pub(super) mod cell {
    use super::Access;

    /// A cell that is accessed through closures, like loom's.
    #[derive(Debug)]
    #[repr(transparent)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// Accesses the beginning of a large value: the part that fits into a cache line after a lock's word.
        #[track_caller]
        fn accessed(&self, access: Access) {
            super::access_bytes(self.0.get(), size_of::<T>().min(56), access);
        }

        #[track_caller]
        pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            self.accessed(Access::Load);
            f(self.0.get())
        }

        #[track_caller]
        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            self.accessed(Access::Store);
            f(self.0.get())
        }
    }
}

pub(super) mod sync {
    use std::ops::{Deref, DerefMut};
    use std::panic::Location;
    use std::sync::LockResult;

    use super::{Site, machine};

    /// A mutex that the machine's cores wait for in virtual time. No core ever has to wait for std's mutex.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

    pub(crate) struct MutexGuard<'m, T> {
        // Dropped explicitly, before the machine is told about the release.
        value: Option<std::sync::MutexGuard<'m, T>>,
        mutex: &'m Mutex<T>,
        site: Site,
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(std::sync::Mutex::new(value))
        }

        #[track_caller]
        pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            let site = Location::caller();
            if let Some(machine) = machine() {
                machine.lock(self.address(), site);
            }
            let value = Some(self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
            Ok(MutexGuard { value, mutex: self, site })
        }

        fn address(&self) -> usize {
            (&raw const self.0).addr()
        }
    }

    const HELD: &str = "BUG: a guard without its value";

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.value.as_ref().expect(HELD)
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.value.as_mut().expect(HELD)
        }
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            self.value = None;
            if let Some(machine) = machine() {
                machine.unlock(self.mutex.address(), self.site);
            }
        }
    }

    /// A condition variable whose waits end on their own after a while. None of the simulator's cases wait on it.
    #[derive(Debug)]
    pub(crate) struct Condvar;

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self
        }

        #[track_caller]
        pub(crate) fn wait<'m, T>(&self, guard: MutexGuard<'m, T>) -> LockResult<MutexGuard<'m, T>> {
            let mutex = guard.mutex;
            drop(guard);
            super::sleep(std::time::Duration::from_micros(50));
            mutex.lock()
        }

        pub(crate) fn notify_one(&self) {}
    }
}

pub(super) fn follow() {
    machine().into_iter().for_each(Machine::follow);
}

#[track_caller]
pub(super) fn fetch_to_write<T>(at: *const T) {
    access(at, Access::Update);
}

pub(crate) fn spin_loop() {
    machine().map_or_else(std::hint::spin_loop, Machine::spin);
}

pub(crate) fn yield_now() {
    machine().map_or_else(std::thread::yield_now, Machine::yield_now);
}

pub(crate) fn sleep(time: Duration) {
    machine().map_or_else(|| std::thread::sleep(time), |machine| machine.sleep(time));
}
