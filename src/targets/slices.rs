//! The slices that Cloud TPU has, by topology (`2x4`) and by accelerator type (`v5litepod-8`).
//!
//! Sources: Cloud TPU documentation, the pages on v4, v5e, v5p, v6e and TPU7x. The topology of an
//! accelerator type of a three-dimensional generation is the one closest to a cube, as in the table
//! of XPK, Google's tool for clusters.

use super::chips::{Chip, TpuSpec};

/// Slices of two dims, largest side first.
const FLAT: [[usize; 2]; 8] = [[1, 1], [2, 2], [4, 2], [4, 4], [8, 4], [8, 8], [16, 8], [16, 16]];
/// Slices of three dims that are less than a cube of 4; the sides of larger ones are multiples of
/// 4.
const SMALL: [[usize; 3]; 5] = [[1, 1, 1], [2, 2, 1], [2, 2, 2], [4, 2, 2], [4, 4, 2]];
/// The side of the cubes that larger slices consist of.
const CUBE: usize = 4;
/// At most so many sizes are listed in a message.
const MAX_LISTED: usize = 10;

/// `4x4`.
pub(super) fn joined(sizes: &[usize]) -> String {
    sizes.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
}

/// `true` if Cloud has slices with these sides, largest first. Whether they are too large is not
/// considered.
pub(super) fn exists(tpu: &TpuSpec, sides: &[usize]) -> bool {
    let is_small = match sides.len() {
        2 => return FLAT.iter().any(|slice| slice == sides),
        _ => small(tpu).any(|slice| slice == sides),
    };
    is_small || sides.iter().all(|side| side.is_multiple_of(CUBE))
}

/// The slices of a generation, in words.
pub(super) fn existing(tpu: &TpuSpec) -> String {
    let list = |slices: Vec<&[usize]>| {
        let names: Vec<_> = slices.into_iter().map(|sides| joined(&in_order(sides))).collect();
        names.join(", ")
    };
    match tpu.max_bounds.len() {
        2 => format!("there are {}", list(FLAT.iter().map(|slice| &slice[..]).collect())),
        _ => format!(
            "there are {}, and those whose sides are multiples of {CUBE}",
            list(small(tpu).map(|slice| &slice[..]).collect())
        ),
    }
}

fn small(tpu: &TpuSpec) -> impl Iterator<Item = &'static [usize; 3]> {
    let has_single_chips = tpu.has_single_chips;
    SMALL.iter().filter(move |slice| has_single_chips || slice.iter().product::<usize>() > 1)
}

/// Sides in the order of Cloud's names: smallest first, but for the flat 2x2x1.
fn in_order(sides: &[usize]) -> Vec<usize> {
    let mut sides: Vec<usize> = sides.iter().rev().copied().collect();
    if sides.len() > 2 && sides.first() == Some(&1) {
        sides.rotate_left(1);
    }
    sides
}

/// The bounds that Cloud gives an accelerator type: `v5litepod-16` is 4x4, `v5p-16` 2x2x2. `size`
/// is the number after the hyphen and counts TensorCores or chips, as the type does.
///
/// # Errors
/// If there is no such type, with the types that there are.
pub(super) fn of_type(
    chip: &Chip,
    tpu: &TpuSpec,
    name: &str,
    size: usize,
) -> Result<Vec<usize>, String> {
    let units = tpu.type_units_per_chip;
    let bounds =
        |size: usize| size.is_multiple_of(units).then(|| bounds_of(tpu, size / units)).flatten();
    if let Some(bounds) = bounds(size) {
        return Ok(bounds);
    }
    let largest = tpu.max_bounds.iter().product::<usize>() * units;
    let sizes: Vec<usize> = (1..=largest).filter(|size| bounds(*size).is_some()).collect();
    let counts = if units > 1 { "TensorCores, 2 to a chip" } else { "chips" };
    let types = |sizes: &[usize]| {
        sizes.iter().map(|size| format!("{name}-{size}")).collect::<Vec<_>>().join(", ")
    };
    let known = if sizes.len() <= MAX_LISTED {
        format!("there are {}", types(&sizes))
    } else {
        let above = sizes.partition_point(|known| *known < size);
        let near: Vec<usize> =
            sizes.iter().skip(above.saturating_sub(2)).take(4).copied().collect();
        let ends: Vec<usize> = sizes.first().into_iter().chain(sizes.last()).copied().collect();
        format!(
            "they range from {}, and the nearest are {}",
            types(&ends).replace(", ", " to "),
            types(&near)
        )
    };
    Err(format!("no accelerator type of {chip} is {name}-{size}, which counts {counts}; {known}"))
}

