package underlay.accumulo;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Map.Entry;

import org.apache.accumulo.core.client.AccumuloClient;
import org.apache.accumulo.core.client.AccumuloException;
import org.apache.accumulo.core.client.AccumuloSecurityException;
import org.apache.accumulo.core.client.Scanner;
import org.apache.accumulo.core.clientImpl.ClientContext;
import org.apache.accumulo.core.data.Key;
import org.apache.accumulo.core.data.Range;
import org.apache.accumulo.core.data.Value;
import org.apache.accumulo.core.manager.thrift.ManagerMonitorInfo;
import org.apache.accumulo.core.master.thrift.Compacting;
import org.apache.accumulo.core.master.thrift.TableInfo;
import org.apache.accumulo.core.master.thrift.TabletServerStatus;
import org.apache.accumulo.core.rpc.ThriftUtil;
import org.apache.accumulo.core.rpc.clients.ThriftClientTypes;
import org.apache.accumulo.core.security.Authorizations;
import org.apache.accumulo.core.tabletserver.thrift.ActionStats;
import org.apache.accumulo.core.tabletserver.thrift.TabletClientService;
import org.apache.accumulo.core.tabletserver.thrift.TabletStats;
import org.apache.accumulo.core.trace.TraceUtil;
import org.apache.accumulo.core.util.HostAndPort;
import org.apache.hadoop.io.Text;
import org.apache.thrift.TException;

/**
 * The figures that the manager and the tablet servers report to Accumulo's monitor. The public client has no call for them, so this
 * uses the monitor's protocol, which is specific to this version of Accumulo.
 */
final class InstanceFigures {
    private static final String METADATA = "accumulo.metadata";

    private final ClientContext context;
    private final String tableId;

    InstanceFigures(AccumuloClient client, String table) {
        context = (ClientContext) client;
        tableId = client.tableOperations().tableIdMap().get(table);
        if (tableId == null) {
            throw new IllegalArgumentException("the table '" + table + "' no longer exists");
        }
    }

    /** Whether nothing is being compacted or waiting for it, and every tablet has a server. */
    boolean atRest() throws AccumuloException, AccumuloSecurityException {
        ManagerMonitorInfo manager = ofManager();
        int busy = manager.unassignedTablets;
        for (TabletServerStatus server : manager.tServerInfo) {
            for (TableInfo info : server.tableMap.values()) {
                busy += count(info.minors, true) + count(info.majors, true);
                busy += Math.max(0, info.tablets - info.onlineTablets);
            }
        }
        return busy == 0;
    }

    Map<String, Double> read() throws Exception {
        Figures figures = new Figures();
        ManagerMonitorInfo manager = ofManager();
        figures.add("current_tablet_servers", manager.tServerInfo.size());
        figures.add("current_unassigned_tablets", manager.unassignedTablets);
        figures.add("current_dead_tablet_servers", manager.deadTabletServers.size());
        for (TabletServerStatus server : manager.tServerInfo) {
            figures.server = server.name;
            add(server, figures);
        }
        for (String server : context.instanceOperations().getTabletServers()) {
            figures.server = server;
            addTotals(HostAndPort.fromString(server), figures);
        }
        figures.server = null;
        addFiles(figures);
        return figures.values;
    }

    /** Asks each tablet server directly: what the manager knows may be ten seconds old. */
    Map<String, Double> gauges() throws Exception {
        Figures figures = new Figures();
        for (String address : context.instanceOperations().getTabletServers()) {
            HostAndPort server = HostAndPort.fromString(address);
            TabletClientService.Client client;
            try {
                client = ThriftUtil.getClient(ThriftClientTypes.TABLET_SERVER, server, context);
            } catch (TException gone) {
                // It has just died, and stays on the list for a few seconds.
                continue;
            }
            try {
                TableInfo info = client.getTabletServerStatus(TraceUtil.traceInfo(), context.rpcCreds())
                        .tableMap.get(tableId);
                if (info != null) {
                    addRunning(info, figures);
                }
            } catch (TException gone) {
                // As above.
            } finally {
                ThriftUtil.returnClient(client, context);
            }
        }
        return figures.values;
    }

    /** Of all tables, as the server itself says. */
    int onlineTablets(String address) throws TException {
        TabletClientService.Client client =
                ThriftUtil.getClient(ThriftClientTypes.TABLET_SERVER, HostAndPort.fromString(address), context);
        try {
            int online = 0;
            TabletServerStatus status = client.getTabletServerStatus(TraceUtil.traceInfo(), context.rpcCreds());
            for (TableInfo info : status.tableMap.values()) {
                online += info.onlineTablets;
            }
            return online;
        } finally {
            ThriftUtil.returnClient(client, context);
        }
    }

