package underlay.accumulo;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.SortedSet;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

import org.apache.accumulo.core.client.Accumulo;
import org.apache.accumulo.core.client.AccumuloClient;
import org.apache.accumulo.core.client.Scanner;
import org.apache.accumulo.core.client.TableExistsException;
import org.apache.accumulo.core.client.admin.CompactionConfig;
import org.apache.accumulo.core.client.admin.NewTableConfiguration;
import org.apache.accumulo.core.client.security.tokens.PasswordToken;
import org.apache.accumulo.core.data.Range;
import org.apache.accumulo.core.security.Authorizations;
import org.apache.accumulo.core.security.TablePermission;
import org.apache.hadoop.io.Text;
import underlay.jvm.Driver;

/**
 * Accumulo by its official client.
 *
 * <p>Properties: those of {@code accumulo-client.properties} ({@code instance.name}, {@code instance.zookeepers},
 * {@code auth.type}, {@code auth.principal}, {@code auth.token} ...) and of a table ({@code table.split.threshold} ...) by their
 * names; and
 * <ul>
 * <li>{@code table}, {@code family}, {@code fields}: where records are stored, and how many fields each has
 * <li>{@code create}: {@code missing} creates the table if it is missing, {@code true} also sets the properties of an existing
 * one, {@code false} (the default) requires it to exist
 * <li>{@code splits}: where a new table is split, separated by commas
 * <li>{@code visibility}: the expression that every field is written with
 * <li>{@code authorizations}: the default for connections, separated by commas
 * <li>{@code grant}: authorisations to give to the user
 * <li>{@code scan-filter}: a regular expression: scans return only matching entries
 * <li>{@code settle}: {@code flush} (the default) or {@code compact}
 * <li>{@code writes}: {@code flushed} (the default): a write is answered when the server has acknowledged it; {@code batched}: when
 * it is on its way, to be acknowledged at the latest when the driver has settled. For loading
 * <li>{@code timeout-ms}: how long an operation may take
 * </ul>
 * Options of a connection: {@code authorizations}, {@code user}, {@code password}.
 */
public final class AccumuloDriver implements Driver {
    private static final String TIMEOUT_MS = "30000";
    private static final long POLL_MS = 250;
    /** Compactions come in waves: only this many idle polls in a row mean that there are none left. */
    private static final int QUIET_LOOKS = 4;
    private static final List<String> OF_CLIENT =
            List.of("instance.", "auth.", "ssl.", "sasl.", "rpc.", "batch.", "scanner.", "bulk.", "context.");

    /** The clients of other users, by name and password. */
    private final Map<Map.Entry<String, String>, AccumuloClient> clients = new HashMap<>();
    private Properties reach;
    private Map<String, String> properties;
    private AccumuloClient client;
    private RecordTable table;
    private Writes writes;
    private InstanceFigures figures;
    private long timeoutMs;

    @Override
    public void open(Map<String, String> given) throws Exception {
        properties = given;
        table = new RecordTable(given);
        timeoutMs = Long.parseLong(given.getOrDefault("timeout-ms", TIMEOUT_MS));
        reach = new Properties();
        given.forEach((name, value) -> {
            if (OF_CLIENT.stream().anyMatch(name::startsWith)) {
                reach.setProperty(name, value);
            }
        });
        client = Accumulo.newClient().from(reach).build();
        if (given.containsKey("grant")) {
            grant(list(given.get("grant")));
        }
        prepareTable(given.getOrDefault("create", "false"));
        writes = new Writes(table.name, timeoutMs, given.getOrDefault("writes", "flushed").equals("batched"));
        waitForTablets();
        figures = new InstanceFigures(client, table.name);
    }

    /** After a start, especially after a crash, it takes seconds until every tablet has a server: reading a row of each shows it. */
    private void waitForTablets() throws Exception {
        List<Text> rows = new ArrayList<>(client.tableOperations().listSplits(table.name));
        // The last tablet comes after the last split point.
        Text behind = rows.isEmpty() ? new Text() : new Text(rows.get(rows.size() - 1));
        behind.append(new byte[] {0}, 0, 1);
        rows.add(behind);
        for (Text row : rows) {
            try (Scanner scanner = client.createScanner(table.name, Authorizations.EMPTY)) {
                scanner.setRange(Range.exact(row));
                scanner.iterator().hasNext();
            }
        }
    }

    private void grant(List<String> added) throws Exception {
        String user = client.whoami();
        Authorizations has = client.securityOperations().getUserAuthorizations(user);
        SortedSet<String> all = new TreeSet<>(added);
        for (byte[] authorization : has.getAuthorizations()) {
            all.add(new String(authorization, StandardCharsets.UTF_8));
        }
        Authorizations wanted = new Authorizations(all.toArray(new String[0]));
        if (!wanted.equals(has)) {
            client.securityOperations().changeUserAuthorizations(user, wanted);
        }
    }

