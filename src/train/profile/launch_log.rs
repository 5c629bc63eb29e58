//! Parses the log of XLA's CPU runtime.
//!
//! ```text
//! I0000 00:00:1795267393.205734   27248 dot_thunk.cc:87] Dot operation: lhs_batch_dims=[], ..
//! I0000 00:00:1795267393.205746   27248 dot_thunk.cc:95]   lhs: f32[2048,256]{1,0} in slice {index:1, ..
//! ```
//! Each op has one line, followed by indented lines of the same thread for its operands. The op
//! runs after the last of them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Makes XLA's CPU runtime log the ops that it starts. Logging is enabled for each kind of op
/// separately.
pub const ENVIRONMENT: [(&str, &str); 2] = [
    ("TF_CPP_MIN_LOG_LEVEL", "0"),
    (
        "TF_CPP_VMODULE",
        "all_gather_thunk=3,all_reduce_thunk=3,all_to_all_thunk=3,collective_permute_thunk=3,\
         conditional_thunk=3,convolution_thunk=3,copy_thunk=3,custom_call_thunk=3,dot_thunk=3,fft_thunk=3,\
         kernel_thunk=3,onednn_fusion_thunk=3,onednn_op_thunk=3,reduce_scatter_thunk=3,rng_state_thunk=3,\
         sort_thunk=3,xnn_convolution_thunk=3,xnn_fusion_thunk=3,ynn_fusion_thunk=3",
    ),
];

/// One execution of an op.
#[derive(Clone, Debug, PartialEq)]
pub struct ThunkLaunch {
    /// The runtime's name for the kind of op: `dot`, `kernel`, `copy`.
    pub kind: String,
    /// The log line of the op.
    pub head: String,
    /// The thread that wrote it.
    thread: String,
    /// The log lines of its operands and results.
    pub details: Vec<String>,
    /// Seconds from the last of these lines to the start of the next op.
    pub secs: f64,
}

/// The file name under which the worker writes its own lines to the log.
const OWN: &str = "lockstep";
const STARTS: &str = "step starts";
const ENDS: &str = "step ends";

/// The log line for the start (`true`) or the end of a step.
pub fn mark(starts: bool) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    format!("I0000 00:00:{now:.6} 0 {OWN}.cc:0] {}", if starts { STARTS } else { ENDS })
}

/// The ops of each step, in the order in which they started. Ops outside of steps are skipped.
pub fn steps(log: &str) -> Vec<Vec<ThunkLaunch>> {
    let mut steps = vec![];
    let mut step: Option<Vec<ThunkLaunch>> = None;
    // The time of the previous line.
    let mut before = 0.0;
    for line in log.lines().filter_map(Line::parse) {
        let ends_op = !line.message.starts_with(' ');
        if let Some(launch) = step.as_mut().and_then(|step| step.last_mut())
            && ends_op
        {
            launch.secs = line.at - before;
        }
        before = line.at;
        match (line.file, &mut step) {
            (OWN, _) if line.message == STARTS => step = Some(vec![]),
            (OWN, _) => steps.extend(step.take()),
            (file, Some(step)) => match (file.strip_suffix("_thunk"), line.op_of(step)) {
                (Some(_), Some(launch)) if !ends_op => launch.details.push(line.message.to_owned()),
                (Some(kind), _) => step.push(ThunkLaunch {
                    kind: kind.to_owned(),
                    head: line.message.to_owned(),
                    thread: line.thread.to_owned(),
                    details: vec![],
                    secs: 0.0,
                }),
                (None, _) => {}
            },
            (_, None) => {}
        }
    }
    steps
}

/// The lines of a process's stderr that are not log lines.
pub fn without_log_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().filter(|line| Line::parse(line).is_none()).collect();
    lines.join("\n")
}

struct Line<'a> {
    /// Seconds since an arbitrary point in time.
    at: f64,
    thread: &'a str,
    /// Name of the source file, without its extension.
    file: &'a str,
    message: &'a str,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (head, message) = line.split_once("] ")?;
        let mut words = head.split_whitespace();
        let (_severity, time, thread) = (words.next()?, words.next()?, words.next()?);
        let (file, _line) = words.next()?.split_once(".cc:")?;
        let parts = time.split(':').map(str::parse::<f64>);
        let at = parts.collect::<Result<Vec<_>, _>>().ok()?;
        let &[hours, minutes, seconds] = &at[..] else { return None };
        Some(Self { at: hours * 3600.0 + minutes * 60.0 + seconds, thread, file, message })
    }

    /// The last op that the line's thread has started.
    fn op_of<'s>(&self, step: &'s mut [ThunkLaunch]) -> Option<&'s mut ThunkLaunch> {
        step.iter_mut().rev().find(|launch| launch.thread == self.thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_op_runs_from_its_last_line_to_the_next_op() {
        let log = "\
I0000 00:00:10.000000   7 dot_thunk.cc:87] Dot operation: before any step
I0000 00:00:11.000000   0 lockstep.cc:0] step starts
I0000 00:00:11.500000   7 kernel_thunk.cc:166] Launch host kernel add_fusion.3 with 1 arguments
I0000 00:00:11.500100   7 kernel_thunk.cc:90]   arg #0: {index:21, offset:0, size:8} (0x56)
some other words
I0000 00:00:11.600100   7 dot_thunk.cc:87] Dot operation: lhs_batch_dims=[]
I0000 00:00:12.000000   0 lockstep.cc:0] step ends
I0000 00:00:13.000000   7 dot_thunk.cc:87] Dot operation: between steps";
        let steps = steps(log);
        assert_eq!(steps.len(), 1);
        let [kernel, dot] = &steps[0][..] else { panic!("{steps:?}") };
        assert_eq!((kernel.kind.as_str(), kernel.details.len()), ("kernel", 1));
        assert!((kernel.secs - 0.1).abs() < 1e-6, "{kernel:?}");
        assert!((dot.secs - 0.3999).abs() < 1e-6, "{dot:?}");
        assert_eq!(without_log_lines(log), "some other words");
    }

    #[test]
    fn two_threads_may_write_at_once() {
        let log = "\
I0000 00:00:11.000000   0 lockstep.cc:0] step starts
I0000 00:00:11.100000   7 copy_thunk.cc:1] Copy buffer: first
I0000 00:00:11.200000   8 copy_thunk.cc:1] Copy buffer: second
I0000 00:00:11.300000   7 copy_thunk.cc:2]   src: first
I0000 00:00:11.400000   8 copy_thunk.cc:2]   src: second
I0000 00:00:12.000000   0 lockstep.cc:0] step ends";
        let steps = steps(log);
        let details: Vec<_> = steps[0].iter().map(|launch| &launch.details[..]).collect();
        assert_eq!(details, [["  src: first"], ["  src: second"]]);
    }

    #[test]
    fn marks_can_be_parsed() {
        let log = [mark(true), mark(false), mark(true), mark(false)].join("\n");
        assert_eq!(steps(&log), [vec![], vec![]]);
    }
}
