//! Values on devices.

use std::fmt;
use std::sync::Arc;

use hlo::{DType, Literal};

use super::abi::*;
use super::client::Client;
use super::event::Event;
use super::plugin::call;
use super::{Error, Placement, Result};

/// Dtype and dims of a value on one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ValueType {
    pub dtype: DType,
    pub dims: Box<[usize]>,
}

/// One value on all replicas: one device buffer for each replica of this process, of the same dtype
/// and dims, not necessarily of the same content.
///
/// It keeps its client alive. It is not `Clone`, so that a value given to [`super::Arg::Donate`] is
/// moved.
pub struct Buffers {
    block: Arc<Block>,
    index: usize,
}

/// All values of one launch or upload. They share one allocation for their pointers and one
/// reference to the client, because a step makes and destroys hundreds of small values.
pub(super) struct Block {
    pub client: Client,
    pub types: Arc<[ValueType]>,
    pub placement: Placement,
    /// `[pair of the placement][value]`, the order in which PJRT fills them in. Each value's
    /// pointers belong to the one [`Buffers`] with its index.
    pub pointers: Box<[*mut PJRT_Buffer]>,
}

// SAFETY: PJRT's functions on buffers may be called from any thread; the pointers are not written
// after the block was made, and each is freed by the one `Buffers` that owns it.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// One `Buffers` for each value of the block. Must be called once: the results own the
    /// pointers.
    pub fn into_values(self) -> Vec<Buffers> {
        let block = Arc::new(self);
        (0..block.types.len()).map(|index| Buffers { block: block.clone(), index }).collect()
    }

    /// [`Self::into_values`] for a block of one.
    pub fn into_value(self) -> Buffers {
        Buffers { block: Arc::new(self), index: 0 }
    }
}

impl Buffers {
    pub(super) fn block(&self) -> &Block {
        &self.block
    }

    pub(super) fn value_type(&self) -> &ValueType {
        &self.block.types[self.index]
    }

    /// The buffer on the device at this position of the placement.
    pub(super) fn pointer(&self, position: usize) -> *mut PJRT_Buffer {
        self.block.pointers[position * self.block.types.len() + self.index]
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.value_type().dtype
    }

    /// Size of each dimension, on one replica.
    pub fn dims(&self) -> &[usize] {
        &self.value_type().dims
    }

    /// Bytes of the value on one replica in host layout, without a device's padding.
    pub fn num_bytes(&self) -> usize {
        self.dims().iter().product::<usize>() * self.dtype().size_bytes()
    }

    /// Replicas that hold the value in this process.
    pub fn num_addressable(&self) -> usize {
        self.block.placement.num_addressable()
    }

    /// The replicas that hold the value in this process, and their devices.
    pub fn placement(&self) -> &Placement {
        &self.block.placement
    }

    /// The client of the devices that hold the value.
    pub fn client(&self) -> &Client {
        &self.block.client
    }

