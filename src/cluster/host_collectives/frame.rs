//! What processes send each other: a header, and a payload of as many bytes as it says.

use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most bytes of a payload.
pub(super) const MAX_PAYLOAD_BYTES: usize = 1 << 32;
/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 56;

const MAGIC: u32 = u32::from_le_bytes(*b"LKS1");
/// Memory is taken in steps of this size while a payload arrives, not for what its header promises.
const READ_BYTES: usize = 1 << 20;
/// Shorter buffers are not kept, since new ones are as fast.
const MIN_KEPT_WORDS: usize = 1 << 13;
/// All buffers that are kept together: 256 MiB.
const MAX_KEPT_WORDS: usize = 1 << 25;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum FrameKind {
    /// Pieces of the operands of the sender's replicas.
    Operands,
    /// The sender's slice of the results.
    Totals,
    /// The launch has failed in the sender: the reason, as text.
    Failure,
    /// The sender sends nothing more.
    Goodbye,
}

/// What the replicas of a group have in common: the site, how often they were there before, and
/// which group it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Meeting {
    pub site: usize,
    pub visit: u64,
    pub group: usize,
}

/// What a frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub kind: FrameKind,
    /// The number of the launch, equal in all processes.
    pub launch: u64,
    /// The digest of the program that the sender launched.
    pub digest: u64,
    pub meeting: Meeting,
}

impl Header {
    /// The header of a frame that belongs to no meeting.
    pub fn of_launch(kind: FrameKind, launch: u64) -> Self {
        Self { kind, launch, digest: 0, meeting: Meeting { site: 0, visit: 0, group: 0 } }
    }

    pub fn encode(&self, num_bytes: usize) -> [u8; HEADER_BYTES] {
        let Meeting { site, visit, group } = self.meeting;
        let kind = self.kind as u64;
        let words = [
            u64::from(MAGIC) | kind << 32,
            self.launch,
            self.digest,
            site as u64,
            visit,
            group as u64,
            num_bytes as u64,
        ];
        let mut bytes = [0; HEADER_BYTES];
        for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    /// The header, and the length of the payload.
    ///
    /// # Errors
    /// What the peer did wrong.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<(Self, usize), String> {
        let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut next = || words.next().unwrap_or_default();
        let first = next();
        let kind = match (first as u32, first >> 32) {
            (MAGIC, 0) => FrameKind::Operands,
            (MAGIC, 1) => FrameKind::Totals,
            (MAGIC, 2) => FrameKind::Failure,
            (MAGIC, 3) => FrameKind::Goodbye,
            _ => return Err("sent something that is not a frame".to_owned()),
        };
        let (launch, digest) = (next(), next());
        let mut number = || usize::try_from(next()).ok();
        let (site, visit, group, num_bytes) = (number(), number(), number(), number());
        let (Some(site), Some(visit), Some(group), Some(num_bytes)) =
            (site, visit, group, num_bytes)
        else {
            return Err("sent a frame with numbers that are too large".to_owned());
        };
        if num_bytes > MAX_PAYLOAD_BYTES {
            return Err(format!("sent a frame of {num_bytes} bytes, which is too long"));
        }
        let meeting = Meeting { site, visit: visit as u64, group };
        Ok((Self { kind, launch, digest, meeting }, num_bytes))
    }
}

/// Memory of payloads that is used again: for long ones the system takes longer to provide it than
/// to send it.
#[derive(Debug, Default)]
pub(super) struct PayloadBuffers(Mutex<Vec<Vec<u64>>>);

impl PayloadBuffers {
    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The smallest buffer of at least `num_words`, if there is one that is not much longer;
    /// otherwise an empty one.
    fn take(&self, num_words: usize) -> Vec<u64> {
        let mut free = self.lock();
        let fits = |words: &Vec<u64>| (num_words..=2 * num_words).contains(&words.len());
        let fitting = free.iter().enumerate().filter(|(_, words)| fits(words));
        let smallest = fitting.min_by_key(|(_, words)| words.len()).map(|(index, _)| index);
        smallest.map(|index| free.swap_remove(index)).unwrap_or_default()
    }

    /// Keeps a long buffer, and gives up the oldest ones if that is too much.
    fn keep(&self, words: Vec<u64>) {
        if !(MIN_KEPT_WORDS..=MAX_KEPT_WORDS).contains(&words.len()) {
            return;
        }
        let mut free = self.lock();
        free.push(words);
        while free.iter().map(Vec::len).sum::<usize>() > MAX_KEPT_WORDS {
            free.remove(0);
        }
    }
}

