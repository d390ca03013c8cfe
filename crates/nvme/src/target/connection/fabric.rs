//! Fabrics commands (base 6): connecting a queue, authenticating its host, reading and writing properties.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::auth::{AuthPolicy, AuthProgress, ControllerSecrets, ControllerSession, SessionEntropy};
use crate::command::NvmeCommand;
use crate::fabrics::{
    ANY_CONTROLLER, AuthCommand, CATTR_NO_FLOW_CONTROL, CONNECT_AUTHENTICATION, ConnectCommand, ConnectData,
    DISCOVERY_NQN, InvalidParameter, PropertyGet, PropertySet, fabrics_type,
};
use crate::nqn;
use crate::status::NvmeStatus;
use crate::target::connection::{ConnectionEnd, TargetConnection};
use crate::target::subsystems::controller::queue::{CommandReply, QueueAssociation};
use crate::target::subsystems::controller::{MAX_QUEUE, QueueRefused, ServedSubsystem, TargetController};
use crate::target::subsystems::{NoController, NvmSubsystem};
use crate::wire::array_at;

/// The largest place that a host gives to a message of authentication.
const MAX_MESSAGE_BYTES: u32 = 64 << 10;

/// How far a queue's host has proved who it is.
#[derive(Default)]
pub(in crate::target) struct AuthStage {
    is_done: bool,
    secrets: Option<ControllerSecrets>,
    session: Option<ControllerSession>,
    has_failed: bool,
}

impl AuthStage {
    pub(in crate::target) fn is_done(&self) -> bool {
        self.is_done
    }
}

/// A Connect that is refused, and with which parameter.
struct ConnectRefusal {
    status: NvmeStatus,
    parameter: Option<InvalidParameter>,
}

fn wrong_data(offset: u16) -> ConnectRefusal {
    let parameter = Some(InvalidParameter { offset, is_in_data: true });
    ConnectRefusal { status: NvmeStatus::CONNECT_INVALID_PARAMETERS.do_not_retry(), parameter }
}

fn wrong_command(offset: u16) -> ConnectRefusal {
    let parameter = Some(InvalidParameter { offset, is_in_data: false });
    ConnectRefusal { status: NvmeStatus::CONNECT_INVALID_PARAMETERS.do_not_retry(), parameter }
}

fn refused(status: NvmeStatus) -> ConnectRefusal {
    ConnectRefusal { status, parameter: None }
}

/// Places in a Connect command.
const QUEUE_ID_AT: u16 = 42;
const SQ_SIZE_AT: u16 = 44;

impl TargetConnection {
    pub(in crate::target) fn execute_fabrics(
        &mut self,
        command: &NvmeCommand,
        data: &[u8],
        reply: CommandReply,
    ) -> Result<(), ConnectionEnd> {
        if command.fabrics_type() == fabrics_type::CONNECT {
            self.connect(command, data, reply);
            return Ok(());
        }
        // A queue belongs to a controller only once it has connected.
        let Some(association) = self.queue.association() else {
            reply.status(NvmeStatus::COMMAND_SEQUENCE_ERROR.do_not_retry());
            return Ok(());
        };
        let controller = Arc::clone(&association.controller);
        let queue_id = association.queue_id;
        match command.fabrics_type() {
            fabrics_type::AUTHENTICATION_SEND => self.authentication_send(command, data, reply, &controller),
            fabrics_type::AUTHENTICATION_RECEIVE => self.authentication_receive(command, reply),
            // Behind the two commands that authenticate: no other is carried out before that is over.
            _ if !self.authenticating.is_done => {
                reply.status(NvmeStatus::AUTHENTICATION_REQUIRED.do_not_retry());
                Ok(())
            }
            fabrics_type::PROPERTY_GET if queue_id == 0 => {
                let PropertyGet { offset, is_wide } = PropertyGet::from_command(command);
                match controller.property(offset, is_wide) {
                    Some(value) => reply.result(NvmeStatus::SUCCESS, value),
                    None => reply.status(NvmeStatus::INVALID_FIELD.do_not_retry()),
                }
                Ok(())
            }
            fabrics_type::PROPERTY_SET if queue_id == 0 => {
                let PropertySet { offset, is_wide, value } = PropertySet::from_command(command);
                match controller.set_property(offset, is_wide, value) {
                    Ok(()) => reply.success(),
                    Err(status) => reply.status(status),
                }
                Ok(())
            }
            fabrics_type::DISCONNECT if queue_id != 0 => {
                // The format of the record, of which there is only one.
                if command.dwords[0] as u16 != 0 {
                    reply.status(NvmeStatus::CONNECT_INCOMPATIBLE_FORMAT.do_not_retry());
                    return Ok(());
                }
                reply.success();
                Err(ConnectionEnd::Over)
            }
            // Properties are for the admin queue, and only the other queues disconnect.
            fabrics_type::PROPERTY_GET | fabrics_type::PROPERTY_SET | fabrics_type::DISCONNECT => {
                reply.status(NvmeStatus::INVALID_QUEUE_TYPE.do_not_retry());
                Ok(())
            }
            _ => {
                reply.status(NvmeStatus::INVALID_FIELD.do_not_retry());
                Ok(())
            }
        }
    }

