package underlay.jvm;

import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.NavigableMap;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.atomic.LongAdder;

/** A sorted map in this process, for measuring the overhead of this process and testing the meaning of operations. */
public final class MemoryDriver implements Driver {
    private final NavigableMap<byte[], SortedMap<Integer, byte[]>> records =
            new ConcurrentSkipListMap<>(Arrays::compareUnsigned);
    private final LongAdder reads = new LongAdder();
    private final LongAdder writes = new LongAdder();
    private final LongAdder connections = new LongAdder();

    @Override
    public void open(Map<String, String> properties) {
        String refusal = properties.get("refuse");
        if (refusal != null) {
            throw new IllegalArgumentException(refusal);
        }
    }

    @Override
    public Driver.Connection connect(Map<String, String> options) {
        return new Client(options.getOrDefault("prefix", ""));
    }

    @Override
    public Map<String, Double> figures() {
        return Map.of("reads", (double) reads.sum(), "writes", (double) writes.sum(), "current_connections",
                (double) connections.sum(), "current_records", (double) records.size());
    }

    @Override
    public Map<String, Double> gauges() {
        return Map.of("current_connections", (double) connections.sum());
    }

    /** {@code wait} answers as late as the limit says; {@code echo} with its argument; {@code connect HOST PORT} makes two connections. */
    @Override
    public String command(String name, String argument, Duration limit) throws Exception {
        switch (name) {
            case "echo" -> {
                return argument;
            }
            case "wait" -> {
                Thread.sleep(limit.toMillis());
                return "";
            }
            case "connect" -> {
                String[] place = argument.split(" ");
                InetSocketAddress address = new InetSocketAddress(place[0], Integer.parseInt(place[1]));
                try (SocketChannel channel = SocketChannel.open(address); Socket socket = new Socket()) {
                    socket.connect(address);
                    return channel.isConnected() ? "connected" : "";
                }
            }
            default -> {
                return Driver.super.command(name, argument, limit);
            }
        }
    }

    @Override
    public void close() {
        records.clear();
    }

    private final class Client implements Driver.Connection {
        /** A prefix for every key of this connection. */
        private final byte[] prefix;

        Client(String prefix) {
            this.prefix = prefix.getBytes(StandardCharsets.UTF_8);
            connections.increment();
        }

        private byte[] full(byte[] key) {
            if (prefix.length == 0) {
                return key;
            }
            byte[] full = Arrays.copyOf(prefix, prefix.length + key.length);
            System.arraycopy(key, 0, full, prefix.length, key.length);
            return full;
        }

        @Override
        public Outcome read(byte[] key, int field, Values into) {
            reads.increment();
            SortedMap<Integer, byte[]> record = records.get(full(key));
            if (record == null) {
                return Outcome.MISSING;
            }
            copy(record, field, into);
            return Outcome.FOUND;
        }

        private static void copy(SortedMap<Integer, byte[]> record, int field, Values into) {
            if (field == ALL_FIELDS) {
                record.forEach(into::add);
            } else if (record.containsKey(field)) {
                into.add(field, record.get(field));
            }
        }

        @Override
        public int scan(byte[] start, int limit, int field) {
            reads.increment();
            return (int) records.tailMap(full(start), true).keySet().stream().limit(limit).count();
        }

        @Override
        public int scanRecords(byte[] start, int limit, int field, Values into) {
            reads.increment();
            int count = 0;
            for (Map.Entry<byte[], SortedMap<Integer, byte[]>> record : records.tailMap(full(start), true).entrySet()) {
                if (count == limit) {
                    break;
                }
                byte[] key = record.getKey();
                int prefixed = Math.min(prefix.length, key.length);
                into.add(Values.RECORD_KEY, key, prefixed, key.length - prefixed);
                copy(record.getValue(), field, into);
                count++;
            }
            return count;
        }

        @Override
        public Outcome update(byte[] key, Values values) {
            writes.increment();
            // Records are never changed in place, because another connection may be reading them.
            SortedMap<Integer, byte[]> updated = records.computeIfPresent(full(key), (same, old) -> {
                SortedMap<Integer, byte[]> record = new TreeMap<>(old);
                put(values, record);
                return record;
            });
            return updated == null ? Outcome.MISSING : Outcome.FOUND;
        }

        @Override
        public Outcome insert(byte[] key, Values values) {
            writes.increment();
            SortedMap<Integer, byte[]> record = new TreeMap<>();
            put(values, record);
            records.put(full(key), record);
            return Outcome.FOUND;
        }

        @Override
        public Outcome delete(byte[] key) {
            writes.increment();
            return records.remove(full(key)) == null ? Outcome.MISSING : Outcome.FOUND;
        }

        @Override
        public void close() {
            connections.decrement();
        }

        private static void put(Values values, SortedMap<Integer, byte[]> record) {
            for (int place = 0; place < values.size(); place++) {
                record.put(values.field(place), values.copy(place));
            }
        }
    }
}
