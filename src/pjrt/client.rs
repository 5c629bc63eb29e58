//! A client: one plugin's devices, ready to compile for and to run on.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::abi::*;
use super::cpu::{self, CpuWaits};
use super::device::{Device, DeviceDescription, MemoryStats, describe_device, describe_global};
use super::event::Completion;
use super::ffi::{self, HostCollectives, HostKernels};
use super::key_value::{self, KeyValueStore};
use super::plugin::call;
use super::value::{self, slice, string};
use super::{Error, Placement, Platform, Plugin, Process, Result, Value};

/// Launches that may be in flight at once. XLA's CPU backend hangs when about a hundred
/// multi-replica launches queue up; a few are enough to keep any device busy.
const MAX_QUEUED_LAUNCHES: usize = 8;

/// The devices of one plugin in this process. Cheap to clone; clones are the same client, and
/// whatever was made through it keeps it alive.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    plugin: Plugin,
    raw: *mut PJRT_Client,
    devices: Vec<Device>,
    global_devices: Vec<DeviceDescription>,
    placement: Placement,
    placements: Mutex<Vec<Placement>>,
    platform_name: String,
    platform_version: String,
    process_index: usize,
    /// This process among those of the run, for the CPU backend: the CPU plugin itself is
    /// single-process.
    cpu_process: Process,
    cpu_waits: CpuWaits,
    host_collectives: OnceLock<Arc<dyn HostCollectives>>,
    has_host_kernels: AtomicBool,
    queue: Mutex<LaunchQueue>,
    /// The plugin calls it as long as the client lives.
    _key_value_store: Option<Box<Arc<dyn KeyValueStore>>>,
}

// SAFETY: PJRT's functions on clients and devices may be called from any thread; everything else in
// `Inner` is immutable or behind the mutex.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// The launches that may still run, oldest first.
#[derive(Default)]
struct LaunchQueue {
    launches: VecDeque<Completion>,
    /// Launches of programs with host collectives so far. Unlike launch ids it is the same in all
    /// processes.
    num_host_launches: u64,
    scratch: Scratch,
}

/// Launches of this process so far. XLA's CPU backend tells collectives apart by launch id alone:
/// with equal ids, replicas of two clients would meet and read each other's memory.
static NUM_LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// The next unused launch id: 1 to 2^31 - 1, then again from 1. 0 would mean that the launch has
/// none.
fn next_launch_id() -> i32 {
    let before = NUM_LAUNCHES.fetch_add(1, Ordering::Relaxed) % i32::MAX as u64;
    before as i32 + 1
}

/// The name of a launch.
#[derive(Clone, Copy)]
pub(super) struct LaunchId {
    /// Unique among the launches in flight of this process.
    pub id: i32,
    /// Its number among the client's launches with host collectives.
    pub number: u64,
}

/// Pointer arrays of a launch, reused by the next one.
#[derive(Default)]
pub(super) struct Scratch {
    pub arguments: Vec<*mut PJRT_Buffer>,
    pub argument_lists: Vec<*const *mut PJRT_Buffer>,
    pub output_lists: Vec<*mut *mut PJRT_Buffer>,
    pub events: Vec<*mut PJRT_Event>,
    pub non_donatable: Vec<i64>,
}

impl Client {
    /// Makes a client. `options` are plugin specific. Through `store` the plugin's instances in
    /// several processes find each other; it is called until the client is dropped.
    ///
    /// # Errors
    /// [`Error::ClientOption`] for options that the CPU plugin would ignore or abort on; otherwise
    /// what the plugin reports.
    pub fn new(
        plugin: &Plugin,
        options: &[(&str, Value)],
        store: Option<Arc<dyn KeyValueStore>>,
    ) -> Result<Self> {
        Self::open(plugin, options, store, CpuWaits::default(), Process::ONLY)
    }

