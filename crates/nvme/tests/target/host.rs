//! A host written by hand, which can also do what no host should.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use underlay_nvme::command::{CompletionEntry, NvmeCommand, SglDescriptor, admin};
use underlay_nvme::fabrics::{
    ANY_CONTROLLER, CC_ENABLE, CC_ENTRY_SIZES, ConnectCommand, ConnectData, PropertyGet, PropertySet,
    property,
};
use underlay_nvme::identify::{IDENTIFY_BYTES, IdentifyCommand};
use underlay_nvme::pdu::{
    ConnectionSide, DataState, DataTransfer, Digests, IcReq, Pdu, PduDecoder, PduFraming, PduReceiver,
    ReceiveError, TermReq,
};
use underlay_nvme::status::NvmeStatus;

pub(crate) const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:0d2c5f0e-0000-4000-8000-000000000001";
pub(crate) const HOST_ID: [u8; 16] = [7; 16];
/// Long, so that no test fails on a busy machine; only a target that hangs makes anybody wait for it.
const TIMEOUT: Duration = Duration::from_secs(60);

pub struct Host {
    pub stream: TcpStream,
    receiver: PduReceiver<TcpStream>,
    pub framing: PduFraming,
    last_cid: u16,
    pub controller_id: u16,
}

#[derive(Debug)]
pub struct Answer {
    pub completion: CompletionEntry,
    pub data: Vec<u8>,
    /// The answer came with the data, without a capsule of its own.
    pub is_in_data: bool,
}

impl Answer {
    pub fn status(&self) -> NvmeStatus {
        self.completion.status
    }

    pub fn expect_success(self) -> Answer {
        assert!(self.status().is_success(), "{:?}", self.status());
        self
    }
}

/// A connection's options.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    pub digests: Digests,
    pub data_alignment_bytes: u8,
    pub attributes: u8,
    pub sq_size: u16,
    pub kato_ms: u32,
}

pub(crate) const PLAIN: Style = Style {
    digests: Digests { header: false, data: false },
    data_alignment_bytes: 4,
    attributes: 0,
    sq_size: 31,
    kato_ms: 0,
};

impl Host {
    /// A connection on which nothing was said yet.
    pub fn silent(address: SocketAddr) -> Host {
        let stream = TcpStream::connect(address).expect("the target listens");
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        let framing = PduFraming::default();
        let receiver = PduReceiver::new(stream.try_clone().unwrap(), arriving(framing, 4), 64 << 10);
        Host { stream, receiver, framing, last_cid: 0, controller_id: 0 }
    }

    /// A connection that was begun.
    pub fn begun(address: SocketAddr, style: &Style) -> Host {
        let mut host = Host::silent(address);
        let Style { digests, data_alignment_bytes, .. } = *style;
        let request = IcReq { format_version: 0, data_alignment_bytes, digests, max_r2t: 1 };
        host.send(&Pdu::IcReq(request), &[]);
        let Some((Pdu::IcResp(response), _)) = host.receive() else { panic!("no ICResp") };
        assert_eq!(response.digests, digests);
        assert!(response.max_h2c_data_bytes >= 4096);
        host.framing = PduFraming { digests, data_alignment_bytes: response.data_alignment_bytes };
        host.receiver.set_arriving(arriving(host.framing, data_alignment_bytes));
        host
    }

    /// An admin queue of a controller that is ready.
    pub fn admin(address: SocketAddr, subsystem_nqn: &str, style: &Style) -> Host {
        let mut host = Host::begun(address, style);
        host.connect(0, subsystem_nqn, ANY_CONTROLLER, style).expect_success();
        host.enable();
        host
    }

    pub fn enable(&mut self) {
        let enable = PropertySet {
            offset: property::CC,
            is_wide: false,
            value: u64::from(CC_ENABLE | CC_ENTRY_SIZES),
        };
        let command = enable.to_command(self.cid());
        self.call(&command, &[]).expect_success();
        assert_eq!(self.property(property::CSTS) & 1, 1);
    }

    /// An I/O queue of the controller that another connection is the admin queue of.
    pub fn io(&self, address: SocketAddr, subsystem_nqn: &str, queue_id: u16, style: &Style) -> Host {
        let mut host = Host::begun(address, style);
        host.connect(queue_id, subsystem_nqn, self.controller_id, style).expect_success();
        host
    }

    pub fn connect(&mut self, queue_id: u16, nqn: &str, controller_id: u16, style: &Style) -> Answer {
        let data = connect_data(nqn, controller_id);
        self.connect_as(queue_id, &data, style)
    }

    pub fn connect_as(&mut self, queue_id: u16, data: &ConnectData, style: &Style) -> Answer {
        let connect = ConnectCommand {
            record_format: 0,
            queue_id,
            sq_size: style.sq_size,
            attributes: style.attributes,
            kato_ms: style.kato_ms,
        };
        let command = connect.to_command(self.cid());
        let answer = self.call(&command, &data.encode());
        self.controller_id = answer.completion.result as u16;
        answer
    }

    pub fn cid(&mut self) -> u16 {
        self.last_cid = self.last_cid.wrapping_add(1);
        self.last_cid
    }

