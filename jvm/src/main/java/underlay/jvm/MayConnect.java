package underlay.jvm;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.UnknownHostException;
import java.security.Permission;
import java.util.HashSet;
import java.util.Set;

/**
 * Holds this process to connections to a list of addresses: the library of a client finds servers by itself, and would send a password to
 * whatever it was told of.
 *
 * <p>A security manager is deprecated, and the one place that is asked before every connection, by sockets and by channels.
 */
@SuppressWarnings("removal")
final class MayConnect extends SecurityManager {
    /** {@code ADDRESS PORT}, separated by commas; port 0 is any. */
    static final String PROPERTY = "may-connect";
    /** How looking up a name is asked for, which sends nobody anything of ours. */
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

    /** From here on there are no other connections than to what {@code words} list. Any, where that is {@code null}. */
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
            // What is connected to has a number by now. For a number nobody is asked.
            InetAddress address = InetAddress.getByName(host);
            if (listed.contains(new InetSocketAddress(address, 0)) || listed.contains(new InetSocketAddress(address, port))) {
                return;
            }
        } catch (UnknownHostException unknown) {
            // Then it is not on the list.
        }
        String place = (host.contains(":") ? "[" + host + "]" : host) + ":" + port;
        throw new SecurityException("the cluster names " + place + ", and this worker may not connect to it: start it with"
                + " --may-connect " + place + " as well (or name it in UNDERLAY_MAY_CONNECT)");
    }

    @Override
    public void checkConnect(String host, int port, Object context) {
        checkConnect(host, port);
    }

    /** Everything else is as without one. */
    @Override
    public void checkPermission(Permission permission) {
    }

    @Override
    public void checkPermission(Permission permission, Object context) {
    }
}
