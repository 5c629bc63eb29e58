//! The threads that kernels run on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// Runs the tasks of kernels on the calling thread and on helpers.
///
/// Many threads may call at once. Each works on its own tasks until none is left, so it never depends on a helper that is
/// busy with something else, and helpers wait for nothing.
#[derive(Debug)]
pub struct Pool {
    /// `None` without helpers.
    helpers: Option<ThreadPool>,
}

impl Pool {
    /// A pool with so many helpers besides the threads that call it. `on_start` runs once on each helper, before any
    /// task.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn new(
        num_helpers: usize,
        on_start: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, ThreadPoolBuildError> {
        // Rayon takes 0 to mean one per processor.
        if num_helpers == 0 {
            return Ok(Self::without_helpers());
        }
        let builder = ThreadPoolBuilder::new()
            .num_threads(num_helpers)
            .thread_name(|index| format!("kernels-{index}"))
            .start_handler(move |_| on_start());
        Ok(Self { helpers: Some(builder.build()?) })
    }

    /// A pool in which the calling thread does all the work.
    pub fn without_helpers() -> Self {
        Self { helpers: None }
    }

    /// Calls `task` with each number below `num_tasks`, on several threads and in any order, and returns when all calls
    /// have.
    pub fn run(&self, num_tasks: usize, task: impl Fn(usize) + Sync) {
        let helpers = match &self.helpers {
            Some(helpers) if num_tasks > 1 => helpers,
            _ => return (0..num_tasks).for_each(task),
        };
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
        helpers.in_place_scope(|scope| {
            for _ in 0..helpers.current_num_threads().min(num_tasks - 1) {
                scope.spawn(|_| work());
            }
            work();
        });
    }

    /// Calls `task` with each item and its number, as [`Self::run`] does. Items are often parts of a result, from
    /// [`slice::chunks_mut`].
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_runs_once_whatever_the_number_of_helpers_and_callers() {
        for num_helpers in [0, 1, 3] {
            let pool = Pool::new(num_helpers, || {}).unwrap();
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

    #[test]
    fn helpers_start_with_the_callers_function() {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let pool = Pool::new(2, || {
            STARTED.fetch_add(1, Ordering::SeqCst);
        });
        // Dropping waits for nothing: the helpers run what they have been given first.
        pool.unwrap().run(8, |_| std::thread::sleep(std::time::Duration::from_millis(5)));
        assert!((1..=2).contains(&STARTED.load(Ordering::SeqCst)));
    }
}
