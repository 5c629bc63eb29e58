//! Who may talk to the coordinator: nonces, sessions, and counters that are accepted once.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::messages::{Hello, Sealed, Welcome};
use crate::cluster::seal::{self, Direction};
use crate::cluster::secret::{Secret, random_bytes};

/// What is wrong with a request of a session that another coordinator has opened.
pub const UNKNOWN_SESSION: &str = "its session is not known";
/// A nonce must be used within this time.
const NONCE_LIFETIME: Duration = Duration::from_secs(30);
/// A session is forgotten after it has been silent for this long.
const SESSION_LIFETIME: Duration = Duration::from_secs(600);

/// Checks proofs. Knows no job: a session is a number.
pub struct Door {
    job: String,
    secret: Secret,
    /// Signs nonces, so that those handed out need no memory: only used ones are kept.
    nonce_key: Secret,
    /// Nonces that opened a session, until they expire anyway.
    used: HashMap<Vec<u8>, Duration>,
    sessions: HashMap<u64, Open>,
    max_sessions: usize,
}

struct Open {
    key: Arc<Secret>,
    seen: Window,
    last: Duration,
}

impl Door {
    /// For the job of this name, with room for `max_sessions` at a time.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn new(job: &str, secret: Secret, max_sessions: usize) -> io::Result<Self> {
        Ok(Self {
            job: job.to_owned(),
            secret,
            nonce_key: Secret::random()?,
            used: HashMap::new(),
            sessions: HashMap::new(),
            max_sessions,
        })
    }

    /// A nonce for one greeting.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn challenge(&self, now: Duration) -> io::Result<Vec<u8>> {
        let random = random_bytes()?;
        let time = (now.as_millis() as u64).to_le_bytes();
        let proof = self.nonce_key.proof(&[&time, &random]);
        Ok([&time[..], &random, &proof].concat())
    }

    /// Opens a session.
    ///
    /// # Errors
    /// A text for the log: what is wrong with the greeting.
    pub fn open(&mut self, now: Duration, hello: &Hello) -> Result<Welcome, String> {
        self.check_nonce(now, &hello.nonce)?;
        if !seal::hello_is_true(&self.secret, hello) {
            return Err("it does not have the secret of this job".to_owned());
        }
        if hello.job != self.job {
            return Err(format!("it belongs to the job {:?}, this is {:?}", hello.job, self.job));
        }
        self.used.retain(|_, expires| *expires > now);
        if self.used.insert(hello.nonce.clone(), now + NONCE_LIFETIME).is_some() {
            return Err("its greeting was used before".to_owned());
        }
        self.sessions.retain(|_, open| now.saturating_sub(open.last) < SESSION_LIFETIME);
        if self.sessions.len() >= self.max_sessions {
            let oldest = self.sessions.iter().min_by_key(|(_, open)| open.last);
            if let Some(oldest) = oldest.map(|(&session, _)| session) {
                self.sessions.remove(&oldest);
            }
        }
        let random = random_bytes().map_err(|error| error.to_string())?;
        let session = u64::from_le_bytes(*random.first_chunk().unwrap_or(&[0; 8]));
        let key = seal::session_key(&self.secret, hello);
        let welcome = seal::welcome(&key, session);
        let open = Open { key: Arc::new(key), seen: Window::default(), last: now };
        self.sessions.insert(session, open);
        Ok(welcome)
    }

    /// The key of the session if the request is authentic and new.
    ///
    /// # Errors
    /// A text for the log: what is wrong with the request.
    pub fn check(&mut self, now: Duration, sealed: &Sealed) -> Result<Arc<Secret>, String> {
        let open = self.sessions.get_mut(&sealed.session).ok_or(UNKNOWN_SESSION)?;
        if !seal::is_sealed_with(&open.key, Direction::Request, sealed) {
            return Err("its request is not authentic".to_owned());
        }
        if !open.seen.insert(sealed.counter) {
            return Err("its request was sent before".to_owned());
        }
        open.last = now;
        Ok(Arc::clone(&open.key))
    }

    fn check_nonce(&self, now: Duration, nonce: &[u8]) -> Result<(), String> {
        let (time, rest) = nonce.split_first_chunk().ok_or("its nonce is too short")?;
        let (random, proof) = rest.split_first_chunk::<32>().ok_or("its nonce is too short")?;
        if !self.nonce_key.verify(&[time, random], proof) {
            return Err("its nonce is not one of this coordinator".to_owned());
        }
        let made = Duration::from_millis(u64::from_le_bytes(*time));
        match now.saturating_sub(made) < NONCE_LIFETIME && !self.used.contains_key(nonce) {
            true => Ok(()),
            false => Err("its nonce was used or is too old".to_owned()),
        }
    }
}

const WORDS: usize = 16;
const WINDOW: u64 = 64 * WORDS as u64;

/// The counters seen: all below the window count as seen.
#[derive(Default)]
struct Window {
    /// One more than the largest counter seen.
    end: u64,
    /// Bit `counter % WINDOW` of the counters in `end - WINDOW..end`.
    bits: [u64; WORDS],
}

