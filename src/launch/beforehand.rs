//! Programs of the next generations, compiled before one needs them.
//!
//! A generation with another number of processes has other programs. The supervisor starts the
//! workers' command at a low priority for each number that may come next; it fills the compile
//! cache of this host, and ends.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{LaunchOptions, variable};
use crate::cluster::JobSize;
use crate::observe::say;

/// Workers that start need the processors themselves.
const AFTER_START: Duration = Duration::from_secs(5);

/// The processes that compile, one after the other.
#[derive(Debug, Default)]
pub(super) struct Beforehand {
    /// Numbers of processes that are still to come.
    waiting: Vec<usize>,
    /// Those that were compiled, or cannot be.
    done: Vec<usize>,
    /// The number that is being compiled, and who does so.
    compiling: Option<(usize, Child)>,
    from: Option<Instant>,
    /// Processes with all hosts.
    full_processes: usize,
}

impl Beforehand {
    /// Begins anew with what may follow a generation of `num_processes`; `None` if it runs without
    /// this host, which has nothing else to do.
    pub fn follow(
        &mut self,
        options: &LaunchOptions,
        full_processes: usize,
        num_processes: Option<usize>,
    ) {
        // The workers may need the very program, and would wait for a process of low priority.
        self.stop();
        self.full_processes = full_processes;
        let size = JobSize { full_processes, ..options.size };
        self.waiting = size.next_sizes(num_processes, options.num_local);
        let is_run = options.arguments.first().is_some_and(|word| word == "train");
        self.waiting.retain(|size| is_run && !self.done.contains(size));
        // What the workers compile now need not be compiled again.
        self.done.extend(num_processes);
        let delay = num_processes.map_or(Duration::ZERO, |_| AFTER_START);
        self.from = Some(Instant::now() + delay);
    }

    /// Starts the next one when the one before has ended.
    pub fn go_on(&mut self, options: &LaunchOptions) {
        if let Some((size, child)) = &mut self.compiling {
            match child.try_wait() {
                Ok(None) => return,
                // It has said why it failed, and would again.
                Ok(Some(_)) | Err(_) => self.done.push(*size),
            }
            self.compiling = None;
        }
        if self.from.is_none_or(|from| Instant::now() < from) || self.waiting.is_empty() {
            return;
        }
        let size = self.waiting.remove(0);
        match start(options, self.full_processes, size) {
            Ok(child) => self.compiling = Some((size, child)),
            Err(error) => say(&format!(
                "launch: what {size} processes start with is not compiled beforehand: {error}"
            )),
        }
    }

    fn stop(&mut self) {
        if let Some((_, mut child)) = self.compiling.take() {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Beforehand {
    fn drop(&mut self) {
        self.stop();
    }
}

fn start(options: &LaunchOptions, full_processes: usize, size: usize) -> io::Result<Child> {
    let mut command = Command::new(&options.program);
    command.args(&options.arguments);
    command.env(variable::ONLY_COMPILE, "1").env(variable::NUM_PROCESSES, size.to_string());
    if options.size.is_elastic() {
        command.env(variable::FULL_PROCESSES, full_processes.to_string());
    }
    command.env(variable::SUPERVISOR, std::process::id().to_string());
    // Signals of a terminal are the supervisor's.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).spawn()
}
