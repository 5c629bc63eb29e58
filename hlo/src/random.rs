//! Random numbers that do not depend on the number of replicas: threefry2x32.

/// Threefry-2x32 with 20 rounds on the host: the counter's two words, encrypted under the key.
///
/// Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The values
/// are those of JAX and of the Random123 library.
pub fn threefry2x32(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let schedule = [key[0], key[1], key[0] ^ key[1] ^ PARITY];
    let [mut x0, mut x1] = [counter[0].wrapping_add(key[0]), counter[1].wrapping_add(key[1])];
    for group in 0..5usize {
        for rotation in ROTATIONS[group % 2] {
            x0 = x0.wrapping_add(x1);
            x1 = x1.rotate_left(rotation) ^ x0;
        }
        x0 = x0.wrapping_add(schedule[(group + 1) % 3]);
        x1 = x1.wrapping_add(schedule[(group + 2) % 3]).wrapping_add(group as u32 + 1);
    }
    [x0, x1]
}

const PARITY: u32 = 0x1BD1_1BDA;
const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];

#[cfg(test)]
mod tests {
    use super::*;

    /// Known-answer vectors of Random123 1.14 (`kat_vectors`, threefry2x32 with 20 rounds).
    #[test]
    fn host_threefry_matches_the_published_vectors() {
        let cases = [
            ([0, 0], [0, 0], [0x6b20_0159, 0x99ba_4efe]),
            ([u32::MAX, u32::MAX], [u32::MAX, u32::MAX], [0x1cb9_96fc, 0xbb00_2be7]),
            ([0x13198a2e, 0x03707344], [0x243f6a88, 0x85a308d3], [0xc492_3a9c, 0x483d_f7a0]),
        ];
        for (key, counter, expected) in cases {
            assert_eq!(threefry2x32(key, counter), expected);
        }
    }
}
