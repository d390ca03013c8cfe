//! The kernel's ublk interface, after `<linux/ublk_cmd.h>`: commands, parameters, and requests parsed from a queue's
//! descriptors.

// Commands to `/dev/ublk-control`, as ioctl numbers.
pub(super) const GET_DEVICE_INFO: u32 = 0x8020_7502;
pub(super) const ADD_DEVICE: u32 = 0xC020_7504;
pub(super) const DELETE_DEVICE: u32 = 0xC020_7505;
pub(super) const START_DEVICE: u32 = 0xC020_7506;
pub(super) const STOP_DEVICE: u32 = 0xC020_7507;
pub(super) const SET_PARAMETERS: u32 = 0xC020_7508;
/// Deletes without waiting for other users of the device; from Linux 6.9 on.
pub(super) const DELETE_DEVICE_LATER: u32 = 0x8020_7514;

// Commands to a device's queue.
pub(super) const FETCH: u32 = 0xC010_7520;
pub(super) const COMMIT_AND_FETCH: u32 = 0xC010_7521;

/// Commands are ioctl numbers, not the plain ones of the first kernels.
const FLAG_IOCTL_ENCODED: u64 = 1 << 6;

const SECTOR_SHIFT: u32 = 9;
/// The page size: no request is smaller, as with the loop devices.
const BLOCK_SHIFT: u8 = 12;
pub(super) const BLOCK_BYTES: u64 = 1 << BLOCK_SHIFT;

/// Lets the kernel choose the device's number.
pub(super) const ANY_NUMBER: u32 = u32::MAX;

pub(super) const INFO_BYTES: usize = 64;
pub(super) const DESCRIPTOR_BYTES: usize = 24;

/// `struct ublksrv_ctrl_dev_info`, the part that matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceInfo {
    pub number: u32,
    pub queue_depth: u16,
    pub largest_request_bytes: u32,
    /// The kernel stores it for the server and returns it to any process: it identifies our devices.
    pub tag: u64,
}

impl DeviceInfo {
    pub(super) fn to_bytes(self) -> [u8; INFO_BYTES] {
        let mut bytes = [0; INFO_BYTES];
        let queues = 1_u16;
        bytes[0..2].copy_from_slice(&queues.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.queue_depth.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.largest_request_bytes.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.number.to_ne_bytes());
        bytes[24..32].copy_from_slice(&FLAG_IOCTL_ENCODED.to_ne_bytes());
        bytes[32..40].copy_from_slice(&self.tag.to_ne_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8; INFO_BYTES]) -> DeviceInfo {
        DeviceInfo {
            number: u32::from_ne_bytes(take(bytes, 12)),
            queue_depth: u16::from_ne_bytes(take(bytes, 2)),
            largest_request_bytes: u32::from_ne_bytes(take(bytes, 8)),
            tag: u64::from_ne_bytes(take(bytes, 32)),
        }
    }
}

/// `struct ublksrv_ctrl_cmd`
pub(super) fn control_command(number: u32, address: u64, length: u16, data: u64) -> [u8; 80] {
    const NO_QUEUE: u16 = u16::MAX;
    let mut bytes = [0; 80];
    bytes[0..4].copy_from_slice(&number.to_ne_bytes());
    bytes[4..6].copy_from_slice(&NO_QUEUE.to_ne_bytes());
    bytes[6..8].copy_from_slice(&length.to_ne_bytes());
    bytes[8..16].copy_from_slice(&address.to_ne_bytes());
    bytes[16..24].copy_from_slice(&data.to_ne_bytes());
    bytes
}

/// `struct ublksrv_io_cmd` for the only queue.
pub(super) fn queue_command(slot: u16, result: i32, address: u64) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[2..4].copy_from_slice(&slot.to_ne_bytes());
    bytes[4..8].copy_from_slice(&result.to_ne_bytes());
    bytes[8..16].copy_from_slice(&address.to_ne_bytes());
    bytes
}

pub(super) const PARAMETERS_BYTES: usize = 60;