/// The bounds of a number of chips; `None` if there is no such slice.
fn bounds_of(tpu: &TpuSpec, num_chips: usize) -> Option<Vec<usize>> {
    let of_size = |slice: &&[usize]| slice.iter().product::<usize>() == num_chips;
    if tpu.max_bounds.len() == 2 {
        return FLAT.iter().map(|slice| &slice[..]).find(of_size).map(in_order);
    }
    if let Some(slice) = small(tpu).map(|slice| &slice[..]).find(of_size) {
        return Some(in_order(slice));
    }
    if num_chips > tpu.max_bounds.iter().product() {
        return None;
    }
    // Multiples of 4, with the shortest longest side; of those, with the shortest second side.
    let sides = |max: usize| (CUBE..=max).step_by(CUBE);
    let mut longest = sides(num_chips / (CUBE * CUBE)).flat_map(|a| sides(a).map(move |b| (a, b)));
    let bounds = longest.find_map(|(a, b)| {
        let c = num_chips / (a * b);
        let is_slice = a * b * c == num_chips && c.is_multiple_of(CUBE) && (CUBE..=b).contains(&c);
        is_slice.then_some([a, b, c])
    })?;
    let fits = bounds.iter().zip(tpu.max_bounds).all(|(side, max)| side <= max);
    fits.then(|| in_order(&bounds))
}

#[cfg(test)]
mod tests {
    use super::super::chips::Family;
    use super::*;

    fn of(name: &str, size: usize) -> Result<String, String> {
        let chip = Chip::named(name).unwrap();
        let Family::Tpu(tpu) = &chip.family else { panic!("{name} is a TPU") };
        of_type(chip, tpu, name, size).map(|bounds| joined(&bounds))
    }

    /// Rows of the Cloud TPU documentation and of XPK's `system_characteristics.py`.
    #[test]
    fn accelerator_types_have_the_topology_that_cloud_gives_them() {
        let rows = [
            ("v5litepod", 1, "1x1"),
            ("v5litepod", 4, "2x2"),
            ("v5litepod", 8, "2x4"),
            ("v5litepod", 16, "4x4"),
            ("v5litepod", 32, "4x8"),
            ("v5litepod", 64, "8x8"),
            ("v5litepod", 128, "8x16"),
            ("v5litepod", 256, "16x16"),
            ("v5e", 16, "4x4"),
            ("v6e", 8, "2x4"),
            ("v6e", 256, "16x16"),
            ("v4", 8, "2x2x1"),
            ("v4", 16, "2x2x2"),
            ("v4", 32, "2x2x4"),
            ("v4", 64, "2x4x4"),
            ("v4", 128, "4x4x4"),
            ("v4", 256, "4x4x8"),
            ("v4", 512, "4x8x8"),
            ("v4", 1024, "8x8x8"),
            ("v4", 1536, "8x8x12"),
            ("v4", 2048, "8x8x16"),
            ("v4", 4096, "8x16x16"),
            ("v5p", 8, "2x2x1"),
            ("v5p", 16, "2x2x2"),
            ("v5p", 384, "4x4x12"),
            ("v5p", 512, "4x8x8"),
            ("v5p", 768, "4x8x12"),
            ("v5p", 3072, "8x12x16"),
            ("v5p", 3456, "12x12x12"),
            ("v5p", 12288, "16x16x24"),
            ("tpu7x", 2, "1x1x1"),
            ("tpu7x", 8, "2x2x1"),
            ("v7x", 32, "2x2x4"),
            ("tpu7x", 6144, "12x16x16"),
        ];
        for (name, size, topology) in rows {
            assert_eq!(of(name, size).as_deref(), Ok(topology), "{name}-{size}");
        }
    }

    #[test]
    fn an_unknown_size_is_refused_with_those_that_exist() {
        let rows = [
            ("v5litepod", 12, "there are v5litepod-1, v5litepod-4, v5litepod-8, v5litepod-16"),
            ("v6e", 512, "v6e-128, v6e-256"),
            ("v6e", 0, "counts chips"),
            ("v5p", 4, "counts TensorCores, 2 to a chip; they range from v5p-8 to v5p-12288"),
            ("v5p", 2, "the nearest are v5p-8, v5p-16"),
            ("v5p", 900, "the nearest are v5p-640, v5p-768, v5p-1024, v5p-1152"),
            ("v5p", 17920, "v5p-12288"),
            ("v4", 9, "v4-8, v4-16"),
        ];
        for (name, size, expected) in rows {
            let error = of(name, size).unwrap_err();
            assert!(error.contains(expected), "{name}-{size}: {error}");
        }
    }
}
