//! Attention, forward and backward.

use bytemuck::Pod;
use kernels::{Attention, Dropout, Element, Forward, Gradients, Heads, Pool, QueriesKeysValues};

use super::{elements, elements_mut};
use crate::pjrt::{AttentionSite, KernelCall};

/// Computes a call. Operands are q, k and v in one matrix or in three; if there is a mask, a number
/// for each key, 0 if it is hidden; if there is dropout, the words of the key and the first row.
/// The gradient's are followed by the result, the logarithms and the cotangent.
pub(super) fn run<T: Element + Pod>(
    pool: &Pool<'_>,
    site: AttentionSite,
    call: &mut KernelCall<'_>,
) -> Result<(), String> {
    let AttentionSite { num_positions, num_heads, num_kv_heads, causal, .. } = site;
    let types: Vec<_> = call.operand_types().cloned().collect();
    let num_qkv = if site.is_packed { 1 } else { 3 };
    let num_inputs = num_qkv + usize::from(site.is_masked) + usize::from(site.dropout.is_some());
    let (num_operands, num_results) = match site.is_gradient {
        false => (num_inputs, 2),
        true => (num_inputs + 3, num_qkv),
    };
    if types.len() != num_operands || call.result_types().len() != num_results {
        return Err(format!("attention has {num_operands} operands and {num_results} results"));
    }
    let &[num_rows, width] = &types[0].dims[..] else {
        return Err(format!("q is {:?}, not a matrix", types[0].dims));
    };
    let num_slots = if site.is_packed { num_heads + 2 * num_kv_heads } else { num_heads };
    if num_slots == 0 || num_positions == 0 || num_rows % num_positions != 0 {
        return Err(format!("{num_rows} rows are no examples of {num_positions} positions"));
    }
    let head_width = width / num_slots;
    let (q_width, kv_width) = (num_heads * head_width, num_kv_heads * head_width);

    let mut buffers = call.buffers();
    let operand = |index: usize| elements::<T>(buffers.operands[index]);
    let heads = |index: usize, row_stride: usize, offset: usize| {
        Ok::<_, String>(Heads { data: operand(index)?, row_stride, offset })
    };
    let qkv = match site.is_packed {
        true => QueriesKeysValues {
            queries: heads(0, width, 0)?,
            keys: heads(0, width, q_width)?,
            values: heads(0, width, q_width + kv_width)?,
        },
        false => QueriesKeysValues {
            queries: heads(0, q_width, 0)?,
            keys: heads(1, kv_width, 0)?,
            values: heads(2, kv_width, 0)?,
        },
    };
    let mask = if site.is_masked { Some(operand(num_qkv)?) } else { None };
    let dropout = match site.dropout {
        Some(rate) => match elements::<u32>(buffers.operands[num_inputs - 1])? {
            &[high, low, first_row] => Some(Dropout { rate, key: [high, low], first_row }),
            words => return Err(format!("dropout depends on 3 words, not {}", words.len())),
        },
        None => None,
    };
    let attention = Attention {
        batch: num_rows / num_positions,
        num_positions,
        num_heads,
        num_kv_heads,
        head_width,
        causal,
        dropout,
    };
    if !site.is_gradient {
        let [y, lse] = &mut buffers.results[..] else { unreachable!("two, as was checked") };
        attention.forward(pool, elements_mut(y)?, elements_mut(lse)?, qkv, mask);
        return Ok(());
    }
    let forward = Forward {
        y: operand(num_inputs)?,
        lse: operand(num_inputs + 1)?,
        cotangent: operand(num_inputs + 2)?,
    };
    let gradients = match &mut buffers.results[..] {
        [qkv] => Gradients::Packed(elements_mut(qkv)?),
        [q, k, v] => Gradients::Separate([elements_mut(q)?, elements_mut(k)?, elements_mut(v)?]),
        _ => unreachable!("one or three, as was checked"),
    };
    attention.backward(pool, gradients, qkv, forward, mask);
    Ok(())
}