    fn connect(&mut self, command: &NvmeCommand, data: &[u8], reply: CommandReply) {
        if self.queue.association().is_some() {
            return reply.status(NvmeStatus::COMMAND_SEQUENCE_ERROR.do_not_retry());
        }
        if data.len() != ConnectData::BYTES {
            return reply.status(NvmeStatus::DATA_LENGTH_INVALID.do_not_retry());
        }
        let connect = ConnectCommand::from_command(command);
        let data = ConnectData::decode(&array_at(data, 0));
        match self.admit(&connect, &data) {
            Ok(controller_id) => {
                let mut result = u64::from(controller_id);
                if self.authenticating.is_done {
                    self.admitted();
                } else {
                    result |= u64::from(CONNECT_AUTHENTICATION);
                }
                reply.result(NvmeStatus::SUCCESS, result);
            }
            Err(ConnectRefusal { status, parameter }) => {
                if let Some(count) = self.shared.log.refused.count() {
                    // As the host writes them: they may hold anything, and `?` escapes it.
                    let (host, subsystem) = (&data.host_nqn, &data.subsystem_nqn);
                    let peer = self.queue.peer_name();
                    tracing::warn!(?host, ?subsystem, peer, %status, count, "a host was refused");
                }
                reply.result(status, parameter.map_or(0, InvalidParameter::to_result));
            }
        }
    }

    /// The host has authenticated, or need not. One that only asks for the list of subsystems stays a
    /// stranger.
    fn admitted(&self) {
        if self.queue.association().is_some_and(|association| association.controller.is_discovery()) {
            return;
        }
        self.queue.is_admitted.store(true, Ordering::Relaxed);
        if let Some(association) = self.queue.association().filter(|association| association.queue_id == 0) {
            let (host, subsystem) =
                (&association.controller.host_nqn, association.controller.subsystem_nqn());
            tracing::info!(?host, subsystem, peer = self.queue.peer_name(), "a host is connected");
        }
    }

