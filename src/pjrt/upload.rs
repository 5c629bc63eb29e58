//! Copying host values to the devices.

use std::ptr;
use std::sync::Arc;

use hlo::Literal;

use super::abi::*;
use super::buffer::{Block, Buffers, ValueType, buffer_type};
use super::client::Client;
use super::event::Event;
use super::plugin::call;
use super::{Error, Placement, Result};

impl Client {
    /// Puts one literal on each addressable device, in the order of [`Self::placement`]. All must
    /// have one dtype and dims. Where the plugin can use host memory in place, literals are lent to
    /// it rather than copied, which takes about a microsecond regardless of size.
    ///
    /// # Errors
    /// [`Error::Upload`] when number, dtypes or dims do not fit, or what the plugin reports.
    pub fn upload(&self, literals: &[Arc<Literal>]) -> Result<Buffers> {
        self.upload_on(self.placement(), literals)
    }

    /// Puts the same literal on every addressable device.
    ///
    /// # Errors
    /// As [`Self::upload`].
    pub fn upload_replicated(&self, literal: Arc<Literal>) -> Result<Buffers> {
        self.upload_on(self.placement(), &vec![literal; self.placement().num_addressable()])
    }

    /// [`Self::upload`] for the devices of an executable that runs on some of them, or in another
    /// order: one literal for each pair of [`super::Executable::placement`].
    ///
    /// # Errors
    /// As [`Self::upload`].
    pub fn upload_on(&self, placement: &Placement, literals: &[Arc<Literal>]) -> Result<Buffers> {
        let num_devices = self.devices().len();
        if placement.pairs().iter().any(|(_, device)| *device >= num_devices) {
            return Err(Error::Upload {
                reason: format!("devices {placement:?} of {num_devices}"),
            });
        }
        upload(self, placement, literals)
    }
}

/// Makes one value from one literal per pair of `placement`.
fn upload(client: &Client, placement: &Placement, literals: &[Arc<Literal>]) -> Result<Buffers> {
    let invalid = |reason: String| Err(Error::Upload { reason });
    let num_addressable = placement.num_addressable();
    if literals.len() != num_addressable {
        return invalid(format!("{} literals for {num_addressable} devices", literals.len()));
    }
    let Some(first) = literals.first() else { return invalid("no literal".into()) };
    for ((replica, _), literal) in placement.pairs().iter().zip(literals) {
        if literal.dtype() != first.dtype() || literal.dims() != first.dims() {
            return invalid(format!(
                "the literal for replica {replica} is {}{:?}, that for replica {} is {}{:?}",
                literal.dtype(),
                literal.dims(),
                placement.pairs()[0].0,
                first.dtype(),
                first.dims()
            ));
        }
    }
    let value_type = ValueType { dtype: first.dtype(), dims: first.dims().into() };
    let pointers = vec![ptr::null_mut(); literals.len()].into_boxed_slice();
    let (client, placement, types) = (client.clone(), placement.clone(), Arc::new([value_type]));
    // Made first, so that it frees the earlier buffers if an upload fails. Destroying null is
    // allowed.
    let mut block = Block { client, types, placement, pointers };
    for (position, literal) in literals.iter().enumerate() {
        let (_, device) = block.placement.pairs()[position];
        let client = block.client.clone();
        if let Err(error) = upload_one(&client, device, literal, &mut block.pointers[position]) {
            drop(block.into_value());
            return Err(error);
        }
    }
    Ok(block.into_value())
}

/// Puts a literal on a device. `buffer` is set as soon as the buffer exists, even if a later call
/// fails.
fn upload_one(
    client: &Client,
    device: usize,
    literal: &Arc<Literal>,
    buffer: &mut *mut PJRT_Buffer,
) -> Result<()> {
    let dims: Vec<i64> = literal.dims().iter().map(|dim| *dim as i64).collect();
    let mut args = PJRT_Client_BufferFromHostBuffer_Args {
        client: client.raw(),
        data: literal.bytes().as_ptr().cast(),
        r#type: buffer_type(literal.dtype()),
        dims: dims.as_ptr(),
        num_dims: dims.len(),
        host_buffer_semantics: host_buffer_semantics::IMMUTABLE_ZERO_COPY,
        device: client.raw_device(device),
        ..PJRT_Client_BufferFromHostBuffer_Args::new()
    };
    // SAFETY: client and device are live; dims live through the call; the literal has the bytes
    // that dtype and dims say, and is kept, unchanged since behind an `Arc`, until the event says
    // that the plugin has no more use for it.
    unsafe { call!(client.plugin(), PJRT_Client_BufferFromHostBuffer, args) }?;
    *buffer = args.buffer;
    let done = Event::new(*client.plugin(), args.done_with_host_buffer);
    done.keep_until_ready(literal.clone())
}