    pub fn property(&mut self, offset: u32) -> u32 {
        let command = PropertyGet { offset, is_wide: false }.to_command(self.cid());
        self.call(&command, &[]).expect_success().completion.result as u32
    }

    pub fn identify(&mut self, cns: u8, nsid: u32) -> Answer {
        let command = IdentifyCommand::new(cns, nsid).to_command(self.cid());
        self.call(&command, &[])
    }

    pub fn identify_page(&mut self, cns: u8, nsid: u32) -> [u8; IDENTIFY_BYTES] {
        self.identify(cns, nsid).expect_success().data.try_into().expect("a whole page")
    }

    pub fn keep_alive(&mut self) -> Answer {
        let command = NvmeCommand::new(admin::KEEP_ALIVE, self.cid(), 0, SglDescriptor::empty());
        self.call(&command, &[])
    }

    pub fn send(&mut self, pdu: &Pdu, data: &[u8]) {
        let bytes = self.framing.encode(pdu, data);
        self.send_raw(&bytes);
    }

    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the target takes it");
    }

    pub fn send_command(&mut self, command: &NvmeCommand, data: &[u8]) {
        self.send(&Pdu::CapsuleCmd(command.encode()), data);
    }

    /// The next PDU and its data, or `None` when the target has ended the connection.
    pub fn receive(&mut self) -> Option<(Pdu, Vec<u8>)> {
        match self.receiver.next() {
            Ok(None) => None,
            Ok(Some((pdu, length))) => {
                let mut data = vec![0; length];
                let state = self.receiver.read_data(&mut data).expect("the data comes whole");
                assert_eq!(state, DataState::Intact);
                Some((pdu, data))
            }
            Err(ReceiveError::Io(error)) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Gives a command and takes its answer, sending the data when it is asked for.
    pub fn call(&mut self, command: &NvmeCommand, data: &[u8]) -> Answer {
        let in_capsule = if command.sgl.is_in_capsule() { data } else { &[] };
        self.send_command(command, in_capsule);
        self.finish(command, data)
    }

    pub fn finish(&mut self, command: &NvmeCommand, data: &[u8]) -> Answer {
        let mut received = vec![0; 0];
        loop {
            match self.receive().expect("an answer, not the end") {
                (Pdu::R2t(r2t), _) => {
                    assert_eq!(r2t.cid, command.cid);
                    let (from, length) = (r2t.offset_bytes as usize, r2t.length_bytes as usize);
                    self.send_data(r2t.cid, r2t.transfer_tag, from, &data[from..from + length], 10_000);
                }
                (Pdu::C2hData(transfer), piece) => {
                    assert_eq!((transfer.cid, transfer.offset_bytes as usize), (command.cid, received.len()));
                    received.extend(piece);
                    if transfer.is_success {
                        assert!(transfer.is_last);
                        let (cid, status) = (command.cid, NvmeStatus::SUCCESS);
                        let completion = CompletionEntry { result: 0, sq_head: 0, sq_id: 0, cid, status };
                        return Answer { completion, data: received, is_in_data: true };
                    }
                }
                (Pdu::CapsuleResp(bytes), _) => {
                    let completion = CompletionEntry::decode(&bytes);
                    assert_eq!(completion.cid, command.cid);
                    return Answer { completion, data: received, is_in_data: false };
                }
                (pdu, _) => panic!("{pdu:?}"),
            }
        }
    }

    /// Answers a demand for data, in pieces.
    pub fn send_data(&mut self, cid: u16, transfer_tag: u16, from: usize, data: &[u8], piece_bytes: usize) {
        let pieces = data.chunks(piece_bytes.next_multiple_of(4));
        let mut offset = from;
        for piece in pieces {
            let transfer = DataTransfer {
                cid,
                transfer_tag,
                offset_bytes: offset as u32,
                length_bytes: piece.len() as u32,
                is_last: offset + piece.len() == from + data.len(),
                is_success: false,
            };
            offset += piece.len();
            self.send(&Pdu::H2cData(transfer), piece);
        }
    }

    pub fn expect_end(mut self) {
        while let Some((pdu, _)) = self.receive() {
            assert!(matches!(pdu, Pdu::CapsuleResp(_)), "{pdu:?}");
        }
    }

    /// The target says what was wrong and ends the connection.
    pub fn expect_termination(mut self) -> TermReq {
        loop {
            match self.receive() {
                Some((Pdu::C2hTermReq(request), header)) => {
                    assert!(!header.is_empty());
                    assert!(self.receive().is_none(), "the connection is over");
                    return request;
                }
                Some((Pdu::CapsuleResp(_) | Pdu::R2t(_), _)) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

pub(crate) fn connect_data(nqn: &str, controller_id: u16) -> ConnectData {
    ConnectData {
        host_id: HOST_ID,
        controller_id,
        subsystem_nqn: nqn.to_owned(),
        host_nqn: HOST_NQN.to_owned(),
    }
}

pub(crate) fn arriving(framing: PduFraming, data_alignment_bytes: u8) -> PduDecoder {
    PduDecoder {
        side: ConnectionSide::Host,
        digests: framing.digests,
        data_alignment_bytes,
        max_capsule_data_bytes: 0,
        max_data_bytes: 16 << 20,
    }
}
