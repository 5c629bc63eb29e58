//! Uploading a shard while it is written: a small one as one object, a large one in parts.

use std::collections::VecDeque;
use std::io::ErrorKind::{NotFound, PermissionDenied};
use std::io::{self, Write};

use object_store::multipart::PartId;
use serde::{Deserialize, Serialize};

use super::client::{ObjectClient, ObjectRequest};

/// Parts that are sent at the same time. Each is a copy of its bytes.
const MAX_IN_FLIGHT: usize = 4;
/// The most parts that an upload may have in every store.
const MAX_PARTS: u64 = 10_000;

/// An upload that has begun in parts. It is recorded beside the shard until it has ended, so that
/// the next process can abort it if this one is killed: stores keep the parts of such an upload,
/// and charge for them.
#[derive(Debug, Serialize, Deserialize)]
pub struct UploadRecord {
    /// The name of the shard below the prefix.
    pub name: String,
    /// The store's name of the upload.
    pub id: String,
}

/// A shard that is being uploaded.
pub struct Upload<'a> {
    client: &'a ObjectClient,
    /// The name of the shard below the prefix.
    name: String,
    /// The name of the object with the [`UploadRecord`].
    record: String,
    part_bytes: usize,
    buffer: Vec<u8>,
    id: Option<String>,
    in_flight: VecDeque<ObjectRequest<PartId>>,
    parts: Vec<PartId>,
}

impl<'a> Upload<'a> {
    /// An upload of about `num_bytes` bytes. Nothing is sent yet.
    pub fn new(
        client: &'a ObjectClient,
        name: String,
        record: String,
        part_bytes: usize,
        num_bytes: u64,
    ) -> Self {
        // With some room for the header.
        let least = usize::try_from(num_bytes / (MAX_PARTS / 2)).unwrap_or(usize::MAX);
        let part_bytes = part_bytes.max(least).max(1);
        let (in_flight, parts) = (VecDeque::new(), vec![]);
        Self { client, name, record, part_bytes, buffer: vec![], id: None, in_flight, parts }
    }

    /// Sends what is left, and waits until the object is complete.
    pub fn finish(mut self) -> io::Result<()> {
        if self.id.is_none() {
            return self.client.put(&self.name, std::mem::take(&mut self.buffer));
        }
        let finished = self.complete();
        if finished.is_err() {
            self.abort();
        }
        finished
    }

    fn complete(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            self.send_part()?;
        }
        while let Some(part) = self.in_flight.pop_front() {
            self.parts.push(part.wait()?);
        }
        let (store, path) = (self.client.parts.clone(), self.client.path(&self.name));
        let (id, parts) = (self.id.clone().unwrap_or_default(), std::mem::take(&mut self.parts));
        let complete = async move { store.complete_multipart(&path, &id, parts).await };
        self.client.start(complete)?.wait()?;
        self.client.delete([self.record.clone()])
    }

    /// Gives the upload up. What cannot be removed now is removed by the next process that claims
    /// the prefix.
    pub fn abort(&mut self) {
        let Some(id) = self.id.take() else { return };
        // A part that arrives after the upload was aborted would stay.
        self.in_flight.drain(..).for_each(|part| drop(part.wait()));
        if abort(self.client, &UploadRecord { name: self.name.clone(), id }).is_ok() {
            let _ = self.client.delete([self.record.clone()]);
        }
    }

    fn send_part(&mut self) -> io::Result<()> {
        let id = match &self.id {
            Some(id) => id.clone(),
            None => {
                let (store, path) = (self.client.parts.clone(), self.client.path(&self.name));
                let create = async move { store.create_multipart(&path).await };
                let id = self.client.start(create)?.wait()?;
                self.id = Some(id.clone());
                let record = UploadRecord { name: self.name.clone(), id: id.clone() };
                self.client.put(&self.record, serde_json::to_vec(&record)?)?;
                id
            }
        };
        if self.in_flight.len() == MAX_IN_FLIGHT
            && let Some(part) = self.in_flight.pop_front()
        {
            self.parts.push(part.wait()?);
        }
        let (store, path) = (self.client.parts.clone(), self.client.path(&self.name));
        let bytes = std::mem::take(&mut self.buffer);
        let index = self.parts.len() + self.in_flight.len();
        let put = async move { store.put_part(&path, &id, index, bytes.into()).await };
        self.in_flight.push_back(self.client.start(put)?);
        Ok(())
    }
}

impl Write for Upload<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() == self.part_bytes {
            self.send_part()?;
        }
        let count = bytes.len().min(self.part_bytes - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Aborts an upload that another process has begun.
pub fn abort(client: &ObjectClient, record: &UploadRecord) -> io::Result<()> {
    let (store, path, id) = (client.parts.clone(), client.path(&record.name), record.id.clone());
    let abort = client.start(async move { store.abort_multipart(&path, &id).await })?;
    match abort.wait() {
        // The upload has ended, or this process may not abort any.
        Err(error) if matches!(error.kind(), NotFound | PermissionDenied) => Ok(()),
        aborted => aborted,
    }
}