    /// A client of the CPU plugin with `num_devices` virtual devices that share the host's cores.
    ///
    /// # Errors
    /// As [`Self::new`]; `num_devices` must be at least 1.
    pub fn cpu(plugin: &Plugin, num_devices: usize) -> Result<Self> {
        Self::cpu_with(plugin, num_devices, CpuWaits::default())
    }

    /// [`Self::cpu`] for programs that may wait for more than collectives. The additional workers
    /// make a step slower.
    ///
    /// # Errors
    /// As [`Self::cpu`].
    pub fn cpu_with(plugin: &Plugin, num_devices: usize, waits: CpuWaits) -> Result<Self> {
        Self::cpu_of_process(plugin, num_devices, waits, Process::ONLY)
    }

    /// [`Self::cpu_with`] for one of several processes, each with `num_devices`. Their devices are
    /// numbered process by process. Programs for all of them have host collectives
    /// ([`Self::use_host_collectives`]), which connect the processes.
    ///
    /// # Errors
    /// As [`Self::cpu`].
    ///
    /// # Panics
    /// If the process is not one of `num_processes`.
    pub fn cpu_of_process(
        plugin: &Plugin,
        num_devices: usize,
        waits: CpuWaits,
        process: Process,
    ) -> Result<Self> {
        assert!(process.index < process.num_processes, "{process:?}");
        let count = Value::Int64(i64::try_from(num_devices).unwrap_or(i64::MAX));
        Self::open(plugin, &[(cpu::DEVICE_COUNT, count)], None, waits, process)
    }

    fn open(
        plugin: &Plugin,
        options: &[(&str, Value)],
        store: Option<Arc<dyn KeyValueStore>>,
        cpu_waits: CpuWaits,
        process: Process,
    ) -> Result<Self> {
        let num_cpu_devices = cpu::device_count(options)?;
        let mut inner = match num_cpu_devices {
            // The number of workers follows that of devices, so more devices may be created than
            // requested. The additional ones are never used.
            Some(num_devices) => {
                // Matrix products are divided among the workers, sums included. So that P processes
                // compute the bits of one with all devices, each has as many workers as that one.
                let num_devices = num_devices * process.num_processes;
                let num_workers = cpu::num_workers(num_devices, cpu_waits);
                let mut options = options.to_vec();
                options.retain(|(name, _)| *name != cpu::DEVICE_COUNT);
                options.push((cpu::DEVICE_COUNT, Value::Int64(num_workers as i64)));
                Inner::create(plugin, &options, store.clone())?
            }
            None => Inner::create(plugin, options, store.clone())?,
        };
        if inner.platform() == Platform::Cpu {
            if let Some((name, _)) = options.iter().find(|(name, _)| !cpu::OPTIONS.contains(name)) {
                return Err(Error::ClientOption {
                    name: (*name).to_owned(),
                    reason: format!(
                        "the CPU plugin does not know it; it knows {}",
                        cpu::OPTIONS.join(", ")
                    ),
                });
            }
            let Some(num_devices) = num_cpu_devices else {
                // The platform is known now: create as many devices again, with the workers that
                // they need.
                let count = Value::Int64(inner.devices.len() as i64);
                drop(inner);
                return Self::open(
                    plugin,
                    &[(cpu::DEVICE_COUNT, count)],
                    store,
                    cpu_waits,
                    process,
                );
            };
            inner.devices.truncate(num_devices);
            inner.number_among(process);
            inner.cpu_waits = cpu_waits;
        }
        let ids = inner.global_devices.iter().map(|device| device.id);
        let pairs =
            ids.enumerate().filter_map(|(replica, id)| Some((replica, inner.index_of(id)?)));
        inner.placement = Placement::new(inner.global_devices.len(), pairs);
        Ok(Self(Arc::new(inner)))
    }

    /// The plugin.
    pub fn plugin(&self) -> &Plugin {
        &self.0.plugin
    }

    /// The kind of the devices.
    pub fn platform(&self) -> Platform {
        self.0.platform()
    }

