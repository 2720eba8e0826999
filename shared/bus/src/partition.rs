//! The partition of a device, computed as the server computes it.

use muster_contract::DeviceKey;
use muster_contract::limits::PARTITIONS;

/// The partition of UPLINK and PRESENCE in which the server stores a device's messages: FNV-1a (32 bits) over
/// site and device without a separator, modulo [`PARTITIONS`].
pub fn partition_of(key: &DeviceKey) -> u16 {
    let bytes = key.site.as_str().bytes().chain(key.device.as_str().bytes());
    let hash = bytes.fold(FNV_OFFSET, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(FNV_PRIME));
    (hash % u32::from(PARTITIONS)) as u16
}

const FNV_OFFSET: u32 = 2_166_136_261;
const FNV_PRIME: u32 = 16_777_619;
