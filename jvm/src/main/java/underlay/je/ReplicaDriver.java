package underlay.je;

import java.time.Duration;
import java.util.HashMap;
import java.util.Map;

import com.sleepycat.je.EnvironmentFailureException;
import com.sleepycat.je.StatsConfig;
import com.sleepycat.je.rep.InsufficientReplicasException;
import com.sleepycat.je.rep.LockPreemptedException;
import com.sleepycat.je.rep.ReplicatedEnvironmentStats;
import com.sleepycat.je.rep.StateChangeException;

import underlay.jvm.Driver;
import underlay.jvm.NotDone;
import underlay.jvm.RemoteService;
import underlay.jvm.Values;

/**
 * A member of a replication group of Berkeley DB JE in this process, which {@link GroupDriver} calls over TCP. Properties: those of
 * {@link EmbeddedDriver} with JE's parameters of replication, {@code je.rep.*}; {@code service}, the {@code ADDRESS:PORT} for clients; and
 * {@code secret}, which they must know.
 */
public final class ReplicaDriver implements Driver {
    /** The option of a connection that only reads from a master. */
    static final String READS_FROM_MASTER = "reads-from-master";

    private ReplicaNode node;
    private RemoteService service;
    private int fields;

    @Override
    public void open(Map<String, String> properties) throws Exception {
        fields = Integer.parseInt(Configuration.required(properties, "fields"));
        node = new ReplicaNode(properties);
        node.open();
        node.keepOpen();
        service = new RemoteService(GroupDriver.address(Configuration.required(properties, "service")),
                Configuration.required(properties, "secret"), this);
    }

    @Override
    public Driver.Connection connect(Map<String, String> options) {
        return new Client(node, new Records(fields), Boolean.parseBoolean(options.get(READS_FROM_MASTER)));
    }

    @Override
    public Map<String, Double> figures() throws Exception {
        Map<String, Double> figures = EnvironmentFigures.all(node.environment());
        figures.putAll(gauges());
        ReplicatedEnvironmentStats stats = node.environment().getRepStats(new StatsConfig().setFast(true));
        EnvironmentFigures.put(figures, "acknowledged_commits", stats.getNTxnsAcked());
        EnvironmentFigures.put(figures, "unacknowledged_commits", stats.getNTxnsNotAcked());
        figures.put("acknowledgement_wait_seconds", stats.getAckWaitMs() / 1e3);
        EnvironmentFigures.put(figures, "replication_written_bytes", stats.getNProtocolBytesWritten());
        EnvironmentFigures.put(figures, "replayed_commits", stats.getNReplayCommits());
        return figures;
    }

    @Override
    public Map<String, Double> gauges() throws Exception {
        Map<String, Double> figures = new HashMap<>(EnvironmentFigures.gauges(node.environment()));
        EnvironmentFigures.put(figures, "current_masters", node.isMaster() ? 1 : 0);
        EnvironmentFigures.put(figures, "current_last_entry", node.lastEntry());
        EnvironmentFigures.put(figures, "master_changes", node.elected());
        EnvironmentFigures.put(figures, "renewed_environments", node.renewed());
        return figures;
    }

    @Override
    public void settle(Duration limit) throws Exception {
        Settling.settle(node.environment(), limit);
    }

    /**
     * {@code transfer-master NAME} hands the part of the master over to another member. {@code check-open MILLISECONDS} fails if there
     * has been no open environment for longer than that.
     */
    @Override
    public String command(String name, String argument, Duration limit) throws Exception {
        switch (name) {
            case "transfer-master" -> node.transferMaster(argument, limit.toMillis());
            case "check-open" -> node.checkOpen(Long.parseLong(argument));
            default -> {
                return Driver.super.command(name, argument, limit);
            }
        }
        return "";
    }

    /** JE would give up its environment, which is yet to be closed. */
    @Override
    public boolean mayBeInterrupted() {
        return false;
    }

    @Override
    public void close() throws Exception {
        try {
            service.close();
        } finally {
            node.close();
        }
    }

    /** An operation that a node in another state may be asked for. */
    private interface Operation<T> {
        T of(Records.Store store) throws NotDone;
    }

    private record Client(ReplicaNode node, Records records, boolean readsFromMaster) implements Driver.Connection {
        @Override
        public Outcome read(byte[] key, int field, Values into) throws NotDone {
            return reading(store -> records.read(store, key, field, into));
        }

        @Override
        public int scan(byte[] start, int limit, int field) throws NotDone {
            return reading(store -> records.scan(store, start, limit, field, null));
        }

        @Override
        public int scanRecords(byte[] start, int limit, int field, Values into) throws NotDone {
            return reading(store -> records.scan(store, start, limit, field, into));
        }

        @Override
        public Outcome update(byte[] key, Values values) throws NotDone {
            return writing(store -> {
                records.update(store, key, values);
                return Outcome.FOUND;
            });
        }

        @Override
        public Outcome insert(byte[] key, Values values) throws NotDone {
            return writing(store -> {
                records.insert(store, key, values);
                return Outcome.FOUND;
            });
        }

        @Override
        public Outcome delete(byte[] key) throws NotDone {
            return writing(store -> records.delete(store, key));
        }

        @Override
        public void close() {
            // The environment outlives its connections, which hold nothing in it.
        }

        /** A read that fails has no effect, regardless of the reason. */
        private <T> T reading(Operation<T> operation) throws NotDone {
            try {
                return operation.of(readsFromMaster ? node.masters() : node.store());
            } catch (LockPreemptedException | StateChangeException | EnvironmentFailureException
                    | IllegalStateException closed) {
                throw new NotDone(closed.getMessage(), closed);
            }
        }

        /**
         * JE throws these two before it commits. Where replicas did not acknowledge a commit in time it throws another, and then the
         * commit may be there or not.
         */
        private <T> T writing(Operation<T> operation) throws NotDone {
            try {
                return operation.of(node.masters());
            } catch (StateChangeException | InsufficientReplicasException refused) {
                throw new NotDone(refused.getMessage(), refused);
            }
        }
    }
}
