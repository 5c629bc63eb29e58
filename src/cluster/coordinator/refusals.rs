//! The log of refused callers: one line for each address in a while, so that a stranger cannot fill
//! the log.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// The same address is not reported again within this time.
const QUIET: Duration = Duration::from_secs(60);
const MAX_ADDRESSES: usize = 256;

/// When which address was reported.
#[derive(Debug, Default)]
pub struct Refusals {
    reported: HashMap<IpAddr, Duration>,
}

impl Refusals {
    /// `true` if the refusal should be reported.
    pub fn should_report(&mut self, now: Duration, address: IpAddr) -> bool {
        if self.reported.get(&address).is_some_and(|&last| now.saturating_sub(last) < QUIET) {
            return false;
        }
        self.reported.retain(|_, last| now.saturating_sub(*last) < QUIET);
        if self.reported.len() >= MAX_ADDRESSES {
            return false;
        }
        self.reported.insert(address, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_reported_once_a_minute_and_many_are_bounded() {
        let mut refusals = Refusals::default();
        let second = Duration::from_secs(1);
        let address = |last: u16| IpAddr::from([10, 0, (last >> 8) as u8, last as u8]);
        assert!(refusals.should_report(second, address(1)));
        assert!(!refusals.should_report(60 * second, address(1)));
        assert!(refusals.should_report(61 * second, address(1)));
        let mut report = |last| refusals.should_report(70 * second, address(last));
        assert_eq!((2..2000).filter(|&last| report(last)).count(), MAX_ADDRESSES - 1);
    }
}