    private ManagerMonitorInfo ofManager() throws AccumuloException, AccumuloSecurityException {
        return ThriftClientTypes.MANAGER.execute(context,
                client -> client.getManagerStats(TraceUtil.traceInfo(), context.rpcCreds()));
    }

    private void add(TabletServerStatus server, Figures figures) {
        figures.add("lookups", server.lookups);
        figures.add("index_cache_hits", server.indexCacheHits);
        figures.add("index_cache_requests", server.indexCacheRequest);
        figures.add("data_cache_hits", server.dataCacheHits);
        figures.add("data_cache_requests", server.dataCacheRequest);
        figures.add("wal_flushes", server.flushs);
        figures.add("wal_syncs", server.syncs);
        figures.most("current_writes_held_ms", server.holdTime);
        TableInfo info = server.tableMap.get(tableId);
        if (info == null) {
            return;
        }
        figures.add("current_tablets", info.tablets);
        figures.add("current_entries", info.recs);
        figures.add("current_entries_in_memory", info.recsInMemory);
        figures.add("current_minor_compactions", count(info.minors, true));
        figures.add("current_major_compactions", count(info.majors, true));
        addRunning(info, figures);
    }

    private static void addRunning(TableInfo info, Figures figures) {
        figures.add("current_minor_compactions_running", count(info.minors, false));
        figures.add("current_major_compactions_running", count(info.majors, false));
        figures.add("current_scans_running", count(info.scans, false));
    }

    private static int count(Compacting compacting, boolean queued) {
        return compacting == null ? 0 : compacting.running + (queued ? compacting.queued : 0);
    }

    /** A server keeps the totals of closed tablets separately from those of open ones. */
    private void addTotals(HostAndPort server, Figures figures) throws Exception {
        TabletClientService.Client client;
        try {
            client = ThriftUtil.getClient(ThriftClientTypes.TABLET_SERVER, server, context);
        } catch (TException gone) {
            // It has just died, and stays on the list for a few seconds.
            return;
        }
        try {
            add(client.getHistoricalStats(TraceUtil.traceInfo(), context.rpcCreds()), figures);
            List<TabletStats> tablets =
                    client.getTabletStats(TraceUtil.traceInfo(), context.rpcCreds(), tableId);
            tablets.forEach(tablet -> add(tablet, figures));
            figures.add("current_wal_files",
                    client.getActiveLogs(TraceUtil.traceInfo(), context.rpcCreds()).size());
        } catch (TException gone) {
            // As above.
        } finally {
            ThriftUtil.returnClient(client, context);
        }
    }

    private static void add(TabletStats stats, Figures figures) {
        add("minor_compactions", stats.minors, figures);
        add("major_compactions", stats.majors, figures);
        if (stats.splits != null) {
            figures.add("tablet_splits", stats.splits.num);
        }
    }

    private static void add(String name, ActionStats stats, Figures figures) {
        if (stats != null) {
            figures.add(name, stats.num);
            figures.add(name + "_failed", stats.fail);
            figures.add(name + "_entries", stats.count);
            figures.add(name + "_seconds", stats.elapsed);
            figures.add(name + "_queued_seconds", stats.queueTime);
        }
    }

    /** The table's files, from the metadata of its tablets. */
    private void addFiles(Figures figures) throws Exception {
        try (Scanner scanner = context.createScanner(METADATA, Authorizations.EMPTY)) {
            // The rows of a table's tablets: "id;end", and "id<" for the last.
            scanner.setRange(new Range(new Text(tableId + ";"), true, new Text(tableId + "<"), true));
            scanner.fetchColumnFamily(new Text("file"));
            figures.add("current_files", 0);
            figures.add("current_file_bytes", 0);
            for (Entry<Key, Value> entry : scanner) {
                // "bytes,entries", in later versions followed by a time.
                String bytes = entry.getValue().toString().split(",", 2)[0];
                figures.add("current_files", 1);
                figures.add("current_file_bytes", Double.parseDouble(bytes));
            }
        }
    }

    private static final class Figures {
        final Map<String, Double> values = new HashMap<>();
        /** Whose figures are added. */
        String server;

        /** Totals are also told for each server, since a server that is gone takes its part of the sum with it. */
        void add(String name, double value) {
            values.merge(name, value, Double::sum);
            if (server != null && !name.startsWith("current_")) {
                values.merge("server." + server + "." + name, value, Double::sum);
            }
        }

        void most(String name, double value) {
            values.merge(name, value, Math::max);
        }
    }
}