impl Window {
    /// `false` if the counter was seen, or is too old to know.
    fn insert(&mut self, counter: u64) -> bool {
        if counter == u64::MAX || counter < self.end.saturating_sub(WINDOW) {
            return false;
        }
        if counter >= self.end {
            for skipped in self.end.max((counter + 1).saturating_sub(WINDOW))..counter {
                self.set(skipped, false);
            }
            self.end = counter + 1;
            self.set(counter, true);
            return true;
        }
        let is_new = self.bits[Self::word(counter)] & Self::bit(counter) == 0;
        self.set(counter, true);
        is_new
    }

    fn set(&mut self, counter: u64, seen: bool) {
        match seen {
            true => self.bits[Self::word(counter)] |= Self::bit(counter),
            false => self.bits[Self::word(counter)] &= !Self::bit(counter),
        }
    }

    fn word(counter: u64) -> usize {
        (counter % WINDOW / 64) as usize
    }

    fn bit(counter: u64) -> u64 {
        1 << (counter % 64)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::cluster::messages::Watch;

    const SECOND: Duration = Duration::from_secs(1);

    fn door() -> Door {
        Door::new("job", Secret::new(vec![7; 32]), 3).unwrap()
    }

    fn hello(door: &Door, now: Duration, secret: u8, job: &str) -> Hello {
        let nonce = door.challenge(now).unwrap();
        seal::hello(&Secret::new(vec![secret; 32]), job, nonce, vec![1; 32])
    }

    #[test]
    fn a_greeting_opens_one_session() {
        let mut door = door();
        let good = hello(&door, SECOND, 7, "job");
        let welcome = door.open(2 * SECOND, &good).unwrap();
        let key = seal::session_key(&Secret::new(vec![7; 32]), &good);
        assert!(seal::welcome_is_true(&key, &welcome));
        for later in [2, 5, 100] {
            let error = door.open(later * SECOND, &good).unwrap_err();
            assert!(error.contains("was used or is too old"), "{error}");
        }
    }

    #[test]
    fn strangers_are_refused() {
        let mut door = door();
        let now = SECOND;
        let error = door.open(now, &hello(&door, now, 8, "job")).unwrap_err();
        assert!(error.contains("does not have the secret"), "{error}");
        let error = door.open(now, &hello(&door, now, 7, "other")).unwrap_err();
        assert!(error.contains("belongs to the job \"other\""), "{error}");
        let error = door.open(40 * SECOND, &hello(&door, now, 7, "job")).unwrap_err();
        assert!(error.contains("too old"), "{error}");
        let elsewhere = Door::new("job", Secret::new(vec![7; 32]), 3).unwrap();
        let error = door.open(now, &hello(&elsewhere, now, 7, "job")).unwrap_err();
        assert!(error.contains("not one of this coordinator"), "{error}");
        let error = door.open(now, &Hello::default()).unwrap_err();
        assert!(error.contains("too short"), "{error}");
    }

    #[test]
    fn a_request_is_accepted_once_and_only_with_the_key() {
        let mut door = door();
        let hello = hello(&door, SECOND, 7, "job");
        let session = door.open(SECOND, &hello).unwrap().session;
        let key = seal::session_key(&Secret::new(vec![7; 32]), &hello);
        let request = |counter| {
            seal::seal(
                &key,
                Direction::Request,
                session,
                counter,
                &Watch { wait_ms: 0, num_known_slow: 0 },
            )
        };
        assert!(door.check(SECOND, &request(0)).is_ok());
        assert!(door.check(SECOND, &request(2)).is_ok());
        assert!(door.check(SECOND, &request(1)).is_ok());
        let error = door.check(SECOND, &request(1)).unwrap_err();
        assert!(error.contains("sent before"), "{error}");
        let error = door.check(SECOND, &Sealed { counter: 9, ..request(3) }).unwrap_err();
        assert!(error.contains("not authentic"), "{error}");
        let error = door.check(SECOND, &Sealed { session: !session, ..request(3) }).unwrap_err();
        assert!(error.contains("not known"), "{error}");
    }

    #[test]
    fn sessions_are_bounded_and_the_oldest_goes() {
        let mut door = door();
        let mut open = |second: u32| {
            let hello = hello(&door, second * SECOND, 7, "job");
            door.open(second * SECOND, &hello).unwrap();
            door.sessions.len()
        };
        assert_eq!([open(1), open(2), open(3), open(4), open(900)], [1, 2, 3, 3, 1]);
    }

    proptest! {
        #[test]
        fn the_window_accepts_every_counter_once(
            steps in prop::collection::vec((0u64..2000, any::<bool>()), 0..200),
        ) {
            let mut window = Window::default();
            let mut seen = HashSet::new();
            let mut top = 0u64;
            for (distance, ahead) in steps {
                let counter = if ahead { top + distance } else { top.saturating_sub(distance) };
                let is_old = counter + WINDOW <= top && !seen.is_empty();
                let is_new = !is_old && seen.insert(counter);
                prop_assert_eq!(window.insert(counter), is_new, "counter {} of {}", counter, top);
                top = top.max(counter);
            }
        }
    }
}
