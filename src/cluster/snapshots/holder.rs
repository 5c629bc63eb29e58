//! What a supervisor holds: the slots of its own processes, and copies of those of another host.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::link::{HolderGuest, HolderKeys, HolderLink, MAX_READ};
use super::memory::check_memory;
use super::slot::{SnapshotRecord, SnapshotSlot};
use crate::cluster::Secret;
use crate::cluster::messages::{
    HeldSnapshot, ReadSnapshot, SnapshotGranted, SnapshotRows, snapshot_ask, snapshot_reply,
};

/// Connections at a time of those who have the token.
const MAX_CONNECTIONS: usize = 4096;
/// Handshakes at a time: the oldest is given up for one more.
const MAX_HANDSHAKES: usize = 64;
/// Of a thread that talks to one other process.
const STACK_BYTES: usize = 256 << 10;
/// The wait after an error such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);

/// The snapshots of a supervisor, which it serves to those who have the token of the job.
#[derive(Debug)]
pub struct SnapshotHolder {
    held: Arc<Held>,
    address: SocketAddr,
}

#[derive(Debug)]
struct Held {
    /// By local index of the process.
    own: Vec<[SnapshotSlot; 2]>,
    /// Of the processes of other hosts.
    copies: Mutex<Vec<Arc<SnapshotSlot>>>,
    num_connections: AtomicUsize,
    /// Those that have not ended, by a number.
    handshakes: Mutex<BTreeMap<u64, TcpStream>>,
    has_ended: AtomicBool,
}

impl Drop for SnapshotHolder {
    fn drop(&mut self) {
        self.held.has_ended.store(true, Ordering::Relaxed);
        // Wakes the thread that waits for connections. If it cannot, the thread ends with the next.
        let _ = TcpStream::connect_timeout(&self.address, PAUSE);
    }
}

