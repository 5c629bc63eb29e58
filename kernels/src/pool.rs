//! The threads that kernels run on.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// Threads that help the one that calls.
pub trait Helpers: Sync {
    /// Calls `work` on this thread, and on up to `num_helpers` others that have time. Returns when
    /// all calls that have begun have returned.
    fn join(&self, num_helpers: usize, work: &(dyn Fn() + Sync));
}

/// Runs the tasks of kernels on the calling thread and on helpers.
///
/// Many threads may call at once. Each works on its own tasks until none is left, so it never
/// depends on a helper that is busy with something else.
pub struct Pool<'h> {
    num_helpers: usize,
    helpers: OwnOr<'h>,
}

enum OwnOr<'h> {
    Own(ThreadPool),
    Given(&'h dyn Helpers),
    None,
}

impl Pool<'static> {
    /// A pool with so many threads of its own besides those that call it.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn new(num_helpers: usize) -> Result<Self, ThreadPoolBuildError> {
        // Rayon takes 0 to mean one per processor.
        if num_helpers == 0 {
            return Ok(Self { num_helpers, helpers: OwnOr::None });
        }
        let builder = ThreadPoolBuilder::new()
            .num_threads(num_helpers)
            .thread_name(|index| format!("kernels-{index}"));
        Ok(Self { num_helpers, helpers: OwnOr::Own(builder.build()?) })
    }
}

impl<'h> Pool<'h> {
    /// A pool of other threads; at most `num_helpers` of them help at once.
    pub fn of(helpers: &'h dyn Helpers, num_helpers: usize) -> Self {
        Self { num_helpers, helpers: OwnOr::Given(helpers) }
    }

    /// Threads that work at once: the calling one and its helpers.
    pub fn num_threads(&self) -> usize {
        self.num_helpers + 1
    }

    /// Calls `task` with each number below `num_tasks`, on several threads and in any order, and
    /// returns when all calls have.
    pub fn run(&self, num_tasks: usize, task: impl Fn(usize) + Sync) {
        let num_helpers = self.num_helpers.min(num_tasks.saturating_sub(1));
        if num_helpers == 0 {
            return (0..num_tasks).for_each(task);
        }
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= num_tasks {
                    return;
                }
                task(index);
            }
        };
        match &self.helpers {
            OwnOr::Own(threads) => threads.in_place_scope(|scope| {
                for _ in 0..num_helpers {
                    scope.spawn(|_| work());
                }
                work();
            }),
            OwnOr::Given(helpers) => helpers.join(num_helpers, &work),
            OwnOr::None => work(),
        }
    }

    /// Calls `task` with each item and its number, as [`Self::run`] does. Items are often parts of
    /// a result, from [`slice::chunks_mut`].
    pub fn for_each<I: Send>(
        &self,
        items: impl IntoIterator<Item = I>,
        task: impl Fn(usize, I) + Sync,
    ) {
        let items: Vec<_> = items.into_iter().map(|item| Mutex::new(Some(item))).collect();
        self.run(items.len(), |index| {
            let item = items[index].lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(item) = item {
                task(index, item);
            }
        });
    }
}

impl fmt::Debug for Pool<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("num_helpers", &self.num_helpers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_runs_once_whatever_the_number_of_helpers_and_callers() {
        for num_helpers in [0, 1, 3] {
            let pool = Pool::new(num_helpers).unwrap();
            for num_tasks in [0, 1, 2, 100] {
                let mut counts = vec![0; num_tasks];
                std::thread::scope(|scope| {
                    for part in counts.chunks_mut(10) {
                        let pool = &pool;
                        scope.spawn(move || {
                            let offset = part.as_ptr() as usize;
                            pool.for_each(part.iter_mut().enumerate(), |index, (item, count)| {
                                assert_eq!(index, item, "{offset}");
                                *count += 1;
                            });
                        });
                    }
                });
                assert!(counts.iter().all(|count| *count == 1), "{counts:?}");
            }
        }
    }
}
