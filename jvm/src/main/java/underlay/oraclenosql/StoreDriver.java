package underlay.oraclenosql;

import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;

import oracle.kv.Consistency;
import oracle.kv.Durability;
import oracle.kv.Durability.ReplicaAckPolicy;
import oracle.kv.Durability.SyncPolicy;
import oracle.kv.KVStore;
import oracle.kv.KVStoreConfig;
import oracle.kv.KVStoreFactory;
import oracle.kv.LoginCredentials;
import oracle.kv.PasswordCredentials;
import oracle.kv.RequestLimitConfig;
import oracle.kv.stats.NodeMetrics;

import underlay.jvm.Driver;

/**
 * Oracle NoSQL Database by its own client, whose key/value interface it uses.
 *
 * <p>Properties:
 * <ul>
 * <li>{@code store}, {@code helpers}: the store's name, and {@code HOST:PORT} of some of its storage nodes, separated by commas
 * <li>{@code fields}: how many a record has
 * <li>{@code keys}: {@code value}: a record is one value under a major key; {@code minor}: each field has a minor key below it
 * <li>{@code durability}: of a write: {@code SYNC,NO_SYNC,SIMPLE_MAJORITY}: what the master does to its log, what a replica does, and
 * whose acknowledgements it waits for
 * <li>{@code consistency}: of a read: {@code absolute} or {@code none}
 * <li>{@code timeout-ms}: of an operation with all that is tried again
 * <li>{@code login-file}: the security properties of a secured store, as Oracle NoSQL Database's own clients take them
 * <li>{@code user}, {@code password}: for a secured store
 * </ul>
 */
public final class StoreDriver implements Driver {
    /** The client would refuse what more than 100 threads ask. */
    private static final int MAX_REQUESTS = 20_000;
    private static final int ALL_PERCENT = 100;

    private final LongAdder retries = new LongAdder();
    private KVStore store;
    private Records records;

    @Override
    public void open(Map<String, String> properties) throws Exception {
        long timeoutMs = Long.parseLong(required(properties, "timeout-ms"));
        Durability durability = durability(required(properties, "durability"));
        Consistency consistency = required(properties, "consistency").equals("absolute") ? Consistency.ABSOLUTE
                : Consistency.NONE_REQUIRED;
        KVStoreConfig config = new KVStoreConfig(required(properties, "store"), required(properties, "helpers").split(","))
                .setDurability(durability).setConsistency(consistency)
                // One that is shorter than a request's would end requests early.
                .setSocketReadTimeout(2 * timeoutMs, TimeUnit.MILLISECONDS)
                .setRequestTimeout(timeoutMs, TimeUnit.MILLISECONDS)
                .setRequestLimit(new RequestLimitConfig(MAX_REQUESTS, ALL_PERCENT, ALL_PERCENT));
        String loginFile = properties.get("login-file");
        if (loginFile != null) {
            Properties security = security(Path.of(loginFile));
            // A client with a user sends a password, which nobody but the store may read.
            if (!"ssl".equals(security.getProperty("oracle.kv.transport"))) {
                throw new IllegalArgumentException(loginFile + " does not say oracle.kv.transport=ssl, so a password would be sent unencrypted");
            }
            config.setSecurityProperties(security);
        }
        LoginCredentials credentials = credentials(properties);
        store = credentials == null ? KVStoreFactory.getStore(config)
                : KVStoreFactory.getStore(config, credentials, handle -> handle.login(credentials));
        Requests requests = new Requests(store, consistency, durability, timeoutMs, retries);
        int fields = Integer.parseInt(required(properties, "fields"));
        records = required(properties, "keys").equals("minor") ? new FieldRecords(requests, fields)
                : new ValueRecords(requests, fields);
    }

    private static LoginCredentials credentials(Map<String, String> properties) {
        String user = properties.get("user");
        return user == null ? null : new PasswordCredentials(user, required(properties, "password").toCharArray());
    }

    private static Properties security(Path file) throws Exception {
        Properties security = new Properties();
        try (Reader reader = Files.newBufferedReader(file)) {
            security.load(reader);
        }
        // As Oracle NoSQL Database does, which finds these files beside the one that names them.
        for (String name : new String[] {"oracle.kv.ssl.trustStore", "oracle.kv.auth.pwdfile.file", "oracle.kv.auth.wallet.dir"}) {
            String named = security.getProperty(name);
            if (named != null) {
                security.setProperty(name, file.toAbsolutePath().resolveSibling(named).toString());
            }
        }
        return security;
    }

    private static Durability durability(String text) {
        String[] parts = text.split(",");
        return new Durability(SyncPolicy.valueOf(parts[0]), SyncPolicy.valueOf(parts[1]), ReplicaAckPolicy.valueOf(parts[2]));
    }

    private static String required(Map<String, String> properties, String name) {
        String value = properties.get(name);
        if (value == null) {
            throw new IllegalArgumentException("the property '" + name + "' is missing");
        }
        return value;
    }

    /** All connections share the client, as its documentation asks for. */
    @Override
    public Driver.Connection connect(Map<String, String> options) {
        return records;
    }

    @Override
    public Map<String, Double> figures() {
        Map<String, Double> figures = gauges();
        figures.put("client_retries", (double) retries.sum());
        return figures;
    }

    /** {@code master.NAME} of each replication node: 1 for a master as far as the client knows, 0 for another. */
    @Override
    public Map<String, Double> gauges() {
        Map<String, Double> gauges = new HashMap<>();
        for (NodeMetrics node : store.getStats(false).getNodeMetrics()) {
            gauges.put("master." + node.getNodeName(), node.isActive() && node.isMaster() ? 1.0 : 0.0);
        }
        return gauges;
    }

    @Override
    public void close() {
        store.close();
    }
}