    /// The plugin's name for the kind of the devices.
    pub fn platform_name(&self) -> &str {
        &self.0.platform_name
    }

    /// The plugin's description of its version.
    pub fn platform_version(&self) -> &str {
        &self.0.platform_version
    }

    /// Index of this process among those that form one client, 0 with one process.
    pub fn process_index(&self) -> usize {
        self.0.process_index
    }

    /// The addressable devices: those of this process.
    pub fn devices(&self) -> &[Device] {
        &self.0.devices
    }

    /// The devices of all processes that form one client, in the plugin's order. With one process
    /// they are [`Self::devices`]. A device assignment may name any of them.
    pub fn global_devices(&self) -> &[DeviceDescription] {
        &self.0.global_devices
    }

    /// Where a program runs by default that has as many replicas as there are
    /// [`Self::global_devices`].
    pub fn placement(&self) -> &Placement {
        &self.0.placement
    }

    /// The placement of an executable that was compiled for `assignment` and runs on `devices`.
    /// Equal placements of a client share one allocation, so that comparing them compares pointers.
    ///
    /// # Errors
    /// [`Error::DeviceAssignment`] where the devices are not those of the assignment, in its order.
    pub(super) fn place(
        &self,
        assignment: &[i32],
        devices: &[*mut PJRT_Device],
    ) -> Result<Placement> {
        let inner = &self.0;
        let mut pairs = Vec::with_capacity(devices.len());
        for raw in devices {
            let index = inner.devices.iter().position(|device| device.raw == *raw);
            let id = index.map(|index| inner.devices[index].id);
            let replica = id.and_then(|id| assignment.iter().position(|of| *of == id));
            pairs.extend(replica.zip(index));
        }
        if pairs.len() != devices.len() || !pairs.is_sorted() {
            return Err(Error::DeviceAssignment {
                assignment: assignment.to_vec(),
                reason: "the executable was compiled for another one".into(),
            });
        }
        let placement = Placement::new(assignment.len(), pairs);
        if placement == inner.placement {
            return Ok(inner.placement.clone());
        }
        let mut known = inner.placements.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(known) = known.iter().find(|known| **known == placement) {
            return Ok(known.clone());
        }
        known.push(placement.clone());
        Ok(placement)
    }

    /// Memory statistics of the device with index `device`, or `None` if the plugin has none.
    ///
    /// # Errors
    /// [`Error::NoSuchReplica`] for an index past the devices; otherwise what the plugin reports.
    pub fn memory_stats(&self, device: usize) -> Result<Option<MemoryStats>> {
        let Some(found) = self.devices().get(device) else {
            return Err(Error::NoSuchReplica {
                replica: device,
                num_replicas: self.devices().len(),
            });
        };
        found.memory_stats(self.plugin())
    }

    /// Lets programs with host collectives ([`hlo::HostCalls`]) be compiled and run on this client
    /// of the CPU plugin.
    ///
    /// # Errors
    /// [`Error::HostCalls`] on another platform, for a plugin that cannot call functions, or if the
    /// client has some already.
    pub fn use_host_collectives(&self, collectives: Arc<dyn HostCollectives>) -> Result<()> {
        let refused = |reason: String| Err(Error::HostCalls { reason });
        if self.platform() != Platform::Cpu {
            return refused(format!(
                "the platform {} has collectives of its own",
                self.platform_name()
            ));
        }
        ffi::register_collectives(self.plugin())?;
        match self.0.host_collectives.set(collectives) {
            Ok(()) => Ok(()),
            Err(_) => refused("the client has some already".to_owned()),
        }
    }

    /// Lets programs with kernels ([`hlo::HostCalls`]) be compiled and run on this client of the
    /// CPU plugin. All clients of the process have the same kernels: those of the first call.
    ///
    /// # Errors
    /// [`Error::HostCalls`] on another platform, or for a plugin that cannot call functions.
    pub fn use_host_kernels(&self, kernels: impl FnOnce() -> Arc<dyn HostKernels>) -> Result<()> {
        if self.platform() != Platform::Cpu {
            let platform = self.platform_name();
            let reason = format!("the platform {platform} has kernels of its own");
            return Err(Error::HostCalls { reason });
        }
        ffi::register_kernels(self.plugin())?;
        ffi::set_kernels(kernels);
        self.0.has_host_kernels.store(true, Ordering::Release);
        Ok(())
    }

