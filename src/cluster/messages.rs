//! Messages between workers, supervisors and the coordinator, and the first one of a link: protocol
//! buffers, as `messages/cluster.proto` says.
//!
//! A [`CallBody`] is answered by a [`ReplyBody`]. The connection is one of those who have the token
//! of the job: see [`token_tls`](super::token_tls).

use std::time::Duration;

pub(super) use generated::call_body::Ask;
pub(super) use generated::directive_row::Kind as DirectiveKind;
pub(super) use generated::reply_body::Answer as Reply;
pub(super) use generated::*;

/// What prost makes of the file, so that nothing needs `protoc`; `tests/project/messages.rs`
/// compares it.
#[allow(dead_code, clippy::all, reason = "generated")]
mod generated {
    include!("messages/generated.rs");
}

/// The path of the gRPC method.
pub(super) const CALL: &str = "/lockstep.Coordinator/Call";

/// The largest request that the coordinator reads. A value of the key-value store must fit.
pub(super) const MAX_REQUEST_BYTES: usize = 4 << 20;
/// The largest response that a session reads: a gather holds the values of all processes.
pub(super) const MAX_RESPONSE_BYTES: usize = 64 << 20;

pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Reply {
    pub fn refused(why: Why, message: impl Into<String>) -> Self {
        Self::Refused(Refused { why: why.into(), message: message.into() })
    }
}
