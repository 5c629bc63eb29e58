//! Attention, forward and backward.

use bytemuck::Pod;
use kernels::{Attention, Dropout, Element, Forward, Gradients, Pool, QueriesKeysValues};

use super::{elements, elements_mut};
use crate::pjrt::{AttentionSite, KernelCall};

/// Computes a call. Operands are q, k and v; if there is a mask, a number for each key, 0 if it is
/// hidden; if there is dropout, the words of the key, the first example and the first head. The
/// gradient's are followed by the result, the logarithms and the cotangent.
pub(super) fn run<T: Element + Pod>(
    pool: &Pool<'_>,
    site: AttentionSite,
    call: &mut KernelCall<'_>,
) -> Result<(), String> {
    let AttentionSite { num_positions, num_heads, num_kv_heads, causal, .. } = site;
    let types: Vec<_> = call.operand_types().cloned().collect();
    let num_inputs = 3 + usize::from(site.is_masked) + usize::from(site.dropout.is_some());
    let (num_operands, num_results) = match site.is_gradient {
        false => (num_inputs, 2),
        true => (num_inputs + 3, 3),
    };
    if types.len() != num_operands || call.result_types().len() != num_results {
        return Err(format!("attention has {num_operands} operands and {num_results} results"));
    }
    let &[num_rows, width] = &types[0].dims[..] else {
        return Err(format!("q is {:?}, not a matrix", types[0].dims));
    };
    if num_heads == 0 || num_positions == 0 || num_rows % num_positions != 0 {
        return Err(format!("{num_rows} rows are no examples of {num_positions} positions"));
    }
    let head_width = width / num_heads;

    let mut buffers = call.buffers();
    let operand = |index: usize| elements::<T>(buffers.operands[index]);
    let qkv = QueriesKeysValues { queries: operand(0)?, keys: operand(1)?, values: operand(2)? };
    let mask = if site.is_masked { Some(operand(3)?) } else { None };
    let dropout = match site.dropout {
        Some(rate) => match elements::<u32>(buffers.operands[num_inputs - 1])? {
            &[high, low, first_example, first_head] => {
                Some(Dropout { rate, key: [high, low], first_example, first_head })
            }
            words => return Err(format!("dropout depends on 4 words, not {}", words.len())),
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
    let [q, k, v] = &mut buffers.results[..] else { unreachable!("three, as was checked") };
    let gradients =
        Gradients { queries: elements_mut(q)?, keys: elements_mut(k)?, values: elements_mut(v)? };
    attention.backward(pool, gradients, qkv, forward, mask);
    Ok(())
}