    /// `true` after [`Self::use_host_kernels`].
    pub fn has_host_kernels(&self) -> bool {
        self.0.has_host_kernels.load(Ordering::Acquire)
    }

    pub(super) fn host_collectives(&self) -> Option<&Arc<dyn HostCollectives>> {
        self.0.host_collectives.get()
    }

    /// `true` if the plugin knows only the devices of this process, which is one of several.
    pub(super) fn is_one_of_several(&self) -> bool {
        self.0.cpu_process.num_processes > 1
    }

    /// The plugin's own ids of the devices in an assignment, or of those of this process if it is
    /// one of several.
    pub(super) fn plugin_ids(&self, assignment: &[i32]) -> Vec<i32> {
        let offset = self.0.id_offset();
        let is_here = |id: &&i32| !self.is_one_of_several() || self.0.index_of(**id).is_some();
        assignment.iter().filter(is_here).map(|id| id - offset).collect()
    }

    /// Which waits the client's programs may contain on the CPU platform.
    pub(super) fn cpu_waits(&self) -> CpuWaits {
        self.0.cpu_waits
    }

    pub(super) fn raw(&self) -> *mut PJRT_Client {
        self.0.raw
    }

    pub(super) fn raw_device(&self, index: usize) -> *mut PJRT_Device {
        self.0.devices[index].raw
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Runs `launch` with a unique launch id. A client starts one launch at a time, so that every
    /// device gets them in the same order. Blocks while too many are in flight. Those with
    /// `has_host_collectives` get a number too.
    pub(super) fn launch(
        &self,
        has_host_collectives: bool,
        launch: impl FnOnce(LaunchId, &mut Scratch) -> Result<Completion>,
    ) -> Result<Completion> {
        let mut queue = self.0.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        while queue.launches.front().is_some_and(Completion::is_finished) {
            queue.launches.pop_front();
        }
        if queue.launches.len() >= MAX_QUEUED_LAUNCHES
            && let Some(oldest) = queue.launches.pop_front()
        {
            // An error is reported to whoever waits for that launch or its results.
            let _ = oldest.wait();
        }
        let id = LaunchId { id: next_launch_id(), number: queue.num_host_launches };
        queue.num_host_launches += u64::from(has_host_collectives);
        let completion = launch(id, &mut queue.scratch)?;
        queue.launches.push_back(completion.clone());
        Ok(completion)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({}, {} devices)", self.platform_name(), self.devices().len())
    }
}

impl Inner {
    /// Makes a client of the plugin and queries its properties.
    fn create(
        plugin: &Plugin,
        options: &[(&str, Value)],
        store: Option<Arc<dyn KeyValueStore>>,
    ) -> Result<Self> {
        let named: Vec<PJRT_NamedValue> =
            options.iter().map(|(name, value)| value::named(name, value)).collect();
        let store = store.map(Box::new);
        let mut args = PJRT_Client_Create_Args {
            create_options: named.as_ptr(),
            num_options: named.len(),
            ..PJRT_Client_Create_Args::new()
        };
        if let Some(store) = &store {
            key_value::attach(store, &mut args);
        }
        // SAFETY: the options live through the call; the key-value store lives, boxed at one
        // address, until the client is destroyed.
        unsafe { call!(plugin, PJRT_Client_Create, args) }?;
        let mut inner = Self {
            plugin: *plugin,
            raw: args.client,
            devices: Vec::new(),
            global_devices: Vec::new(),
            placement: Placement::new(0, []),
            placements: Mutex::default(),
            platform_name: String::new(),
            platform_version: String::new(),
            process_index: 0,
            cpu_process: Process::ONLY,
            cpu_waits: CpuWaits::default(),
            host_collectives: OnceLock::new(),
            has_host_kernels: AtomicBool::new(false),
            queue: Mutex::default(),
            _key_value_store: store,
        };
        inner.describe()?;
        Ok(inner)
    }