    /// Connects the queue, and gives the controller's ID.
    fn admit(&mut self, connect: &ConnectCommand, data: &ConnectData) -> Result<u16, ConnectRefusal> {
        if connect.record_format != 0 {
            return Err(refused(NvmeStatus::CONNECT_INCOMPATIBLE_FORMAT.do_not_retry()));
        }
        if !(1..=MAX_QUEUE).contains(&connect.sq_size) {
            return Err(wrong_command(SQ_SIZE_AT));
        }
        // Both of discovery, too: what a host is called decides what it is shown.
        if nqn::check_host(&data.host_nqn).is_err() {
            return Err(wrong_data(ConnectData::HOST_NQN_AT));
        }
        // "Shall not be 0h" (base 6.3, and 5.27.1.25 of the feature that gives it).
        if data.host_id == [0; 16] {
            return Err(wrong_data(ConnectData::HOST_ID_AT));
        }
        let controller = if data.subsystem_nqn == DISCOVERY_NQN {
            self.discovery_controller(connect, data)?
        } else {
            let subsystem = self.shared.subsystems.get(&data.subsystem_nqn);
            let subsystem = subsystem.ok_or_else(|| wrong_data(ConnectData::SUBSYSTEM_NQN_AT))?;
            let secrets = subsystem.admit(&data.host_nqn);
            self.authenticating.secrets =
                secrets.ok_or_else(|| refused(NvmeStatus::CONNECT_INVALID_HOST.do_not_retry()))?;
            if connect.queue_id == 0 {
                self.new_controller(&subsystem, connect, data)?
            } else {
                found_controller(&subsystem, connect, data)?
            }
        };
        let added = controller.add_queue(connect.queue_id, &self.queue);
        added.map_err(|reason| match reason {
            QueueRefused::NotEnabled | QueueRefused::InUse => {
                refused(NvmeStatus::COMMAND_SEQUENCE_ERROR.do_not_retry())
            }
            QueueRefused::Over => wrong_data(ConnectData::CONTROLLER_ID_AT),
        })?;
        let controller_id = controller.id;
        controller.heard();
        let association = QueueAssociation {
            controller,
            queue_id: connect.queue_id,
            // SQSIZE is 0's based (base 6.3).
            entries: u32::from(connect.sq_size) + 1,
            has_flow_control: connect.attributes & CATTR_NO_FLOW_CONTROL == 0,
        };
        self.queue.associate(association);
        self.authenticating.is_done = self.authenticating.secrets.is_none();
        Ok(controller_id)
    }

    fn discovery_controller(
        &self,
        connect: &ConnectCommand,
        data: &ConnectData,
    ) -> Result<Arc<TargetController>, ConnectRefusal> {
        if connect.queue_id != 0 {
            return Err(wrong_command(QUEUE_ID_AT));
        }
        if data.controller_id != ANY_CONTROLLER {
            return Err(wrong_data(ConnectData::CONTROLLER_ID_AT));
        }
        Ok(self.shared.subsystems.add_discovery_controller(|id| {
            let (host_nqn, host_id) = (data.host_nqn.clone(), data.host_id);
            TargetController::new(id, ServedSubsystem::Discovery, host_nqn, host_id, connect.kato_ms, 0)
        }))
    }

    fn new_controller(
        &self,
        subsystem: &Arc<NvmSubsystem>,
        connect: &ConnectCommand,
        data: &ConnectData,
    ) -> Result<Arc<TargetController>, ConnectRefusal> {
        if data.controller_id != ANY_CONTROLLER {
            return Err(wrong_data(ConnectData::CONTROLLER_ID_AT));
        }
        await_former(subsystem, data)?;
        let max_io_queues = self.shared.config.max_io_queues;
        let made = subsystem.add_controller(|id| {
            let served = ServedSubsystem::Subsystem(Arc::clone(subsystem));
            TargetController::new(
                id,
                served,
                data.host_nqn.clone(),
                data.host_id,
                connect.kato_ms,
                max_io_queues,
            )
        });
        made.map_err(|reason| match reason {
            // Without Do Not Retry: another host may leave.
            NoController::NoneLeft => refused(NvmeStatus::CONNECT_CONTROLLER_BUSY),
            NoController::NotListed => refused(NvmeStatus::CONNECT_INVALID_HOST.do_not_retry()),
        })
    }

