//! XTS-AES-256 (IEEE 1619): a tweakable mode for stored blocks, which keeps the length.
//!
//! Data units are whole AES blocks, so ciphertext stealing never occurs. Round keys are erased when
//! dropped.

use aes::Aes256;
use aes::cipher::generic_array::GenericArray;
use aes::cipher::inout::InOutBuf;
use aes::cipher::{BlockDecrypt, BlockEncrypt, KeyInit};

/// Length of a key, in bytes: one for data, one for tweaks.
pub(super) const XTS_KEY_BYTES: usize = 64;

/// Length of an AES block, in bytes.
const CELL: usize = 16;

/// AES blocks whose tweaks are computed together: 1 KiB on the stack.
const BATCH: usize = 64;

/// A key, expanded. Boxed, because a move would leave a copy behind.
pub(super) struct Xts {
    data: Box<Aes256>,
    tweak: Box<Aes256>,
}

/// Direction of a transformation.
#[derive(Clone, Copy)]
enum Direction {
    Encrypt,
    Decrypt,
}

/// The next tweak: multiplied by α in GF(2^128).
fn next(tweak: u128) -> u128 {
    (tweak << 1) ^ ((tweak >> 127) * 0x87)
}

fn mix(data: &mut [u8], tweaks: &[u128]) {
    for (cell, tweak) in data.chunks_exact_mut(CELL).zip(tweaks) {
        let cell: &mut [u8; CELL] = cell.try_into().expect("a cell");
        *cell = (u128::from_le_bytes(*cell) ^ tweak).to_le_bytes();
    }
}

impl Xts {
    pub(super) fn new(key: &[u8; XTS_KEY_BYTES]) -> Xts {
        let (data, tweak) = key.split_at(XTS_KEY_BYTES / 2);
        let expand = |key| Box::new(Aes256::new(GenericArray::from_slice(key)));
        Xts { data: expand(data), tweak: expand(tweak) }
    }

    /// Encrypts one data unit in place.
    ///
    /// # Panics
    /// Unless the length is a multiple of 16.
    pub(super) fn encrypt(&self, tweak: [u8; CELL], data: &mut [u8]) {
        self.transform(Direction::Encrypt, tweak, data);
    }

    /// Decrypts one data unit in place.
    ///
    /// # Panics
    /// As [`Xts::encrypt`].
    pub(super) fn decrypt(&self, tweak: [u8; CELL], data: &mut [u8]) {
        self.transform(Direction::Decrypt, tweak, data);
    }

    fn transform(&self, direction: Direction, tweak: [u8; CELL], data: &mut [u8]) {
        assert!(data.len().is_multiple_of(CELL), "a data unit has whole AES blocks");
        let mut first = tweak.into();
        self.tweak.encrypt_block(&mut first);
        let mut tweak = u128::from_le_bytes(first.into());
        let mut tweaks = [0; BATCH];
        for batch in data.chunks_mut(BATCH * CELL) {
            let tweaks = &mut tweaks[..batch.len() / CELL];
            for slot in &mut *tweaks {
                *slot = tweak;
                tweak = next(tweak);
            }
            mix(batch, tweaks);
            let (cells, _) = InOutBuf::from(&mut *batch).into_chunks();
            match direction {
                Direction::Encrypt => self.data.encrypt_blocks_inout(cells),
                Direction::Decrypt => self.data.decrypt_blocks_inout(cells),
            }
            mix(batch, tweaks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
        digits.chunks(2).map(|pair| byte(pair).unwrap()).collect()
    }

    fn assert_vector(key: &str, tweak: &str, plain: &[u8], cipher: &str) {
        let xts = Xts::new(&bytes(key).try_into().unwrap());
        let tweak = bytes(tweak).try_into().unwrap();
        let mut data = plain.to_vec();
        xts.encrypt(tweak, &mut data);
        assert_eq!(data, bytes(cipher));
        xts.decrypt(tweak, &mut data);
        assert_eq!(data, plain);
    }

    /// IEEE 1619-2018, annex B, vector 10.
    #[test]
    fn ieee_vector_of_512_bytes_matches() {
        let plain: Vec<u8> = (0..512).map(|at| at as u8).collect();
        assert_vector(
            "2718281828459045235360287471352662497757247093699959574966967627
             3141592653589793238462643383279502884197169399375105820974944592",
            "ff000000000000000000000000000000",
            &plain,
            "1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b
             5d31e276f8fe4a8d66b317f9ac683f44680a86ac35adfc3345befecb4bb188fd
             5776926c49a3095eb108fd1098baec70aaa66999a72a82f27d848b21d4a741b0
             c5cd4d5fff9dac89aeba122961d03a757123e9870f8acf1000020887891429ca
             2a3e7a7d7df7b10355165c8b9a6d0a7de8b062c4500dc4cd120c0f7418dae3d0
             b5781c34803fa75421c790dfe1de1834f280d7667b327f6c8cd7557e12ac3a0f
             93ec05c52e0493ef31a12d3d9260f79a289d6a379bc70c50841473d1a8cc81ec
             583e9645e07b8d9670655ba5bbcfecc6dc3966380ad8fecb17b6ba02469a020a
             84e18e8f84252070c13e9f1f289be54fbc481457778f616015e1327a02b140f1
             505eb309326d68378f8374595c849d84f4c333ec4423885143cb47bd71c5edae
             9be69a2ffeceb1bec9de244fbe15992b11b77c040f12bd8f6a975a44a0f90c29
             a9abc3d4d893927284c58754cce294529f8614dcd2aba991925fedc4ae74ffac
             6e333b93eb4aff0479da9a410e4450e0dd7ae4c6e2910900575da401fc07059f
             645e8b7e9bfdef33943054ff84011493c27b3429eaedb4ed5376441a77ed4385
             1ad77f16f541dfd269d50d6a5f14fb0aab1cbb4c1550be97f7ab4066193c4caa
             773dad38014bd2092fa755c824bb5e54c4f36ffda9fcea70b9c6e693e148c151",
        );
    }

    /// NIST CAVS, XTSGenAES256, encryption, count 1.
    #[test]
    fn nist_vector_of_two_cells_matches() {
        assert_vector(
            "1ea661c58d943a0e4801e42f4b0947149e7f9f8e3e68d0c7505210bd311a0e7c
             d6e13ffdf2418d8d1911c004cda58da3d619b7e2b9141e58318eea392cf41b08",
            "adf8d92627464ad2f0428e84a9f87564",
            &bytes("2eedea52cd8215e1acc647e810bbc3642e87287f8d2e57e36c0a24fbc12a202e"),
            "cbaad0e2f6cea3f50b37f934d46a9b130b9d54f07e34f36af793e86f73c6d7db",
        );
    }
}