/// `struct ublk_params` with its basic part and that for discards: a disk with a volatile cache that supports FUA.
pub(super) fn parameters(
    capacity_bytes: u64,
    logical_block_bytes: u32,
    largest_request_bytes: u32,
    is_rotational: bool,
) -> [u8; PARAMETERS_BYTES] {
    const ROTATIONAL: u32 = 1 << 1;
    const VOLATILE_CACHE: u32 = 1 << 2;
    const FUA: u32 = 1 << 3;
    const BASIC_AND_DISCARD: u32 = 0b11;
    let attributes = VOLATILE_CACHE | FUA | if is_rotational { ROTATIONAL } else { 0 };
    let capacity_sectors = (capacity_bytes / BLOCK_BYTES * BLOCK_BYTES) >> SECTOR_SHIFT;
    let most_discarded_sectors = u32::MAX >> SECTOR_SHIFT;
    let granularity_bytes = 1_u32 << BLOCK_SHIFT;
    let segments = 1_u16;

    let mut bytes = [0; PARAMETERS_BYTES];
    bytes[0..4].copy_from_slice(&(PARAMETERS_BYTES as u32).to_ne_bytes());
    bytes[4..8].copy_from_slice(&BASIC_AND_DISCARD.to_ne_bytes());
    bytes[8..12].copy_from_slice(&attributes.to_ne_bytes());
    // The size of physical blocks, and of optimal and minimum requests. The logical block may be smaller, as on a 512e
    // disk.
    bytes[12..16].fill(BLOCK_SHIFT);
    bytes[12] = (logical_block_bytes.max(1).ilog2() as u8).clamp(SECTOR_SHIFT as u8, BLOCK_SHIFT);
    bytes[16..20].copy_from_slice(&(largest_request_bytes >> SECTOR_SHIFT).to_ne_bytes());
    bytes[24..32].copy_from_slice(&capacity_sectors.to_ne_bytes());
    bytes[44..48].copy_from_slice(&granularity_bytes.to_ne_bytes());
    bytes[48..52].copy_from_slice(&most_discarded_sectors.to_ne_bytes());
    bytes[52..56].copy_from_slice(&most_discarded_sectors.to_ne_bytes());
    bytes[56..58].copy_from_slice(&segments.to_ne_bytes());
    bytes
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum UblkCall {
    Read {
        offset_bytes: u64,
        length_bytes: usize,
    },
    Write {
        offset_bytes: u64,
        length_bytes: usize,
        fua: bool,
    },
    Flush,
    /// Also for writing zeros: discarded ranges of our devices read as zeros.
    Discard {
        offset_bytes: u64,
        length_bytes: u64,
    },
    /// Anything else, by its opcode.
    Other(u8),
}

/// Parses a `struct ublksrv_io_desc`. `None` for a request longer than allowed, or beyond any device, which no kernel
/// sends.
pub(super) fn parse(descriptor: &[u8; DESCRIPTOR_BYTES], largest_request_bytes: usize) -> Option<UblkCall> {
    const FUA: u32 = 1 << 13;
    let word = u32::from_ne_bytes(take(descriptor, 0));
    let length_bytes = u64::from(u32::from_ne_bytes(take(descriptor, 4))) << SECTOR_SHIFT;
    let offset_bytes = u64::from_ne_bytes(take(descriptor, 8)).checked_mul(1 << SECTOR_SHIFT);
    let length = usize::try_from(length_bytes).ok().filter(|length| *length <= largest_request_bytes);
    Some(match word as u8 {
        0 => UblkCall::Read { offset_bytes: offset_bytes?, length_bytes: length? },
        1 => UblkCall::Write { offset_bytes: offset_bytes?, length_bytes: length?, fua: word & FUA != 0 },
        2 => UblkCall::Flush,
        3 | 5 => UblkCall::Discard { offset_bytes: offset_bytes?, length_bytes },
        other => UblkCall::Other(other),
    })
}

fn take<const N: usize, const M: usize>(bytes: &[u8; M], offset: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[offset + index])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn descriptor(word: u32, sectors: u32, start_sector: u64) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[0..4].copy_from_slice(&word.to_ne_bytes());
        bytes[4..8].copy_from_slice(&sectors.to_ne_bytes());
        bytes[8..16].copy_from_slice(&start_sector.to_ne_bytes());
        bytes
    }

    /// `_IOC` of `<asm-generic/ioctl.h>`.
    fn ioctl(direction: u32, number: u32, bytes: u32) -> u32 {
        direction << 30 | bytes << 16 | u32::from(b'u') << 8 | number
    }

    #[test]
    fn commands_are_the_kernels_numbers() {
        const READ: u32 = 2;
        const BOTH: u32 = 3;
        assert_eq!(GET_DEVICE_INFO, ioctl(READ, 0x02, 32));
        assert_eq!(DELETE_DEVICE_LATER, ioctl(READ, 0x14, 32));
        for (command, number) in
            [(ADD_DEVICE, 4), (DELETE_DEVICE, 5), (START_DEVICE, 6), (STOP_DEVICE, 7), (SET_PARAMETERS, 8)]
        {
            assert_eq!(command, ioctl(BOTH, number, 32));
        }
        assert_eq!([FETCH, COMMIT_AND_FETCH], [ioctl(BOTH, 0x20, 16), ioctl(BOTH, 0x21, 16)]);
    }

    #[test]
    fn requests_are_read_from_their_descriptors() {
        const FUA: u32 = 1 << 13;
        let parse = |word, sectors, start| parse(&descriptor(word, sectors, start), 1 << 20);
        assert_eq!(parse(0, 8, 16), Some(UblkCall::Read { offset_bytes: 8192, length_bytes: 4096 }));
        let write = |fua| Some(UblkCall::Write { offset_bytes: 4096, length_bytes: 1 << 20, fua });
        assert_eq!(parse(1, 2048, 8), write(false));
        assert_eq!(parse(1 | FUA, 2048, 8), write(true));
        assert_eq!(parse(2, 0, u64::MAX), Some(UblkCall::Flush));
        let discard = Some(UblkCall::Discard { offset_bytes: 0, length_bytes: 1 << 30 });
        assert_eq!(
            [parse(3, 1 << 21, 0), parse(5, 1 << 21, 0)],
            [discard, Some(UblkCall::Discard { offset_bytes: 0, length_bytes: 1 << 30 })]
        );
        assert_eq!(parse(13, 8, 0), Some(UblkCall::Other(13)));
        assert_eq!(parse(1, 2049, 0), None, "longer than was agreed");
        assert_eq!(parse(0, 8, u64::MAX), None, "beyond what a device can hold");
    }

    #[test]
    fn parameters_match_kernel_layout() {
        let bytes = parameters((1 << 30) + 512, 4096, 1 << 20, true);
        let word = |offset| u32::from_ne_bytes(take(&bytes, offset));
        assert_eq!([word(0), word(4), word(8)], [60, 3, 0b1110]);
        assert_eq!(bytes[12..16], [12; 4]);
        assert_eq!(parameters(1 << 30, 512, 1 << 20, true)[12..16], [9, 12, 12, 12]);
        assert_eq!(word(16), 2048);
        assert_eq!(u64::from_ne_bytes(take(&bytes, 24)), 1 << 21, "whole blocks only");
        assert_eq!([word(40), word(44), word(48), word(56)], [0, 4096, 8_388_607, 1]);
        assert_eq!(u32::from_ne_bytes(take(&parameters(1 << 30, 4096, 1 << 20, false), 8)), 0b1100);
    }

    proptest! {
        #[test]
        fn device_info_reads_back(
            number in any::<u32>(), queue_depth in any::<u16>(), largest_request_bytes in any::<u32>(), tag in any::<u64>(),
        ) {
            let info = DeviceInfo { number, queue_depth, largest_request_bytes, tag };
            prop_assert_eq!(DeviceInfo::parse(&info.to_bytes()), info);
        }

        #[test]
        fn requests_fit_their_buffer(noise in any::<[u8; DESCRIPTOR_BYTES]>()) {
            if let Some(UblkCall::Read { length_bytes, .. }
                | UblkCall::Write { length_bytes, .. }) = parse(&noise, 1 << 20) {
                prop_assert!(length_bytes <= 1 << 20);
            }
        }
    }
}