    private void prepareTable(String create) throws Exception {
        Map<String, String> ofTable = new HashMap<>();
        properties.forEach((name, value) -> {
            if (name.startsWith("table.")) {
                ofTable.put(name, value);
            }
        });
        if (!client.tableOperations().exists(table.name)) {
            if (create.equals("false")) {
                throw new IllegalArgumentException("there is no table '" + table.name + "' in this instance");
            }
            NewTableConfiguration configuration = new NewTableConfiguration().setProperties(ofTable);
            SortedSet<Text> splits = splits(properties.getOrDefault("splits", ""));
            if (!splits.isEmpty()) {
                configuration.withSplits(splits);
            }
            try {
                client.tableOperations().create(table.name, configuration);
                return;
            } catch (TableExistsException sooner) {
                // Another client has created it meanwhile.
            }
        }
        if (create.equals("true") && !ofTable.isEmpty()) {
            client.tableOperations().modifyProperties(table.name, present -> present.putAll(ofTable));
        }
    }

    private static SortedSet<Text> splits(String text) {
        SortedSet<Text> splits = new TreeSet<>();
        list(text).forEach(split -> splits.add(new Text(split)));
        return splits;
    }

    private static List<String> list(String text) {
        return Arrays.stream(text.split(",")).map(String::trim).filter(part -> !part.isEmpty()).toList();
    }

    @Override
    public Driver.Connection connect(Map<String, String> options) throws Exception {
        String authorized = options.getOrDefault("authorizations", properties.getOrDefault("authorizations", ""));
        Authorizations authorizations = new Authorizations(list(authorized).toArray(new String[0]));
        AccumuloClient user = clientOf(options);
        return new RecordClient(user, table, authorizations, timeoutMs, writes.writer(user));
    }

    private synchronized AccumuloClient clientOf(Map<String, String> options) {
        String user = options.get("user");
        if (user == null) {
            return client;
        }
        String password = options.getOrDefault("password", "");
        return clients.computeIfAbsent(Map.entry(user, password), same -> {
            Properties other = new Properties();
            other.putAll(reach);
            other.setProperty("auth.type", "password");
            other.setProperty("auth.principal", user);
            other.setProperty("auth.token", password);
            return Accumulo.newClient().from(other).build();
        });
    }

    @Override
    public Map<String, Double> figures() throws Exception {
        return within(Duration.ofMillis(timeoutMs), figures::read);
    }

    @Override
    public Map<String, Double> gauges() throws Exception {
        return within(Duration.ofMillis(timeoutMs), figures::gauges);
    }

    /** Flushes, compacts if requested, and waits until nothing is being compacted or moved any more. */
    @Override
    public void settle(Duration limit) throws Exception {
        within(limit, () -> {
            writes.flush();
            boolean compact = properties.getOrDefault("settle", "flush").equals("compact");
            if (compact) {
                compact();
            } else {
                client.tableOperations().flush(table.name, null, null, true);
            }
            rest();
            return "";
        });
    }

    /**
     * {@code flush} and {@code compact} wait until that is done. {@code start-compaction} does not, and compacts only what is in files,
     * since flushing first would take seconds while clients use the disks. {@code balance} waits until tablets are distributed evenly
     * and nothing is being compacted. {@code split} adds the split points of its argument. {@code create-user NAME PASSWORD} creates a
     * user that may read the table, without authorisations. {@code tablets} answers with the number of tablets that the server at the
     * address of its argument has online; it fails while there is none.
     */
    @Override
    public String command(String name, String argument, Duration limit) throws Exception {
        return within(limit, () -> {
            switch (name) {
                case "flush" -> client.tableOperations().flush(table.name, null, null, true);
                case "compact" -> compact();
                case "start-compaction" ->
                    client.tableOperations().compact(table.name, new CompactionConfig().setFlush(false).setWait(false));
                case "balance" -> rest();
                case "split" -> client.tableOperations().addSplits(table.name, splits(argument));
                case "create-user" -> createUser(argument);
                case "tablets" -> {
                    return Integer.toString(new InstanceFigures(client, table.name).onlineTablets(argument));
                }
                default -> Driver.super.command(name, argument, limit);
            }
            return "";
        });
    }

    private void compact() throws Exception {
        client.tableOperations().compact(table.name, new CompactionConfig().setFlush(true).setWait(true));
    }

    private void rest() throws Exception {
        client.instanceOperations().waitForBalance();
        for (int quiet = 0; quiet < QUIET_LOOKS; quiet = figures.atRest() ? quiet + 1 : 0) {
            Thread.sleep(POLL_MS);
        }
    }

    private void createUser(String words) throws Exception {
        String[] parts = words.split(" ", 2);
        if (parts.length != 2) {
            throw new IllegalArgumentException("'create-user' takes a name and a password");
        }
        client.securityOperations().createLocalUser(parts[0], new PasswordToken(parts[1]));
        client.securityOperations().grantTablePermission(parts[0], table.name,
                TablePermission.READ);
    }

    /** Limits calls of Accumulo's client that would wait forever. */
    private static <T> T within(Duration limit, Callable<T> work) throws Exception {
        FutureTask<T> task = new FutureTask<>(work);
        Thread thread = new Thread(task, "waiting");
        thread.setDaemon(true);
        thread.start();
        try {
            return task.get(limit.toMillis(), TimeUnit.MILLISECONDS);
        } catch (TimeoutException late) {
            throw new IllegalStateException("Accumulo did not finish within " + limit.toMillis() / 1000.0 + " s");
        } catch (ExecutionException failed) {
            if (failed.getCause() instanceof Exception cause) {
                throw cause;
            }
            throw failed;
        } finally {
            thread.interrupt();
        }
    }

    @Override
    public synchronized void close() {
        clients.values().forEach(AccumuloClient::close);
        client.close();
    }
}
