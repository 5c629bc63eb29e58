//! XLA's CPU runtime treats denormal numbers as zero: all of its threads set their processor's
//! control register so. A program that continues on a thread of ours must find it set, or its bits
//! depend on which thread that is.

use std::marker::PhantomData;

/// The processor's control register for floats.
#[cfg(target_arch = "aarch64")]
type Register = u64;
#[cfg(not(target_arch = "aarch64"))]
type Register = u32;

/// While this lives, the current thread treats denormal operands and results as zero.
#[derive(Debug)]
#[must_use]
pub struct FlushedDenormals {
    previous: Register,
    /// The register is the thread's own.
    _not_send: PhantomData<*const ()>,
}

/// Treats denormal operands and results as zero on the current thread, as XLA's threads do. No
/// effect on processors other than x86-64 and aarch64.
pub fn flush_denormals() -> FlushedDenormals {
    let previous = control::read();
    control::write(previous | control::FLUSH);
    FlushedDenormals { previous, _not_send: PhantomData }
}

impl Drop for FlushedDenormals {
    fn drop(&mut self) {
        control::write(self.previous);
    }
}

#[cfg(target_arch = "x86_64")]
mod control {
    use std::arch::asm;

    use super::Register;

    /// Flush to zero, and denormals are zero.
    pub(super) const FLUSH: Register = 1 << 15 | 1 << 6;

    pub(super) fn read() -> Register {
        let mut value = 0;
        // SAFETY: stores the register MXCSR in `value`, and changes nothing else.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut value, options(nostack, preserves_flags)) };
        value
    }

    pub(super) fn write(value: Register) {
        // SAFETY: loads MXCSR from `value`, which was read from it but for the two bits of FLUSH:
        // no exception is unmasked.
        unsafe {
            asm!("ldmxcsr [{}]", in(reg) &raw const value, options(nostack, preserves_flags))
        };
    }
}

#[cfg(target_arch = "aarch64")]
mod control {
    use std::arch::asm;

    use super::Register;

    /// Flush to zero.
    pub(super) const FLUSH: Register = 1 << 24;

    pub(super) fn read() -> Register {
        let value;
        // SAFETY: reads the register FPCR, and changes nothing.
        unsafe { asm!("mrs {}, fpcr", out(reg) value, options(nomem, nostack, preserves_flags)) };
        value
    }

    pub(super) fn write(value: Register) {
        // SAFETY: writes to FPCR the value that was read from it, with only the bit of FLUSH
        // changed: no exception is unmasked.
        unsafe { asm!("msr fpcr, {}", in(reg) value, options(nomem, nostack, preserves_flags)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod control {
    use super::Register;

    pub(super) const FLUSH: Register = 0;

    pub(super) fn read() -> Register {
        0
    }

    pub(super) fn write(_: Register) {}
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn denormals_are_zero_until_the_guard_is_dropped() {
        let half = || black_box(f32::MIN_POSITIVE) * black_box(0.5);
        assert!(half() > 0.0);
        if control::FLUSH != 0 {
            let guard = flush_denormals();
            let flushed = half();
            drop(guard);
            assert_eq!(flushed.to_bits(), 0);
            assert!(half() > 0.0);
        }
    }
}