impl SnapshotHolder {
    /// Slots for `num_local` processes, served at a port of this machine's address `local`.
    ///
    /// # Errors
    /// If there are no such files, no port, or no thread.
    pub fn start(local: IpAddr, num_local: usize, secret: &Secret, job: &str) -> io::Result<Self> {
        let slots = |_| Ok([SnapshotSlot::create()?, SnapshotSlot::create()?]);
        let own = (0..num_local).map(slots).collect::<io::Result<_>>()?;
        let held = Arc::new(Held {
            own,
            copies: Mutex::default(),
            num_connections: AtomicUsize::new(0),
            handshakes: Mutex::default(),
            has_ended: AtomicBool::new(false),
        });
        let keys = HolderKeys::new(secret, job)?;
        let listener = TcpListener::bind((local, 0))?;
        let address = listener.local_addr()?;
        let serving = held.clone();
        let serve = move || serving.serve(&listener, &keys);
        thread::Builder::new().name("snapshots".to_owned()).spawn(serve)?;
        Ok(Self { held, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The slots of its own processes, by their local index.
    pub fn own(&self) -> &[[SnapshotSlot; 2]] {
        &self.held.own
    }

    /// What it holds.
    pub fn records(&self) -> Vec<SnapshotRecord> {
        self.held.rows().into_iter().map(|(record, _)| record).collect()
    }

    /// Drops the copies of what others hold, or held.
    pub fn drop_copies(&self) {
        self.held.copies().clear();
    }

    /// Reads a snapshot that another supervisor holds, and keeps it as a copy beside the newest one
    /// before. `false` if `goes_on` is `false` before the end, or the snapshot has just been
    /// overwritten.
    ///
    /// # Errors
    /// If there is no memory for it, it was overwritten on the way, or the other supervisor does
    /// not answer.
    pub fn fetch(
        &self,
        from: &mut HolderLink,
        record: &SnapshotRecord,
        goes_on: impl Fn() -> bool,
    ) -> io::Result<bool> {
        let newest = self.held.copies().iter().filter_map(|slot| Some(slot.record()?.id)).max();
        let base = newest.unwrap_or(record.base);
        let slot = self.held.place_for(&SnapshotRecord { base, ..*record })?;
        let mut writer = slot.begin()?;
        let mut piece = vec![0; record.num_bytes().min(MAX_READ as u64) as usize];
        while writer.num_bytes() < record.num_bytes() {
            if !goes_on() {
                return Ok(false);
            }
            let left = record.num_bytes() - writer.num_bytes();
            let piece = &mut piece[..left.min(MAX_READ as u64) as usize];
            from.read_exact_at(record, piece, writer.num_bytes())?;
            writer.write_all(piece)?;
        }
        // A slot that is written again loses its record first.
        let is_whole = from.list()?.iter().any(|(held, _)| held == record) && goes_on();
        if is_whole {
            writer.end(record)?;
            self.held.copies().push(slot.clone());
        }
        Ok(is_whole)
    }
}

impl Held {
    fn serve(self: &Arc<Self>, listener: &TcpListener, keys: &HolderKeys) {
        for number in 0.. {
            let accepted = listener.accept().and_then(|(stream, _)| {
                let cut = stream.try_clone()?;
                Ok((stream, cut))
            });
            if self.has_ended.load(Ordering::Relaxed) {
                return;
            }
            let Ok((stream, cut)) = accepted else {
                thread::sleep(PAUSE);
                continue;
            };
            let mut handshakes = self.handshakes();
            handshakes.insert(number, cut);
            if handshakes.len() > MAX_HANDSHAKES
                && let Some((_, oldest)) = handshakes.pop_first()
            {
                // It may have gone away itself.
                let _ = oldest.shutdown(Shutdown::Both);
            }
            drop(handshakes);
            let (held, keys) = (self.clone(), keys.clone());
            let talk = move || {
                let admitted = HolderGuest::admit(&keys, stream);
                held.handshakes().remove(&number);
                // Who connects hears what is wrong, and says it.
                let _ = admitted.and_then(|guest| held.talk(guest));
            };
            let name = "snapshot".to_owned();
            if thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(talk).is_err() {
                self.handshakes().remove(&number);
            }
        }
    }

    fn handshakes(&self) -> MutexGuard<'_, BTreeMap<u64, TcpStream>> {
        self.handshakes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn copies(&self) -> MutexGuard<'_, Vec<Arc<SnapshotSlot>>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rows(&self) -> Vec<(SnapshotRecord, i32)> {
        let row = |slot: &SnapshotSlot| Some((slot.record()?, slot.number()));
        let copies = self.copies();
        let copies = copies.iter().filter_map(|slot| row(slot));
        self.own.as_flattened().iter().filter_map(row).chain(copies).collect()
    }

    fn talk(&self, guest: HolderGuest) -> io::Result<()> {
        let mut talked = Ok(());
        if self.num_connections.fetch_add(1, Ordering::Relaxed) < MAX_CONNECTIONS {
            talked = self.answer_all(guest);
        }
        self.num_connections.fetch_sub(1, Ordering::Relaxed);
        talked
    }

    fn answer_all(&self, mut guest: HolderGuest) -> io::Result<()> {
        let refused = |why: String| snapshot_reply::Answer::Refused(why);
        let granted = || snapshot_reply::Answer::Granted(SnapshotGranted {});
        while let Some(ask) = guest.next()? {
            match ask {
                snapshot_ask::Ask::List(_) => {
                    let row = |(record, file): (SnapshotRecord, i32)| HeldSnapshot {
                        snapshot: Some(record.to_row()),
                        file,
                    };
                    let rows = self.rows().into_iter().map(row).collect();
                    guest.answer(snapshot_reply::Answer::Rows(SnapshotRows { rows }))?;
                }
                snapshot_ask::Ask::Read(read) => match self.find(&read) {
                    Ok(num_bytes) => {
                        guest.answer(granted())?;
                        self.send(&mut guest, &read, num_bytes)?;
                    }
                    Err(why) => guest.answer(refused(why))?,
                },
                snapshot_ask::Ask::Keep(row) => {
                    let record = SnapshotRecord::from(&row);
                    match self.place_for(&record) {
                        Ok(slot) => {
                            guest.answer(granted())?;
                            let mut writer = slot.begin()?;
                            if guest.receive(&mut writer, record.num_bytes())? {
                                writer.end(&record)?;
                                self.copies().push(slot.clone());
                            }
                            guest.answer(granted())?;
                        }
                        Err(error) => guest.answer(refused(error.to_string()))?,
                    }
                }
                snapshot_ask::Ask::Forget(forget) => {
                    self.forget_after(forget.after_step)?;
                    guest.answer(granted())?;
                }
            }
        }
        Ok(())
    }

    /// Checks that what is asked for is there. Returns the number of bytes.
    fn find(&self, read: &ReadSnapshot) -> Result<usize, String> {
        let wanted = read.snapshot.as_ref().map(SnapshotRecord::from);
        let is_it = |(record, _): &(SnapshotRecord, i32)| Some(*record) == wanted;
        let Some((record, _)) = self.rows().into_iter().find(is_it) else {
            return Err("the snapshot is not there any more".to_owned());
        };
        let num_bytes = read.num_bytes as usize;
        let end = read.offset.checked_add(u64::from(read.num_bytes));
        match num_bytes <= MAX_READ && end.is_some_and(|end| end <= record.num_bytes()) {
            true => Ok(num_bytes),
            false => Err("the snapshot is shorter".to_owned()),
        }
    }

    fn send(&self, guest: &mut HolderGuest, read: &ReadSnapshot, size: usize) -> io::Result<()> {
        let wanted = read.snapshot.as_ref().map(SnapshotRecord::from);
        let own = self.own.as_flattened().iter().find(|slot| slot.record() == wanted);
        if let Some(slot) = own {
            return guest.send(slot, read.offset, size);
        }
        let copy = self.copies().iter().find(|slot| slot.record() == wanted).cloned();
        match copy {
            Some(slot) => guest.send(&slot, read.offset, size),
            // It was overwritten just now.
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// A slot for a copy of this snapshot. Its base stays, and so do copies of the same state; all
    /// others have served their time.
    fn place_for(&self, record: &SnapshotRecord) -> io::Result<Arc<SnapshotSlot>> {
        let stays = |slot: &Arc<SnapshotSlot>| {
            slot.record().is_some_and(|held| {
                held.id == record.base
                    || held.id == record.id && held.process_index != record.process_index
            })
        };
        let mut copies = self.copies();
        let (stay, mut free): (Vec<_>, Vec<_>) = copies.drain(..).partition(stays);
        *copies = stay;
        drop(copies);
        // One that is being read stays as it is.
        free.retain(|slot| Arc::strong_count(slot) == 1);
        let slot = free.pop().map_or_else(|| SnapshotSlot::create().map(Arc::new), Ok)?;
        drop(free);
        check_memory(record.num_bytes().saturating_sub(slot.held_bytes()))?;
        Ok(slot)
    }

    fn forget_after(&self, step: u64) -> io::Result<()> {
        let is_void =
            |slot: &SnapshotSlot| slot.record().is_some_and(|record| record.id.step > step);
        let mut own = self.own.as_flattened().iter().filter(|slot| is_void(slot));
        own.try_for_each(SnapshotSlot::clear)?;
        self.copies().retain(|slot| !is_void(slot));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::Ipv4Addr;
    use std::time::Instant;

    use super::super::slot::SnapshotId;
    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn secret(byte: u8) -> Secret {
        Secret::new(vec![byte; 32])
    }

    fn holder(num_local: usize) -> SnapshotHolder {
        SnapshotHolder::start(LOCAL, num_local, &secret(7), "job").unwrap()
    }

    fn connect(to: &SnapshotHolder) -> HolderLink {
        HolderLink::connect(&to.address().to_string(), &secret(7), "job").unwrap()
    }

    /// As a process writes it, of values that follow from the step.
    fn write(slot: &SnapshotSlot, process_index: usize, step: u64, base: u64) -> SnapshotRecord {
        let id = |step| SnapshotId { step, generation: 1 };
        let record = SnapshotRecord {
            id: id(step),
            base: id(base),
            process_index,
            num_processes: 2,
            num_parts: 2,
            data_bytes: 3 << 20,
            meta_bytes: 5,
        };
        let mut writer = slot.begin().unwrap();
        writer.write_all(&vec![step as u8; 3 << 20]).unwrap();
        writer.write_all(b"[1,2]").unwrap();
        writer.end(&record).unwrap();
        record
    }

    #[test]
    fn copies_of_two_states_are_kept_and_read() {
        let (from, to) = (holder(2), holder(1));
        let mut link = connect(&to);
        for (slot, step) in [(0, 10), (1, 20), (0, 30), (1, 40)] {
            for process_index in 0..2 {
                let slot = &from.own()[process_index][slot];
                let record = write(slot, process_index, step, step - 10);
                assert!(link.keep(&record, slot).unwrap());
                let mut bytes = vec![0; 9];
                link.read_exact_at(&record, &mut bytes, (3 << 20) - 4).unwrap();
                assert_eq!(bytes, [&[step as u8; 4], &b"[1,2]"[..]].concat());
                assert!(link.read_exact_at(&record, &mut bytes, 3 << 20).is_err());
            }
        }
        let mut held: Vec<_> =
            to.records().iter().map(|it| (it.id.step, it.process_index)).collect();
        held.sort_unstable();
        assert_eq!(held, [(30, 0), (30, 1), (40, 0), (40, 1)]);
        assert_eq!(link.list().unwrap().len(), 4);
        link.forget_after(30).unwrap();
        assert!(to.records().iter().all(|it| it.id.step == 30));
        let mut own = connect(&from);
        own.forget_after(30).unwrap();
        assert_eq!(own.list().unwrap().len(), 2);
    }

    /// The process goes on to another snapshot while this one is sent.
    #[test]
    fn a_snapshot_that_changes_on_the_way_is_not_kept() {
        let (from, to) = (holder(1), holder(1));
        let slot = &from.own()[0][0];
        let record = write(slot, 0, 10, 0);
        write(slot, 0, 20, 10);
        assert!(!connect(&to).keep(&record, slot).unwrap());
        assert_eq!(to.records(), []);
        // The connection is cut.
        let record = write(slot, 0, 30, 10);
        let mut link = connect(&to);
        link.keep(&record, &from.own()[0][1]).unwrap();
        drop(link);
        assert_eq!(to.records(), []);
    }

    #[test]
    fn a_snapshot_of_another_supervisor_is_fetched_whole_or_not_at_all() {
        let (from, to) = (holder(1), holder(1));
        let [first, second] = &from.own()[0];
        let mut link = connect(&from);
        let [older, newer] = [write(first, 0, 10, 0), write(second, 0, 20, 10)];
        for record in [older, newer] {
            assert!(to.fetch(&mut link, &record, || true).unwrap());
        }
        assert_eq!(to.records(), [older, newer]);
        let mut bytes = vec![0; 9];
        connect(&to).read_exact_at(&newer, &mut bytes, (3 << 20) - 4).unwrap();
        assert_eq!(bytes, [&[20; 4], &b"[1,2]"[..]].concat());
        // The process goes on to another one; nobody wants it any more.
        let record = write(first, 0, 30, 20);
        assert!(to.fetch(&mut link, &record, || write(first, 0, 40, 20).id.step > 0).is_err());
        let record = write(first, 0, 50, 20);
        assert!(!to.fetch(&mut link, &record, || false).unwrap());
        // The base of the newest one stays.
        assert_eq!(to.records(), [newer]);
    }

    #[test]
    fn what_cannot_be_held_is_refused() {
        let (from, to) = (holder(1), holder(1));
        let slot = &from.own()[0][0];
        let record = write(slot, 0, 10, 0);
        let huge = SnapshotRecord { data_bytes: u64::MAX / 4, ..record };
        let error = connect(&to).keep(&huge, slot).unwrap_err();
        assert!(error.to_string().contains("snapshots need "), "{error}");
        let error = connect(&to).read_exact_at(&record, &mut [0], 0).unwrap_err();
        assert!(error.to_string().contains("not there any more"), "{error}");
    }

    #[test]
    fn strangers_get_nothing() {
        let to = holder(1);
        write(&to.own()[0][0], 0, 10, 0);
        let address = to.address().to_string();
        for (secret, job) in [(secret(8), "job"), (secret(7), "other")] {
            assert!(HolderLink::connect(&address, &secret, job).is_err());
        }
        // No handshake at all.
        let mut plain = TcpStream::connect(to.address()).unwrap();
        plain.write_all(&[0; 64]).unwrap();
        let mut answer = vec![];
        plain.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let _ = plain.read_to_end(&mut answer);
        assert!(answer.len() < 16, "an alert at most: {answer:?}");
        assert_eq!(connect(&to).list().unwrap().len(), 1);
    }

    /// More strangers than there may be handshakes begin one, and then somebody with the token.
    #[test]
    fn strangers_keep_nobody_out() {
        let to = holder(1);
        let connect_silently = || TcpStream::connect(to.address()).unwrap();
        let strangers: Vec<_> = (0..2 * MAX_HANDSHAKES).map(|_| connect_silently()).collect();
        let begun = Instant::now();
        assert!(connect(&to).list().unwrap().is_empty());
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        drop(strangers);
    }

    /// It sends one byte of a handshake now and then.
    #[test]
    fn slow_strangers_are_given_up() {
        let to = holder(1);
        let mut slow = TcpStream::connect(to.address()).unwrap();
        slow.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let begun = Instant::now();
        // The first bytes of a record that is announced to be long.
        slow.write_all(&[0x16, 3, 1, 0x3f, 0xff]).unwrap();
        let mut answer = [0; 64];
        while !matches!(slow.read(&mut answer), Ok(0)) {
            assert!(begun.elapsed() < Duration::from_secs(15));
            if slow.write_all(&[1]).is_err() {
                break;
            }
        }
    }
}
