package underlay.jvm;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.UnknownHostException;
import java.security.Permission;
import java.util.HashSet;
import java.util.Set;

/**
 * Restricts this process to connections to a list of addresses. The library of a client discovers servers by itself,
 * and would send a password to any address that it hears of.
 *
 * <p>Security managers are deprecated, but they are the only hook that both sockets and channels call before every connection.
 */
@SuppressWarnings("removal")
final class MayConnect extends SecurityManager {
    /** {@code ADDRESS PORT}, separated by commas; port 0 means all ports. */
    static final String PROPERTY = "may-connect";
    /** The port for which Java checks name lookups, which send nothing of ours to anybody. */
    private static final int LOOKING_UP = -1;

    private final Set<InetSocketAddress> listed = new HashSet<>();

    private MayConnect(String words) throws UnknownHostException {
        for (String word : words.split(",")) {
            String[] parts = word.split(" ", 2);
            if (parts.length == 2) {
                listed.add(new InetSocketAddress(InetAddress.getByName(parts[0]), Integer.parseInt(parts[1])));
            }
        }
    }

    /** From now on, only connections to the addresses in {@code words} are allowed; any if that is {@code null}. */
    static void holdTo(String words) throws UnknownHostException {
        if (words != null) {
            System.setSecurityManager(new MayConnect(words));
        }
    }

    @Override
    public void checkConnect(String host, int port) {
        if (port == LOOKING_UP) {
            return;
        }
        try {
            // By now the host is an address, for which this does no lookup.
            InetAddress address = InetAddress.getByName(host);
            if (listed.contains(new InetSocketAddress(address, 0)) || listed.contains(new InetSocketAddress(address, port))) {
                return;
            }
        } catch (UnknownHostException unknown) {
            // It is not an address, so it is not on the list.
        }
        String place = (host.contains(":") ? "[" + host + "]" : host) + ":" + port;
        throw new SecurityException("the cluster names " + place + ", and this worker may not connect to it: start it with"
                + " --may-connect " + place + " as well (or name it in UNDERLAY_MAY_CONNECT)");
    }

    @Override
    public void checkConnect(String host, int port, Object context) {
        checkConnect(host, port);
    }

    /** Everything else is permitted. */
    @Override
    public void checkPermission(Permission permission) {
    }

    @Override
    public void checkPermission(Permission permission, Object context) {
    }
}
