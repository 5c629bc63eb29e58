//! The address of the coordinator in etcd, and which processes have lost their lease.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::client::{Etcd, EtcdError};
use super::kept_key::{KeptKey, Say};
use super::{TTL, prefix};
use crate::cluster::session::{Contact, Error, can_open};
use crate::cluster::{Coordinator, Secret};

/// How often the processes' keys are looked at, and how long etcd may take.
const CHECK: Duration = Duration::from_secs(1);
/// How often others look for the coordinator.
const LOOK: Duration = Duration::from_millis(200);
/// A coordinator whose address is published answers within this time.
const HELLO: Duration = Duration::from_secs(3);

/// The coordinator's entry in etcd, held by the process that runs it. When dropped, all keys of the
/// job are removed.
pub struct Registration {
    etcd: Etcd,
    prefix: String,
    generation: Arc<AtomicU64>,
    lost: Mutex<Receiver<Lost>>,
    stop: Option<Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
    /// Last: the address ends when the other keys are gone.
    _address: KeptKey,
}

/// A process whose lease has ended.
struct Lost {
    generation: u64,
    process_index: usize,
    /// Without a sign of life.
    silent: Duration,
}

impl Registration {
    /// Publishes the address of the coordinator of a job. An address of an earlier run that was
    /// killed ends with its lease, which is waited for.
    ///
    /// # Errors
    /// If another run holds the name of the job, or etcd does not answer.
    pub fn publish(etcd: Etcd, job: &str, address: &str, say: Say) -> Result<Self, Error> {
        let prefix = prefix(job);
        let key = format!("{prefix}coordinator").into_bytes();
        let lease = etcd.grant(TTL, 0)?;
        let value = format!("{address} {lease}").into_bytes();
        let (began, deadline) = (Instant::now(), 2 * TTL);
        while !etcd.create(&key, &value, lease)? {
            if began.elapsed() >= deadline {
                let found = etcd.get(&key)?.unwrap_or_default();
                etcd.revoke(lease)?;
                return Err(Error::JobIsTaken {
                    job: job.to_owned(),
                    store: etcd.endpoints(),
                    address: FoundCoordinator::parse(&found)
                        .map_or_else(String::new, |it| it.address),
                });
            }
            thread::sleep(LOOK);
            etcd.keep_alive(lease)?;
        }
        let address = KeptKey::keep(etcd.clone(), key, value, lease, TTL, say)?;
        remove_generations(&etcd, &prefix)?;
        let generation = Arc::new(AtomicU64::new(0));
        let (sender, lost) = mpsc::channel();
        let (stop, stopped) = mpsc::channel();
        let watch = Watch {
            etcd: etcd.with_deadline(CHECK),
            prefix: prefix.clone(),
            generation: Arc::clone(&generation),
        };
        let thread = thread::Builder::new().name("etcd-watch".to_owned());
        let thread = thread.spawn(move || watch.run(&stopped, &sender))?;
        let (lost, stop, thread) = (Mutex::new(lost), Some(stop), Some(thread));
        Ok(Self { etcd, prefix, generation, lost, stop, thread, _address: address })
    }

