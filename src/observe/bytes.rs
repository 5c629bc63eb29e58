//! Sizes for people.

/// A number of bytes in binary units with two decimals.
///
/// ```
/// use lockstep::observe::human_bytes;
/// assert_eq!(human_bytes(1023), "1023 B");
/// assert_eq!(human_bytes(330 << 10), "330.00 KiB");
/// assert_eq!(human_bytes(u64::MAX), "16.00 EiB");
/// ```
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let power = bytes.ilog2() / 10;
    let value = bytes as f64 / f64::from(1 << 10).powi(power as i32);
    format!("{value:.2} {}", UNITS[power as usize - 1])
}
