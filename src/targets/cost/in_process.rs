//! An all_reduce inside one process, as XLA's CPU backend does it. The replicas' threads meet at a
//! barrier; each sums its slice of all `p` buffers into replica 0's result and copies it to the
//! other results. With `n` bytes per replica it touches
//!
//! ```text
//! (2p-1) n    streams: p operands read once, p-1 results written once
//!     3p n    the sum: zeroed, read and written for each operand, read for each copy
//! ```
//! and the time per byte depends on where it is. All operands and results together have `2p n`
//! bytes: if they fit in the cache, everything is fast. If only the sum fits, `n` bytes, the
//! streams come from memory.

/// A machine that all replicas share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InProcess {
    /// Bytes that the last-level cache keeps from one all_reduce to the next.
    pub cache_bytes: f64,
    /// Seconds per byte if everything is in the cache.
    pub cached: f64,
    /// Seconds per byte of the sum if only the sum is in the cache.
    pub cached_sum: f64,
    /// Seconds per byte from and to memory.
    pub memory: f64,
}

impl InProcess {
    /// Seconds of an all_reduce of `bytes` on each of `num_replicas`; their threads take
    /// `meeting_secs` to meet.
    ///
    /// ```
    /// use lockstep::targets::cost::InProcess;
    ///
    /// let machine = InProcess { cache_bytes: 1e6, cached: 1e-11, cached_sum: 2e-11, memory: 5e-11 };
    /// // Two replicas touch 9 bytes for each one that is reduced: 3 in streams, 6 in the sum.
    /// let secs = machine.all_reduce(2, 1e5, 1e-4);
    /// assert!((secs - (1e-4 + 9e5 * 1e-11)).abs() < 1e-12);
    /// ```
    pub fn all_reduce(&self, num_replicas: usize, bytes: f64, meeting_secs: f64) -> f64 {
        let (streams, sum) = touched(num_replicas);
        let p = num_replicas as f64;
        let (of_streams, of_sum) = if 2.0 * p * bytes <= self.cache_bytes {
            (self.cached, self.cached)
        } else if bytes <= self.cache_bytes {
            (self.memory, self.cached_sum)
        } else {
            (self.memory, self.memory)
        };
        meeting_secs + bytes * (streams * of_streams + sum * of_sum)
    }

    /// Fits the machine to three measurements of (replicas, bytes per replica, seconds without the
    /// meeting): one that fits in the cache, one in memory, and one where only the sum fits in the
    /// cache.
    pub fn calibrate(
        cache_bytes: f64,
        in_cache: (usize, f64, f64),
        in_memory: (usize, f64, f64),
        sum_in_cache: (usize, f64, f64),
    ) -> Self {
        let a_byte = |(num_replicas, bytes, secs): (usize, f64, f64)| {
            let (streams, sum) = touched(num_replicas);
            secs / (bytes * (streams + sum))
        };
        let (cached, memory) = (a_byte(in_cache), a_byte(in_memory));
        let (num_replicas, bytes, secs) = sum_in_cache;
        let (streams, sum) = touched(num_replicas);
        // Measurements vary, but nothing is faster than the cache.
        let cached_sum = ((secs / bytes - streams * memory) / sum).max(cached);
        Self { cache_bytes, cached, cached_sum, memory }
    }
}

/// Bytes touched per reduced byte: in streams, and for the sum.
fn touched(num_replicas: usize) -> (f64, f64) {
    let p = num_replicas as f64;
    (2.0 * p - 1.0, 3.0 * p)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_what_is_predicted_there() {
        let in_cache = (2, 1e6, 2e-4);
        let in_memory = (2, 6e7, 3e-2);
        let sum_in_cache = (4, 1.5e7, 1.1e-2);
        let machine = InProcess::calibrate(2.4e7, in_cache, in_memory, sum_in_cache);
        for (num_replicas, bytes, secs) in [in_cache, in_memory, sum_in_cache] {
            let predicted = machine.all_reduce(num_replicas, bytes, 1e-5);
            assert!((predicted - secs - 1e-5).abs() < 1e-12, "{bytes}: {predicted}");
        }
        assert!(machine.cached < machine.cached_sum && machine.cached_sum < machine.memory);
    }
}
