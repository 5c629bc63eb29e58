//! Options of XLA's CPU backend that prevent deadlocks: enough workers for everything that may
//! wait, and compile options without what could wait forever.
//!
//! The plugin runs the ops of all replicas on one pool of workers. An op that waits blocks its
//! worker. Two kinds do:
//!
//! - **Collectives**, until all replicas have arrived. The collectives of a program run one after
//!   another, and so do launches of programs that have any. The last replica to arrive does not
//!   wait, so of N replicas at most N - 1 wait at once.
//! - **XNNPACK fusions** (`xla_cpu_use_xnnpack`, which XLA enables by default for some processors):
//!   before it runs again, a fusion waits until tasks that it has left in the pool have been run by
//!   other workers. A replica runs on at most [`WORKERS_PER_REPLICA`] workers, and each of them may
//!   be in such a fusion. XLA may briefly exceed that limit, so this bound is less certain than
//!   that of collectives.
//!
//! If every worker waits, the process hangs until XLA's timeout ends it. So [`num_workers`] makes
//! the pool larger than everything that can wait at once, by as many workers as there are
//! processors, which keep working while the others wait. A larger pool is slower (work is split
//! into a piece per worker), so XNNPACK is off unless a compilation asks for it, and only a client
//! with enough workers accepts that.
//!
//! The other defaults preserve a program's semantics: see [`defaults`].

use std::collections::BTreeMap;
use std::thread;

use super::value::{OverrideValue, Value};
use super::{Error, Result};

/// The client option for the number of devices. The plugin creates at least as many workers as
/// devices in each of its two pools, and has no other option for them (an environment variable
/// would affect the whole process).
pub(super) const DEVICE_COUNT: &str = "cpu_device_count";

/// Options of the CPU plugin. It silently ignores others, so they are rejected here.
pub(super) const OPTIONS: [&str; 1] = [DEVICE_COUNT];

/// The XLA option that runs dots, convolutions and elementwise ops with XNNPACK.
const XNNPACK: &str = "xla_cpu_use_xnnpack";

/// XLA's executor uses up to 4 workers per replica besides the thread that starts it, and that
/// thread's work may continue on a worker too (`Thunk::ExecuteSession::kMaxWorkers`).
const WORKERS_PER_REPLICA: usize = 5;

/// Which waits the programs of a CPU client may contain on a worker of the plugin's pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuWaits {
    /// Collectives only, as with the default options.
    #[default]
    Collectives,
    /// XNNPACK fusions too, for programs compiled with `xla_cpu_use_xnnpack = true`.
    XnnFusions,
}

impl CpuWaits {
    /// Which waits programs compiled with these overrides may contain.
    pub fn of(overrides: &BTreeMap<String, OverrideValue>) -> Self {
        let is_on = match overrides.get(XNNPACK) {
            None => false,
            Some(OverrideValue::Bool(on)) => *on,
            Some(OverrideValue::String(text)) => !text.eq_ignore_ascii_case("false"),
            Some(_) => true,
        };
        if is_on { Self::XnnFusions } else { Self::Collectives }
    }
}

/// The number of workers that the pool needs for `num_devices` replicas: one for each op that can
/// wait at once, and one per processor. See the module's documentation. XLA limits it to 256, which
/// leaves a worker that does not wait for up to 256 replicas, and with XNNPACK for up to about 50.
pub(super) fn num_workers(num_devices: usize, waits: CpuWaits) -> usize {
    let num_waiting = match waits {
        CpuWaits::Collectives => num_devices.saturating_sub(1),
        CpuWaits::XnnFusions => num_devices * WORKERS_PER_REPLICA,
    };
    num_waiting + thread::available_parallelism().map_or(1, usize::from)
}

/// The number of devices in a client's options, if given. Rejects values on which the plugin
/// aborts. The platform is known only once a client exists, so this goes by the option's name.
pub(super) fn device_count(options: &[(&str, Value)]) -> Result<Option<usize>> {
    let invalid = |reason: String| Error::ClientOption { name: DEVICE_COUNT.to_owned(), reason };
    let count = |(_, value): &(&str, Value)| match value {
        Value::Int64(count @ 1..=4096) => Ok(*count as usize),
        Value::Int64(count) => {
            Err(invalid(format!("{count} devices; it must be between 1 and 4096")))
        }
        other => Err(invalid(format!("it must be an Int64, not a {}", other.kind()))),
    };
    options.iter().find(|(name, _)| *name == DEVICE_COUNT).map(count).transpose()
}

