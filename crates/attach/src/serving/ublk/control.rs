//! Creating and removing ublk devices, by commands to `/dev/ublk-control`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{opcode, types};

use super::protocol::{self, DeviceInfo, INFO_BYTES};
use crate::serving::ring::{self, ServingRing};

pub(super) const PATH: &str = "/dev/ublk-control";

pub(super) struct UblkControl {
    file: File,
    ring: ServingRing,
}

impl UblkControl {
    pub(super) fn open() -> io::Result<UblkControl> {
        let file = File::options().read(true).write(true).open(PATH)?;
        Ok(UblkControl { file, ring: ring::build(1)? })
    }

    /// Creates a device that has no block device yet; returns its number.
    pub(super) fn add(&mut self, info: DeviceInfo) -> io::Result<u32> {
        let mut bytes = info.to_bytes();
        self.run(protocol::ADD_DEVICE, info.number, &mut bytes, 0)?;
        Ok(DeviceInfo::parse(&bytes).number)
    }

    pub(super) fn info(&mut self, number: u32) -> io::Result<DeviceInfo> {
        let mut bytes = [0; INFO_BYTES];
        self.run(protocol::GET_DEVICE_INFO, number, &mut bytes, 0)?;
        Ok(DeviceInfo::parse(&bytes))
    }

    pub(super) fn set_parameters(
        &mut self,
        number: u32,
        mut parameters: [u8; protocol::PARAMETERS_BYTES],
    ) -> io::Result<()> {
        self.run(protocol::SET_PARAMETERS, number, &mut parameters, 0)
    }

    /// Creates the block device, served by this process; its threads must have fetched.
    pub(super) fn start(&mut self, number: u32) -> io::Result<()> {
        self.run(protocol::START_DEVICE, number, &mut [], u64::from(std::process::id()))
    }

    /// Removes the block device. Its dirty pages are written first, if it is being served.
    pub(super) fn stop(&mut self, number: u32) -> io::Result<()> {
        self.run(protocol::STOP_DEVICE, number, &mut [], 0)
    }

    pub(super) fn delete(&mut self, number: u32) -> io::Result<()> {
        self.run(protocol::DELETE_DEVICE_LATER, number, &mut [], 0)
            // Older kernels support only the one that waits.
            .or_else(|_| self.run(protocol::DELETE_DEVICE, number, &mut [], 0))
    }

    fn run(&mut self, command: u32, number: u32, buffer: &mut [u8], data: u64) -> io::Result<()> {
        let address = if buffer.is_empty() { 0 } else { buffer.as_mut_ptr() as u64 };
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), command)
            .cmd(protocol::control_command(number, address, buffer.len() as u16, data))
            .build();
        // SAFETY: the buffer outlives the command, which is over when this function returns.
        unsafe { self.ring.submission().push(&entry) }
            .map_err(|_| io::Error::other("the ring of the control device is full"))?;
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The kernel may still write into the buffer.
                Err(error) => {
                    tracing::error!("io_uring failed: {error}");
                    std::process::abort();
                }
            }
            let completion = self.ring.completion().next();
            if let Some(completion) = completion {
                return match completion.result() {
                    0.. => Ok(()),
                    errno => Err(io::Error::from_raw_os_error(-errno)),
                };
            }
        }
    }
}
