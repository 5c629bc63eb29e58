//! The snapshots that a supervisor holds, the copies of them that it sends to the next host, and
//! those that it fetches while it waits.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::LaunchOptions;
use crate::cluster::{
    HolderLink, Secret, SnapshotHolder, SnapshotRecord, SnapshotSlot, interface_address,
    local_address, slower_interface,
};
use crate::observe::say;

/// How often slots are looked at.
const POLL: Duration = Duration::from_millis(20);
/// So many attempts to send a copy fail before that is said.
const ATTEMPTS: u32 = 3;
/// The wait after the next host could not keep a copy.
const AGAIN: Duration = Duration::from_secs(1);
/// A host that comes to a running generation mostly gets a place in the next one before this is
/// over: then it reads the last state of this one.
const FETCH_AFTER: Duration = Duration::from_secs(3);
/// The rate of smaller snapshots says little about the network.
const MEASURED_BYTES: u64 = 1 << 20;

/// The snapshots of the processes of this host. A thread sends each to the next host.
pub(super) struct SupervisorSnapshots {
    sender: Option<Arc<SnapshotSender>>,
}

/// What the thread that sends copies needs.
struct SnapshotSender {
    holder: SnapshotHolder,
    secret: Secret,
    job: String,
    ring: Mutex<Ring>,
    /// How long this host waits before it fetches anything.
    fetch_after: Duration,
    /// How fast copies are sent.
    has_said: AtomicBool,
}

/// The place of this host among those that keep each other's copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ring {
    generation: u64,
    /// The next host; empty if there is none.
    next: String,
    /// Where others serve snapshots, if the generation runs without this host, which waits.
    sources: Vec<String>,
}

impl SupervisorSnapshots {
    /// Slots for the processes of this host, served at its address for others. Without them the job
    /// runs all the same.
    pub fn start(coordinator: &str, options: &LaunchOptions) -> Self {
        let (secret, job) = (options.secret.clone(), options.job.clone());
        let start = |local: IpAddr| SnapshotHolder::start(local, options.num_local, &secret, &job);
        let address = match &options.interface {
            Some(name) => interface_address(name).map_err(io::Error::other),
            None => local_address(coordinator),
        };
        if let Some(text) = address.as_ref().ok().and_then(|own| slower_interface(*own)) {
            say(&format!("warning: {text}"));
        }
        let sender = address.and_then(start).and_then(|holder| {
            let ring = Mutex::default();
            let has_said = AtomicBool::new(false);
            let fetch_after = FETCH_AFTER;
            let sender = SnapshotSender { holder, secret, job, ring, fetch_after, has_said };
            let sender = Arc::new(sender);
            let sending = Arc::downgrade(&sender);
            thread::Builder::new().name("copies".to_owned()).spawn(move || send_all(&sending))?;
            Ok(sender)
        });
        let sender = sender.inspect_err(|error| {
            say(&format!("warning: this host holds no snapshots in memory: {error}"));
        });
        Self { sender: sender.ok() }
    }

    /// Where they are served; empty if there are none.
    pub fn address(&self) -> String {
        self.sender.as_ref().map_or_else(String::new, |sender| sender.holder.address().to_string())
    }

    /// The numbers of the slots of a process, by its local index.
    pub fn slots(&self, local: usize) -> String {
        let slots = self.sender.as_ref().and_then(|sender| sender.holder.own().get(local));
        let numbers = slots.into_iter().flatten().map(|slot| slot.number().to_string());
        numbers.collect::<Vec<_>>().join(",")
    }

    /// A generation starts. The copies of its snapshots go to `next`; empty if there is no other
    /// host.
    pub fn follow(&self, generation: u64, next: &str) {
        if let Some(sender) = &self.sender {
            *sender.ring() = Ring { generation, next: next.to_owned(), sources: vec![] };
        }
    }

    /// A generation starts without this host, which fetches the newest snapshot from `holders`, the
    /// supervisors of all hosts in the order of their processes.
    pub fn wait(&self, generation: u64, holders: &[String]) {
        if let Some(sender) = &self.sender {
            let own = self.address();
            let others = holders.iter().filter(|address| **address != own).cloned().collect();
            *sender.ring() = Ring { generation, next: String::new(), sources: others };
        }
    }
}

impl SnapshotSender {
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The oldest snapshot of the running generation without a copy.
    fn next(&self, generation: u64) -> Option<(SnapshotRecord, &SnapshotSlot)> {
        let slots = self.holder.own().as_flattened().iter();
        let found = slots.filter_map(|slot| Some((slot.record()?, slot)));
        let own = found.filter(|(record, slot)| {
            record.id.generation == generation && !slot.has_copy(record.id)
        });
        own.min_by_key(|(record, _)| (record.id, record.process_index))
    }
}

