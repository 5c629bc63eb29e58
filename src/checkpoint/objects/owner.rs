//! The process that saves below a prefix. The last one to claim the prefix owns it, so a killed
//! process does not block its successor. An earlier owner that still runs fails at its next save.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::client::ObjectClient;
use super::{Error, Location};

/// The name of the object.
const FILE: &str = "owner.json";

/// The contents of the object.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// A random number, unique to the claim.
    id: String,
    host: String,
    pid: u32,
    /// Seconds since 1970-01-01 UTC.
    claimed_at: u64,
}

impl Owner {
    /// Puts this process in place of an earlier one.
    pub fn claim(client: &ObjectClient) -> io::Result<Self> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let owner = Self {
            id: random_id(),
            host: host.trim().to_owned(),
            pid: std::process::id(),
            claimed_at: now.as_secs(),
        };
        owner.put(client)?;
        Ok(owner)
    }

    fn put(&self, client: &ObjectClient) -> io::Result<()> {
        client.put(FILE, serde_json::to_vec(self)?)
    }

    /// Checks that no other process has claimed the prefix since.
    pub fn check(&self, client: &ObjectClient, location: &Location) -> Result<(), Error> {
        let failed = Error::io("read", location.join(FILE));
        let text = match client.read(FILE) {
            // The owner's object was removed, with everything below the prefix or by hand.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.put(client).map_err(Error::io("write", location.join(FILE)));
            }
            read => read.map_err(failed)?,
        };
        let by = match serde_json::from_slice::<Self>(&text) {
            Ok(owner) if owner.id == self.id => return Ok(()),
            Ok(owner) => owner.to_string(),
            Err(_) => "another process".to_owned(),
        };
        Err(Error::InUse { path: location.clone(), by })
    }
}

/// `process 123 on host node-4 (since 2026-11-22 14:30:00 UTC)`.
impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (days, secs) = (self.claimed_at / 86400, self.claimed_at % 86400);
        let (year, month, day) = date(days);
        let (hour, minute, second) = (secs / 3600, secs / 60 % 60, secs % 60);
        write!(f, "process {} on host {} (since ", self.pid, self.host)?;
        write!(f, "{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC)")
    }
}

/// Year, month and day of a number of days after 1970-01-01, in the Gregorian calendar.
fn date(mut days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    // Larger numbers are no times.
    days %= 10_000 * 365;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

/// 16 random hexadecimal digits.
pub fn random_id() -> String {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    if let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) {
        hasher.write_u128(now.as_nanos());
    }
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_says_who_and_since_when() {
        let owner = Owner {
            id: random_id(),
            host: "node-4".to_owned(),
            pid: 123,
            claimed_at: 1_709_210_096,
        };
        let expected = "process 123 on host node-4 (since 2024-02-29 12:34:56 UTC)";
        assert_eq!(owner.to_string(), expected);
        assert_eq!((date(0), date(364), date(365)), ((1970, 1, 1), (1970, 12, 31), (1971, 1, 1)));
        assert_ne!(random_id(), random_id());
    }
}