    /// `true` if the value is available on every addressable replica, `false` while the program
    /// that computes it runs.
    ///
    /// # Errors
    /// Errors of the plugin.
    pub fn is_ready(&self) -> Result<bool> {
        for position in 0..self.num_addressable() {
            if !self.ready_event(position)?.is_ready()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Blocks until the value is available on every addressable replica.
    ///
    /// # Errors
    /// [`Error::Replica`] when the program that computes it failed.
    pub fn wait(&self) -> Result<()> {
        for (position, replica) in self.placement().replicas().enumerate() {
            self.ready_event(position)?
                .wait()
                .map_err(|source| Error::Replica { replica, source: Box::new(source) })?;
        }
        Ok(())
    }

    /// Position of a replica's buffer.
    fn position(&self, replica: usize) -> Result<usize> {
        let placement = self.placement();
        placement.position(replica).ok_or_else(|| {
            let num_replicas = placement.num_replicas();
            if replica >= num_replicas {
                return Error::NoSuchReplica { replica, num_replicas };
            }
            Error::ReplicaElsewhere { replica, addressable: placement.replicas().collect() }
        })
    }

    fn ready_event(&self, position: usize) -> Result<Event> {
        let plugin = *self.client().plugin();
        let mut args = PJRT_Buffer_ReadyEvent_Args {
            buffer: self.pointer(position),
            ..PJRT_Buffer_ReadyEvent_Args::new()
        };
        // SAFETY: the buffer is live until `self` is dropped.
        unsafe { call!(plugin, PJRT_Buffer_ReadyEvent, args) }?;
        Ok(Event::new(plugin, args.event))
    }

    /// Starts copying one replica's value to the host. Replicas are numbered over all processes.
    ///
    /// # Errors
    /// [`Error::NoSuchReplica`], [`Error::ReplicaElsewhere`], or what the plugin reports.
    pub fn to_host(&self, replica: usize) -> Result<Pending> {
        let position = self.position(replica)?;
        let plugin = *self.client().plugin();
        let mut literal = Literal::zeros(self.dtype(), self.dims());
        let bytes = literal.bytes_mut();
        // Devices may store dims in another order, so host order is requested explicitly.
        let minor_to_major: Vec<i64> = (0..self.dims().len() as i64).rev().collect();
        let mut layout = PJRT_Buffer_MemoryLayout {
            tiled: PJRT_Buffer_MemoryLayout_Tiled {
                minor_to_major: minor_to_major.as_ptr(),
                minor_to_major_size: minor_to_major.len(),
                ..PJRT_Buffer_MemoryLayout_Tiled::new()
            },
            r#type: MEMORY_LAYOUT_TILED,
            ..PJRT_Buffer_MemoryLayout::new()
        };
        let mut args = PJRT_Buffer_ToHostBuffer_Args {
            src: self.pointer(position),
            host_layout: &raw mut layout,
            dst: bytes.as_mut_ptr().cast(),
            dst_size: bytes.len(),
            ..PJRT_Buffer_ToHostBuffer_Args::new()
        };
        // SAFETY: the buffer is live; the layout lives through the call; the destination has the
        // value's size and lives, unmoved and unread, in `Pending` until the event is ready.
        unsafe { call!(plugin, PJRT_Buffer_ToHostBuffer, args) }?;
        Ok(Pending {
            literal: Some(literal),
            event: Event::new(plugin, args.event),
            _client: self.client().clone(),
        })
    }

    /// [`Self::to_host`] of the first replica of this process: for values that are the same on all.
    ///
    /// # Errors
    /// As [`Self::to_host`].
    pub fn first_to_host(&self) -> Result<Pending> {
        self.to_host(self.placement().replicas().next().unwrap_or(0))
    }

    /// Copies one replica's value to the host and waits for it.
    ///
    /// # Errors
    /// As [`Self::to_host`], and [`Error::Replica`] when the program that computes the value
    /// failed.
    pub fn read(&self, replica: usize) -> Result<Literal> {
        self.to_host(replica)?
            .wait()
            .map_err(|source| Error::Replica { replica, source: Box::new(source) })
    }

    /// The address of one replica's bytes, if the plugin has one. To compare whether two values
    /// share memory, not to read from.
    ///
    /// # Errors
    /// As [`Self::to_host`].
    pub fn address(&self, replica: usize) -> Result<usize> {
        let mut args = PJRT_Buffer_UnsafePointer_Args {
            buffer: self.pointer(self.position(replica)?),
            ..PJRT_Buffer_UnsafePointer_Args::new()
        };
        // SAFETY: the buffer is live until `self` is dropped.
        unsafe { call!(self.client().plugin(), PJRT_Buffer_UnsafePointer, args) }?;
        Ok(args.buffer_pointer)
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?} on {} replicas", self.dtype(), self.dims(), self.num_addressable())
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        let api = self.block.client.plugin().api();
        let Some(destroy) = api.PJRT_Buffer_Destroy else { return };
        let mut args = PJRT_Buffer_Destroy_Args::new();
        for position in 0..self.num_addressable() {
            args.buffer = self.pointer(position);
            // SAFETY: the pointer is owned by `self`, live, and not used afterwards. Work in flight
            // that reads the memory keeps it alive inside the plugin.
            let error = unsafe { destroy(&mut args) };
            let _ = self.block.client.plugin().check("PJRT_Buffer_Destroy", error);
        }
    }
}

/// A copy to the host in progress.
#[derive(Debug)]
pub struct Pending {
    literal: Option<Literal>,
    event: Event,
    _client: Client,
}

impl Pending {
    /// `true` if the copy has finished or failed.
    ///
    /// # Errors
    /// Errors of the plugin.
    pub fn is_ready(&self) -> Result<bool> {
        self.event.is_ready()
    }

    /// Blocks until the copy has finished.
    ///
    /// # Errors
    /// Errors of the plugin: a failed copy, or the failure of the program that computes the value.
    pub fn wait(mut self) -> Result<Literal> {
        self.event.wait()?;
        Ok(self.literal.take().unwrap_or_else(|| unreachable!("taken only here")))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // The plugin may still be writing into the literal.
        if self.literal.is_some() {
            let _ = self.event.wait();
        }
    }
}

/// `PJRT_Buffer_Type` of each dtype.
const BUFFER_TYPES: [(DType, i32); 11] = [
    (DType::Pred, 1),
    (DType::I8, 2),
    (DType::I32, 4),
    (DType::I64, 5),
    (DType::U8, 6),
    (DType::U32, 8),
    (DType::U64, 9),
    (DType::F16, 10),
    (DType::F32, 11),
    (DType::F64, 12),
    (DType::Bf16, 13),
];

pub(super) fn buffer_type(dtype: DType) -> i32 {
    BUFFER_TYPES.iter().find(|row| row.0 == dtype).map_or(0, |row| row.1)
}

/// The dtype with PJRT's number, or `None` for a type that `hlo` does not have.
pub(super) fn dtype_of(buffer_type: i32) -> Option<DType> {
    BUFFER_TYPES.iter().find(|row| row.1 == buffer_type).map(|row| row.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_has_a_buffer_type() {
        for dtype in DType::ALL {
            assert_eq!(dtype_of(buffer_type(dtype)), Some(dtype));
        }
    }
}
