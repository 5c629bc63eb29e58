//! What a collective takes as it is executed between processes with one port each: `alpha` for a
//! message, `beta` for a byte through a port. No fitted constants.

/// An all_reduce of fewer bytes than this, over the whole group, goes whole to all others in one
/// message; of more, in slices and twice (`src/cluster/host_collectives/span.rs`).
const MIN_SLICED_BYTES: f64 = 262_144.0;

/// Links between `p` processes.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    pub p: usize,
    pub alpha: f64,
    pub beta: f64,
}

impl Ports {
    /// Seconds of an all_reduce of `n` bytes by an algorithm.
    pub fn all_reduce(self, algorithm: &str, n: f64, per_host: usize) -> f64 {
        let Self { p: num, alpha, beta } = self;
        let p = num as f64;
        match algorithm {
            "ring" => 2.0 * (p - 1.0) * alpha + 2.0 * (p - 1.0) / p * n * beta,
            "tree" => 2.0 * p.log2().ceil() * (alpha + n * beta),
            "hierarchical" => {
                let inside = Self { p: per_host, ..self };
                let across = Self { p: num / per_host, ..self };
                2.0 * inside.scatter(n) + across.all_reduce("direct", n / per_host as f64, 1)
            }
            _ if p * n < MIN_SLICED_BYTES => alpha + (p - 1.0) * n * beta,
            _ => 2.0 * alpha + 2.0 * (p - 1.0) / p * n * beta,
        }
    }

    /// Seconds of a reduce_scatter, an all_gather or an all_to_all of `n` bytes: each process sends
    /// a piece to each other at once.
    pub fn scatter(self, n: f64) -> f64 {
        let p = self.p as f64;
        self.alpha + (p - 1.0) / p * n * self.beta
    }

    /// The model that is often quoted for a ring.
    pub fn plain(self, n: f64) -> f64 {
        let p = self.p as f64;
        self.alpha * (p - 1.0) + self.beta * n / p
    }

    /// The size from which `b` is faster than `a`; `None` if it is not, up to 1 GiB.
    pub fn crossover(self, a: &str, b: &str, per_host: usize) -> Option<f64> {
        let is_faster = |n: f64| self.all_reduce(b, n, per_host) < self.all_reduce(a, n, per_host);
        let sizes = (0..=2000).map(|step| 1024.0 * 2f64.powf(f64::from(step) / 100.0));
        let mut sizes = sizes.skip_while(|n| is_faster(*n)).skip_while(|n| !is_faster(*n));
        sizes.next()
    }
}
