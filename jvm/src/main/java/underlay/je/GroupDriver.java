package underlay.je;

import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;

import underlay.jvm.Driver;

/**
 * The client of several replication groups, each of which has the records of one shard. Properties: {@code shards}, how many there are;
 * {@code shard.1} and so on, the {@code ADDRESS:PORT} of each member, the expected master first; {@code secret}; {@code reads}, {@code
 * master} or {@code any}; {@code timeout-ms} of an operation with all that is tried again.
 */
public final class GroupDriver implements Driver {
    private final List<Shard> shards = new ArrayList<>();
    private final LongAdder retries = new LongAdder();
    private String secret;
    private boolean readsFromMaster;
    private long timeoutMs;

    @Override
    public void open(Map<String, String> properties) {
        secret = Configuration.required(properties, "secret");
        readsFromMaster = Configuration.required(properties, "reads").equals("master");
        timeoutMs = Long.parseLong(Configuration.required(properties, "timeout-ms"));
        int count = Integer.parseInt(Configuration.required(properties, "shards"));
        for (int number = 1; number <= count; number++) {
            List<InetSocketAddress> members = new ArrayList<>();
            for (String member : Configuration.required(properties, "shard." + number).split(",")) {
                members.add(address(member));
            }
            shards.add(new Shard(members));
        }
    }

    @Override
    public Driver.Connection connect(Map<String, String> options) {
        return new GroupConnection(shards, secret, readsFromMaster, timeoutMs, retries);
    }

    @Override
    public Map<String, Double> figures() {
        Map<String, Double> figures = new HashMap<>();
        EnvironmentFigures.put(figures, "client_retries", retries.sum());
        return figures;
    }

    @Override
    public void close() {
        // Each connection closes its own.
    }

    /** {@code ADDRESS:PORT}, where the address is one in digits. */
    static InetSocketAddress address(String text) {
        int colon = text.lastIndexOf(':');
        if (colon < 0) {
            throw new IllegalArgumentException("'" + text + "' is not ADDRESS:PORT");
        }
        return new InetSocketAddress(text.substring(0, colon), Integer.parseInt(text.substring(colon + 1)));
    }
}