/// Passes that XLA's CPU backend does not run, by name and separated by commas.
const DISABLED_PASSES: &str = "xla_disable_hlo_passes";

/// The pass that removes barriers. Barriers keep what is to be recomputed apart from the original,
/// which common subexpression elimination would merge again, and collectives in order
/// ([`hlo::rewrites::order_collectives`]).
const REMOVES_BARRIERS: &str = "cse_barrier_expander";

/// Default overrides of a compilation.
fn defaults() -> [(&'static str, OverrideValue); 3] {
    [
        (XNNPACK, OverrideValue::Bool(false)),
        // By default a clamp, or a maximum over a dim, drops NaN. A run must see them. The measured
        // cost is zero.
        ("xla_cpu_enable_fast_min_max", OverrideValue::Bool(false)),
        // By default XLA verifies the IR of each kernel again after each of its passes: 7 % of a
        // GPT's cold start on an AMD EPYC (Zen 4).
        ("xla_cpu_emitter_verification_level", OverrideValue::Int(0)),
    ]
}

/// The overrides of a compilation, with this platform's defaults, for a client that has workers for
/// `waits`.
///
/// # Errors
/// [`Error::TooFewWorkers`] if they ask for XNNPACK and the client has no workers for it.
pub(super) fn overrides(
    given: &BTreeMap<String, OverrideValue>,
    waits: CpuWaits,
) -> Result<BTreeMap<String, OverrideValue>> {
    if CpuWaits::of(given) == CpuWaits::XnnFusions && waits == CpuWaits::Collectives {
        return Err(Error::TooFewWorkers { option: XNNPACK });
    }
    let mut overrides = given.clone();
    for (name, value) in defaults() {
        overrides.entry(name.to_owned()).or_insert(value);
    }
    // A value of another kind is for the plugin to reject.
    let none = OverrideValue::String(String::new());
    if let OverrideValue::String(passes) =
        overrides.entry(DISABLED_PASSES.to_owned()).or_insert(none)
    {
        let comma = if passes.is_empty() { "" } else { "," };
        *passes = format!("{passes}{comma}{REMOVES_BARRIERS}");
    }
    Ok(overrides)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_always_workers_that_do_not_wait() {
        let num_processors = thread::available_parallelism().map_or(1, usize::from);
        for num_devices in 1..=8 {
            // N - 1 replicas wait for the last one.
            let idle = num_workers(num_devices, CpuWaits::Collectives) - (num_devices - 1);
            assert_eq!(idle, num_processors);
            let busiest = num_devices * WORKERS_PER_REPLICA;
            assert_eq!(num_workers(num_devices, CpuWaits::XnnFusions) - busiest, num_processors);
        }
    }

    #[test]
    fn xnnpack_is_off_unless_asked_for() {
        let with = |value: OverrideValue| BTreeMap::from([(XNNPACK.to_owned(), value)]);
        let off = OverrideValue::Bool(false);
        for waits in [CpuWaits::Collectives, CpuWaits::XnnFusions] {
            assert_eq!(overrides(&BTreeMap::new(), waits).unwrap()[XNNPACK], off);
            assert_eq!(overrides(&with(off.clone()), waits).unwrap()[XNNPACK], off);
        }
        for on in [OverrideValue::Bool(true), OverrideValue::String("True".into())] {
            let given = with(on.clone());
            assert_eq!(overrides(&given, CpuWaits::XnnFusions).unwrap()[XNNPACK], on);
            let error = overrides(&given, CpuWaits::Collectives).unwrap_err();
            assert!(matches!(error, Error::TooFewWorkers { .. }), "{error}");
        }
    }

    #[test]
    fn defaults_give_way_to_what_a_compilation_says() {
        let given = BTreeMap::from([
            ("xla_disable_hlo_passes".to_owned(), OverrideValue::String("fusion".to_owned())),
            ("xla_cpu_enable_fast_min_max".to_owned(), OverrideValue::Bool(true)),
        ]);
        let overrides = overrides(&given, CpuWaits::Collectives).unwrap();
        // Except for barriers, without which collectives may run in another order on each replica.
        let passes = OverrideValue::String("fusion,cse_barrier_expander".to_owned());
        assert_eq!(overrides["xla_disable_hlo_passes"], passes);
        assert_eq!(overrides["xla_cpu_enable_fast_min_max"], OverrideValue::Bool(true));
    }
}