/// Bytes that begin at an address that is good for elements of every dtype.
#[derive(Debug, Default)]
pub(super) struct Payload {
    /// At least as many as the payload needs.
    words: Vec<u64>,
    num_bytes: usize,
    buffers: Option<Arc<PayloadBuffers>>,
}

impl Payload {
    /// A payload with arbitrary contents.
    pub fn new(num_bytes: usize, buffers: &Arc<PayloadBuffers>) -> Self {
        let num_words = num_bytes.div_ceil(8);
        let mut words = buffers.take(num_words);
        if words.is_empty() {
            words = vec![0; num_words];
        }
        Self { words, num_bytes, buffers: Some(buffers.clone()) }
    }

    pub fn of_text(text: &str) -> Self {
        let words = vec![0; text.len().div_ceil(8)];
        let mut payload = Self { words, num_bytes: text.len(), buffers: None };
        payload.bytes_mut().copy_from_slice(text.as_bytes());
        payload
    }

    /// Reads a payload of a known length.
    pub fn read(
        mut from: impl Read,
        num_bytes: usize,
        buffers: &Arc<PayloadBuffers>,
    ) -> io::Result<Self> {
        let num_words = num_bytes.div_ceil(8);
        let words = buffers.take(num_words);
        let mut payload = Self { words, num_bytes: 0, buffers: Some(buffers.clone()) };
        if payload.words.is_empty() {
            payload.words.try_reserve_exact(num_words).map_err(io::Error::other)?;
        }
        while payload.num_bytes < num_bytes {
            let read = payload.num_bytes;
            payload.num_bytes = num_bytes.min(read + READ_BYTES);
            let num_words = payload.num_bytes.div_ceil(8).max(payload.words.len());
            payload.words.resize(num_words, 0);
            from.read_exact(&mut payload.bytes_mut()[read..])?;
        }
        Ok(payload)
    }

    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.num_bytes]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.num_bytes]
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        if let Some(buffers) = &self.buffers {
            buffers.keep(std::mem::take(&mut self.words));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_payloads_are_read_as_written_and_others_are_refused() {
        let meeting = Meeting { site: 3, visit: 1 << 40, group: 7 };
        for kind in [FrameKind::Operands, FrameKind::Totals, FrameKind::Failure, FrameKind::Goodbye]
        {
            let header = Header { kind, launch: 17, digest: u64::MAX, meeting };
            assert_eq!(Header::decode(&header.encode(99)), Ok((header, 99)));
        }
        let header = Header { kind: FrameKind::Operands, launch: 0, digest: 0, meeting };
        let error = Header::decode(&header.encode(MAX_PAYLOAD_BYTES + 1)).unwrap_err();
        assert!(error.contains("too long"), "{error}");
        for place in [0, 3, 4, 7] {
            let mut bytes = header.encode(0);
            bytes[place] ^= 0x40;
            assert!(Header::decode(&bytes).unwrap_err().contains("not a frame"));
        }
        let bytes: Vec<u8> = (0..READ_BYTES + 13).map(|i| i as u8).collect();
        let buffers = Arc::default();
        // Some of them in a buffer that was used before.
        for num_bytes in [0, 1, 8, READ_BYTES, READ_BYTES + 13, READ_BYTES, READ_BYTES - 5] {
            let payload = Payload::read(&bytes[..], num_bytes, &buffers).unwrap();
            assert_eq!(payload.bytes(), &bytes[..num_bytes]);
        }
        assert!(Payload::read(&bytes[..], 1 << 31, &buffers).is_err());
    }

    #[test]
    fn memory_is_used_again_and_bounded() {
        let buffers: Arc<PayloadBuffers> = Arc::default();
        let address = |num_bytes| Payload::new(num_bytes, &buffers).bytes().as_ptr().addr();
        let first = address(1 << 20);
        assert_eq!([address(1 << 20), address((1 << 20) - 9), address(1 << 19)], [first; 3]);
        assert_eq!(buffers.lock().len(), 1);
        drop([(); 5].map(|()| Payload::new(MAX_KEPT_WORDS * 2, &buffers)));
        assert_eq!(buffers.lock().len(), 4);
        drop(Payload::new(MAX_KEPT_WORDS * 8 + 1, &buffers));
        drop(Payload::new(100, &buffers));
        assert_eq!(buffers.lock().len(), 4);
    }
}