/// Sends a copy of each snapshot to the next host, as long as the supervisor runs.
fn send_all(sender: &Weak<SnapshotSender>) {
    let mut link: Option<(Ring, HolderLink)> = None;
    let (mut failed, mut not_before) = ((Ring::default(), 0), Instant::now());
    let (mut last, mut lacks_memory) = (Ring::default(), false);
    while let Some(sender) = sender.upgrade() {
        let ring = sender.ring().clone();
        if ring != last {
            let waits = !ring.sources.is_empty();
            not_before = Instant::now() + if waits { sender.fetch_after } else { Duration::ZERO };
            last.clone_from(&ring);
        }
        if !ring.sources.is_empty() && Instant::now() >= not_before {
            match fetch(&sender, &ring) {
                Err(error) if error.kind() == io::ErrorKind::OutOfMemory && !lacks_memory => {
                    say(&format!("warning: this host waits without the newest state: {error}"));
                    lacks_memory = true;
                }
                Err(error) => tracing::debug!(%error, "no snapshot is fetched"),
                Ok(()) => {}
            }
            not_before = Instant::now() + AGAIN;
        }
        let next = sender.next(ring.generation).filter(|_| Instant::now() >= not_before);
        let Some((record, slot)) = next else {
            // One over which nothing is sent for a while would be closed.
            link = None;
            drop(sender);
            thread::sleep(POLL);
            continue;
        };
        let copied = send(&sender, &ring, &mut link, &record, slot);
        let Err(error) = copied else {
            failed.1 = 0;
            continue;
        };
        link = None;
        not_before = Instant::now() + AGAIN;
        // A host that is lost ends the generation in a moment: that is no news of its own.
        let num_before = if failed.0 == ring { failed.1 } else { 0 };
        failed = (ring.clone(), num_before + 1);
        if failed.1 == ATTEMPTS {
            say(&format!(
                "warning: the next host, {}, keeps no copy of the snapshot after step {} \
                 ({error}); no other is taken before it does",
                ring.next, record.id.step
            ));
        }
    }
}

/// Fetches the newest snapshot if it alone is the whole state, so that a host that waits has it at
/// hand. Of a state in several parts it would need all of them, because it may come to stand in for
/// any host: it reads the part of that one when it does.
fn fetch(sender: &SnapshotSender, ring: &Ring) -> io::Result<()> {
    // The first process takes it, and the host after that has the copy.
    for source in ring.sources.iter().take(2) {
        let mut link = HolderLink::connect(source, &sender.secret, &sender.job)?;
        let held = link.list()?.into_iter().map(|(record, _)| record);
        let whole = held.filter(|record| {
            let is_of_now = record.id.generation == ring.generation;
            is_of_now && record.num_parts == 1 && record.process_index == 0
        });
        let Some(newest) = whole.max_by_key(|record| record.id) else { continue };
        if !sender.holder.records().contains(&newest) {
            sender.holder.fetch(&mut link, &newest, || *sender.ring() == *ring)?;
        }
        break;
    }
    Ok(())
}