    fn platform(&self) -> Platform {
        Platform::from_name(&self.platform_name)
    }

    /// Fills in the properties that never change over the life of a client.
    fn describe(&mut self) -> Result<()> {
        let (plugin, client) = (self.plugin, self.raw);
        let mut name =
            PJRT_Client_PlatformName_Args { client, ..PJRT_Client_PlatformName_Args::new() };
        let mut version =
            PJRT_Client_PlatformVersion_Args { client, ..PJRT_Client_PlatformVersion_Args::new() };
        let mut index =
            PJRT_Client_ProcessIndex_Args { client, ..PJRT_Client_ProcessIndex_Args::new() };
        let mut devices = PJRT_Client_AddressableDevices_Args {
            client,
            ..PJRT_Client_AddressableDevices_Args::new()
        };
        let mut global = PJRT_Client_Devices_Args { client, ..PJRT_Client_Devices_Args::new() };
        // SAFETY: the client is live, and the strings and the arrays live as long as it does.
        unsafe {
            call!(plugin, PJRT_Client_PlatformName, name)?;
            call!(plugin, PJRT_Client_PlatformVersion, version)?;
            call!(plugin, PJRT_Client_ProcessIndex, index)?;
            call!(plugin, PJRT_Client_AddressableDevices, devices)?;
            call!(plugin, PJRT_Client_Devices, global)?;
            self.platform_name = string(name.platform_name, name.platform_name_size);
            self.platform_version = string(version.platform_version, version.platform_version_size);
            self.process_index = usize::try_from(index.process_index).unwrap_or(0);
            for device in slice(devices.addressable_devices, devices.num_addressable_devices) {
                self.devices.push(describe_device(plugin, *device)?);
            }
            if global.num_devices == self.devices.len() {
                // All are addressable. One order for both lists, though a plugin may have two.
                let descriptions = self.devices.iter().map(|device| device.description.clone());
                self.global_devices = descriptions.collect();
            } else {
                for device in slice(global.devices, global.num_devices) {
                    self.global_devices.push(describe_global(plugin, *device)?);
                }
            }
        }
        Ok(())
    }

    /// Makes the devices those of one of several processes that have as many each.
    fn number_among(&mut self, process: Process) {
        self.cpu_process = process;
        self.process_index = process.index;
        let num_devices = self.devices.len() as i32;
        let of_process = |process_index: usize| {
            let first = process_index as i32 * num_devices;
            self.devices.iter().map(move |device| DeviceDescription {
                id: device.id + first,
                process_index,
                ..device.description.clone()
            })
        };
        self.global_devices = (0..process.num_processes).flat_map(of_process).collect();
        let offset = self.id_offset();
        for device in &mut self.devices {
            device.description.id += offset;
            device.description.process_index = process.index;
        }
    }

    /// The difference between the ids of devices here and the plugin's own.
    fn id_offset(&self) -> i32 {
        (self.cpu_process.index * self.devices.len()) as i32
    }

    /// The place of an addressable device in `devices`.
    fn index_of(&self, id: i32) -> Option<usize> {
        self.devices.iter().position(|device| device.id == id)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let queue = self.queue.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        for launch in queue.launches.drain(..) {
            let _ = launch.wait();
        }
        let mut args =
            PJRT_Client_Destroy_Args { client: self.raw, ..PJRT_Client_Destroy_Args::new() };
        // SAFETY: nothing made through the client exists any more, since all of it holds the `Arc`
        // around `self`, and no launch is in flight.
        let _ = unsafe { call!(self.plugin, PJRT_Client_Destroy, args) };
    }
}