    /// Tells the coordinator which processes have lost their lease. Does not wait. To be called
    /// again and again.
    pub fn check(&self, coordinator: &Coordinator) {
        self.generation.store(coordinator.generation(), Ordering::Relaxed);
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        for Lost { generation, process_index, silent } in lost.try_iter() {
            coordinator.lost_lease(generation, process_index, silent);
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // Without an answer they end with their lease.
        let _ = remove_generations(&self.etcd.with_deadline(2 * CHECK), &self.prefix);
    }
}

/// Removes the keys of all generations; their names begin with a digit.
fn remove_generations(etcd: &Etcd, prefix: &str) -> Result<(), EtcdError> {
    (0..=9).try_for_each(|digit| etcd.delete_all(format!("{prefix}{digit}").as_bytes()))
}

/// Looks at the keys of the processes of the current generation.
struct Watch {
    etcd: Etcd,
    prefix: String,
    generation: Arc<AtomicU64>,
}

impl Watch {
    fn run(&self, stopped: &Receiver<()>, lost: &Sender<Lost>) {
        let (mut current, mut seen) = (0, BTreeMap::<usize, Instant>::new());
        while stopped.recv_timeout(CHECK) == Err(RecvTimeoutError::Timeout) {
            let generation = self.generation.load(Ordering::Relaxed);
            if generation != current {
                seen.clear();
                if current > 0 {
                    // What is left of it ends with the job.
                    let _ = self.etcd.delete_all(format!("{}{current}/", self.prefix).as_bytes());
                }
                current = generation;
            }
            // While etcd does not answer nobody is blamed.
            let Ok(alive) = self.alive(generation) else { continue };
            let now = Instant::now();
            seen.extend(alive.iter().map(|&index| (index, now)));
            let gone = seen.iter().filter(|(index, _)| !alive.contains(index));
            let gone: Vec<_> = gone.map(|(index, seen)| (*index, *seen)).collect();
            for (process_index, last) in gone {
                // A key may be made again by its owner.
                if now - last < 2 * CHECK {
                    continue;
                }
                seen.remove(&process_index);
                let silent = TTL + (now - last);
                let _ = lost.send(Lost { generation, process_index, silent });
            }
        }
    }

    /// The processes that have a key. If the address of the coordinator is missing too, etcd has
    /// lost its data.
    fn alive(&self, generation: u64) -> Result<Vec<usize>, EtcdError> {
        if self.etcd.get(format!("{}coordinator", self.prefix).as_bytes())?.is_none() {
            return Err(EtcdError::Setup {
                endpoint: self.etcd.endpoints(),
                error: "its data are lost".to_owned(),
            });
        }
        let keys = self.etcd.list(format!("{}{generation}/alive/", self.prefix).as_bytes())?;
        let index = |key: &[u8]| std::str::from_utf8(key).ok()?.parse().ok();
        Ok(keys.iter().filter_map(|(key, _)| index(key)).collect())
    }
}

/// What the coordinator has published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundCoordinator {
    /// `HOST:PORT`.
    pub address: String,
    /// The lease of the job.
    pub lease: i64,
}

impl FoundCoordinator {
    fn parse(value: &[u8]) -> Option<Self> {
        let (address, lease) = std::str::from_utf8(value).ok()?.split_once(' ')?;
        Some(Self { address: address.to_owned(), lease: lease.parse().ok()? })
    }
}

/// [`find_coordinator`], for a supervisor: `HOST:PORT`.
///
/// # Errors
/// If there is none at the deadline, or etcd does not answer.
pub fn published_address(
    etcd: &Etcd,
    job: &str,
    secret: &Secret,
    tls: Option<&[u8]>,
    deadline: Duration,
) -> Result<String, Error> {
    find_coordinator(etcd, job, secret, tls, deadline).map(|found| found.address)
}

/// Waits until the coordinator of a job has published its address and answers there with the secret
/// of the job. An address of an earlier run may be there until its lease ends.
///
/// # Errors
/// If there is none at the deadline, or etcd does not answer.
pub fn find_coordinator(
    etcd: &Etcd,
    job: &str,
    secret: &Secret,
    tls: Option<&[u8]>,
    deadline: Duration,
) -> Result<FoundCoordinator, Error> {
    let key = format!("{}coordinator", prefix(job));
    let began = Instant::now();
    let mut why = "nothing is published".to_owned();
    loop {
        if let Some(found) = etcd.get(key.as_bytes())?.as_deref().and_then(FoundCoordinator::parse)
        {
            let (job, secret) = (job.to_owned(), secret.clone());
            let (address, tls) = (found.address.clone(), tls.map(<[u8]>::to_vec));
            match can_open(Contact { address, job, secret, tls }, HELLO) {
                Ok(()) => return Ok(found),
                Err(error) => why = error.to_string(),
            }
        }
        if began.elapsed() >= deadline {
            return Err(Error::NoAddress {
                job: job.to_owned(),
                store: etcd.endpoints(),
                secs: deadline.as_secs(),
                error: why,
            });
        }
        thread::sleep(LOOK);
    }
}