    fn authentication_send(
        &mut self,
        command: &NvmeCommand,
        data: &[u8],
        reply: CommandReply,
        controller: &Arc<TargetController>,
    ) -> Result<(), ConnectionEnd> {
        let fields = AuthCommand::from_command(command);
        let Some(secrets) = &self.authenticating.secrets else {
            reply.status(NvmeStatus::INVALID_FIELD.do_not_retry());
            return Ok(());
        };
        if !fields.is_nvme() || fields.length_bytes as usize != data.len() || data.is_empty() {
            reply.status(NvmeStatus::INVALID_FIELD.do_not_retry());
            return Ok(());
        }
        // A host may authenticate again on the same queue; each run needs fresh entropy.
        let is_over = |session: &ControllerSession| *session.progress() != AuthProgress::UnderWay;
        if self.authenticating.session.as_ref().is_none_or(is_over) {
            let Ok(entropy) = SessionEntropy::draw() else {
                reply.status(NvmeStatus::INTERNAL_ERROR);
                return Ok(());
            };
            let policy = AuthPolicy::default();
            let (host_nqn, nqn) = (&controller.host_nqn, controller.subsystem_nqn());
            let session = ControllerSession::new(secrets.clone(), policy, host_nqn, nqn, entropy);
            self.authenticating.session = Some(session);
        }
        // Authentication Send succeeds even if its message is refused: the next Authentication Receive says
        // so.
        let progress = self.authenticating.session.as_mut().map(|session| session.receive(data).clone());
        reply.success();
        match progress {
            Some(AuthProgress::Authenticated) => {
                self.authenticating.is_done = true;
                self.admitted();
                Ok(())
            }
            Some(AuthProgress::Failed(_)) => {
                // A host that fails to authenticate again loses what it had proven before.
                self.authenticating.is_done = false;
                self.authenticating.has_failed = true;
                if let Some(count) = self.shared.log.unproven.count() {
                    let (host, peer) = (&controller.host_nqn, self.queue.peer_name());
                    let subsystem = controller.subsystem_nqn();
                    tracing::warn!(?host, subsystem, peer, count, "a host could not prove who it is");
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn authentication_receive(
        &mut self,
        command: &NvmeCommand,
        reply: CommandReply,
    ) -> Result<(), ConnectionEnd> {
        let fields = AuthCommand::from_command(command);
        let has_failed = self.authenticating.has_failed;
        let message = self.authenticating.session.as_mut().and_then(ControllerSession::next_message);
        let place = fields.length_bytes;
        let fits = place == command.sgl.length_bytes && (1..=MAX_MESSAGE_BYTES).contains(&place);
        match message {
            _ if !fields.is_nvme() || !fits => reply.status(NvmeStatus::INVALID_FIELD.do_not_retry()),
            None => reply.status(NvmeStatus::COMMAND_SEQUENCE_ERROR.do_not_retry()),
            Some(message) if message.len() > place as usize => {
                reply.status(NvmeStatus::INVALID_FIELD.do_not_retry());
            }
            Some(mut message) => {
                // The host finds the message's end by the message itself.
                message.resize(place as usize, 0);
                reply.data(message);
            }
        }
        // A host that failed has learned why, and goes.
        if has_failed { Err(ConnectionEnd::Over) } else { Ok(()) }
    }
}

fn found_controller(
    subsystem: &Arc<NvmSubsystem>,
    connect: &ConnectCommand,
    data: &ConnectData,
) -> Result<Arc<TargetController>, ConnectRefusal> {
    let controller = subsystem.controller(data.controller_id);
    let controller = controller.ok_or_else(|| wrong_data(ConnectData::CONTROLLER_ID_AT))?;
    // Another host's controller is none of this one's business (base 6.3).
    if controller.host_nqn != data.host_nqn {
        return Err(wrong_data(ConnectData::HOST_NQN_AT));
    }
    if controller.host_id != data.host_id {
        return Err(wrong_data(ConnectData::HOST_ID_AT));
    }
    if connect.queue_id > controller.queue_count() {
        return Err(wrong_command(QUEUE_ID_AT));
    }
    // After a reset of the controller its own former queues count.
    await_former(subsystem, data)?;
    Ok(controller)
}

/// This host's commands over lost connections must not happen after its new ones.
fn await_former(subsystem: &NvmSubsystem, data: &ConnectData) -> Result<(), ConnectRefusal> {
    if subsystem.await_former(&data.host_nqn, &data.host_id) {
        Ok(())
    } else {
        // Without Do Not Retry: devices only need more time.
        Err(refused(NvmeStatus::CONNECT_CONTROLLER_BUSY))
    }
}