/// Sends one copy, and notes that it is there.
fn send(
    sender: &SnapshotSender,
    ring: &Ring,
    link: &mut Option<(Ring, HolderLink)>,
    record: &SnapshotRecord,
    slot: &SnapshotSlot,
) -> io::Result<()> {
    if !ring.next.is_empty() {
        let opened = link.take().filter(|(of, _)| of == ring);
        let (_, open) = link.insert(match opened {
            Some(opened) => opened,
            None => {
                let opened = HolderLink::connect(&ring.next, &sender.secret, &sender.job)?;
                (ring.clone(), opened)
            }
        });
        let begun = Instant::now();
        if !open.keep(record, slot)? {
            // It has changed: what is in the slot now comes next.
            return Ok(());
        }
        if record.data_bytes >= MEASURED_BYTES && !sender.has_said.swap(true, Relaxed) {
            let mb_per_sec = record.data_bytes as f64 / 1e6 / begun.elapsed().as_secs_f64();
            say(&format!(
                "launch: copies of snapshots reach the next host, {}, at {mb_per_sec:.0} MB/s",
                ring.next
            ));
        }
    }
    slot.set_copied(record.id)?;
    let all_have = |slots: &[SnapshotSlot; 2]| slots.iter().any(|slot| slot.has_copy(record.id));
    let is_alone = ring.next.is_empty() && *sender.ring() == *ring;
    if is_alone && sender.holder.own().iter().all(all_have) {
        // The whole state is here: what this host has as copies is from when there were others.
        sender.holder.drop_copies();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::Ipv4Addr;
    use std::thread::JoinHandle;

    use super::*;
    use crate::cluster::SnapshotId;

    fn holder() -> SnapshotHolder {
        let secret = Secret::new(vec![7; 32]);
        SnapshotHolder::start(Ipv4Addr::LOCALHOST.into(), 1, &secret, "job").unwrap()
    }

    fn write(slot: &SnapshotSlot, id: SnapshotId, num_parts: usize) {
        let record = SnapshotRecord {
            id,
            base: SnapshotId::default(),
            process_index: 0,
            num_processes: num_parts,
            num_parts,
            data_bytes: 4,
            meta_bytes: 2,
        };
        let mut writer = slot.begin().unwrap();
        writer.write_all(b"data{}").unwrap();
        writer.end(&record).unwrap();
    }

    fn wait_for(what: &str, done: impl Fn() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < Duration::from_secs(20), "{what} was waited for in vain");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The snapshots of a supervisor with one process, and the thread that sends and fetches.
    fn supervisor() -> (SupervisorSnapshots, JoinHandle<()>) {
        let (secret, job) = (Secret::new(vec![7; 32]), "job".to_owned());
        let sender = Arc::new(SnapshotSender {
            holder: holder(),
            secret,
            job,
            ring: Mutex::default(),
            fetch_after: Duration::ZERO,
            has_said: AtomicBool::default(),
        });
        let sending = Arc::downgrade(&sender);
        let thread = thread::spawn(move || send_all(&sending));
        (SupervisorSnapshots { sender: Some(sender) }, thread)
    }

    /// The next host is not there at first; snapshots of an older generation are sent to nobody.
    #[test]
    fn each_snapshot_of_the_generation_is_sent_once_there_is_somebody() {
        let (snapshots, thread) = supervisor();
        let sender = snapshots.sender.clone().unwrap();
        let [first, second] = &sender.holder.own()[0];
        let id = |generation, step| SnapshotId { step, generation };
        write(first, id(1, 10), 1);
        // A port that nobody listens at.
        snapshots.follow(2, "127.0.0.1:1");
        write(second, id(2, 20), 1);
        thread::sleep(Duration::from_millis(200));
        assert!(!first.has_copy(id(1, 10)) && !second.has_copy(id(2, 20)));
        let next = holder();
        snapshots.follow(2, &next.address().to_string());
        wait_for("the copy", || second.has_copy(id(2, 20)));
        assert_eq!(next.records().iter().map(|it| it.id).collect::<Vec<_>>(), [id(2, 20)]);
        assert!(!first.has_copy(id(1, 10)));
        // Alone, with a copy of another host's that it began from.
        let (address, secret) = (snapshots.address(), Secret::new(vec![7; 32]));
        let mut link = HolderLink::connect(&address, &secret, "job").unwrap();
        let copied = next.records()[0];
        assert!(link.keep(&copied, second).unwrap());
        let ids = || sender.holder.records().iter().map(|it| it.id).collect::<Vec<_>>();
        assert_eq!(ids(), [id(1, 10), id(2, 20), id(2, 20)]);
        snapshots.follow(3, "");
        write(first, id(3, 30), 1);
        wait_for("the note", || first.has_copy(id(3, 30)));
        wait_for("its memory", || ids() == [id(3, 30), id(2, 20)]);
        assert_eq!(next.records().len(), 1);
        drop((snapshots, sender));
        thread.join().unwrap();
    }

    #[test]
    fn who_waits_fetches_what_is_the_whole_state() {
        let (first, second) = (holder(), holder());
        let id = |step| SnapshotId { step, generation: 1 };
        let (snapshots, thread) = supervisor();
        let addresses = [&first, &second].map(|holder| holder.address().to_string());
        snapshots.wait(1, &[&[snapshots.address()][..], &addresses].concat());
        let records = || {
            let records = snapshots.sender.as_ref().unwrap().holder.records();
            records.iter().map(|it| it.id).collect::<Vec<_>>()
        };
        // A part of two.
        write(&second.own()[0][0], id(10), 2);
        thread::sleep(AGAIN + AGAIN / 2);
        assert_eq!(records(), []);
        // Only the second host has it, as a copy.
        write(&second.own()[0][0], id(20), 1);
        wait_for("the copy", || records() == [id(20)]);
        write(&first.own()[0][0], id(30), 1);
        wait_for("the newer one", || records() == [id(20), id(30)]);
        // It has a place, and snapshots of its own.
        snapshots.follow(2, "");
        write(&first.own()[0][1], id(40), 1);
        thread::sleep(AGAIN + AGAIN / 2);
        assert_eq!(records(), [id(20), id(30)]);
        drop(snapshots);
        thread.join().unwrap();
    }
}
