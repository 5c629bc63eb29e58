//! How workers, supervisors and the coordinator prove to each other that they share the secret of
//! the job.
//!
//! The secret never goes over a connection. A session begins with a nonce of each side; both derive
//! the session's key from the secret and the nonces, and every later message carries a proof over
//! that key, its direction, a counter and its body. The coordinator accepts each counter once.

use prost::Message;

use super::messages::{Hello, Sealed, Welcome};
use super::secret::Secret;

/// Bytes of a client's nonce.
pub(super) const CLIENT_NONCE_BYTES: usize = 32;

const HELLO: &[u8] = b"lockstep hello";
const WELCOME: &[u8] = b"lockstep welcome";
const SESSION: &[u8] = b"lockstep session";
const REQUEST: &[u8] = b"lockstep request";
const RESPONSE: &[u8] = b"lockstep response";

/// The direction of a message: a request sent back is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Request,
    Response,
}

impl Direction {
    fn tag(self) -> &'static [u8] {
        match self {
            Self::Request => REQUEST,
            Self::Response => RESPONSE,
        }
    }
}

/// A greeting to the coordinator of `job`.
pub(super) fn hello(secret: &Secret, job: &str, nonce: Vec<u8>, client_nonce: Vec<u8>) -> Hello {
    let proof = secret.proof(&[HELLO, job.as_bytes(), &nonce, &client_nonce]).to_vec();
    Hello { nonce, client_nonce, job: job.to_owned(), proof }
}

/// `true` if the sender of `hello` has the secret.
pub(super) fn hello_is_true(secret: &Secret, hello: &Hello) -> bool {
    let parts = [HELLO, hello.job.as_bytes(), &hello.nonce, &hello.client_nonce];
    hello.client_nonce.len() == CLIENT_NONCE_BYTES && secret.verify(&parts, &hello.proof)
}

/// The key of the session that `hello` opens.
pub(super) fn session_key(secret: &Secret, hello: &Hello) -> Secret {
    let parts = [SESSION, hello.job.as_bytes(), &hello.nonce, &hello.client_nonce];
    Secret::new(secret.proof(&parts).to_vec())
}

/// The answer to a greeting.
pub(super) fn welcome(key: &Secret, session: u64) -> Welcome {
    Welcome { session, proof: key.proof(&[WELCOME, &session.to_le_bytes()]).to_vec() }
}

/// `true` if the sender of `welcome` has the key.
pub(super) fn welcome_is_true(key: &Secret, welcome: &Welcome) -> bool {
    key.verify(&[WELCOME, &welcome.session.to_le_bytes()], &welcome.proof)
}

/// Puts a message into an envelope.
pub(super) fn seal(
    key: &Secret,
    direction: Direction,
    session: u64,
    counter: u64,
    message: &impl Message,
) -> Sealed {
    let mut sealed = Sealed { session, counter, body: message.encode_to_vec(), proof: Vec::new() };
    sealed.proof = key.proof(&parts(direction, &sealed.counter.to_le_bytes(), &sealed)).to_vec();
    sealed
}

/// `true` if the sender of the envelope has the key.
pub(super) fn is_sealed_with(key: &Secret, direction: Direction, sealed: &Sealed) -> bool {
    key.verify(&parts(direction, &sealed.counter.to_le_bytes(), sealed), &sealed.proof)
}

fn parts<'a>(direction: Direction, counter: &'a [u8; 8], sealed: &'a Sealed) -> [&'a [u8]; 3] {
    [direction.tag(), counter, &sealed.body]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_greeting_counts() {
        let secret = Secret::new(vec![7; 32]);
        let good = hello(&secret, "job", vec![1; 40], vec![2; 32]);
        assert!(hello_is_true(&secret, &good));
        assert!(!hello_is_true(&Secret::new(vec![8; 32]), &good));
        for change in [
            (|hello| hello.job.push('x')) as fn(&mut Hello),
            |hello| hello.nonce[0] ^= 1,
            |hello| hello.client_nonce[0] ^= 1,
            |hello| hello.client_nonce.clear(),
            |hello| hello.proof[0] ^= 1,
            |hello| hello.proof.clear(),
        ] {
            let mut changed = good.clone();
            change(&mut changed);
            assert!(!hello_is_true(&secret, &changed), "{changed:?}");
            let key = session_key(&secret, &changed);
            let same_key = changed.job == good.job
                && changed.nonce == good.nonce
                && changed.client_nonce == good.client_nonce;
            assert_eq!(welcome_is_true(&key, &welcome(&session_key(&secret, &good), 5)), same_key);
        }
    }

    #[test]
    fn an_envelope_is_bound_to_counter_direction_and_key() {
        let key = Secret::new(vec![7; 32]);
        let sealed = seal(&key, Direction::Request, 5, 9, &Hello::default());
        assert!(is_sealed_with(&key, Direction::Request, &sealed));
        assert!(!is_sealed_with(&key, Direction::Response, &sealed));
        assert!(!is_sealed_with(&Secret::new(vec![8; 32]), Direction::Request, &sealed));
        let later = Sealed { counter: 10, ..sealed.clone() };
        assert!(!is_sealed_with(&key, Direction::Request, &later));
        let other = Sealed { body: vec![1], ..sealed };
        assert!(!is_sealed_with(&key, Direction::Request, &other));
    }
}
